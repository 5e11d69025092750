"""Parse log entries for recovery: any entry by itself, or many usual entries at once.

``parse_usual_entries`` accepts only entries that ``codec.entry_fault`` and ``parse_entry`` accept,
and returns the same for them. It leaves all others to them: v2, IPv6 hosts, a new topic, anything
unusual. Files are unknown here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from turbopump.message.entry import (
    BODY_AT,
    CRC_SUFFIX_SIZE,
    FIXED_SIZE,
    MAGIC_V1,
    USUAL_HEAD,
    crc_suffix,
    queue_id_of,
    queue_offset_of,
    store_timestamp_of,
    sys_flag_of,
    topic_span,
)
from turbopump.message.properties import INNER_NUM, NAME_END, SysFlag, value_after
from turbopump.message.rules import is_system_topic
from turbopump.store.files import is_directory_name

_V6: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_INNER_NUM: Final = INNER_NUM + NAME_END
INNER_COUNT_MAX: Final = 0x7FFF
"""Largest number of messages in an inner batch. Apache's queues store it as a signed short."""


class ParsedEntry(msgspec.Struct, frozen=True, gc=False):
    """Log entry with only the fields that its dispatch needs."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: str


def parse_entry(entry: bytes, position: int) -> ParsedEntry | None:
    """Parse a valid entry that begins at ``position`` of the log.

    Return None if its topic cannot be read, or cannot be the name of a directory.
    """
    topic_at, topic_end = topic_span(entry)
    try:
        topic = entry[topic_at:topic_end].decode()
    except UnicodeDecodeError:
        return None
    # its bytes did not reach the disk; the body's CRC does not cover them
    if not is_directory_name(topic):
        return None
    return ParsedEntry(
        position,
        len(entry),
        topic,
        queue_id_of(entry),
        queue_offset_of(entry),
        sys_flag_of(entry),
        store_timestamp_of(entry),
        # undecodable text is no reason to end the log here
        entry[topic_end + 2 :].decode(errors="replace"),
    )


def inner_count(parsed: ParsedEntry) -> int:
    """Return the number of messages in an entry. It is more than one in an inner batch.

    RocketMQ: ``CommitLog.setBatchSizeIfNeeded``.
    """
    if not parsed.sys_flag & SysFlag.INNER_BATCH:
        return 1
    number = value_after(parsed.properties, _INNER_NUM) or ""
    can_be = number.isascii() and number.isdigit() and 1 <= int(number) <= INNER_COUNT_MAX
    return int(number) if can_be else 1


def is_apaches_batch(sys_flag: int, topic: str) -> bool:
    """Return True for an inner batch in a BatchCQ topic.

    Apache's schedule topic may contain an inner batch too, but in a plain queue.
    """
    return bool(sys_flag & SysFlag.INNER_BATCH) and not is_system_topic(topic)


def parse_usual_entries(
    piece: bytes,
    at: int,
    end: int,
    position: int,
    requires_crc: Callable[[int], bool],
    topics: dict[bytes, str],
) -> list[ParsedEntry]:
    """Parse adjacent valid entries of the usual kind, many at a time.

    They begin at byte ``at`` of ``piece``, which is ``position`` in the log. Parsing stops at the
    first entry that does not end by byte ``end``, or is unusual. ``topics`` maps the bytes of known
    topics to their names. Cost: about 2.5 µs an entry, against 9 µs one at a time.
    """
    found: list[ParsedEntry] = []
    append = found.append
    unpack = USUAL_HEAD.unpack_from
    view = memoryview(piece)
    end = min(end, len(piece))
    while at + FIXED_SIZE <= end:
        size, magic, body_crc, queue_id, queue_offset, offset, sys_flag, stored, body_size = unpack(
            piece, at
        )
        last = at + size
        if magic != MAGIC_V1 or offset != position or last > end or size < FIXED_SIZE:
            break
        if sys_flag & _V6 or queue_id | queue_offset | stored | sys_flag < 0:
            break
        body_end = at + BODY_AT + body_size
        if body_end + 3 > last:
            break
        topic_end = body_end + 1 + piece[body_end]
        said = crc_suffix(piece[last - CRC_SUFFIX_SIZE : last])
        if said is not None:
            if said != crc32(view[at : last - CRC_SUFFIX_SIZE]) & 0x7FFFFFFF:
                break
        elif (
            topic_end + 2 + (piece[topic_end] << 8 | piece[topic_end + 1]) != last
            or (body_size and crc32(view[at + BODY_AT : body_end]) & 0x7FFFFFFF != body_crc)
            or requires_crc(position)
        ):
            break
        topic = topics.get(piece[body_end + 1 : topic_end])
        if topic is None:
            break
        text = piece[topic_end + 2 : last].decode(errors="replace")
        append(ParsedEntry(position, size, topic, queue_id, queue_offset, sys_flag, stored, text))
        position += size
        at = last
    return found
