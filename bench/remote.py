"""Small remoting client, blocking and one request at a time: enough to create a topic and to send
the first message.

The one rule: no code is shared with turbopump, so that a fault of ours cannot hide itself. The
client measures nothing.
"""

import json
import socket
import struct
import time
from collections.abc import Callable
from itertools import count

UPDATE_AND_CREATE_TOPIC = 17
SEND_MESSAGE_V2 = 310

opaques = count(1)


class RefusedError(Exception):
    """The broker answered with another code than 0."""


def call(
    port: int, code: int, fields: dict[str, str], body: bytes = b"", timeout: float = 10.0
) -> dict[str, str]:
    """The answer's ext fields. Raises OSError when there is nobody, RefusedError when the answer's
    code is not 0."""
    return _exchange(port, code, fields, body, timeout)[0]


def ask(port: int, code: int, body: bytes = b"", timeout: float = 10.0) -> bytes:
    """The answer's body; raises as ``call``."""
    return _exchange(port, code, {}, body, timeout)[1]


def _exchange(
    port: int, code: int, fields: dict[str, str], body: bytes, timeout: float
) -> tuple[dict[str, str], bytes]:
    opaque = next(opaques)
    request = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "version": 479,
    }
    header = json.dumps(request).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(
            struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body
        )
        stream = connection.makefile("rb")
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ConnectionError("the broker closed the connection without an answer")
        size, header_size = struct.unpack(">II", prefix)
        header_size &= 0xFFFFFF
        reply = json.loads(stream.read(header_size))
        answered = stream.read(size - 4 - header_size)
    if reply["code"] != 0 or reply["opaque"] != opaque:
        raise RefusedError(f"code {code} was answered by {reply}")
    extra: dict[str, str] = reply.get("extFields") or {}
    return extra, answered


def create_topic(port: int, topic: str, queues: int) -> None:
    """Create a topic with as many read and write queues on the broker itself."""
    call(port, UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues))


def topic_fields(topic: str, queues: int) -> dict[str, str]:
    """The fields of a request to create a topic."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
    }
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return fields


def send_one(port: int, topic: str, timeout: float = 10.0, *, queue: int = 0) -> None:
    """Send one message; the topic is created by the broker if it is not there."""
    now_ms = str(time.time_ns() // 1_000_000)
    fields = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": now_ms,
        "h": "0",
    }
    fields |= {
        "i": f"UNIQ_KEY\x01{time.time_ns():032X}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    reply = call(port, SEND_MESSAGE_V2, fields, b"first", timeout)
    assert int(reply["queueOffset"]) >= 0


def wait_for_first_send(
    port: int, topic: str, deadline: float, complaint: Callable[[], str | None]
) -> None:
    """Try every 5 ms to send until it is acknowledged; `deadline` is on `time.monotonic()`.

    Raises TimeoutError, and ChildProcessError once `complaint` says why the broker is gone.
    """
    while True:
        try:
            return send_one(port, topic)
        except (OSError, RefusedError) as problem:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no send was acknowledged on port {port}: {problem}"
                ) from problem
            if (gone := complaint()) is not None:
                raise ChildProcessError(gone) from None
            time.sleep(0.005)
