"""One blocking connection to a name server or broker: a request goes out, its answer comes back.

Spark's Python workers are plain processes that do one thing at a time, so a socket and a deadline
are all they need. The one rule: after any error the link is dead; whoever wants to try again opens
a new one. It must not know what the requests mean.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from turbopump.config.addresses import parse_address
from turbopump.errors import CallTimeoutError, ConnectError, ConnectionLostError
from turbopump.protocol.command import Command, decode_command, encode_command, request_command
from turbopump.protocol.frame import FrameReader
from turbopump.protocol.request import Request

_RECEIVE_SIZE: Final = 256 << 10


class Link:
    """A connection to ``address`` (``host:port``). Raises ConnectError if there is none within
    ``timeout`` seconds."""

    def __init__(self, address: str, *, timeout: float) -> None:
        self.address = address
        self._frames = FrameReader()
        self._opaque = 0
        try:
            self._socket = socket.create_connection(parse_address(address), timeout)
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: Request[Any], *, timeout: float) -> Command:
        """The answer, whatever its code. Raises CallTimeoutError, ConnectionLostError, FrameError
        or HeaderError."""
        return self.exchange_all((request,), timeout=timeout)[0]

    def exchange_all(self, requests: Sequence[Request[Any]], *, timeout: float) -> list[Command]:
        """Send all requests at once; their answers in the same order, however the peer ordered
        them. Errors as ``exchange``."""
        first = self._opaque + 1
        self._opaque += len(requests)
        deadline = time.monotonic() + timeout
        what = type(requests[0]).__name__
        answers: list[Command | None] = [None] * len(requests)
        missing = len(requests)
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(
                b"".join(
                    encode_command(request_command(request, opaque=first + at))
                    for at, request in enumerate(requests)
                )
            )
            while missing:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._socket.recv(_RECEIVE_SIZE)
                if not data:
                    raise ConnectionLostError(
                        f"{self.address} closed the connection before it answered {what}"
                    )
                for frame in self._frames.feed(data):
                    command = decode_command(frame)
                    at = command.opaque - first
                    # A broker may also ask us something (such as 40, the group changed); nothing
                    # here answers.
                    if command.is_response and 0 <= at < len(answers) and answers[at] is None:
                        answers[at] = command
                        missing -= 1
                if self._frames.error is not None:
                    raise self._frames.error
        except TimeoutError:
            raise CallTimeoutError(
                f"{self.address} did not answer {what} within {timeout:g} s"
            ) from None
        except OSError as error:
            raise ConnectionLostError(
                f"the connection to {self.address} broke during {what}: {error.strerror or error}"
            ) from None
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
