"""Broker that answers the load generator as a test tells it, in a thread of its own.

The one rule: it keeps every request, as header fields and body, for the test to check.
"""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Header = dict[str, Any]
Answer = Callable[[Header, bytes], bytes]


@dataclass
class ScriptedBroker:
    """`port` to send to, and the `requests` as they came."""

    port: int
    requests: list[tuple[Header, bytes]] = field(default_factory=list)


def frame(header: Header, body: bytes = b"") -> bytes:
    """One remoting frame with a JSON header."""
    data = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def reply(
    request: Header,
    fields: dict[str, str],
    body: bytes = b"",
    *,
    code: int = 0,
    opaque: int | None = None,
) -> bytes:
    """An answer to `request` in the order that fastjson has."""
    wanted = request["opaque"] if opaque is None else opaque
    return frame(
        {
            "code": code,
            "extFields": fields,
            "flag": 1,
            "language": "JAVA",
            "opaque": wanted,
            "version": 479,
        },
        body,
    )


@contextmanager
def scripted_broker(answer: Answer) -> Iterator[ScriptedBroker]:
    """Serves one connection after the other until the test leaves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = ScriptedBroker(listener.getsockname()[1])
        thread = threading.Thread(target=serve, args=(listener, broker, answer))
        thread.start()
        try:
            yield broker
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def serve(listener: socket.socket, broker: ScriptedBroker, answer: Answer) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        # an error: the generator has seen enough and is gone
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while prefix := stream.read(8):
                size, header_size = struct.unpack(">II", prefix)
                data = stream.read(size - 4)
                header, body = json.loads(data[:header_size]), data[header_size:]
                broker.requests.append((header, body))
                connection.sendall(answer(header, body))
