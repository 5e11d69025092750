"""Fields of a stored message, for comparison with queues and indexes. The entry must be valid
(``codec.entry_fault``) and whole."""

from __future__ import annotations

import struct
from typing import Final

from turbopump.message.entry import BODY_AT, MAGIC_V2, store_timestamp_of, topic_span
from turbopump.message.java import tags_code
from turbopump.message.properties import (
    KEYS,
    NAME_END,
    PAIR_END,
    TAGS,
    UNIQ_KEY,
    SysFlag,
    property_value,
)

MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

_HEAD: Final = struct.Struct(">12xi4xq8xi16xq20xI")
"""queueId, queueOffset, sysFlag; storeTimestamp and body length at their positions with IPv4
hosts."""

_TAGS, _UNIQ_KEY, _KEYS = (PAIR_END + name + NAME_END for name in (TAGS, UNIQ_KEY, KEYS))
_V2: Final = MAGIC_V2 & 0xFF
_ANY_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


EntryFacts = tuple[str, int, int, int, int, int, list[str], str]
"""(topic, queueId, queueOffset, sysFlag, store time in ms, tags code, index keys with the unique id
first, all properties). A plain tuple, because a named one costs 0.3 µs more for every message."""


def entry_facts(entry: bytes) -> EntryFacts:
    """Return the fields of a stored message for comparison with queues and indexes.

    Raises UnicodeDecodeError if the topic is not text. Takes about 2 µs.
    """
    queue_id, queue_offset, sys_flag, stored_ms, body_size = _HEAD.unpack_from(entry)
    if sys_flag & _ANY_V6:
        stored_ms = store_timestamp_of(entry)
        topic_at, topic_end = topic_span(entry)
    else:
        body_end = BODY_AT + body_size
        topic_at = body_end + (2 if entry[7] == _V2 else 1)
        topic_end = topic_at + int.from_bytes(entry[body_end:topic_at])
    text = "\x02" + entry[topic_end + 2 :].decode(errors="replace")
    tags = last_value(text, _TAGS)
    unique = last_value(text, _UNIQ_KEY)
    words = last_value(text, _KEYS)
    keys = [unique] if unique else []
    if " " in words:
        keys += [word for word in words.split(" ") if word]
    elif words:
        keys.append(words)
    return (
        entry[topic_at:topic_end].decode(),
        queue_id,
        queue_offset,
        sys_flag,
        stored_ms,
        tags_code(tags) if tags else 0,
        keys,
        text,
    )


def last_value(text: str, mark: str) -> str:
    """Return the last value of a property in a property text, or an empty text if it is absent.

    ``text`` must begin with 0x02, and ``mark`` is 0x02 NAME 0x01. The search is twice as fast as
    ``properties.property_value``.
    """
    at = text.rfind(mark)
    if at < 0:
        return ""
    at += len(mark)
    end = text.find("\x02", at)
    value = text[at:end] if end >= 0 else text[at:]
    return value or property_value(text, mark[1:-1]) or ""
