"""Blocking connection to a name server or broker.

Spark's Python workers and probes do one thing at a time, so a socket and a deadline are all they
need. asyncio would cost each new process 30 ms. After any error the connection is dead, and a retry
opens a new one. Routes and retries are unknown here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from turbopump.config.addresses import name_fault, parse_address
from turbopump.errors import CallTimeoutError, ConfigError, ConnectError, ConnectionLostError
from turbopump.protocol.command import Command, decode_command, encode_command, request_command
from turbopump.protocol.frame import FrameReader
from turbopump.protocol.request import Request

if TYPE_CHECKING:
    import ssl

    from turbopump.remoting.tls import ClientContext

_RECEIVE_SIZE: Final = 256 << 10


class BlockingConnection:
    """Blocking connection to a name server or broker, opened by the constructor.

    ``address`` has the form ``host:port``. Raises ConnectError if the connection is not open within
    ``timeout`` seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        signer: Callable[[Mapping[str, str] | None, bytes], dict[str, str]] | None = None,
        tls: ClientContext | None = None,
    ) -> None:
        self.address = address
        self._signer = signer
        self._frames = FrameReader()
        self._opaques = range(1, 1)
        self._asked = ""
        """Name of the last request, for errors."""
        try:
            host, port = parse_address(address)
        except ConfigError as error:  # the address comes from a server
            raise ConnectError(f"no connection to {address}: {error}") from None
        fault = name_fault(host)
        if fault is not None:
            raise ConnectError(f"no connection to {address}: {fault}")
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {error.strerror or error}") from None
        if tls is not None:
            self._start_tls(tls.context_at(time.monotonic()), host)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _start_tls(self, context: ssl.SSLContext, host: str) -> None:
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            self._socket.close()
            from turbopump.remoting.tls import failure_words

            why = failure_words(error)
            raise ConnectError(f"no TLS connection to {self.address}: {why}") from None

    def exchange_all(self, requests: Sequence[Request[Any]], *, timeout: float) -> list[Command]:
        """Send all requests at once and wait. Return the answers in the order of the requests.

        An answer with an error code is returned like any other. Raises CallTimeoutError,
        ConnectionLostError, FrameError or HeaderError.
        """
        self.send(requests, timeout=timeout)
        return self.receive(timeout=timeout)

    def send(self, requests: Sequence[Request[Any]], *, timeout: float) -> None:
        """Send all requests at once, without waiting for the answers.

        The caller must call ``receive`` before the next ``send``.
        """
        self._opaques = range(self._opaques.stop, self._opaques.stop + len(requests))
        self._asked = type(requests[0]).__name__
        commands = [
            request_command(each, opaque=at)
            for at, each in zip(self._opaques, requests, strict=True)
        ]
        if self._signer is not None:
            for command in commands:
                command.ext = self._signer(command.ext, command.body)
        with self._socket_errors_translated(timeout):
            self._socket.settimeout(timeout)
            self._socket.sendall(b"".join(map(encode_command, commands)))

    def receive(self, *, timeout: float) -> list[Command]:
        """Wait for the answers to the last ``send``. Return them in the order of its requests."""
        deadline = time.monotonic() + timeout
        answers: list[Command | None] = [None] * len(self._opaques)
        missing = len(answers)
        with self._socket_errors_translated(timeout):
            while missing:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._socket.recv(_RECEIVE_SIZE)
                if not data:
                    raise ConnectionLostError(
                        f"{self.address} closed the connection before it answered {self._asked}"
                    )
                for frame in self._frames.feed(data):
                    command = decode_command(frame)
                    at = command.opaque - self._opaques.start
                    # A broker may also send requests (such as 40, the group changed); they are
                    # ignored.
                    if command.is_response and 0 <= at < len(answers) and answers[at] is None:
                        answers[at] = command
                        missing -= 1
                if self._frames.error is not None:
                    raise self._frames.error
        return [answer for answer in answers if answer is not None]

    @contextmanager
    def _socket_errors_translated(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise CallTimeoutError(
                f"{self.address} did not answer {self._asked} within {timeout:g} s"
            ) from None
        except OSError as error:
            raise ConnectionLostError(
                f"the connection to {self.address} broke during {self._asked}: "
                f"{error.strerror or error}"
            ) from None

    def close(self) -> None:
        self._socket.close()
