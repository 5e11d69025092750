"""Pops and notifications that found nothing and wait (long polling).

Each topic and group has one line of waiting pops. When a queue has messages, the line wakes one
pop, and the next after that one has ended. So a message wakes one consumer of a group, not all.
Nothing is polled: a line watches the ends of its queues. Source of the limits: apache/rocketmq
``PopLongPollingService``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from turbopump.broker.pop.group_queue import GroupQueue, TopicGroup
from turbopump.broker.pop.view import PopView
from turbopump.broker.waiting import Again, Line, WaitingRequest, WaitingRequests
from turbopump.remoting.served import Served
from turbopump.remoting.turns import Turns
from turbopump.store.watermark import Waiter

POP_SIZE: Final = 2400
"""Bytes of memory of a waiting pop, including its request; a notification needs 2,000."""


class PopKind(NamedTuple):
    """Kind of a waiting pop. ``takes``: True for a pop, which removes the messages that woke it;
    False for a notification."""

    queue_id: int
    takes: bool
    ordered: bool


class _PopLine(Line):
    """Waiting pops of one group for one topic. ``watches``: the watched ends of queues that wake
    them."""

    __slots__ = ("counts", "group", "watches")

    def __init__(self, group: TopicGroup) -> None:
        super().__init__(group)
        self.group = group
        self.counts: Counter[int] = Counter()
        self.watches: dict[GroupQueue, Waiter | asyncio.TimerHandle] = {}

    def remove(self, request: WaitingRequest) -> None:
        super().remove(request)
        self.counts[request.kind.queue_id] -= 1

    def unwatch(self) -> None:
        for watch in self.watches.values():
            watch.cancel()


class HeldPops(WaitingRequests[_PopLine]):
    """All waiting pops of a broker: at most ``line_max`` for a queue in a line, and ``total_max``
    in all."""

    def __init__(self, turns: Turns, view: PopView, line_max: int, total_max: int) -> None:
        super().__init__(turns, POP_SIZE, answers_are_tasks=True)
        self._view = view
        self._line_max = line_max
        self._total_max = total_max
        self._planned: set[TopicGroup] = set()

    def count_waiting(self, group: TopicGroup, queue_id: int) -> int:
        """Return the number of pops that wait for a queue."""
        line = self.lines.get(group)
        return line.counts[queue_id] if line is not None else 0

    def hold_pop(
        self,
        group: TopicGroup,
        queue_id: int,
        seconds: float,
        again: Again,
        served: Served,
        *,
        takes: bool = True,
        ordered: bool = False,
    ) -> bool:
        """Hold a pop for at most ``seconds`` (see ``PopKind``). Return False if too many wait."""
        if len(self) >= self._total_max or self.count_waiting(group, queue_id) >= self._line_max:
            return False
        line = self.lines.get(group)
        if line is None:
            line = self.lines[group] = _PopLine(group)
        line.counts[queue_id] += 1
        deadline = asyncio.get_running_loop().time() + seconds
        kind = PopKind(queue_id, takes, ordered)
        self._add_request(line, WaitingRequest(line, deadline, again, served, kind), served)
        self.wake_line(group)
        return True

    def wake_line(self, group: TopicGroup) -> None:
        """Check a line for pops to wake, at the end of this turn."""
        if group in self.lines and group not in self._planned:
            self._planned.add(group)
            asyncio.get_running_loop().call_soon(self._wake_line_now, group)

    def expire_group(self, group: TopicGroup) -> None:
        """Answer all waiting pops of a group that may no longer read the topic."""
        line = self.lines.get(group)
        if line is not None:
            self.expire_line(line)

    def _wake_line_now(self, group: TopicGroup) -> None:
        self._planned.discard(group)
        line = self.lines.get(group)
        if line is None:
            return
        watched: set[GroupQueue] = set()
        in_vain: set[PopKind] = set()
        """Kinds of pops without messages. Thousands of pops may have the same kind."""
        for held in list(line.requests):
            if held.served is None or held.served.wire.closed:
                self._drop_request(held)
                continue
            kind = held.kind
            if kind in in_vain:
                continue
            queues = self._view.queues(group, kind.queue_id, ordered=kind.ordered)
            if not any(self._view.has_more(queue) for queue in queues):
                watched.update(queues)
                in_vain.add(kind)
                continue
            self._leave_line(held)
            held.answer()
            if kind.takes:
                break  # a pop under way looks again when it ends
        if group in self.lines:
            self._watch_queues(line, watched)

    def _watch_queues(self, line: _PopLine, queues: set[GroupQueue]) -> None:
        for queue in sorted(queues - line.watches.keys()):
            watch = self._view.when_more(queue, partial(self._end_moved, line, queue))
            if watch is not None:
                line.watches[queue] = watch

    def _end_moved(self, line: _PopLine, queue: GroupQueue) -> None:
        line.watches.pop(queue, None)
        self.wake_line(line.group)
