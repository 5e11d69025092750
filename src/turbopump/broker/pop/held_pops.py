"""Pops, and notifications, that found nothing and wait (long polling).

They stand in one line for each topic and group, and one at a time is woken when a queue has
something for it; when its pop is over, the next. So a message wakes one consumer of a group and not
all. Nothing is polled: a line watches the ends of its queues. Who looks at what is there is not
told; ``Sight`` is. Source of the limits: apache/rocketmq ``PopLongPollingService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from turbopump.broker.pop.offsets import GroupQueue
from turbopump.store.watermark import Waiter

ANY_QUEUE: Final = -1
"""Who asks for this queue takes messages of any."""


class Line(NamedTuple):
    """Those who wait for one topic in one group."""

    topic: str
    group: str


class Sight(Protocol):
    """What a line can see."""

    def queues(self, line: Line, queue_id: int, *, ordered: bool) -> list[GroupQueue]:
        """The queues in which somebody who asks for ``queue_id``, in order or not, may find
        something."""

    def has_more(self, place: GroupQueue) -> bool:
        """Whether a pop of the queue would find something, or come further, now."""

    def when_more(
        self, place: GroupQueue, wake: Callable[[], None]
    ) -> Waiter | asyncio.TimerHandle | None:
        """Call ``wake`` when that may have changed, unless it was cancelled; None: nothing that it
        knows of will change it."""


class HeldPop:
    """One that waits: ``again`` is called once, with True if its time is up. ``takes``: it takes
    what it is woken for."""

    __slots__ = ("again", "closed", "line", "ordered", "queue_id", "takes", "timer")

    def __init__(
        self,
        line: Line,
        queue_id: int,
        again: Callable[[bool], None],
        closed: Callable[[], bool],
        *,
        takes: bool,
        ordered: bool,
    ) -> None:
        self.line = line
        self.queue_id = queue_id
        self.again = again
        self.closed = closed
        self.takes = takes
        self.ordered = ordered
        self.timer: asyncio.TimerHandle | None = None


class HeldPops:
    """Every waiting pop of a broker; at most ``line_max`` in a line, ``total_max`` in all."""

    def __init__(self, sight: Sight, line_max: int, total_max: int) -> None:
        self._sight = sight
        self._line_max = line_max
        self._total_max = total_max
        self._lines: dict[Line, dict[HeldPop, None]] = {}
        self._watches: dict[Line, dict[GroupQueue, Waiter | asyncio.TimerHandle]] = {}
        self._looking: set[Line] = set()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def count(self, line: Line, queue_id: int) -> int:
        """How many wait for a queue."""
        return sum(held.queue_id == queue_id for held in self._lines.get(line, ()))

    def hold(
        self,
        line: Line,
        queue_id: int,
        seconds: float,
        again: Callable[[bool], None],
        closed: Callable[[], bool],
        *,
        takes: bool = True,
        ordered: bool = False,
    ) -> bool:
        """Wait at most so long; False if too many wait. ``closed``: whether whoever asked has
        gone."""
        waiting = self._lines.get(line, {})
        if self._total >= self._total_max or self.count(line, queue_id) >= self._line_max:
            return False
        held = HeldPop(line, queue_id, again, closed, takes=takes, ordered=ordered)
        held.timer = asyncio.get_running_loop().call_later(seconds, self._expired, held)
        waiting[held] = None
        self._lines[line] = waiting
        self._total += 1
        self.look(line)
        return True

    def look(self, line: Line) -> None:
        """There may be something for a line: look, at the end of this turn."""
        if line in self._lines and line not in self._looking:
            self._looking.add(line)
            asyncio.get_running_loop().call_soon(self._look, line)

    def expire_all(self) -> None:
        """Answer everyone now: the broker stops."""
        for waiting in list(self._lines.values()):
            for held in list(waiting):
                self._expired(held)

    def _look(self, line: Line) -> None:
        self._looking.discard(line)
        waiting = self._lines.get(line)
        if waiting is None:
            return
        watched: set[GroupQueue] = set()
        for held in list(waiting):
            if held.closed():
                self._release(held)
                continue
            queues = self._sight.queues(line, held.queue_id, ordered=held.ordered)
            if not any(self._sight.has_more(place) for place in queues):
                watched.update(queues)
                continue
            self._release(held)
            held.again(False)
            if held.takes:
                break  # whoever pops looks again when that is over
        if line in self._lines:
            self._watch(line, watched)

    def _watch(self, line: Line, queues: set[GroupQueue]) -> None:
        watches = self._watches.setdefault(line, {})
        for place in sorted(queues - watches.keys()):
            watch = self._sight.when_more(place, lambda place=place: self._woken(line, place))  # type: ignore[misc]
            if watch is not None:
                watches[place] = watch

    def _woken(self, line: Line, place: GroupQueue) -> None:
        self._watches.get(line, {}).pop(place, None)
        self.look(line)

    def _expired(self, held: HeldPop) -> None:
        if self._release(held):
            held.again(True)

    def _release(self, held: HeldPop) -> bool:
        waiting = self._lines.get(held.line, {})
        if held not in waiting:
            return False
        del waiting[held]
        self._total -= 1
        if held.timer is not None:
            held.timer.cancel()
        if not waiting:
            del self._lines[held.line]
            for watch in self._watches.pop(held.line, {}).values():
                watch.cancel()
        return True
