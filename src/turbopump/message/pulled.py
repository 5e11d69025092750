"""Messages in the answer to a pull. Each is checked before use, so that damage on a disk or a
network reaches no consumer.

A damaged entry loses only itself. The next good entry is searched for at every following byte,
because the damaged length may be wrong.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from turbopump.compiled import has_twin
from turbopump.message.batch import is_wrapped
from turbopump.message.codec import entry_fault
from turbopump.message.entry import (
    BODY_AT,
    BODY_SIZE_AT,
    FIXED_SIZE,
    FLAG_BITS_AT,
    HEAD_SIZE,
    MAGIC_AT,
    MAGIC_START,
    head_field_of,
    queue_offset_of,
    topic_head_size,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import SysFlag


class DamagedEntry(NamedTuple):
    """Range of bytes without a valid message, in the answer to a pull.

    - ``begin``, ``end``: positions in the answer.
    - ``queue_offset``: the queue offset in the damaged bytes, which may be wrong.
    - ``fault``: the reason.
    """

    begin: int
    end: int
    queue_offset: int
    fault: str


def pulled_entries(data: bytes, on_damage: Callable[[DamagedEntry], None]) -> Iterator[bytes]:
    """Yield every valid stored message in the answer to a pull.

    ``on_damage`` is called for the bytes between valid messages. Takes about 1 µs for each message,
    besides the CRC (``codec.entry_fault``).
    """
    at, end = 0, len(data)
    while at < end:
        entry, fault = _entry_at(data, at)
        if fault is None:
            yield entry
            at += len(entry)
            continue
        following = _behind(data, at, len(entry))
        on_damage(DamagedEntry(at, following, queue_offset_of(data[at : at + HEAD_SIZE]), fault))
        at = following


@has_twin
def good_positions(data: bytes | memoryview) -> tuple[bytes, int]:
    """Return the start positions of the messages in the answer to a pull, as an array.

    Only messages before the first damaged one, or the first batch, are included. The second value
    is the position where they end. The positions are 64-bit numbers in native byte order, back to
    back. Takes about 1.2 µs for each entry of 100 bytes, compiled 0.03.
    """
    positions: list[int] = []
    at, end = 0, len(data)
    while end - at >= FIXED_SIZE:
        entry, fault = _entry_at(data, at)
        if fault is not None or is_wrapped(entry[FLAG_BITS_AT]):
            break
        positions.append(at)
        at += len(entry)
    return array("q", positions).tobytes(), at


def _entry_at(data: bytes | memoryview, at: int) -> tuple[bytes, str | None]:
    size = int.from_bytes(data[at : at + 4])
    if not FIXED_SIZE <= size <= len(data) - at:
        return b"", f"totalSize {size} cannot be where {len(data) - at} bytes are left"
    entry = bytes(data[at : at + size])
    return entry, entry_fault(entry)


def _behind(data: bytes, at: int, size: int) -> int:
    """Return the position of the next valid entry, or the end of the data."""
    if size and (at + size == len(data) or _entry_at(data, at + size)[1] is None):
        return at + size
    found = data.find(MAGIC_START, at + 1 + MAGIC_AT)
    while found >= 0:
        if _entry_at(data, found - MAGIC_AT)[1] is None:
            return found - MAGIC_AT
        found = data.find(MAGIC_START, found + 1)
    return len(data)


# Messages of a pull's answer, checked but not decoded. Each keeps its bytes and decodes a field on
# first access. Decoding stops at the first entry that is damaged or unusual (v6 hosts, a batch),
# which ``pulled_entries`` handles. Fields that a consumer needs of every message are decoded at
# once: topic, offset, size and the number of deliveries.
MessageT = TypeVar("MessageT", bound=ReceivedMessage)

_UNUSUAL = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH


@has_twin
def unread_messages(data: bytes, message_type: type[MessageT]) -> tuple[list[MessageT], int]:
    """Return the messages in the answer to a pull, checked but not decoded.

    The list ends before the first entry that is damaged or unusual (v6 hosts, a batch). The second
    value is the position of that entry. Takes about 3.2 µs for each message of 1 KiB, compiled 0.5.
    Decoding all fields at once took 5.3.
    """
    messages: list[MessageT] = []
    at, end = 0, len(data)
    while end - at >= FIXED_SIZE:
        size = int.from_bytes(data[at : at + 4])
        if not FIXED_SIZE <= size <= end - at:
            break
        entry = data[at : at + size]
        if entry_fault(entry) is not None:
            break
        message = _unread(entry, message_type)
        if message is None:
            break
        messages.append(message)
        at += size
    return messages, at


def _unread(entry: bytes, message_type: type[MessageT]) -> MessageT | None:
    size = len(entry)
    sys_flag = head_field_of(entry, "sys_flag")
    topic_at = BODY_AT + int.from_bytes(entry[BODY_SIZE_AT:BODY_AT])
    head = topic_head_size(entry)
    topic_end = topic_at + head + int.from_bytes(entry[topic_at : topic_at + head])
    if (
        sys_flag & _UNUSUAL
        or topic_end + 2 > size
        or topic_end + 2 + int.from_bytes(entry[topic_end : topic_end + 2]) != size
    ):
        return None
    message = message_type.__new__(message_type)
    try:
        message.topic = str(entry[topic_at + head : topic_end], "utf-8")
    except UnicodeDecodeError:
        return None
    message._entry = entry
    message._body = message._properties = None
    message.queue_offset = head_field_of(entry, "queue_offset")
    message.reconsume_times = head_field_of(entry, "reconsume_times")
    message.store_size = size
    message.sys_flag = sys_flag
    return message
