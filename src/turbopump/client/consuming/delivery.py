"""A message in a consumer's hands: what the broker stored, and how to say that it is done or wanted again.

One rule: the first word counts; a message is settled once per delivery. It must not know queues or offsets: it tells its owner.
"""

from __future__ import annotations

from typing import Protocol

from turbopump.message.failure import failure_text
from turbopump.message.message import ReceivedMessage


class Owner(Protocol):
    """Whoever delivered the message: the queue it came from."""

    @property
    def dropped(self) -> bool: ...

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None: ...

    def delivery_left(self, message: Delivery) -> None: ...


class Delivery(ReceivedMessage):
    """A received message with ``done()`` and ``retry()``. ``attempt`` counts its deliveries to this group, from 1.

    ``topic`` is the one it was first sent to, also when it comes by way of the group's retry topic.
    """

    __slots__ = ("_owner", "again", "attempt", "cause", "handled_s", "settled", "taken", "taken_at", "trace")

    _owner: Owner
    attempt: int
    settled: bool
    again: bool
    """Whether it was settled by ``retry``."""
    taken: bool
    """Whether it was handed to somebody, who has not settled it or given it back."""
    cause: BaseException | str | None
    """Why it is wanted again: what the handler raised, or what was said."""
    taken_at: float
    """When it was handed to somebody, in the loop's seconds."""
    handled_s: float | None
    """How long its handler took, if it ran in a thread; None: until it is settled."""
    trace: object
    """What a tracer keeps of it while it is handled."""

    def deliver(self, owner: Owner, attempt: int) -> None:
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
        """For whoever took it: it is put down and not settled, and goes back to nobody, since it is not wanted."""
        self.taken = False
        self._owner.delivery_left(self)

    @property
    def failure(self) -> str | None:
        """Why it is wanted again, in one line; None if nobody said."""
        return None if self.cause is None else failure_text(self.cause)

    @property
    def wanted(self) -> bool:
        """Whether it still makes sense to handle it: nobody has settled it, and its queue is still ours."""
        return not self.settled and not self._owner.dropped

    def done(self) -> None:
        """It has been dealt with and may be committed, whatever happens next. A second word about this delivery is ignored."""
        if not self.settled:
            self.settled = True
            self._owner.delivery_done(self)

    def retry(self, delay: float | None = None, *, level: int = 0, reason: BaseException | str | None = None) -> None:
        """Have it again. It is sent back to the broker, which delivers it to the group again after a delay that grows with each attempt (or
        that of ``level``), and makes it a dead letter after the last attempt (or at once, for ``level=-1``). With ``delay``, in seconds, it
        stays here, is delivered again by this consumer, and holds the queue's offset until it is done. ``reason`` is told to operators
        (traces, ``turbopump dlq show``)."""
        if not self.settled:
            self.settled = self.again = True
            self.cause = reason
            self._owner.delivery_failed(self, delay, level)


class Retry:
    """What a handler returns to have the message again: ``return Retry()``, ``Retry(level=5)``, ``Retry(delay=30)`` or
    ``Retry(reason="no stock")``. See ``Delivery.retry``."""

    __slots__ = ("delay", "level", "reason")

    def __init__(self, delay: float | None = None, *, level: int = 0, reason: BaseException | str | None = None) -> None:
        self.delay = delay
        self.level = level
        self.reason = reason
