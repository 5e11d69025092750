"""Layout of a stored message: one entry of the commit log, and of the answer to a pull.

::

    pos     size   field                        pos     size     field
    0       4      totalSize                    48      8 (20)   bornHost (v6 if sysFlag 0x10)
    4       4      magic: v1 DAA320A7           56      8        storeTimestamp (ms)
                          v2 DAA320AB           64      8 (20)   storeHost (v6 if sysFlag 0x20)
    8       4      bodyCRC & 7FFFFFFF           72      4        reconsumeTimes
    12      4      queueId                      76      8        preparedTransactionOffset
    16      4      flag                         84      4 + n    body
    20      8      queueOffset                  88+n    1 + t    topic (2 + t in v2)
    28      8      physicalOffset               …       2 + p    properties
    36      4      sysFlag
    40      8      bornTimestamp (ms)           everything after 48 moves by 12 for each v6 host

Big-endian. Source: apache/rocketmq ``MessageExtEncoder``, ``MessageDecoder``,
``CommitLog.checkMessageAndReturnSize``. A new field changes the golden bytes and three files: this
one, ``codec.py`` (encoding, checking, decoding) and ``hot/entry.pxi``.

The functions here expect a good entry (``codec.entry_fault``) and check nothing.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from turbopump.message.ids import decode_host
from turbopump.message.properties import SysFlag

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""Magic of an entry with a topic of more than ``TOPIC_SIZE_MAX_V1`` bytes."""
MAGIC_BLANK: Final = 0xCBD43194
"""Magic of the unused rest of a segment."""
MAGIC_START: Final = b"\xda\xa3\x20"
"""First bytes of both magics of an entry."""
TOPIC_SIZE_MAX_V1: Final = 127

MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
FLAG_BITS_AT: Final = 39
"""Position of the last byte of sysFlag, with the bits of hosts, transactions and inner batches."""
BORN_TIMESTAMP_AT: Final = 40
BORN_HOST_AT: Final = 48
STORE_TIMESTAMP_AT: Final = 56
"""Position of storeTimestamp if bornHost is v4. The positions below also assume v4."""
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_TRANSACTION_OFFSET_AT: Final = 76
BODY_SIZE_AT: Final = 84
BODY_AT: Final = 88
V6_EXTRA: Final = 12
"""Extra bytes of a v6 host, compared with a v4 host."""

HEAD_SIZE: Final = 36
"""Size of an entry's start up to and including physicalOffset, which ``codec.head_fault``
checks."""
FIXED_SIZE: Final = 91
"""Size of a v1 entry with v4 hosts, without topic, body and properties."""

SIZE_AND_MAGIC: Final = struct.Struct(">II")
SIZE_AND_QUEUE_OFFSET: Final = struct.Struct(">I16xQ")
CHECKED_HEAD: Final = struct.Struct(">III16xq")
"""Fields totalSize, magic, bodyCRC, physicalOffset."""
ENTRY_HEAD: Final = struct.Struct(">IIIiiqqiq8sq8siqI")
"""All fields before the body, for v4 hosts."""
HEAD_TO_HOSTS: Final = struct.Struct(">IIIiiqqiq")
"""All fields before bornHost."""
TAIL_TO_BODY: Final = struct.Struct(">iqI")
"""Fields between storeHost and body: reconsumeTimes, preparedTransactionOffset, body length."""
USUAL_HEAD: Final = struct.Struct(">IIIi4xqqi16xq20xI")
"""Fields totalSize, magic, bodyCRC, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp
and body length, for v4 hosts."""

CRC_NAME: Final = b"__CRC32#\x01"
CRC_SUFFIX_SIZE: Final = 20
"""Size of the last property of an entry with a whole-entry CRC: ``__CRC32#`` 0x01, ten decimal
digits with the least significant first, 0x02. The CRC covers all bytes before this property."""

_UINT, _INT, _LONG, _HOST = map(struct.Struct, (">I", ">i", ">q", ">8s"))
_FIELDS: Final = {
    "body_crc": (_UINT, BODY_CRC_AT),
    "queue_id": (_INT, QUEUE_ID_AT),
    "flag": (_INT, FLAG_AT),
    "queue_offset": (_LONG, QUEUE_OFFSET_AT),
    "commit_log_offset": (_LONG, PHYSICAL_OFFSET_AT),
    "sys_flag": (_INT, SYS_FLAG_AT),
    "born_timestamp": (_LONG, BORN_TIMESTAMP_AT),
    "born_host": (_HOST, BORN_HOST_AT),
    "store_timestamp": (_LONG, STORE_TIMESTAMP_AT),
    "store_host": (_HOST, STORE_HOST_AT),
    "reconsume_times": (_INT, RECONSUME_TIMES_AT),
    "prepared_transaction_offset": (_LONG, PREPARED_TRANSACTION_OFFSET_AT),
}
"""Name in a ``ReceivedMessage``, kind, and position in an entry with v4 hosts."""

HEAD_FIELDS: Final = frozenset(_FIELDS)


# A pulled message keeps its entry (with v4 hosts) and decodes each of these fields on first access.
def head_field_of(entry: bytes, name: str) -> Any:
    """Return one of the fields in ``HEAD_FIELDS`` of a stored message."""
    kind, at = _FIELDS[name]
    (value,) = kind.unpack_from(entry, at)
    return decode_host(value) if kind is _HOST else value


def body_of(entry: bytes) -> bytes:
    """Return the body of a stored message, not decompressed."""
    return entry[BODY_AT : BODY_AT + int.from_bytes(entry[BODY_SIZE_AT:BODY_AT])]


def properties_text_of(entry: bytes) -> str:
    """Return the property text of a stored message, decoded as Java does."""
    topic_at = BODY_AT + int.from_bytes(entry[BODY_SIZE_AT:BODY_AT])
    head = topic_head_size(entry)
    at = topic_at + head + int.from_bytes(entry[topic_at : topic_at + head])
    return str(entry[at + 2 :], "utf-8", "replace")


# Fields of every good entry.
def entry_size_at(data: bytes | memoryview, at: int = 0) -> int:
    """Return the field totalSize of the stored message at byte ``at``."""
    return int.from_bytes(data[at : at + 4])


def queue_id_of(entry: bytes) -> int:
    return int.from_bytes(entry[QUEUE_ID_AT : QUEUE_ID_AT + 4])


def queue_offset_of(entry: bytes) -> int:
    """Return the queue offset of a stored message.

    The number is unsigned. In damaged bytes, an offset that Java reads as negative is a large
    number here.
    """
    return int.from_bytes(entry[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8])


def physical_offset_of(entry: bytes) -> int:
    """Return the log offset of a stored message, as an unsigned number."""
    return int.from_bytes(entry[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8])


def sys_flag_of(entry: bytes) -> int:
    return int.from_bytes(entry[SYS_FLAG_AT : SYS_FLAG_AT + 4])


def store_timestamp_of(entry: bytes) -> int:
    """Return the time at which the broker stored a message, in ms since 1970."""
    at = STORE_TIMESTAMP_AT
    if entry[FLAG_BITS_AT] & SysFlag.BORN_HOST_V6:
        at += V6_EXTRA
    return int.from_bytes(entry[at : at + 8])


def body_span(entry: bytes) -> tuple[int, int]:
    """Return the start and the end of the body in a stored message."""
    flags = entry[FLAG_BITS_AT]
    begin = BODY_AT + V6_EXTRA * ((flags >> 4 & 1) + (flags >> 5 & 1))  # BORN_, STORE_HOST_V6
    return begin, begin + int.from_bytes(entry[begin - 4 : begin])


def topic_span(entry: bytes) -> tuple[int, int]:
    """Return the start and the end of the topic in a stored message, without the length field."""
    _, body_end = body_span(entry)
    begin = body_end + topic_head_size(entry)
    return begin, begin + int.from_bytes(entry[body_end:begin])


def properties_span(entry: bytes) -> tuple[int, int]:
    """Return the start and the end of the property text in a stored message, including a CRC."""
    _, topic_end = topic_span(entry)
    begin = topic_end + 2
    return begin, begin + int.from_bytes(entry[topic_end:begin])


def topic_head_size(entry: bytes) -> int:
    """Return the size of the length field before the topic: 1 byte, or 2 in version 2."""
    return 2 if entry[MAGIC_AT + 3] == MAGIC_V2 & 0xFF else 1


def queue_position(entry: bytes) -> tuple[str, int, int]:
    """Return the topic, queue id and queue offset of a stored message."""
    begin, end = topic_span(entry)
    topic = entry[begin:end].decode(errors="replace")
    return topic, queue_id_of(entry), queue_offset_of(entry)


def has_crc(entry: bytes) -> bool:
    """Return True if a stored message ends with a CRC over the whole entry."""
    return entry[-CRC_SUFFIX_SIZE : len(CRC_NAME) - CRC_SUFFIX_SIZE] == CRC_NAME


def crc_suffix(tail: bytes) -> int | None:
    """Return the whole-entry CRC at the end of a stored message, or None if there is no such CRC.

    Return −1 if the digits of the CRC are invalid. ``tail`` has at least ``CRC_SUFFIX_SIZE`` bytes.
    """
    if tail[-CRC_SUFFIX_SIZE:-11] != CRC_NAME:
        return None
    digits = tail[-2:-12:-1]
    if tail[-1] != 2 or not digits.isdigit():
        return -1
    return int(digits)
