"""What is stored of a timer message when its slot is due: the copy that consumers get, or, on the
way to its slot, itself once more.

Source: apache/rocketmq ``TimerMessageStore.convert``. REAL_TOPIC, REAL_QID and all TIMER_* stay
visible in a copy, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from turbopump.broker.schedule.timer_detour import asked_long, slot_ms
from turbopump.message.java_hash import java_hash
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETE_UNIQ_KEY,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    encode_properties,
)
from turbopump.message.recall_handle import delete_key
from turbopump.message.rules import NOT_SENDABLE_TOPICS
from turbopump.store.timers.pending_timers import TIMER_TOPIC

NEVER_WAITED: Final = (1 << 63) - 1
"""TIMER_ENQUEUE_MS of a message that was due when it was first seen."""


@dataclass(frozen=True, slots=True)
class TimerMessage:
    """A message of ``rmq_sys_wheel_timer``, as far as timers go. ``out`` is the slot (ms) that it
    got when it was sent; ``due`` is the one that it has with the precision of today, ``until`` the
    same, or for a recall, which is in every slot in which its message may be, the last. ``names``
    is what recalls of it name."""

    message: ReceivedMessage
    out: int
    due: int
    until: int
    topic: str
    queue_id: int
    unique_id: str
    recalled: str | None

    @property
    def names(self) -> tuple[str, str]:
        """RocketMQ before 5.4 knew the unique id alone."""
        return delete_key(self.topic, self.unique_id), self.unique_id

    @property
    def topic_hash(self) -> int:
        return _topic_hash(self.topic)


_topic_hash = lru_cache(maxsize=1024)(java_hash)


def slots_of(out: int, deliver: int | None, precision: int) -> tuple[int, int]:
    """The first and the last slot that a message may be in which got the slot ``out`` when it was
    sent, perhaps with another precision than today's. ``deliver`` is its time, if it tells; else
    that may be as far behind as the greatest precision with such a slot has it."""
    last = out + next((coarse for coarse in (1000, 500, 200) if out % coarse == 0), 100)
    if deliver is not None and out < deliver <= last:
        return slot_ms(deliver, precision), slot_ms(deliver, precision)
    return slot_ms(out + 1, precision), slot_ms(last, precision)


def timer_message(message: ReceivedMessage, precision: int) -> TimerMessage | str:
    """Read a stored timer message, for slots of ``precision`` ms; what is wrong with it, if it is
    none."""
    properties = message.properties
    out, queue_id = properties.get(TIMER_OUT_MS, ""), properties.get(REAL_QUEUE_ID, "")
    topic = properties.get(REAL_TOPIC, "")
    if message.topic != TIMER_TOPIC:
        return f"it belongs to {message.topic}"
    if not (out.isascii() and out.isdigit() and len(out) < 19):
        return f"{TIMER_OUT_MS}={out[:40]!r} is no time"
    nowhere = not topic or topic == TIMER_TOPIC or "/" in topic or topic in NOT_SENDABLE_TOPICS
    if nowhere or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
        return (
            f"{REAL_TOPIC}={topic[:140]!r} {REAL_QUEUE_ID}={queue_id[:40]!r} is no place to "
            "deliver to"
        )
    unique_id = properties.get(UNIQ_KEY, "")
    recalled = properties.get(TIMER_DELETE_UNIQ_KEY)
    # of a recall: its handle's
    deliver = asked_long(properties.get(TIMER_DELIVER_MS, "")) if recalled is None else None
    due, until = slots_of(int(out), deliver, precision)
    if recalled is None:  # never early
        due = until
    return TimerMessage(message, int(out), due, until, topic, int(queue_id), unique_id, recalled)


Recalls = dict[str, set[tuple[int, int]]]
"""What the recalls in a slot name: of each name the first and the last slot (ms) in which the
message that is meant may be."""


def is_recalled(message: TimerMessage, recalls: Recalls) -> bool:
    """Whether one of them is of this message: in a slot with what was overdue, there may be others
    with its unique id."""
    return any(
        due <= message.due <= until
        for name in message.names
        for due, until in recalls.get(name, ())
    )


def copied(message: ReceivedMessage, written: int, now: int, *, rolls: bool) -> str:
    """The property text of what is stored now. ``written``: when the message was put into its slot
    (ms)."""
    properties = dict(message.properties)
    properties[TIMER_ENQUEUE_MS] = str(written)
    if rolls:
        times = properties.get(TIMER_ROLL_TIMES, "")
        properties[TIMER_ROLL_TIMES] = str(
            int(times) + 1 if times.isascii() and times.isdigit() and len(times) < 10 else 1
        )
    properties[TIMER_DEQUEUE_MS] = str(now)
    return encode_properties(properties)
