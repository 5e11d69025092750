"""Pulls that found nothing and wait for their queue to grow (long polling).

Each waits on its queue's end watermark and on its own deadline; no thread, no polling. The wake-up
comes after the loop turn in which the queue grew, so that one answer carries all that came with it.
Where many are woken at once, others have their turn after ``TURN_S``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.watermark import Waiter

TURN_S: Final = 0.001
"""Pulls that are woken read for so long, and one of them more, before others have their turn."""


class HeldPull:
    """One waiting pull: ``again`` is called, once, with True if its time is up."""

    __slots__ = ("_holder", "again", "queue", "timer", "waiter")

    def __init__(
        self, holder: HeldPulls, queue: ConsumeQueue, again: Callable[[bool], None]
    ) -> None:
        self._holder = holder
        self.queue = queue
        self.again = again
        self.waiter: Waiter | None = None
        self.timer: asyncio.TimerHandle | None = None

    def arrived(self) -> None:
        if self._holder.release(self):
            self._holder.wake(self)

    def expired(self) -> None:
        if self._holder.release(self):
            self.again(True)


class HeldPulls:
    """Every waiting pull of a broker."""

    def __init__(self) -> None:
        self._held: dict[HeldPull, None] = {}  # in order of arrival, so that a run can be replayed
        self._woken: deque[HeldPull] = deque()
        self._comes = False
        """Whether the loop will come to those that are woken."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self, queue: ConsumeQueue, offset: int, seconds: float, again: Callable[[bool], None]
    ) -> HeldPull:
        """Wait until ``queue`` has a message at ``offset``, or ``seconds`` are over."""
        held = HeldPull(self, queue, again)
        held.waiter = queue.end.when(offset + 1, held.arrived)
        held.timer = asyncio.get_running_loop().call_later(seconds, held.expired)
        self._held[held] = None
        return held

    def release(self, held: HeldPull) -> bool:
        """Stop waiting; False if it had stopped already."""
        if held not in self._held:
            return False
        del self._held[held]
        if held.waiter is not None:
            held.waiter.cancel()
        if held.timer is not None:
            held.timer.cancel()
        return True

    def wake(self, held: HeldPull) -> None:
        """Have it read again, once the loop comes to it."""
        self._woken.append(held)
        if not self._comes:
            self._comes = True
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        # One message can wake thousands of pulls (a topic that many groups read). Each of them
        # reads and answers here, in the loop that also serves every send; so after ``TURN_S`` the
        # rest waits for the next turn. ``again`` may hold a pull anew, which adds to ``_held``, not
        # to ``_woken``: the loop below ends. ``finally``: should one of them raise, those behind it
        # are still woken.
        loop = asyncio.get_running_loop()
        late = loop.time() + TURN_S
        try:
            while self._woken:
                self._woken.popleft().again(False)
                if loop.time() >= late:
                    break
        finally:
            self._comes = bool(self._woken)
            if self._comes:
                loop.call_soon(self._read_again)

    def expire_topic(self, topic: str) -> None:
        """Answer all pulls that wait for a topic: it was deleted, and what comes under its name
        comes into other queues."""
        for held in [held for held in self._held if held.queue.topic == topic]:
            held.expired()

    def expire_all(self) -> None:
        """Answer everyone now: the broker stops."""
        while self._woken:
            self._woken.popleft().again(False)
        for held in list(self._held):
            held.expired()
