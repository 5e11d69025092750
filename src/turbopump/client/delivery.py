"""A message in a consumer's hands: what the broker stored, and how to say that it is done or wanted again.

One rule: the first word counts; a message is settled once per delivery. It must not know queues or offsets: it tells its owner.
"""

from __future__ import annotations

from typing import Protocol

from turbopump.message.message import ReceivedMessage


class Owner(Protocol):
    """Whoever delivered the message: the queue it came from."""

    @property
    def dropped(self) -> bool: ...

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None) -> None: ...


class Delivery(ReceivedMessage):
    """A received message with ``done()`` and ``retry()``. ``attempt`` counts its deliveries by this consumer, from 1.

    ``topic`` is the one it was first sent to, also when it comes by way of the group's retry topic.
    """

    __slots__ = ("_owner", "attempt", "settled")

    _owner: Owner
    attempt: int
    settled: bool

    def deliver(self, owner: Owner, attempt: int) -> None:
        """For the owner: hand it out (again)."""
        self._owner = owner
        self.attempt = attempt
        self.settled = False

    @property
    def wanted(self) -> bool:
        """Whether it still makes sense to handle it: nobody has settled it, and its queue is still ours."""
        return not self.settled and not self._owner.dropped

    def done(self) -> None:
        """It has been dealt with and may be committed, whatever happens next. A second word about this delivery is ignored."""
        if not self.settled:
            self.settled = True
            self._owner.delivery_done(self)

    def retry(self, delay: float | None = None) -> None:
        """Deliver it again, after ``delay`` seconds (None: growing with each attempt). It holds the queue's offset until it is done."""
        if not self.settled:
            self.settled = True
            self._owner.delivery_failed(self, delay)


class Retry:
    """What a handler returns to have the message again: ``return Retry()`` or ``return Retry(delay=30)`` (seconds)."""

    __slots__ = ("delay",)

    def __init__(self, delay: float | None = None) -> None:
        self.delay = delay
