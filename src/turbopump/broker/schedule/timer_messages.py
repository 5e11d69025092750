"""Timer messages: their stored form, and the copy that is delivered when a message is due.

Time is divided into slots, and a message waits in the slot of its time. A recall is a message that
names another one and prevents its delivery. When a slot is due, a copy of each message goes to
consumers, or, if its time has not come, back to the timers for a later slot. Source:
apache/rocketmq ``TimerMessageStore.convert``. As there, REAL_TOPIC, REAL_QID and all TIMER_*
properties stay visible in a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from turbopump.message import properties as names
from turbopump.message.handles import delete_key
from turbopump.message.java import java_hash, parse_long
from turbopump.message.message import ReceivedMessage
from turbopump.message.rules import NOT_SENDABLE_TOPICS
from turbopump.store.timers.pending_timers import TIMER_TOPIC

NEVER_WAITED: Final = (1 << 63) - 1
"""Value of TIMER_ENQUEUE_MS for a message that was already due when the timers first read it."""


class DueSlot(NamedTuple):
    """Slot of time in which a timer message waits.

    - ``due``: the slot, in ms since 1970.
    - ``until``: for a recall, the last slot that may contain the recalled message. A recall is put
      into every slot from ``due`` to ``until``.
    - ``topic_hash``: Java's hash code of the message's topic.
    - ``recalls``: True for a recall.
    """

    due: int
    until: int
    topic_hash: int
    recalls: bool


@dataclass(frozen=True, slots=True)
class TimerMessage:
    """A message of ``rmq_sys_wheel_timer`` with its timer fields.

    - ``out``: the slot that the message got when it was sent, in ms since 1970.
    - ``due``: the slot of the message with the present precision.
    - ``until``: the same slot. For a recall, the last slot that may contain the recalled message.
    - ``topic``, ``queue_id``: the queue to which the message was sent.
    - ``recalled``: for a recall, the name of the recalled message. Otherwise None.
    """

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
        """Names by which recalls refer to this message.

        RocketMQ before 5.4 used the unique id alone.
        """
        return delete_key(self.topic, self.unique_id), self.unique_id

    @property
    def recalls(self) -> bool:
        return self.recalled is not None

    @property
    def slot(self) -> DueSlot:
        return DueSlot(self.due, self.until, _topic_hash(self.topic), self.recalls)


_topic_hash = lru_cache(maxsize=1024)(java_hash)


def slots_of(out: int, deliver: int | None, precision: int) -> tuple[int, int]:
    """Return the first and the last possible slot of a message.

    - ``out``: the slot that the message got when it was sent, perhaps with another precision.
    - ``deliver``: the time of the message, or None. Without it, the coarsest precision that has the
      slot ``out`` decides.
    - ``precision``: the length of the returned slots, in ms.
    """
    last = out + next((coarse for coarse in (1000, 500, 200) if out % coarse == 0), 100)
    if deliver is not None and out < deliver <= last:
        return slot_ms(deliver, precision), slot_ms(deliver, precision)
    return slot_ms(out + 1, precision), slot_ms(last, precision)


def timer_message(message: ReceivedMessage, precision: int) -> TimerMessage | str:
    """Decode a stored timer message. For an invalid message, return the fault as text.

    - ``precision``: the length of a slot, in ms.
    """
    properties = message.properties
    given, topic = properties.get(names.REAL_QUEUE_ID, ""), properties.get(names.REAL_TOPIC, "")
    if message.topic != TIMER_TOPIC:
        return f"its topic is {message.topic}"
    out, queue_id = (
        names.whole_number(properties.get(names.TIMER_OUT_MS), 18),
        names.whole_number(given, 9),
    )
    if out is None:
        return f"{names.TIMER_OUT_MS}={properties.get(names.TIMER_OUT_MS, '')[:40]!r} is not a time"
    nowhere = topic in ("", TIMER_TOPIC) or "/" in topic or topic in NOT_SENDABLE_TOPICS
    if nowhere or queue_id is None:
        where = f"{names.REAL_TOPIC}={topic[:140]!r} {names.REAL_QUEUE_ID}={given[:40]!r}"
        return f"{where} does not name a queue"
    unique_id = properties.get(names.UNIQ_KEY, "")
    recalled = properties.get(names.TIMER_DELETE_UNIQ_KEY)
    # the time of a recall is the time in its handle, not its own
    deliver = parse_long(properties.get(names.TIMER_DELIVER_MS, "")) if recalled is None else None
    due, until = slots_of(out, deliver, precision)
    if recalled is None:  # a message must not be delivered early
        due = until
    return TimerMessage(message, out, due, until, topic, queue_id, unique_id, recalled)


Recalls = dict[tuple[str, str], set[tuple[int, int]]]
"""Recalls of a slot, by topic and name. The values are the first and the last slot of the message.

A recall counts only for the topic to which it was sent, whatever name it contains. So permission to
publish to one topic does not allow recalls in another.
"""


def is_recalled(message: TimerMessage, recalls: Recalls) -> bool:
    """Return True if one of the recalls is for this message.

    A slot with overdue messages may contain messages of other slots with the same unique id.
    """
    return any(
        due <= message.due <= until
        for name in message.names
        for due, until in recalls.get((message.topic, name), ())
    )


def copy_properties(message: ReceivedMessage, written: int, now: int, *, rolls: bool) -> str:
    """Return the encoded properties for the copy of a message that leaves its slot.

    - ``written``: the time when the message was put into the slot, in ms since 1970.
    - ``rolls``: True if the copy goes into a later slot.
    """
    properties = dict(message.properties)
    properties[names.TIMER_ENQUEUE_MS] = str(written)
    if rolls:
        times = names.whole_number(properties.get(names.TIMER_ROLL_TIMES), 9) or 0
        properties[names.TIMER_ROLL_TIMES] = str(times + 1)
    properties[names.TIMER_DEQUEUE_MS] = str(now)
    return names.encode_properties(properties)


def slot_ms(deliver: int, precision: int) -> int:
    """Return the beginning of the slot of a message, in ms since 1970.

    - ``deliver``: the time of the message.
    - ``precision``: the length of a slot, in ms.

    The messages of a slot are delivered when the next slot begins. So each message is delivered at
    its time, or less than one ``precision`` later.
    """
    return (deliver - 1) // precision * precision
