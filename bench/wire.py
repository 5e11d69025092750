"""Frames of the remoting protocol, as Apache's Java client writes them, for benchmarks beyond a
load of sends.

The one rule: no code is shared with turbopump, so that a fault of ours cannot hide itself. This
module opens no socket.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

PULL_MESSAGE = 11
HEART_BEAT = 34
SEND_BATCH_MESSAGE = 320
SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, FILTER_DATA_NOT_EXIST = 0, 19, 20, 27
SUSPEND, SUBSCRIPTION = 2, 4
"""Bits of a pull's sysFlag: hold it, and it brings its own subscription."""


_numbers = count(1)


class Answer(NamedTuple):
    code: int
    opaque: int
    fields: Mapping[str, str]
    body: bytes


def request(code: int, opaque: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """One whole frame with a JSON header."""
    head = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "version": 479,
    }
    header = json.dumps(head, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class Answers:
    """Cuts what a broker writes into answers; its own requests and notices are left out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Answer]:
        buffer = self._buffer
        buffer += data
        found: list[Answer] = []
        while len(buffer) >= 8:
            size, header_size = struct.unpack_from(">II", buffer)
            if len(buffer) < 4 + size:
                break
            header = json.loads(buffer[8 : 8 + (header_size & 0xFFFFFF)])
            body = bytes(buffer[8 + (header_size & 0xFFFFFF) : 4 + size])
            del buffer[: 4 + size]
            if header["flag"] & 1:
                found.append(
                    Answer(header["code"], header["opaque"], header.get("extFields") or {}, body)
                )
        return found


def heartbeat(client_id: str, group: str, subscription: Mapping[str, Any]) -> bytes:
    """The body of a heartbeat of one push consumer."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "tagsSet": [],
                "codeSet": [],
                "subVersion": 1,
                "classFilterMode": False,
                **subscription,
            }
        ],
        "unitMode": False,
    }
    return json.dumps(
        {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    ).encode()


def pull_fields(
    group: str, topic: str, queue: int, offset: int, *, sys_flag: int, hold_ms: int = 0
) -> dict[str, str]:
    """The fields of a pull of up to 32 messages."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(sys_flag),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(hold_ms),
        "subVersion": "1",
    }


def entry_sizes(body: bytes) -> list[int]:
    """The sizes of the stored messages in a pull's answer. Raises ValueError if they do not add
    up."""
    sizes: list[int] = []
    at = 0
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        if size < 91 or at + size > len(body):
            raise ValueError(f"an entry of {size} bytes at byte {at} of {len(body)}")
        sizes.append(size)
        at += size
    return sizes


def batch(
    opaque: int, topic: str, queue: int, messages: Sequence[tuple[bytes, Mapping[str, str]]]
) -> bytes:
    """A frame that sends messages, (body, properties) each, as one batch; each gets a unique id."""
    items = b"".join(
        _item(body, {"UNIQ_KEY": f"{next(_numbers):032X}", **properties})
        for body, properties in messages
    )
    fields = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
    }
    fields |= {
        "i": f"UNIQ_KEY\x01{next(_numbers):032X}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "true",
    }
    return request(SEND_BATCH_MESSAGE, opaque, fields, items)


def _item(body: bytes, properties: Mapping[str, str]) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    size = 22 + len(body) + len(text)
    return struct.pack(">5i", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(text)) + text
