"""Many acknowledgements at once (200151).

One rule: names are Apache's, which are one or two letters. It must not know what a checkpoint is.
Source: apache/rocketmq ``BatchAck``, ``BatchAckMessageRequestBody``,
``BitSetSerializerDeserializer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from turbopump.message.integers import Int32, Int64


class BatchAck(msgspec.Struct, kw_only=True):
    """Messages that one pop found in one queue. ``topic`` is the topic that was asked for,
    ``retry`` the handle's kind as text, and bit n of ``bits`` (bytes, the lowest first; base64 in
    the text) the message at ``start_offset`` + n."""

    consumer_group: str | None = msgspec.field(default=None, name="c")
    topic: str | None = msgspec.field(default=None, name="t")
    retry: str | None = msgspec.field(default=None, name="r")
    start_offset: Int64 = msgspec.field(default=0, name="so")
    queue_id: Int32 = msgspec.field(default=0, name="q")
    revive_queue_id: Int32 = msgspec.field(default=0, name="rq")
    pop_time: Int64 = msgspec.field(default=0, name="pt")
    invisible_time: Int64 = msgspec.field(default=0, name="it")
    bits: bytes | None = msgspec.field(default=None, name="b")


class BatchAckBody(msgspec.Struct, kw_only=True, rename="camel"):
    """All for one broker."""

    broker_name: str | None = None
    acks: tuple[BatchAck, ...] | None = None


def pack_bits(numbers: Iterable[int]) -> bytes:
    """The set of bits, as Java's ``BitSet.toByteArray`` writes it."""
    value = 0
    for number in numbers:
        value |= 1 << number
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def unpack_bits(data: bytes) -> Iterator[int]:
    """The numbers of the bits that are set, the smallest first."""
    for index, byte in enumerate(data):
        while byte:
            low = byte & -byte
            yield index * 8 + low.bit_length() - 1
            byte ^= low
