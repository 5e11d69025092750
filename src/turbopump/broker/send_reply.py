"""Encoder of the answer to a successful send.

This answer is the most frequent one of a broker.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from turbopump.compiled import has_twin
from turbopump.protocol.codes import CURRENT_VERSION, FLAG_RESPONSE
from turbopump.protocol.command import Command, decode_command
from turbopump.protocol.frame import FrameReader
from turbopump.store.queues.consume_queue import UNIT_SIZE

_frame_head: Final = struct.Struct(">II").pack  # frame.frame_head for a JSON header without a body


def reply_ends(region: str, trace_on: bool) -> tuple[bytes, bytes]:
    """Return the two constant parts of an answer's header, its start and its end, for
    ``send_reply``."""
    trace = "true" if trace_on else "false"
    name = msgspec.json.encode(region).decode()
    head = f'{{"code":0,"extFields":{{"MSG_REGION":{name},"TRACE_ON":"{trace}","msgId":"'
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
    """Return the encoded answer to a send.

    - ``head`` and ``tail``: the results of ``reply_ends``.
    - ``host``: the broker's address in hexadecimal digits. The message id consists of
      ``host`` and ``offset``.
    - ``offset``: the offset of the message in the commit log.
    - ``unique``: the id that the producer gave to the message.

    The call takes about 1.3 µs, 0.2 µs if compiled. Encoding field by field would take 4 µs.
    """
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
    unique: str | None,
) -> bytes:
    """Return the encoded answer to a batch, which contains the id of each message.

    - ``units``: the units of the messages in the consume queue.
    - ``unique``: the id of the batch itself, or None. Few batches have one.

    The call takes about 10 µs for 32 messages, 0.6 µs if compiled.
    """
    return _frame(head, tail, batch_msg_ids(host, units), opaque, queue_id, queue_offset, unique)


def batch_msg_ids(host: bytes, units: bytes) -> bytes:
    """Return the ids of the messages in a batch, separated by commas.

    A unit of a consume queue begins with the log offset of its message.
    """
    if not units:
        return b""
    offsets = bytearray(len(units) // UNIT_SIZE * 8)
    for at in range(8):
        offsets[at::8] = units[at::UNIT_SIZE]
    return host + offsets.hex(",", 8).upper().encode().replace(b",", b"," + host)


def _frame(
    head: bytes,
    tail: bytes,
    msg_id: bytes,
    opaque: int,
    queue_id: int,
    queue_offset: int,
    unique: str | None,
) -> bytes:
    if unique is not None and not (unique.isascii() and unique.isalnum()):
        unique = ""
    own = "" if unique is None else f',"transactionId":"{unique}"'
    header = (
        b'%b%b","queueId":"%d","queueOffset":"%d"%b},"flag":%d,"language":"PYTHON","opaque":%d%b'
        % (head, msg_id, queue_id, queue_offset, own.encode(), FLAG_RESPONSE, opaque, tail)
    )
    size = len(header)
    return _frame_head(size + 4, size) + header


def decode_reply(frame: bytes) -> Command:
    """Decode an encoded answer to a send."""
    return decode_command(FrameReader().feed(frame)[0])
