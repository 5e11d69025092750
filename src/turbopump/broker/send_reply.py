"""The answer to a send that went well, as a whole frame: the only answer that is worth a way of its
own."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from turbopump.compiled import has_twin
from turbopump.protocol.codes import CURRENT_VERSION, FLAG_RESPONSE
from turbopump.store.queues.consume_queue import UNIT_SIZE

_frame_head: Final = struct.Struct(">II").pack  # frame.frame_head for a JSON header without a body


def reply_ends(region: str, trace_on: bool) -> tuple[bytes, bytes]:
    """What stands before and behind what differs: for ``send_reply``."""
    trace = "true" if trace_on else "false"
    head = f'{{"code":0,"extFields":{{"MSG_REGION":{msgspec.json.encode(region).decode()},"TRACE_ON":"{trace}","msgId":"'
    return (
        head.encode(),
        f',"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'.encode(),
    )


@has_twin
def send_reply(
    head: bytes,
    tail: bytes,
    host: bytes,
    opaque: int,
    queue_id: int,
    offset: int,
    queue_offset: int,
    unique: str,
) -> bytes:
    """The frame: ``host`` and the commit-log ``offset`` make the message id, ``host`` as
    hexadecimal digits. About 1.3 µs, compiled 0.2; 4 field by field."""
    return _frame(
        head,
        tail,
        host + offset.to_bytes(8).hex().upper().encode(),
        opaque,
        queue_id,
        queue_offset,
        unique,
    )


@has_twin
def batch_reply(
    head: bytes,
    tail: bytes,
    host: bytes,
    opaque: int,
    queue_id: int,
    units: bytes,
    queue_offset: int,
    unique: str,
) -> bytes:
    """The frame for a batch, whose units in the queue are ``units``: it names the id of each
    message. For 32 about 10 µs, compiled 0.6."""
    return _frame(head, tail, batch_msg_ids(host, units), opaque, queue_id, queue_offset, unique)


def batch_msg_ids(host: bytes, units: bytes) -> bytes:
    """The ids of a batch's messages, with commas: a unit begins with the offset."""
    digits = units.hex().upper()
    ids = [digits[at : at + 16] for at in range(0, len(digits), 2 * UNIT_SIZE)]
    return f",{host.decode()}".join(["", *ids])[1:].encode()


def _frame(
    head: bytes,
    tail: bytes,
    msg_id: bytes,
    opaque: int,
    queue_id: int,
    queue_offset: int,
    unique: str,
) -> bytes:
    if not (unique.isascii() and unique.isalnum()):
        unique = ""
    header = (
        b'%b%b","queueId":"%d","queueOffset":"%d","transactionId":"%b"},"flag":%d,"language":"PYTHON","opaque":%d%b'
        % (head, msg_id, queue_id, queue_offset, unique.encode(), FLAG_RESPONSE, opaque, tail)
    )
    size = len(header)
    return _frame_head(size + 4, size) + header
