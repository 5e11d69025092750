"""Waiting list of pop requests that found no message (long polling).

The waiting pops of a topic and group form a line. When a queue has messages, the line wakes one
pop. The next pop wakes after this pop has ended. So a message wakes one consumer of a group, not
all. The line does not poll its queues; new messages trigger it. Source of the limits:
apache/rocketmq ``PopLongPollingService``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from turbopump.broker.pop.group_queue import GroupQueue, TopicGroup
from turbopump.broker.pop.view import PopView
from turbopump.broker.waiting import Again, Line, WaitingRequest, WaitingRequests
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.turns import Turns
from turbopump.store.watermark import Waiter

POP_SIZE: Final = 2400
"""Bytes of memory that a waiting pop and its request need. A notification needs 2,000 bytes."""


class PopKind(NamedTuple):
    """Kind of a waiting request, and the queue that the request reads.

    - ``queue_id``: the queue, or ``ANY_QUEUE``.
    - ``takes``: True for a pop, which removes messages. False for a notification, which only
      reports that there are messages.
    - ``ordered``: True if the request accepts messages only in order.
    """

    queue_id: int
    takes: bool
    ordered: bool


class _PopLine(Line):
    """Waiting pops of one consumer group for one topic.

    - ``counts``: the number of waiting pops, by queue id.
    - ``watches``: the watched queues, each with the handle that cancels the watch.
    """

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
    """All waiting pops of a broker.

    - ``line_max``: the most pops of one topic and group that may wait for one queue.
    - ``total_max``: the most pops that may wait in the broker.
    """

    def __init__(self, turns: Turns, view: PopView, line_max: int, total_max: int) -> None:
        super().__init__(turns, POP_SIZE, answers_are_tasks=True)
        self._view = view
        self._line_max = line_max
        self._total_max = total_max
        self._planned: set[TopicGroup] = set()

    def count_waiting(self, group: TopicGroup, queue_id: int) -> int:
        """Return the number of a group's pops that wait for a queue."""
        line = self.lines.get(group)
        return line.counts[queue_id] if line is not None else 0

    def hold_pop(
        self,
        group: TopicGroup,
        queue_id: int,
        seconds: float,
        again: Again,
        served: ServedRequests,
        *,
        takes: bool = True,
        ordered: bool = False,
    ) -> bool:
        """Let a pop wait for messages. Return False if too many pops wait already.

        - ``queue_id``, ``takes``, ``ordered``: the kind of the request (see ``PopKind``).
        - ``seconds``: the longest wait.
        """
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
        """Wake the first waiting pop of a group whose queue has messages.

        The check runs after the current callback of the event loop.
        """
        if group in self.lines and group not in self._planned:
            self._planned.add(group)
            asyncio.get_running_loop().call_soon(self._wake_line_now, group)

    def expire_group(self, group: TopicGroup) -> None:
        """Answer all waiting pops of a group. The group may have lost its permission to read."""
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
                break  # the line is checked again when this pop ends
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
