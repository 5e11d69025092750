"""Metrics of how far consumer groups are behind, for each topic of each connected group.

One walk over the tables computes the rows of all five metrics. The walk is in steps, and it runs
when the first of the metrics is read. The age of a message needs its store time, which is read from
the log and kept while the group stays at the same offset. A message that is not in memory is read
in the background, so that its age is in the next scrape.

Source: apache/rocketmq ``ConsumerLagCalculator``. There, the lag in a retry topic counts only for
groups that pop. The first pull of a group also sets its pulled offset; here the offset is set when
a pull has returned messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeVar

from turbopump.broker.client_table import ConsumerGroup
from turbopump.broker.pop.group_queue import ANY_QUEUE, GroupQueue, TopicGroup
from turbopump.broker.pop.pop import Pop
from turbopump.broker.reading import ask
from turbopump.broker.stored import Stored
from turbopump.broker.subscriptions import ALL_CODES
from turbopump.errors import TurbopumpError
from turbopump.message.rules import RETRY_PREFIX
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.protocol.requests.clients import ConsumeType
from turbopump.protocol.requests.topics import PERM_READ, PERM_WRITE
from turbopump.remoting.turns import Steps
from turbopump.remoting.wire import Wire
from turbopump.store.log.cold_reads import ReadSteps, cached
from turbopump.store.queues.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue

T = TypeVar("T")

_LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")
LAG: Final = Family(
    "rocketmq_consumer_lag_messages",
    Kind.GAUGE,
    "Messages that the group has not consumed: those in flight and those that are ready.",
    _LABELS,
)
LAG_LATENCY: Final = Family(
    "rocketmq_consumer_lag_latency_milliseconds",
    Kind.GAUGE,
    "Milliseconds since the oldest message that the group has not consumed was stored.",
    _LABELS,
    instrument="rocketmq_consumer_lag_latency",
    unit="milliseconds",
)
INFLIGHT: Final = Family(
    "rocketmq_consumer_inflight_messages",
    Kind.GAUGE,
    "Messages that were delivered to the group and are not consumed.",
    _LABELS,
)
QUEUEING: Final = Family(
    "rocketmq_consumer_queueing_latency_milliseconds",
    Kind.GAUGE,
    "Milliseconds since the oldest message that waits for delivery to the group was stored.",
    _LABELS,
    instrument="rocketmq_consumer_queueing_latency",
    unit="milliseconds",
)
READY: Final = Family(
    "rocketmq_consumer_ready_messages",
    Kind.GAUGE,
    "Messages that wait for delivery to the group.",
    _LABELS,
)
FAMILIES: Final = (LAG, LAG_LATENCY, INFLIGHT, QUEUEING, READY)

SCAN_MAX: Final = 2000
"""Maximum number of messages of a queue that are compared with a tag filter. The rest is estimated
from them. RocketMQ: ``maxConsumeQueueScan``, 20,000."""
QUEUES_AT_ONCE: Final = 64
"""Maximum number of queues of a topic in one step. They take about 0.2 ms."""
BACKGROUND_MAX: Final = 256
"""Maximum number of store times that are read from the disk after a scrape."""
_NONE: Final = 1 << 62


_Row = tuple[tuple[str, ...], tuple[int, ...]]
"""Label values of a group and a topic, and the values of the families in their order. Python's
collector does not scan plain tuples of texts and numbers."""


class _Position(NamedTuple):
    """Position of a group in one queue.

    - ``end``: the end of the queue.
    - ``consumed`` and ``got``: the next offsets to consume and to deliver.
    - ``popped``: the number of popped messages without an acknowledgement, or None for a group that
      pulls.
    """

    topic: str
    queue_id: int
    end: int
    consumed: int
    got: int
    popped: int | None = None


class ConsumerLag:
    """Positions of the connected groups, computed anew for each scrape."""

    def __init__(self, stored: Stored, pop: Pop) -> None:
        self._stored = stored
        self._pop = pop
        self._rows: list[_Row] = []
        self._times: dict[ConsumeQueue, dict[int, int]] = {}
        """Store times in ms, by queue and offset, that the last walk used."""
        self._used: dict[ConsumeQueue, dict[int, int]] = {}
        self._cold: dict[tuple[ConsumeQueue, int], None] = {}
        self._reading: asyncio.Task[None] | None = None

    def add_to(self, metrics: Metrics) -> None:
        """Add the metrics of consumer groups."""
        metrics.add(LAG, self._read_first)
        for column, family in enumerate(FAMILIES[1:], 1):
            metrics.add(family, partial(self._samples, column))

    def _read_first(self) -> Iterator[Sample | None]:
        yield from self._walk()
        yield from self._samples(0)

    def _samples(self, column: int) -> Iterator[Sample]:
        for labels, values in self._rows:
            yield labels, values[column]

    def _walk(self) -> Steps[None]:
        """Compute the rows of all groups, with a step after each topic of a group."""
        rows: list[_Row] = []
        self._used = {}
        self._cold = {}
        view = self._pop.view
        for name in self._stored.tables.groups.names():
            group = self._stored.clients.groups.get(name)
            pops = group is not None and group.consume_type is ConsumeType.CONSUME_POP
            for topic in self._topics_of(name, group):
                codes = _codes_of(group, topic)
                if pops:
                    line = TopicGroup(topic, name)
                    positions = map(self._popped, view.topic_queues(line, ANY_QUEUE))
                    rows.append((yield from self._row(name, topic, "false", positions, codes)))
                    positions = map(self._popped, view.retry_topics.queues(line))
                    rows.append((yield from self._row(name, topic, "true", positions, codes)))
                else:
                    pulled = self._pulled(name, topic)
                    rows.append((yield from self._row(name, topic, "false", pulled, codes)))
                yield
        self._rows = rows
        self._times = self._used
        if self._cold and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(
                self._read_cold(list(self._cold)[:BACKGROUND_MAX]), name="turbopump lag times"
            )

    def _topics_of(self, name: str, group: ConsumerGroup[Wire] | None) -> Iterator[str]:
        """Yield the topics of a group that count. They exist, and are readable or writable."""
        config = self._stored.config
        topics: list[str] = []
        if config.use_static_subscription:
            settings = self._stored.tables.groups.get(name)
            said = settings.subscription_data_set if settings is not None else None
            topics = [one.topic for one in said or () if one.topic]
        elif group is not None:
            topics = list(group.subscriptions)
        for topic in dict.fromkeys(topics):
            found = self._stored.tables.topics.find(topic)
            if found is None or topic.startswith(RETRY_PREFIX):
                continue
            if found.perm & config.broker_permission & (PERM_READ | PERM_WRITE):
                yield topic

    def _pulled(self, name: str, topic: str) -> Iterator[_Position]:
        """Yield the positions of a group that pulls a topic.

        RocketMQ: a group without an offset counts as being at the end.
        """
        settings = self._stored.tables.topics.find(topic)
        pulled = self._stored.statistics.pulled_offsets(name, topic)
        offsets = self._stored.tables.offsets
        for queue_id in range(settings.write_queue_nums if settings is not None else 0):
            end = self._stored.store.max_offset(topic, queue_id)
            consumed = offsets.find(name, topic, queue_id)
            if consumed is None or consumed < 0:
                consumed = end
            got = pulled.get(queue_id, consumed)
            yield _Position(topic, queue_id, end, consumed, got)

    def _popped(self, queue: GroupQueue) -> _Position:
        """Return the position of a group that pops a queue."""
        end = self._pop.view.end(queue)
        got = self._pop.offsets.find(queue)
        if got is None or got < 0:
            got = end
        popped = self._pop.in_flight.count_popped(queue)
        return _Position(queue.topic, queue.queue_id, end, max(got - popped, 0), got, popped)

    def _row(
        self,
        name: str,
        topic: str,
        is_retry: str,
        positions: Iterable[_Position],
        codes: frozenset[int],
    ) -> Steps[_Row]:
        """Add up the positions of a group in the queues of a topic, and find the oldest messages.

        - ``codes``: the tag codes that the group wants, or none for all messages.
        """
        lag = inflight = ready = 0
        oldest = oldest_ready = _NONE
        for number, at in enumerate(positions, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield
            queue = self._stored.store.queues.find(at.topic, at.queue_id)
            if queue is None or (at.consumed >= at.end and at.got >= at.end and not at.popped):
                continue
            waiting = yield from _matching(queue, at.got, at.end, codes)
            ready += waiting
            if at.popped is not None:
                inflight += at.popped
                lag += waiting + at.popped
            else:
                under_way = yield from _matching(queue, at.consumed, at.got, codes)
                inflight += under_way
                if at.got >= at.consumed:
                    lag += waiting + under_way
                else:
                    lag += yield from _matching(queue, at.consumed, at.end, codes)
            oldest = min(oldest, self._store_time(queue, at.consumed))
            oldest_ready = min(oldest_ready, self._store_time(queue, at.got))
        now = self._stored.clock.now_ms()
        values = (lag, _age(oldest, now), inflight, _age(oldest_ready, now), ready)
        system = self._stored.statistics.events.is_system(topic, name)
        return (name, topic, is_retry, system), values

    # --- store times

    def _store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the store time of the message at a queue offset, in ms.

        Without a message, or while its time is read from the disk, return a time in the future.
        """
        if offset >= queue.end.value:
            return _NONE
        used = self._used.setdefault(queue, {})
        known = used.get(offset)
        if known is None:
            known = self._times.get(queue, {}).get(offset)
        if known is None:
            known = in_memory(self._stored.store.lookup.time_at(queue, offset))
        if known is None:
            self._cold[queue, offset] = None
            return _NONE
        used[offset] = known
        return known if known > 0 else _NONE

    async def _read_cold(self, wanted: list[tuple[ConsumeQueue, int]]) -> None:
        """Read store times from the disk for the next scrape."""
        store = self._stored.store
        for queue, offset in wanted:
            steps = store.lookup.time_at(queue, offset)
            try:
                found = await ask(store.cold_reads, steps, self._stored.turns)
            except (TurbopumpError, OSError):
                return  # the next scrape tries again
            self._times.setdefault(queue, {})[offset] = found


def _codes_of(group: ConsumerGroup[Wire] | None, topic: str) -> frozenset[int]:
    """Return the tag codes that a group wants. Without codes it wants all messages."""
    wanted = group.subscriptions.get(topic) if group is not None else None
    return wanted.codes if wanted is not None else ALL_CODES


def _age(stored_ms: int, now_ms: int) -> int:
    return 0 if stored_ms == _NONE else max(now_ms - stored_ms, 0)


def _matching(queue: ConsumeQueue, begin: int, end: int, codes: frozenset[int]) -> Steps[int]:
    """Return the number of messages in a range of a queue that have one of the tag codes.

    Of a long range, the first ``SCAN_MAX`` messages are compared, and the rest is estimated. If
    they are not in memory, all messages count.
    """
    distance = max(end - begin, 0)
    if not codes or not distance:
        return distance
    begin = max(begin, queue.min_index)
    piece = queue.piece(begin, min(end - begin, SCAN_MAX)) if begin < end else None
    units = None if piece is None else piece.segment.read_cached(piece.at, piece.size)
    if not units:
        return distance
    yield
    matching = sum(1 for _, _, code in UNIT.iter_unpack(units) if code in codes)
    return round(matching * distance / (len(units) // UNIT_SIZE))


def in_memory(steps: ReadSteps[T]) -> T | None:
    """Run a read of the store if all its data is in memory. Return None otherwise."""
    try:
        pieces = next(steps)
        while (found := cached(pieces)) is not None:
            pieces = steps.send(found)
    except StopIteration as end:
        value: T = end.value
        return value
    except (TurbopumpError, OSError):
        return None
    steps.close()
    return None
