"""A TCP proxy on loopback that can keep a peer from learning that the other one is gone.

The one rule: bytes are passed on unchanged. It imitates a machine that vanishes without a word: the
process behind the proxy dies, and the other side's connection stays open and silent.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.ports import free_ports

READ_SIZE: Final = 1 << 16


class TcpProxy:
    """Pass connections on to one port of loopback, in threads. Enter it to start it."""

    def __init__(self, target_port: int) -> None:
        self.port = free_ports(0)
        self._target_port = target_port
        self._hides_closes = threading.Event()
        self._upstream: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._upstream:
            connection.close()

    def hide_closes(self) -> None:
        """Keep every connection to the target open from now on when its client is gone."""
        self._hides_closes.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                client.close()
                continue
            self._upstream.append(upstream)
            for way in (self._to_target, self._to_client):
                threading.Thread(target=way, args=(client, upstream), daemon=True).start()

    def _to_target(self, client: socket.socket, upstream: socket.socket) -> None:
        _pass_on(client, upstream)
        _close(client)
        if not self._hides_closes.is_set():
            _close(upstream)

    def _to_client(self, client: socket.socket, upstream: socket.socket) -> None:
        _pass_on(upstream, client)
        _close(client)
        if not self._hides_closes.is_set():
            _close(upstream)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(READ_SIZE):
            sink.sendall(data)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
