"""Text forms of popped messages, among them the handle that acknowledges a message.

::

    handle (POP_CK)   <start offset> <pop time> <invisible time> <revive queue> <kind> <broker>
                      <queue> [<queue offset>]
    startOffsetInfo   <kind> <queue> <start offset>                                  joined by ;
    msgOffsetInfo     <kind> <queue> <offset>,<offset>…                              joined by ;
    orderCountInfo    <kind> <queue> <times>  or                                     joined by ;
                      <kind> qo<queue>%<queue offset> <times>

Fields are separated by single spaces, times are milliseconds. ``kind`` tells which topic contains
the queue: 0 the topic itself, 1 and 2 the group's retry topic for it. This module converts between
text and values; checkpoints are unknown here.

Source: apache/rocketmq ``ExtraInfoUtil``, ``KeyBuilder``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from turbopump.errors import MessageError
from turbopump.message.rules import RETRY_PREFIX

ORDER_REVIVE_QUEUE: Final = 999
"""Revive queue in handles of ordered pops, which have no checkpoint."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class QueueKind(StrEnum):
    """Kind of topic to which a popped queue belongs: the subscribed topic, or one of its retry
    topics."""

    NORMAL = "0"
    RETRY = "1"
    RETRY_V2 = "2"


class QueueKey(NamedTuple):
    """Key of an entry in the three texts about popped messages.

    The key names a queue by its id, or one message as ``qo<queue>%<queue offset>``.
    """

    kind: QueueKind
    name: str


def queue_key(kind: QueueKind, queue_id: int) -> QueueKey:
    return QueueKey(kind, str(queue_id))


def message_key(kind: QueueKind, queue_id: int, queue_offset: int) -> QueueKey:
    """Return the key that identifies one message in ``orderCountInfo``."""
    return QueueKey(kind, f"qo{queue_id}%{queue_offset}")


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Return the retry topic of a group, for popped messages without an acknowledgement.

    RocketMQ: ``KeyBuilder.buildPopRetryTopic``.
    """
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def queue_kind_of(topic: str) -> QueueKind:
    """Return the kind of a stored topic: normal, or one of the two retry kinds.

    RocketMQ: ``ExtraInfoUtil.getRetry``.
    """
    if not topic.startswith(RETRY_PREFIX):
        return QueueKind.NORMAL
    return QueueKind.RETRY_V2 if "+" in topic else QueueKind.RETRY


def real_topic(kind: QueueKind, topic: str, group: str) -> str:
    """Return the topic that contains the queues of ``kind`` for ``topic``."""
    if kind is QueueKind.NORMAL:
        return topic
    return pop_retry_topic(topic, group, v2=kind is QueueKind.RETRY_V2)


def original_topic(topic: str, group: str) -> str:
    """Return the topic to which a group's retry topic belongs.

    A topic that is no retry topic is returned unchanged. RocketMQ: ``parseNormalTopic``.
    """
    for separator in "+_":
        start = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(start):
            return topic[len(start) :]
    return topic


class PopHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Handle with which a consumer acknowledges a popped message.

    - ``start_offset``: queue offset at which the pop's checkpoint begins.
    - ``pop_time_ms``: time of the pop, in ms since 1970.
    - ``invisible_ms``: time after the pop for which other consumers do not get the message, in ms.
    - ``queue_offset``: None if the handle stands for all messages that one pop found in the queue.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: QueueKind
    broker_name: str
    queue_id: int
    queue_offset: int | None = None

    @property
    def ordered(self) -> bool:
        """True if the message was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @property
    def visible_at_ms(self) -> int:
        """Time in ms from which the broker delivers an unacknowledged message again."""
        return self.pop_time_ms + self.invisible_ms

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic whose queue contains the message.

        Acknowledgements name this topic. It is the group's retry topic for a message that is
        delivered again.
        """
        return real_topic(self.kind, topic, group)

    def encode(self) -> str:
        text = (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.kind.value} {self.broker_name} {self.queue_id}"
        )
        return text if self.queue_offset is None else f"{text} {self.queue_offset}"

    @classmethod
    def decode(cls, text: str) -> PopHandle:
        """Decode the text of a handle.

        Raise MessageError if the text is invalid. An unknown kind counts as normal, as in Apache's
        reader.
        """
        parts = text.split(" ")
        if len(parts) < 7:
            raise MessageError(f"pop handle has {len(parts)} fields, not 7 or 8: {text[:128]!r}")
        kind = QueueKind(parts[4]) if parts[4] in ("0", "1", "2") else QueueKind.NORMAL
        start, pop_time, invisible, revive_queue = (_number(part, text) for part in parts[:4])
        queue_id, *offset = (_number(part, text) for part in parts[6:8])
        return cls(
            start_offset=start,
            pop_time_ms=pop_time,
            invisible_ms=invisible,
            revive_queue_id=revive_queue,
            kind=kind,
            broker_name=parts[5],
            queue_id=queue_id,
            queue_offset=offset[0] if offset else None,
        )


def encode_numbers(entries: Iterable[tuple[QueueKey, int]]) -> str:
    """Return the text of the response field ``startOffsetInfo`` or ``orderCountInfo``."""
    return ";".join(f"{key.kind.value} {key.name} {number}" for key, number in entries)


def decode_numbers(text: str | None) -> dict[QueueKey, int]:
    """Decode the response field ``startOffsetInfo`` or ``orderCountInfo``.

    An absent text has no entries. Raise MessageError if the text is invalid, or names a queue
    twice.
    """
    return {key: _number(value, text or "") for key, value in _entries(text).items()}


def encode_offsets(entries: Iterable[tuple[QueueKey, Sequence[int]]]) -> str:
    """Return the text of the response field ``msgOffsetInfo``.

    The field has the queue offsets of the messages, in the order of the response's body.
    """
    return ";".join(
        f"{key.kind.value} {key.name} {','.join(map(str, offsets))}" for key, offsets in entries
    )


def decode_offsets(text: str | None) -> dict[QueueKey, list[int]]:
    """Decode the response field ``msgOffsetInfo``.

    An absent text has no entries. Raise MessageError if the text is invalid, or names a queue
    twice.
    """
    return {
        key: [_number(each, text or "") for each in value.split(",")]
        for key, value in _entries(text).items()
    }


def _entries(text: str | None) -> Mapping[QueueKey, str]:
    entries: dict[QueueKey, str] = {}
    for entry in (text or "").split(";"):
        if not entry:
            continue
        parts = entry.split(" ")
        if len(parts) != 3 or parts[0] not in ("0", "1", "2"):
            raise MessageError(f"pop answer has an invalid entry: {entry[:64]!r}")
        key = QueueKey(QueueKind(parts[0]), parts[1])
        if key in entries:
            raise MessageError(f"pop answer has two entries for {entry[:64]!r}")
        entries[key] = parts[2]
    return entries


def _number(text: str, whole: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise MessageError(f"no number {text[:32]!r} in {whole[:128]!r}")
    return int(text)


# Handle of a timer message for its recall: broker, time and unique id.
#
#     URL-safe Base64 of:   v1 <topic> <broker> <time in ms> <unique id>   with single spaces
#
# The time is that of the message's slot, plus 1. The unique id is the rest of the text, spaces
# included; RocketMQ reads it up to its first space. Source: apache/rocketmq
# ``RecallMessageHandle``.
@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Handle with which a producer recalls a delayed message.

    ``time_text`` is the delivery time as the handle contains it.
    """

    topic: str
    broker_name: str
    time_text: str
    unique_id: str

    @property
    def time_ms(self) -> int:
        """Delivery time in ms, or −1 if ``time_text`` is not a number."""
        text = self.time_text
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1

    def encode(self) -> str:
        raw = f"v1 {self.topic} {self.broker_name} {self.time_text} {self.unique_id}"
        return base64.urlsafe_b64encode(raw.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Decode the text of a recall handle.

        Raise MessageError if the text is invalid.
        """
        try:
            padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
            raw = base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raw = ""
        parts = raw.split(" ", 4)
        if len(parts) < 5 or parts[0] != "v1" or not all(parts):
            raise MessageError(
                "recall handle is invalid: give the recall_handle of the timer message's SendResult"
            )
        return cls(*parts[1:])


def delete_key(topic: str, unique_id: str) -> str:
    """Return the key of a delayed message. A broker finds the message of a recall by this key.

    RocketMQ: ``TimerMessageStore.buildDeleteKey``.
    """
    return f"{topic}+{unique_id}"
