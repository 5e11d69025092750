"""Messages stored when a timer's slot is due: the copy for consumers, or the timer message itself,
moved to a later slot.

Source: apache/rocketmq ``TimerMessageStore.convert``. As there, REAL_TOPIC, REAL_QID and all
TIMER_* properties stay visible in a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from turbopump.broker.interceptors import Destination, Interceptor
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message import properties as names
from turbopump.message.handles import RecallHandle, delete_key
from turbopump.message.java import java_hash
from turbopump.message.message import ReceivedMessage
from turbopump.message.rules import NOT_SENDABLE_TOPICS, RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessage
from turbopump.remoting.response import Refusal, refusal
from turbopump.store.timers.pending_timers import TIMER_TOPIC

NEVER_WAITED: Final = (1 << 63) - 1
"""TIMER_ENQUEUE_MS of a message that was already due when it was first read."""


class DueSlot(NamedTuple):
    """Slot of a message: ``due`` (ms), and the fields of its unit. A recall is put into every slot
    that may hold its message, up to ``until``."""

    due: int
    until: int
    topic_hash: int
    recalls: bool


@dataclass(frozen=True, slots=True)
class TimerMessage:
    """A message of ``rmq_sys_wheel_timer`` with its timer fields.

    - ``out``: slot (ms) that the message got when it was sent.
    - ``due``: slot with the present precision.
    - ``until``: the same slot; for a recall, the last slot that may hold its message.
    - ``names``: names by which recalls refer to this message.
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
        """Names by which recalls refer to this message. RocketMQ before 5.4 used the unique id
        alone."""
        return delete_key(self.topic, self.unique_id), self.unique_id

    @property
    def recalls(self) -> bool:
        return self.recalled is not None

    @property
    def slot(self) -> DueSlot:
        return DueSlot(self.due, self.until, _topic_hash(self.topic), self.recalls)


_topic_hash = lru_cache(maxsize=1024)(java_hash)


def slots_of(out: int, deliver: int | None, precision: int) -> tuple[int, int]:
    """Return the first and the last slot of a message that got the slot ``out`` when it was sent,
    perhaps with another precision. ``deliver`` is the message's time, if known. Otherwise the
    greatest precision with this slot decides."""
    last = out + next((coarse for coarse in (1000, 500, 200) if out % coarse == 0), 100)
    if deliver is not None and out < deliver <= last:
        return slot_ms(deliver, precision), slot_ms(deliver, precision)
    return slot_ms(out + 1, precision), slot_ms(last, precision)


def timer_message(message: ReceivedMessage, precision: int) -> TimerMessage | str:
    """Decode a stored timer message for slots of ``precision`` ms. Return the fault as text if the
    message is invalid."""
    properties = message.properties
    given, topic = properties.get(names.REAL_QUEUE_ID, ""), properties.get(names.REAL_TOPIC, "")
    if message.topic != TIMER_TOPIC:
        return f"it belongs to {message.topic}"
    out, queue_id = (
        names.whole_number(properties.get(names.TIMER_OUT_MS), 18),
        names.whole_number(given, 9),
    )
    if out is None:
        return f"{names.TIMER_OUT_MS}={properties.get(names.TIMER_OUT_MS, '')[:40]!r} is no time"
    nowhere = topic in ("", TIMER_TOPIC) or "/" in topic or topic in NOT_SENDABLE_TOPICS
    if nowhere or queue_id is None:
        where = f"{names.REAL_TOPIC}={topic[:140]!r} {names.REAL_QUEUE_ID}={given[:40]!r}"
        return f"{where} is no queue to deliver to"
    unique_id = properties.get(names.UNIQ_KEY, "")
    recalled = properties.get(names.TIMER_DELETE_UNIQ_KEY)
    # of a recall: its handle's
    deliver = parse_long(properties.get(names.TIMER_DELIVER_MS, "")) if recalled is None else None
    due, until = slots_of(out, deliver, precision)
    if recalled is None:  # never early
        due = until
    return TimerMessage(message, out, due, until, topic, queue_id, unique_id, recalled)


Recalls = dict[tuple[str, str], set[tuple[int, int]]]
"""Recalls of a slot: for each topic and name, the first and the last slot (ms) of the recalled
message.

A recall counts only for the topic to which it was sent, whatever name it contains. So permission to
publish to one topic does not allow recalls in another.
"""


def is_recalled(message: TimerMessage, recalls: Recalls) -> bool:
    """Return True if one of the recalls is for this message. A slot with overdue messages may
    contain others with its unique id."""
    return any(
        due <= message.due <= until
        for name in message.names
        for due, until in recalls.get((message.topic, name), ())
    )


def copy_properties(message: ReceivedMessage, written: int, now: int, *, rolls: bool) -> str:
    """Return the properties of the message to store now. ``written``: time when the message was put
    into its slot (ms)."""
    properties = dict(message.properties)
    properties[names.TIMER_ENQUEUE_MS] = str(written)
    if rolls:
        times = names.whole_number(properties.get(names.TIMER_ROLL_TIMES), 9) or 0
        properties[names.TIMER_ROLL_TIMES] = str(times + 1)
    properties[names.TIMER_DEQUEUE_MS] = str(now)
    return names.encode_properties(properties)


# --- The rule for messages that ask for a time (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS):
# they wait in ``rmq_sys_wheel_timer``. Source: apache/rocketmq
# ``HookUtils.handleScheduleMessage``, ``SendMessageProcessor.attachRecallHandle``.

_ASKING: Final = {names.TIMER_DELAY_SEC: 1000, names.TIMER_DELAY_MS: 1, names.TIMER_DELIVER_MS: 1}
"""Properties that set a time, with their units in ms. The first one present counts."""
_LONG_MAX: Final = (1 << 63) - 1


def timer_interceptor(config: BrokerConfig, clock: Clock) -> Interceptor:
    """Return the interceptor for timers. A message that another interceptor has redirected is left
    unchanged."""

    def rule(request: SendMessage, destination: Destination) -> Destination | Refusal:
        if destination.topic != request.topic or "TIMER_D" not in destination.properties:
            return destination
        return by_way_of_timer(destination, config, clock.now_ms())

    return rule


def by_way_of_timer(
    destination: Destination, config: BrokerConfig, now: int
) -> Destination | Refusal:
    """Return the queue in which the message waits, the given destination if it is due, or a
    refusal."""
    half = destination.sys_flag & names.TRANSACTION_MASK not in (
        0,
        names.SysFlag.TRANSACTION_COMMIT,
    )
    if destination.topic == TIMER_TOPIC or half:
        return destination
    properties = names.decode_properties(destination.properties)
    if (parse_long(properties.get(names.DELAY_TIME_LEVEL, "").strip()) or 0) > 0:
        for one in _ASKING:  # RocketMQ: a level wins
            properties.pop(one, None)
        return msgspec.structs.replace(destination, properties=names.encode_properties(properties))
    name = next((one for one in _ASKING if one in properties), None)
    # with a slot it has waited already, and is sent again
    if name is None or names.TIMER_OUT_MS in properties:
        return destination
    if not config.timer_wheel_enable:
        remark = "accurate timer message is not enabled, timerWheelEnable is false"
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{remark}: use a delay level, or set it to true on the broker",
        )
    deliver = deliver_ms(properties, now)
    if deliver is None:
        return _illegal(config, f"{name}={properties[name][:40]!r} is no whole number")
    if deliver <= now:
        if names.TIMER_DELETE_UNIQ_KEY in properties:
            return _illegal(
                config,
                f"it is too late to recall a message that was due at {deliver}; the "
                f"broker's clock says {now}",
            )
        return destination
    if deliver - now > config.timer_max_delay_sec * 1000:
        return _illegal(
            config, f"{name}={properties[name][:40]} is {(deliver - now) // 1000} s ahead"
        )
    out = slot_ms(deliver, config.timer_precision_ms)
    if name != names.TIMER_DELIVER_MS and (
        config.timer_precision_ms < 1000 or names.TIMER_DELIVER_MS in properties
    ):
        # of which second's slot the finer one is would not tell it after a change
        properties[names.TIMER_DELIVER_MS] = str(deliver)
    properties[names.TIMER_OUT_MS] = str(out)
    properties[names.REAL_TOPIC] = destination.topic
    properties[names.REAL_QUEUE_ID] = str(destination.queue_id)
    handle = None
    if config.recall_message_enable and not destination.topic.startswith(RETRY_PREFIX):
        handle = RecallHandle(
            destination.topic, config.broker_name, str(out + 1), properties.get(names.UNIQ_KEY, "")
        ).encode()
    return Destination(
        TIMER_TOPIC, 0, names.encode_properties(properties), destination.sys_flag, handle
    )


def deliver_ms(properties: dict[str, str], now: int) -> int | None:
    """Return the delivery time of a message (ms), or None if its property is not a number."""
    name = next((name for name in _ASKING if name in properties), names.TIMER_DELIVER_MS)
    count = parse_long(properties.get(name, ""))
    if count is None or name == names.TIMER_DELIVER_MS:
        return count
    return now + count * _ASKING[name]


def slot_ms(deliver: int, precision: int) -> int:
    """Return the beginning of a message's slot, in ms. The messages of a slot are delivered when
    the next slot begins: at ``deliver``, or less than one ``precision`` later."""
    return (deliver - 1) // precision * precision


def parse_long(text: str) -> int | None:
    """Parse a number like Java's ``Long.parseLong``."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 40):
        return None
    number = int(text)
    return number if -_LONG_MAX - 1 <= number <= _LONG_MAX else None


def _illegal(config: BrokerConfig, why: str) -> Refusal:
    most = config.timer_max_delay_sec
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"timer message illegal, {why}; the delay time should not be bigger than the max delay "
        f"{most * 1000}ms (timerMaxDelaySec={most} of the broker), times are ms since 1970",
    )
