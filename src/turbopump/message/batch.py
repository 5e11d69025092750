"""Body of a batch: messages back to back, without their topic. The header of the request names the
topic.

::

    4  size of this message         4+n  body: length, bytes
    4  magic (0)                    2+p  properties: length, text
    4  body CRC (0)
    4  flag

Source: apache/rocketmq ``MessageDecoder.encodeMessage`` / ``decodeMessage``. The broker stores each
message as a separate entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from turbopump.compiled import has_twin
from turbopump.errors import MessageError, ProtocolError, StoredMessageError
from turbopump.message import properties as names
from turbopump.message.codec import decode_entry, encode_copy
from turbopump.message.compression import DECOMPRESSED_SIZE_MAX
from turbopump.message.entry import FLAG_BITS_AT
from turbopump.message.message import Message, ReceivedMessage

_HEAD: Final = struct.Struct(">iiiii")  # size, magic, crc, flag, body length
_SIZE: Final = struct.Struct(">H")
_INT: Final = struct.Struct(">i")

COUNT_MAX: Final = 32_767
"""Maximum number of messages in a batch.

A batch stored as one entry has its count on disk as a signed short. A larger batch of separate
entries would block the broker's event loop for too long (RocketMQ has no limit there).
"""
UNPACKED_SIZE_MAX: Final = 128 * 1024 * 1024
"""Maximum size in bytes of all unpacked inner batches of one answer.

Each message counts as at least 1 KiB, so an answer has at most 131,072 of them. Without the limit,
a frame of 16 MiB could expand to 160 million messages.
"""
UNPACKED_MESSAGE_SIZE: Final = 1024
_INFLATION: Final = 1024
"""Largest compression ratio of zlib. A compressed body that cannot be decoded counts as this many
times its stored size."""


class BatchItem(NamedTuple):
    """One message of a batch, without its topic.

    - ``flag``: the user's number.
    - ``body``: the body bytes.
    - ``properties``: the property text in UTF-8.
    """

    flag: int
    body: bytes
    properties: bytes


def encode_item(flag: int, body: bytes, properties: bytes) -> bytes:
    """Return one message in the form of a batch body.

    Takes about 0.4 µs.
    """
    body_size = len(body)
    size = len(properties)
    return b"%b%b%b%b" % (
        _HEAD.pack(22 + body_size + size, 0, 0, flag, body_size),
        body,
        _SIZE.pack(size),
        properties,
    )


@has_twin
def identified_item(flag: int, body: bytes, msg_id: str, more: bytes) -> bytes:
    """Return one message in the form of a batch body, with ``msg_id`` as its unique id.

    ``more`` is the text of the other properties. Takes about 0.5 µs, compiled 0.1.
    """
    return encode_item(flag, body, b"UNIQ_KEY\x01%b\x02%b" % (msg_id.encode(), more))


def encode_batch(messages: Iterable[Message]) -> bytes:
    """Return the body of a batch that contains these messages.

    Raise MessageError if a message's properties are too long.
    """
    parts = []
    for message in messages:
        text = names.encode_properties(message.properties).encode()
        if len(text) > names.PROPERTIES_SIZE_MAX:
            raise MessageError(
                f"the properties of a message take {len(text)} bytes; "
                f"{names.PROPERTIES_SIZE_MAX} are allowed"
            )
        parts.append(encode_item(message.flag, message.body, text))
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchItem]:
    """Return the messages of a batch body.

    Raise ProtocolError if the lengths do not add up.
    """
    return [
        BatchItem(
            flag,
            data[body_at : body_at + body_size],
            data[properties_at : properties_at + properties_size],
        )
        for flag, body_at, body_size, properties_at, properties_size in walk_batch(data)
    ]


def walk_batch(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Find every message of a batch body without copying it.

    Return for each message: flag, start and size of the body, start and size of the property text.
    Positions and sizes are in bytes. Raise ProtocolError if the lengths do not add up, or if there
    are more than ``COUNT_MAX`` messages. Takes about 0.6 µs for each message.
    """
    if len(data) > COUNT_MAX * 22 and _has_too_many(data):
        raise ProtocolError(f"a batch has at most {COUNT_MAX} messages; send this one in parts")
    found = []
    at, end = 0, len(data)
    while at < end:
        if end - at < 22:
            raise ProtocolError(
                f"a batch message at byte {at} is cut off: {end - at} bytes are "
                "left, at least 22 are needed"
            )
        size, _magic, _crc, flag, body_size = _HEAD.unpack_from(data, at)
        properties_at = at + 20 + body_size + 2
        if size < 22 or at + size > end or body_size < 0 or properties_at > at + size:
            raise ProtocolError(
                f"a batch message at byte {at} has impossible lengths: size {size}, body "
                f"{body_size}, {end} in all"
            )
        (properties_size,) = _SIZE.unpack_from(data, properties_at - 2)
        if properties_at + properties_size > at + size:
            raise ProtocolError(f"a batch message at byte {at} has properties that go past its end")
        found.append((flag, at + 20, body_size, properties_at, properties_size))
        at += size
    return found


def _has_too_many(data: bytes) -> bool:
    # Runs on a broker's event loop for any sender: at most 8 ms, because no list is built.
    at = 0
    size_at = _INT.unpack_from
    try:
        for _ in range(COUNT_MAX):
            size = size_at(data, at)[0]
            at += size if size > 22 else 22
    except struct.error:  # the data ends before that
        return False
    return at <= len(data) - 4


# Unpacking of entries that contain a whole batch: each message becomes an entry of its own, as in a
# topic without these batches. Fields that a message of a batch lacks (hosts, times, offset in the
# log) are the batch's. Its queue offset is the batch's plus its number in the batch. The flags
# stay, so that a reader knows that the log has no entry for this message. Source: apache/rocketmq
# ``MessageDecoder.decodeMessage``, ``PullAPIWrapper.processPullResult``.
_COMPRESSION: Final = int(names.SysFlag.COMPRESSED | names.COMPRESSION_MASK)
_WRAPPED: Final = int(names.SysFlag.INNER_BATCH | names.SysFlag.NEED_UNWRAP)


def is_wrapped(sys_flag: int) -> bool:
    """Return True if an entry with these flags contains a batch that consumers must unpack."""
    return sys_flag & _WRAPPED == _WRAPPED


class Unpacking:
    """Unpacker of the batches in one answer, with a limit for their total size.

    The limit is ``UNPACKED_SIZE_MAX`` bytes.
    """

    def __init__(self) -> None:
        self._left = UNPACKED_SIZE_MAX

    def entries(self, entry: bytes) -> list[bytes]:
        """Return one entry for each message of a batch, or the entry itself if it is not a batch.

        Raise StoredMessageError if the batch cannot be decoded, or if earlier batches have already
        exceeded the limit.
        """
        if not is_wrapped(entry[FLAG_BITS_AT]):
            return [entry]
        if self._left <= 0:
            raise StoredMessageError(
                f"the inner batches of this answer hold more than {UNPACKED_SIZE_MAX} bytes; pull "
                "fewer messages at once"
            )
        size = min(len(entry) * _INFLATION, DECOMPRESSED_SIZE_MAX)
        try:
            whole = decode_entry(entry, check_crc=False)
            found = _entries_in(whole)
            size = len(whole.body) + UNPACKED_MESSAGE_SIZE * len(found)
        finally:
            self._left -= size
        return found


def inner_entries(entry: bytes) -> list[bytes]:
    """Return one entry for each message of a batch, or the entry itself if it is not a batch.

    The entry must be valid (``codec.entry_fault``). Raise StoredMessageError if the batch cannot be
    decoded. Takes about 8 µs for each message.
    """
    return (
        _entries_in(decode_entry(entry, check_crc=False))
        if is_wrapped(entry[FLAG_BITS_AT])
        else [entry]
    )


def inner_count(properties_text: str) -> int | None:
    """Return the number of messages in a stored batch, or None if the properties lack this number.

    The broker stores the number as a property. The batch uses that many queue offsets.
    """
    return names.whole_number(names.property_value(properties_text, names.INNER_NUM), 5) or None


def _entries_in(whole: ReceivedMessage) -> list[bytes]:
    try:
        items = decode_batch(whole.body)
        return [
            encode_copy(
                whole,
                whole.topic,
                item.properties,
                body=item.body,
                flag=item.flag,
                sys_flag=whole.sys_flag & ~_COMPRESSION,
                queue_offset=whole.queue_offset + number,
            )
            for number, item in enumerate(items)
        ]
    except (ProtocolError, MessageError) as error:
        where = f"queue offset {whole.queue_offset} of {whole.topic} queue {whole.queue_id}"
        raise StoredMessageError(
            f"the inner batch at {where} cannot be unpacked: {error}"
        ) from None
