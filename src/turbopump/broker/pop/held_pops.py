"""Messages available to pops, and the pops and notifications that found nothing and wait (long
polling).

They wait in one line for each topic and group. When a queue gets a message, one of them is woken,
and after its pop the next. So a message wakes one consumer of a group, not all. Nothing is polled:
a line watches the ends of its queues. Source of the limits: apache/rocketmq
``PopLongPollingService``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from turbopump.broker.pop.offsets import GroupQueue, InFlight, OrderInfo, PopOffsets
from turbopump.broker.topics import TopicTable
from turbopump.broker.waiting import Again, Line, WaitingRequest, WaitingRequests
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.handles import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.pop import InitMode
from turbopump.remoting.served import Served
from turbopump.remoting.turns import Turns
from turbopump.store.message_store import MessageStore
from turbopump.store.watermark import Waiter

POP_SIZE: Final = 2400
"""Bytes that a pop takes while it waits, its request included; a notification takes 2,000."""

ANY_QUEUE: Final = -1
"""A pop of this queue id takes messages of any queue."""


class TopicGroup(NamedTuple):
    """Line of the pops of one group for one topic."""

    topic: str
    group: str


@dataclass(slots=True, eq=False)
class PopView:
    """Queues of a group for a topic, the group's first offset in each, and the availability of
    messages.

    Unacknowledged messages of a topic come again in the group's retry topic for it; a pop takes
    from both. Source: apache/rocketmq ``PopMessageProcessor.getPopOffset``, ``getInitOffset``.
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    offsets: PopOffsets
    order: OrderInfo
    in_flight: InFlight
    clock: Clock

    def topic_queues(self, line: TopicGroup, queue_id: int, start: int = 0) -> list[GroupQueue]:
        """The queues of the topic itself, from the queue ``start`` on and round."""
        topic = self.topics.find(line.topic)
        if topic is None:
            return []
        count = topic.read_queue_nums
        any_queue = [(start + n) % count for n in range(count)]
        wanted = any_queue if queue_id == ANY_QUEUE else [queue_id]
        return [GroupQueue(line.group, line.topic, number) for number in wanted]

    def retry_queues(self, line: TopicGroup) -> list[GroupQueue]:
        """Return the queues of the group's existing retry topics for the topic."""
        config, name = self.config, pop_retry_topic(line.topic, line.group)
        names = [pop_retry_topic(line.topic, line.group, v2=True)]
        if not config.enable_retry_topic_v2:
            names.insert(0, name)
        elif config.retrieve_message_from_pop_retry_topic_v1:
            names.append(name)
        if len(names) > 1 and self._is_of_others(name, line.group):
            names.remove(name)
        return [
            GroupQueue(line.group, name, number)
            for name in names
            if (topic := self.topics.find(name)) is not None
            for number in range(topic.read_queue_nums)
        ]

    def retry_topic(self, line: TopicGroup) -> str:
        """The retry topic to put messages of the topic into. The group's offset in it says from
        then on that it is this group's."""
        name = pop_retry_topic(line.topic, line.group)
        if self.config.enable_retry_topic_v2 or self._is_of_others(name, line.group):
            return pop_retry_topic(line.topic, line.group, v2=True)
        queue = GroupQueue(line.group, name, 0)
        if self.offsets.find(queue) is None:
            self.offsets.begin(queue, self.first_offset(queue, InitMode.MIN))
        return name

    def _is_of_others(self, name: str, group: str) -> bool:
        """True when the retry topic ``name`` is that of another group, which has an offset in it:
        `%RETRY%pay_order_events` is that of the group pay for order_events, of pay_order for
        events, and of the group pay_order_events for what its consumers send back. RocketMQ: they
        get each other's messages."""
        if self.topics.find(name) is None or self._has_been_in(name, group):
            return False
        text = name[len(RETRY_PREFIX) :]
        ends = [at for at, char in enumerate(text) if char == "_"]
        return any(self._has_been_in(name, text[:end]) for end in (*ends, len(text)))

    def _has_been_in(self, topic: str, group: str) -> bool:
        return self.offsets.find(GroupQueue(group, topic, 0)) is not None

    def queues(self, line: TopicGroup, queue_id: int, *, ordered: bool) -> list[GroupQueue]:
        """The queues in which a pop of ``queue_id`` may find something. In order
        nothing is taken of retry topics."""
        return self.topic_queues(line, queue_id) + ([] if ordered else self.retry_queues(line))

    def end(self, queue: GroupQueue) -> int:
        return self.store.max_offset(queue.topic, queue.queue_id)

    def is_at_end(self, queue: GroupQueue) -> bool:
        """Return True if the group has read the queue to its end."""
        return self.offsets.find(queue) == self.end(queue) and not self.offsets.is_reset(queue)

    def has_more(self, queue: GroupQueue) -> bool:
        """Return True if a pop of the queue would find a message, or move its offset, now."""
        if self.offsets.is_locked(queue):
            return False
        if self.offsets.is_reset(queue):
            return True
        blocked = self.order.blocked_until(queue, self.clock.now_ms()) is not None
        if blocked or self.in_flight.is_full(queue):
            return False
        return self.end(queue) > (self.offsets.find(queue) or 0)

    def when_more(
        self, queue: GroupQueue, wake: Callable[[], None]
    ) -> Waiter | asyncio.TimerHandle | None:
        """Call ``wake`` when ``has_more`` may have changed, until the waiter is cancelled. None: no
        event known here will change it. Unlocking a queue, an acknowledgement in order, and the end
        of a limit wake the waiting pops themselves."""
        now = self.clock.now_ms()
        until = self.order.blocked_until(queue, now)
        if until is not None:
            return asyncio.get_running_loop().call_later(max(until - now, 1) / 1000, wake)
        if self.topics.find(queue.topic) is None:
            return None
        end = self.store.queues.find_or_make(queue.topic, queue.queue_id).end
        return end.when(max(self.offsets.find(queue) or 0, end.value) + 1, wake)

    def first_offset(self, queue: GroupQueue, init_mode: int) -> int:
        """Return the first offset of a group that is new to a queue. RocketMQ: with MAX the last
        message; the first message if all are still in memory."""
        topic, queue_id = queue.topic, queue.queue_id
        low = self.store.min_offset(topic, queue_id)
        if init_mode == InitMode.MIN or topic.startswith(RETRY_PREFIX):
            return low
        whole = self.config.init_pop_offset_by_check_msg_in_mem and low <= 0
        if whole and self.store.is_hot(topic, queue_id, 0):
            return 0
        return max(self.end(queue) - 1, 0)


class PopKind(NamedTuple):
    """Waiting pops that are alike. ``takes``: a pop takes the messages it is woken for, so no other
    pop need be woken for them; a notification takes none."""

    queue_id: int
    takes: bool
    ordered: bool


class _PopLine(Line):
    """The pops that wait for one topic in one group. ``watches``: what wakes them, by queue."""

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
    """Every waiting pop of a broker; at most ``line_max`` of a queue in a line, ``total_max`` in
    all."""

    def __init__(self, turns: Turns, view: PopView, line_max: int, total_max: int) -> None:
        super().__init__(turns, POP_SIZE, answers_are_tasks=True)
        self._view = view
        self._line_max = line_max
        self._total_max = total_max
        self._looking: set[TopicGroup] = set()

    def count(self, group: TopicGroup, queue_id: int) -> int:
        """Count the pops that wait for a queue."""
        line = self.lines.get(group)
        return line.counts[queue_id] if line is not None else 0

    def hold(
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
        """Let a pop wait for at most this time (see ``PopKind``). Return False if too many wait."""
        if len(self) >= self._total_max or self.count(group, queue_id) >= self._line_max:
            return False
        line = self.lines.get(group)
        if line is None:
            line = self.lines[group] = _PopLine(group)
        line.counts[queue_id] += 1
        deadline = asyncio.get_running_loop().time() + seconds
        kind = PopKind(queue_id, takes, ordered)
        self._add(line, WaitingRequest(line, deadline, again, served, kind), served)
        self.look(group)
        return True

    def look(self, group: TopicGroup) -> None:
        """There may be something for a line: look, at the end of this turn."""
        if group in self.lines and group not in self._looking:
            self._looking.add(group)
            asyncio.get_running_loop().call_soon(self._look, group)

    def expire_group(self, group: TopicGroup) -> None:
        """Answer all that wait in one line: the group may not read the topic any more."""
        line = self.lines.get(group)
        if line is not None:
            self.expire_line(line)

    def _look(self, group: TopicGroup) -> None:
        self._looking.discard(group)
        line = self.lines.get(group)
        if line is None:
            return
        watched: set[GroupQueue] = set()
        in_vain: set[PopKind] = set()
        """Kinds of pops for which there is nothing: thousands may be alike."""
        for held in list(line.requests):
            if held.served is None or held.served.wire.closed:
                self._drop(held)
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
            self._watch(line, watched)

    def _watch(self, line: _PopLine, queues: set[GroupQueue]) -> None:
        for queue in sorted(queues - line.watches.keys()):
            watch = self._view.when_more(queue, partial(self._woken, line, queue))
            if watch is not None:
                line.watches[queue] = watch

    def _woken(self, line: _PopLine, queue: GroupQueue) -> None:
        line.watches.pop(queue, None)
        self.look(line.group)
