"""A message in a consumer's hands: what the broker stored, and how to say that it is done or wanted
again.

One rule: the first word counts; a message is settled once per delivery. This module must not know
queues or offsets: it tells its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from turbopump.client.setting_rules import SettingRule, is_number, is_whole
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import failure_text

_DELAY: Final = SettingRule(
    lambda value: is_number(value) and -(2**31) < value < 2**31,
    "must be a number of seconds, or a timedelta",
).or_none()
_LEVEL: Final = SettingRule(
    lambda value: is_whole(value) and -(2**31) <= value < 2**31,
    "must be a whole number: a delay level, 0 for one that grows with each attempt, -1 for a dead "
    "letter at once",
)
_REASON: Final = SettingRule(
    lambda value: isinstance(value, BaseException | str), "must be text or an exception"
).or_none()


class LateHandlerError(TimeoutError):
    """Why a message is wanted again whose handler has it still: nobody of its own has said so."""


class DeliveryOwner(Protocol):
    """The owner of a delivered message: the queue it came from."""

    @property
    def dropped(self) -> bool: ...

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None: ...

    def delivery_left(self, message: Delivery) -> None: ...


class Delivery(ReceivedMessage):
    """A received message with ``done()`` and ``retry()``. ``attempt`` counts its deliveries to this
    group, from 1.

    ``topic`` is the one it was first sent to, also when it comes by way of the group's retry topic.
    """

    __slots__ = (
        "_owner",
        "again",
        "attempt",
        "cause",
        "handled_s",
        "settled",
        "taken",
        "taken_at",
        "trace",
    )

    _owner: DeliveryOwner
    attempt: int
    settled: bool
    again: bool
    """True: it was settled by ``retry``."""
    taken: bool
    """True: it was handed out, and is neither settled nor given back."""
    cause: BaseException | str | None
    """Why it is wanted again: what the handler raised, or what was said."""
    taken_at: float
    """When it was handed to somebody, in the loop's seconds."""
    handled_s: float | None
    """Seconds that its handler took, if that ran in a thread. None: they are counted until it is
    settled."""
    trace: object
    """State of a tracer while the message is handled."""

    def deliver(self, owner: DeliveryOwner, attempt: int) -> None:
        """For the owner: hand it out (again)."""
        self._owner = owner
        self.attempt = attempt
        self.settled = self.again = False
        self.taken = False
        self.handled_s = None
        self.cause = None

    def deliver_again(self) -> None:
        """The same, once more."""
        self.deliver(self._owner, self.attempt + 1)

    def left(self) -> None:
        """Put down a message that was taken and is neither settled nor wanted."""
        self.taken = False
        self._owner.delivery_left(self)

    def goes_with(self, other: Delivery) -> bool:
        """Return True if one call of a handler may get both: they are of one queue, and were sent
        to one topic."""
        return (
            self._owner is other._owner
            and self.queue_id == other.queue_id
            and self.topic == other.topic
        )

    @property
    def failure(self) -> str | None:
        """Why it is wanted again, in one line; None if nobody said."""
        return None if self.cause is None else failure_text(self.cause)

    @property
    def wanted(self) -> bool:
        """True while it makes sense to handle it: nobody has settled it, and its queue is still
        ours."""
        return not self.settled and not self._owner.dropped

    def done(self) -> None:
        """Settle the message as done. It may be committed. A second word about this delivery is
        ignored."""
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
        """Have it again. It is sent back to the broker, which delivers it to the group again after
        a delay that grows with each attempt (or that of ``level``), and makes it a dead letter
        after the last attempt (or at once, for ``level=-1``). With ``delay``, in seconds (or a
        timedelta), it stays here, is delivered again by this consumer, and holds the queue's offset
        until it is done. Operators see ``reason`` in traces and in ``turbopump dlq show``. Raises
        ConfigError for what is none of these."""
        delay = checked_delay(delay, level, reason)
        if not self.settled:
            self.settled = self.again = True
            self.cause = reason
            self._owner.delivery_failed(self, delay, level)
        elif isinstance(self.cause, LateHandlerError):
            self.cause = reason  # too late to count, but known

    @property
    def given_back_late(self) -> bool:
        """True if it was settled because its handler did not end, and the handler has not said
        itself that it failed."""
        return self.settled and isinstance(self.cause, LateHandlerError)


@dataclass(frozen=True, slots=True)
class Retry:
    """Result by which a handler asks to have the message again: ``return Retry()``,
    ``Retry(level=5)``, ``Retry(delay=30)`` or ``Retry(reason="no stock")``. See ``Delivery.retry``.
    Raises ConfigError for what is no delay, level or reason."""

    delay: float | timedelta | None = None
    """Seconds, also of one that was made with a timedelta."""
    level: int = field(default=0, kw_only=True)
    reason: BaseException | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", checked_delay(self.delay, self.level, self.reason))


def is_retry(result: object) -> bool:
    """Return True if a handler that returned this wants the message again."""
    return isinstance(result, Retry) or (isinstance(result, type) and issubclass(result, Retry))


def checked_delay(
    delay: float | timedelta | None, level: int, reason: BaseException | str | None
) -> float | None:
    """The delay in seconds. Raises ConfigError if one of the three cannot be meant."""
    # nearly always
    if delay is None and reason is None and level.__class__ is int and -2 < level < 100:
        return None
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    _DELAY.check("delay", delay)
    _LEVEL.check("level", level)
    _REASON.check("reason", reason)
    return delay


# --- Messages of one queue that a handler gets with one call. RocketMQ:
# ``ConsumeMessageConcurrentlyService.processConsumeResult``.

BatchHandler = Callable[[list[Delivery]], object]
"""A coroutine function or a plain function; ``docs/guide/consuming.md`` says what its end means."""


class DeliveryBatch:
    """``messages`` in the order of their queue, at least one. ``ordered``: the queue is handled in
    order."""

    __slots__ = ("_ordered", "messages")

    def __init__(self, messages: Sequence[Delivery], *, ordered: bool) -> None:
        self.messages = messages
        self._ordered = ordered

    @property
    def wanted(self) -> bool:
        """True while it makes sense to handle any of them."""
        return any(message.wanted for message in self.messages)

    @property
    def settled(self) -> bool:
        """True if all are."""
        return all(message.settled for message in self.messages)

    @property
    def taken(self) -> bool:
        """True while somebody has one that is not settled."""
        return any(message.taken and not message.settled for message in self.messages)

    @property
    def taken_at(self) -> float:
        """When they were handed to somebody, in the loop's seconds."""
        return self.messages[0].taken_at

    @property
    def handled_s(self) -> float | None:
        """Seconds that the handler took, if it ran in a thread. They count for messages that are
        settled afterwards."""
        return self.messages[0].handled_s

    @handled_s.setter
    def handled_s(self, seconds: float | None) -> None:
        for message in self.messages:
            if not message.settled:
                message.handled_s = seconds

    def left(self) -> None:
        """Put down the messages that are not settled."""
        for message in self.messages:
            if not message.settled:
                message.left()

    def done(self) -> None:
        """Settle the rest as done. In order, a message behind one that is wanted again comes again
        with it."""
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
        """Have the messages again that are not settled: see ``Delivery.retry``."""
        for message in self.messages:
            message.retry(delay, level=level, reason=reason)


Handled = Delivery | DeliveryBatch
"""Argument of one call of a handler."""


def messages_in(handled: Handled) -> Sequence[Delivery]:
    """One, or those of a batch."""
    return handled.messages if isinstance(handled, DeliveryBatch) else (handled,)


def keys_of(handled: Handled) -> str:
    """Return the keys of a line of the log. Of a batch: the number of messages that are not
    settled, and the first of them."""
    if isinstance(handled, Delivery):
        return (
            f"msg_id={handled.msg_id} topic={handled.topic} "
            f"queue={handled.broker_name}:{handled.queue_id} "
            f"offset={handled.queue_offset} attempt={handled.attempt}"
        )
    unsettled = [message for message in handled.messages if not message.settled] or handled.messages
    return f"count={len(unsettled)} first: {keys_of(unsettled[0])}"
