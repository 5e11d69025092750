"""The answer to a send that went well, as a whole frame: the only answer that is worth a way of its own."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from turbopump.compiled import has_twin
from turbopump.protocol.codes import CURRENT_VERSION, FLAG_RESPONSE

_frame_head: Final = struct.Struct(">II").pack  # frame.frame_head for a JSON header without a body


def reply_ends(region: str, trace_on: bool) -> tuple[bytes, bytes]:
    """What stands before and behind what differs: for ``send_reply``."""
    trace = "true" if trace_on else "false"
    head = f'{{"code":0,"extFields":{{"MSG_REGION":{msgspec.json.encode(region).decode()},"TRACE_ON":"{trace}","msgId":"'
    return head.encode(), f',"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'.encode()


@has_twin
def send_reply(
    head: bytes, tail: bytes, host: bytes, opaque: int, queue_id: int, offset: int, queue_offset: int, unique: str
) -> bytes:
    """The frame: ``host`` and the commit-log ``offset`` make the message id, ``host`` as hexadecimal digits. About 1.3 µs, compiled 0.2;
    4 field by field."""
    if not (unique.isascii() and unique.isalnum()):
        unique = ""
    header = b'%b%b%b","queueId":"%d","queueOffset":"%d","transactionId":"%b"},"flag":%d,"language":"PYTHON","opaque":%d%b' % (
        head,
        host,
        offset.to_bytes(8).hex().upper().encode(),
        queue_id,
        queue_offset,
        unique.encode(),
        FLAG_RESPONSE,
        opaque,
        tail,
    )
    size = len(header)
    return _frame_head(size + 4, size) + header
