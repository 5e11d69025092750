"""The messages of a pull's answer, checked but not read: each keeps its bytes, and reads a field of
them when it is first asked for.

The rule: it stops at the first entry that is damaged or not of the usual kind (v6 hosts, a batch),
which is for ``good_entries`` to look at. What a consumer needs of every message is read at once:
its topic, offset, size and how often it came.
"""

from __future__ import annotations

from typing import TypeVar

from turbopump.compiled import has_twin
from turbopump.message.codec import FIXED_SIZE, entry_fault
from turbopump.message.entry_fields import BODY_AT, topic_head_size
from turbopump.message.message import ReceivedMessage
from turbopump.message.sysflag import SysFlag

MessageT = TypeVar("MessageT", bound=ReceivedMessage)

_UNUSUAL = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH


@has_twin
def unread_messages(data: bytes, message_type: type[MessageT]) -> tuple[list[MessageT], int]:
    """The messages at the beginning of ``data``, and the byte where something else begins (its
    length if nothing does).

    About 3.2 µs for each of 1 KiB, compiled 0.5; with every field read at once it was 5.3.
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
    size, sys_flag = len(entry), int.from_bytes(entry[36:40], signed=True)
    topic_at = BODY_AT + int.from_bytes(entry[BODY_AT - 4 : BODY_AT])
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
    message.queue_offset = int.from_bytes(entry[20:28], signed=True)
    message.reconsume_times = int.from_bytes(entry[72:76], signed=True)
    message.store_size = size
    message.sys_flag = sys_flag
    return message
