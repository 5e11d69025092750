"""What pops can find, and those, and notifications, that found nothing and wait (long polling).

They stand in one line for each topic and group, and one at a time is woken when a queue has
something for it; when its pop is over, the next. So a message wakes one consumer of a group and not
all. Nothing is polled: a line watches the ends of its queues. Source of the limits: apache/rocketmq
``PopLongPollingService``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from turbopump.broker.pop.offsets import GroupQueue, InFlight, OrderInfo, PopOffsets
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.handles import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.pop import InitMode
from turbopump.remoting.served import Keeper, Served
from turbopump.store.message_store import MessageStore
from turbopump.store.watermark import Waiter

ANSWERED_AT_ONCE: Final = 16
"""Pops whose time is up that read once more in one turn; some 150 µs each."""

POP_SIZE: Final = 2400
"""Bytes that a pop takes while it waits, its request included; a notification takes 2,000."""

ANY_QUEUE: Final = -1
"""A pop of this queue id takes messages of any queue."""


class TopicGroup(NamedTuple):
    """Those who wait for one topic in one group."""

    topic: str
    group: str


@dataclass(slots=True, eq=False)
class PopView:
    """What pops could find: which queues are a group's for a topic, where it would begin in one,
    and whether that is before its end.

    A topic's messages that were not acknowledged come again in the group's retry topic for it; a
    pop takes from both. Source: apache/rocketmq ``PopMessageProcessor.getPopOffset``,
    ``getInitOffset``.
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
        """Those of the group's retry topics for it, as far as there are any."""
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
        """Whether the group has come to the end of the queue, and stays there."""
        return self.offsets.find(queue) == self.end(queue) and not self.offsets.is_reset(queue)

    def has_more(self, queue: GroupQueue) -> bool:
        """Whether a pop of the queue would find something, or come further, now."""
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
        """Call ``wake`` when that may have changed, unless it was cancelled; None: nothing that is
        known here will change it. Who unlocks a queue, acknowledges in order, or ends what was too
        much, looks for those who wait."""
        now = self.clock.now_ms()
        until = self.order.blocked_until(queue, now)
        if until is not None:
            return asyncio.get_running_loop().call_later(max(until - now, 1) / 1000, wake)
        if self.topics.find(queue.topic) is None:
            return None
        end = self.store.queues.find_or_make(queue.topic, queue.queue_id).end
        return end.when(max(self.offsets.find(queue) or 0, end.value) + 1, wake)

    def first_offset(self, queue: GroupQueue, init_mode: int) -> int:
        """Where a group begins in a queue in which it has never been. RocketMQ: with MAX, at the
        last message; where all messages are still in memory, at the first."""
        topic, queue_id = queue.topic, queue.queue_id
        low = self.store.min_offset(topic, queue_id)
        if init_mode == InitMode.MIN or topic.startswith(RETRY_PREFIX):
            return low
        whole = self.config.init_pop_offset_by_check_msg_in_mem and low <= 0
        if whole and self.store.is_hot(topic, queue_id, 0):
            return 0
        return max(self.end(queue) - 1, 0)


@dataclass(slots=True, eq=False)
class HeldPop:
    """A POP request that waits. ``again`` is called once, with True if its time is up,
    unless the connection ends before. ``takes``: the pop takes the messages it is woken for, so no
    other pop need be woken for them."""

    line: TopicGroup
    queue_id: int
    again: Callable[[bool], None]
    served: Served
    takes: bool
    ordered: bool
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class HeldPops:
    """Every waiting pop of a broker; at most ``line_max`` in a line, ``total_max`` in all."""

    view: PopView
    line_max: int
    total_max: int
    _lines: dict[TopicGroup, dict[HeldPop, None]] = field(default_factory=dict)
    _watches: dict[TopicGroup, dict[GroupQueue, Waiter | asyncio.TimerHandle]] = field(
        default_factory=dict
    )
    _looking: set[TopicGroup] = field(default_factory=set)
    _total: int = 0
    _counts: Counter[tuple[TopicGroup, int]] = field(default_factory=Counter)
    _due: deque[HeldPop] = field(default_factory=deque)
    """Those whose time is up, and who are not answered yet."""
    _ending: deque[HeldPop] = field(default_factory=deque)
    """Those that are to be answered behind them, if they still wait."""
    _keeper: Keeper = field(init=False)
    narrowed: int = 0
    """How often users could do less than before. A pop that came before the last time gets no
    message any more."""

    def __post_init__(self) -> None:
        self._keeper = Keeper(POP_SIZE, self._release)

    def count(self, line: TopicGroup, queue_id: int) -> int:
        """How many wait for a queue."""
        return self._counts.get((line, queue_id), 0)

    def hold(
        self,
        line: TopicGroup,
        queue_id: int,
        seconds: float,
        again: Callable[[bool], None],
        served: Served,
        *,
        takes: bool = True,
        ordered: bool = False,
    ) -> bool:
        """Wait at most so long (see ``HeldPop``); False if too many wait."""
        if self._total >= self.total_max or self.count(line, queue_id) >= self.line_max:
            return False
        held = HeldPop(line, queue_id, again, served, takes, ordered)
        held.timer = asyncio.get_running_loop().call_later(seconds, self._expired, held)
        self._lines.setdefault(line, {})[held] = None
        self._total += 1
        self._counts[line, queue_id] += 1
        served.keep(held, self._keeper)
        self.look(line)
        return True

    def look(self, line: TopicGroup) -> None:
        """There may be something for a line: look, at the end of this turn."""
        if line in self._lines and line not in self._looking:
            self._looking.add(line)
            asyncio.get_running_loop().call_soon(self._look, line)

    def expire_line(self, line: TopicGroup) -> None:
        """Answer all that wait in one line: the group may not read the topic any more."""
        for held in list(self._lines.get(line, ())):
            self._expired(held)

    def narrow(self) -> None:
        """Users may less than they did: answer everyone soon, a few in each turn."""
        self.narrowed += 1
        idle = not self._due and not self._ending
        for waiting in self._lines.values():
            self._ending.extend(waiting)
        if idle and self._ending:
            asyncio.get_running_loop().call_soon(self._answer_due)

    def expire_all(self) -> None:
        """Answer everyone now: the broker stops."""
        for line in list(self._lines):
            self.expire_line(line)
        while self._due:
            self._due.popleft().again(True)

    def _look(self, line: TopicGroup) -> None:
        self._looking.discard(line)
        watched: set[GroupQueue] = set()
        in_vain: set[tuple[int, bool]] = set()
        """Kinds of pops for which there is nothing: thousands may be alike."""
        for held in list(self._lines.get(line, ())):
            if held.served.wire.closed:
                self._release(held)
                continue
            kind = held.queue_id, held.ordered
            if kind in in_vain:
                continue
            queues = self.view.queues(line, held.queue_id, ordered=held.ordered)
            if not any(self.view.has_more(queue) for queue in queues):
                watched.update(queues)
                in_vain.add(kind)
                continue
            self._release(held)
            held.again(False)
            if held.takes:
                break  # a pop under way looks again when it ends
        if line in self._lines:
            self._watch(line, watched)

    def _watch(self, line: TopicGroup, queues: set[GroupQueue]) -> None:
        watches = self._watches.setdefault(line, {})
        for queue in sorted(queues - watches.keys()):
            watch = self.view.when_more(queue, partial(self._woken, line, queue))
            if watch is not None:
                watches[queue] = watch

    def _woken(self, line: TopicGroup, queue: GroupQueue) -> None:
        self._watches.get(line, {}).pop(queue, None)
        self.look(line)

    def _expired(self, held: HeldPop) -> None:
        if self._release(held):
            self._due.append(held)
            if len(self._due) == 1 and not self._ending:
                asyncio.get_running_loop().call_soon(self._answer_due)

    def _answer_due(self) -> None:
        """Thousands may have come together: they are answered a few in each turn."""
        if len(self._due) + len(self._ending) > ANSWERED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._answer_due)
        for _ in range(min(len(self._due) + len(self._ending), ANSWERED_AT_ONCE)):
            if self._due:
                self._due.popleft().again(True)
                continue
            held = self._ending.popleft()
            if self._release(held):
                held.again(True)

    def _release(self, held: HeldPop) -> bool:
        waiting = self._lines.get(held.line, {})
        if held not in waiting:
            return False
        del waiting[held]
        held.served.give_back(held)
        self._total -= 1
        place = held.line, held.queue_id
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
        if held.timer is not None:
            held.timer.cancel()
        if not waiting:
            del self._lines[held.line]
            for watch in self._watches.pop(held.line, {}).values():
                watch.cancel()
        return True
