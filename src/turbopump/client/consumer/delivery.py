"""Received message of a consumer. Its methods settle the message, or have it delivered again.

One rule: a message is settled once per delivery; later calls are ignored. This module must not know
queues or offsets: it calls its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from turbopump.client.setting_rules import SettingRule, is_a, is_number, whole_between
from turbopump.log_keys import LogKeys
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import failure_text

_DELAY: Final = SettingRule(
    lambda value: is_number(value) and -(2**31) < value < 2**31,
    "must be a number of seconds, or a timedelta",
).or_none()
_LEVEL: Final = SettingRule(
    whole_between(-(2**31), 2**31 - 1),
    "must be a whole number: a delay level, 0 for one that grows with each attempt, -1 for a dead "
    "letter at once",
)
_REASON: Final = SettingRule(is_a(BaseException, str), "must be text or an exception").or_none()


class LateHandlerError(TimeoutError):
    """Cause of a retry after a handler ran longer than ``consume_timeout``."""


class DeliveryOwner(Protocol):
    """Owner of delivered messages. A message reports to its owner how it was settled."""

    @property
    def dropped(self) -> bool: ...

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None: ...

    def delivery_abandoned(self, message: Delivery) -> None: ...


class Delivery(ReceivedMessage):
    """Received message that a handler settles, with ``done`` or ``retry``.

    ``attempt`` counts the deliveries of the message to this group, from 1. ``topic`` is the
    original topic, even if the message arrives through the group's retry topic.
    """

    __slots__ = (
        "_owner",
        "again",
        "attempt",
        "cause",
        "handled_s",
        "settled",
        "span",
        "taken",
        "taken_at",
        "trace",
    )

    _owner: DeliveryOwner
    attempt: int
    settled: bool
    again: bool
    """True if the message was settled by ``retry``."""
    taken: bool
    """True while a handler or reader has the message and has not settled it."""
    cause: BaseException | str | None
    """Exception of the handler, or the reason passed to ``retry``. None if no cause is known."""
    taken_at: float
    """Event loop time, in seconds, at which a handler or reader got the message."""
    handled_s: float | None
    """Seconds that the handler took, if it ran in a thread. None if the time until the message is
    settled counts instead."""
    trace: object
    """State that the tracer keeps while the message is handled."""
    span: Any
    """Span of OpenTelemetry while a program without a handler has the message. Unset or None in all
    other cases."""

    def deliver(self, owner: DeliveryOwner, attempt: int) -> None:
        """Prepare the message for delivery as attempt number ``attempt``.

        ``owner`` calls this method before it passes the message to a handler or reader.
        """
        self._owner = owner
        self.attempt = attempt
        self.settled = self.again = False
        self.taken = False
        self.handled_s = None
        self.cause = None

    def deliver_again(self) -> None:
        """Prepare the message for another delivery by the same owner. This counts as the next
        attempt."""
        self.deliver(self._owner, self.attempt + 1)

    def abandon(self) -> None:
        """Inform the owner that this unsettled message will not be handled."""
        self.taken = False
        self._owner.delivery_abandoned(self)

    def goes_with(self, other: Delivery) -> bool:
        """Return True if both messages may be passed to a handler in one call.

        They must have the same queue and the same original topic.
        """
        return (
            self._owner is other._owner
            and self.queue_id == other.queue_id
            and self.topic == other.topic
        )

    @property
    def failure(self) -> str | None:
        """Cause of the retry as one line of text, or None if no cause is known."""
        return None if self.cause is None else failure_text(self.cause)

    @property
    def wanted(self) -> bool:
        """True while the message is unsettled and its queue is still assigned to this member."""
        return not self.settled and not self._owner.dropped

    def done(self) -> None:
        """Settle the message as done. Its offset can then be committed.

        A message that is already settled stays as it is.
        """
        if not self.settled:
            self.settled = True
            self._owner.delivery_done(self)

    def retry(
        self,
        delay: float | timedelta | None = None,
        *,
        level: int = 0,
        reason: BaseException | str | None = None,
    ) -> None:
        """Have the message delivered again.

        - Without ``delay``, the message is sent back to the broker, which delivers it to the
          group again. The wait grows with each attempt, or is that of ``level``. After the last
          attempt, or at once for ``level=-1``, the message becomes a dead letter.
        - With ``delay`` (seconds or a timedelta), this consumer keeps the message and delivers
          it again. The queue's offset waits for it.
        - ``reason`` appears in traces and in ``turbopump dlq show``.

        Raises ConfigError for an unusable argument.
        """
        delay = checked_delay(delay, level, reason)
        if not self.settled:
            self.settled = self.again = True
            self.cause = reason
            self._owner.delivery_failed(self, delay, level)
        elif isinstance(self.cause, LateHandlerError):
            self.cause = reason  # too late to count, but known

    @property
    def given_back_late(self) -> bool:
        """True if the message was settled because its handler exceeded ``consume_timeout``.

        The value is False again once that handler has called ``retry``.
        """
        return self.settled and isinstance(self.cause, LateHandlerError)


@dataclass(frozen=True, slots=True)
class Retry:
    """Handler result that requests another delivery of the message.

    Examples are ``Retry()``, ``Retry(level=5)``, ``Retry(delay=30)`` and ``Retry(reason="no
    stock")``. The fields are the arguments of ``Delivery.retry``.

    Raises ConfigError for an unusable delay, level or reason.
    """

    delay: float | timedelta | None = None
    """Delay in seconds; a timedelta is converted."""
    level: int = field(default=0, kw_only=True)
    reason: BaseException | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", checked_delay(self.delay, self.level, self.reason))


def is_retry(result: object) -> bool:
    """Return True if this result of a handler asks for a retry."""
    return isinstance(result, Retry) or (isinstance(result, type) and issubclass(result, Retry))


def checked_delay(
    delay: float | timedelta | None, level: int, reason: BaseException | str | None
) -> float | None:
    """Check the arguments of a retry, and return the delay in seconds.

    Raises ConfigError for an unusable argument.
    """
    # nearly always
    if delay is None and reason is None and level.__class__ is int and -2 < level < 100:
        return None
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    _DELAY.check("delay", delay)
    _LEVEL.check("level", level)
    _REASON.check("reason", reason)
    return delay


BatchHandler = Callable[[list[Delivery]], object]
"""Handler of a list of messages, either a coroutine function or a plain function.

``docs/guide/consuming.md`` explains the meaning of its result.
"""


class DeliveryBatch:
    """Messages of one queue, passed to a handler in a single call.

    The batch has at least one message. The messages are in the order of their queue. ``ordered`` is
    True if the queue is handled in order.

    RocketMQ: ``ConsumeMessageConcurrentlyService.processConsumeResult``.
    """

    __slots__ = ("_ordered", "messages")

    def __init__(self, messages: Sequence[Delivery], *, ordered: bool) -> None:
        self.messages = messages
        self._ordered = ordered

    @property
    def wanted(self) -> bool:
        """True while at least one message is unsettled and its queue is still assigned."""
        return any(message.wanted for message in self.messages)

    @property
    def settled(self) -> bool:
        """True if all messages are settled."""
        return all(message.settled for message in self.messages)

    @property
    def taken(self) -> bool:
        """True while a handler or reader has an unsettled message of the batch."""
        return any(message.taken and not message.settled for message in self.messages)

    @property
    def taken_at(self) -> float:
        """Event loop time, in seconds, at which the batch went to a handler or reader."""
        return self.messages[0].taken_at

    @property
    def handled_s(self) -> float | None:
        """Seconds that the handler took, if the handler ran in a thread.

        A new value is stored in the unsettled messages only.
        """
        return self.messages[0].handled_s

    @handled_s.setter
    def handled_s(self, seconds: float | None) -> None:
        for message in self.messages:
            if not message.settled:
                message.handled_s = seconds

    def abandon(self) -> None:
        """Inform the owner that the unsettled messages will not be handled."""
        for message in self.messages:
            if not message.settled:
                message.abandon()

    def done(self) -> None:
        """Settle all remaining messages of the batch as done.

        In an ordered queue, the messages behind a failed message are delivered again together with
        that message.
        """
        again = False
        for message in self.messages:
            if message.settled:
                again = again or (self._ordered and message.again)
            elif again:
                message.retry(reason="it came behind a message of its batch that is wanted again")
            else:
                message.done()

    def retry(
        self,
        delay: float | timedelta | None = None,
        *,
        level: int = 0,
        reason: BaseException | str | None = None,
    ) -> None:
        """Have the unsettled messages of the batch delivered again.

        The arguments are those of ``Delivery.retry``.
        """
        for message in self.messages:
            message.retry(delay, level=level, reason=reason)


Handled = Delivery | DeliveryBatch
"""Argument of a handler call: one message or a batch."""


def messages_in(handled: Handled) -> Sequence[Delivery]:
    """Return the message, or the messages of a batch, as a sequence."""
    return handled.messages if isinstance(handled, DeliveryBatch) else (handled,)


def keys_of(handled: Handled) -> LogKeys:
    """Return the keys that identify a message or batch in a log line.

    For a batch, they are the number of unsettled messages and the keys of the first one.
    """
    if isinstance(handled, Delivery):
        return LogKeys(
            msg_id=handled.msg_id,
            topic=handled.topic,
            queue=f"{handled.broker_name}:{handled.queue_id}",
            offset=handled.queue_offset,
            attempt=handled.attempt,
        )
    unsettled = [message for message in handled.messages if not message.settled] or handled.messages
    return LogKeys(count=len(unsettled), **keys_of(unsettled[0]))
