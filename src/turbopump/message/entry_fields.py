"""What stands in one whole stored entry with v4 hosts, read piece by piece: the pieces of a message
that is read when first asked for.

One rule: the entry was checked before (``unread_messages``), so its lengths add up. The byte ruler
is in ``codec.py``.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from turbopump.message.ids import decode_host

BODY_AT: Final = 88

_UINT, _INT, _LONG, _HOST = map(struct.Struct, (">I", ">i", ">q", ">8s"))
_HEAD: Final = {
    "body_crc": (_UINT, 8),
    "queue_id": (_INT, 12),
    "flag": (_INT, 16),
    "commit_log_offset": (_LONG, 28),
    "born_timestamp": (_LONG, 40),
    "born_host": (_HOST, 48),
    "store_timestamp": (_LONG, 56),
    "store_host": (_HOST, 64),
    "prepared_transaction_offset": (_LONG, 76),
}
"""Name in a ``ReceivedMessage``, kind, position in the entry. What else it has is set from the
beginning."""

HEAD_FIELDS: Final = frozenset(_HEAD)


def body_of(entry: bytes) -> bytes:
    """The body as it is stored."""
    return entry[BODY_AT : BODY_AT + int.from_bytes(entry[BODY_AT - 4 : BODY_AT])]


def properties_text_of(entry: bytes) -> str:
    """The property text, as Java reads it."""
    topic_at = BODY_AT + int.from_bytes(entry[BODY_AT - 4 : BODY_AT])
    head = topic_head_size(entry)
    at = topic_at + head + int.from_bytes(entry[topic_at : topic_at + head])
    return str(entry[at + 2 :], "utf-8", "replace")


def topic_head_size(entry: bytes) -> int:
    """Bytes that say how long the topic is: 1, or 2 in an entry of version 2."""
    return 2 if entry[7] == 0xAB else 1


def head_field_of(entry: bytes, name: str) -> Any:
    """One of ``HEAD_FIELDS``."""
    kind, at = _HEAD[name]
    (value,) = kind.unpack_from(entry, at)
    return decode_host(value) if kind is _HOST else value
