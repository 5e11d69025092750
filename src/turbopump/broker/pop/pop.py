"""POP of one broker. It builds its parts, then starts and stops them in the right order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NamedTuple

from turbopump.broker.counters.pop import PopCounts
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.log_repair import LogRepair
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.held_pops import HeldPops
from turbopump.broker.pop.in_flight import InFlight
from turbopump.broker.pop.offsets import PopOffsets
from turbopump.broker.pop.order_info import OrderInfo
from turbopump.broker.pop.reader import PopReader
from turbopump.broker.pop.records import (
    CHECKPOINT_TAG,
    REVIVE_GROUP,
    REVIVE_TOPIC_PREFIX,
    Acknowledgement,
    Checkpoint,
    PopKey,
    ReviveLog,
)
from turbopump.broker.pop.redelivery import Redelivery
from turbopump.broker.pop.retry_topics import PopRetryTopics
from turbopump.broker.pop.reviving import Reviving
from turbopump.broker.pop.view import PopView
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.stored import Stored
from turbopump.broker.topics import plain_topic
from turbopump.errors import StoreError
from turbopump.message.codec import decode_entries
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import REAL_TOPIC
from turbopump.protocol import fastjson
from turbopump.store.log.commit_log import PutResult
from turbopump.store.message_store import MessageStore
from turbopump.store.timers.pending_timers import TIMER_TOPIC

FLUSH_PATIENCE_S: Final = 5.0
"""Maximum seconds for which a clean stop waits until popped offsets are on the disk.

Without this wait, popped messages would be delivered again after the next start.
"""
_AT_ONCE: Final = 32
RECORDS_SPAN_MS: Final = 3000
"""Milliseconds before the end of an invisible time in which the timers may deliver its
checkpoint."""
ACKS_KEPT: Final = 100_000
"""Maximum number of acknowledgements that a slave keeps for its master. Older ones are
dropped, and their messages may be delivered again."""

log = logging.getLogger(__name__)


class TakenAcknowledgement(NamedTuple):
    """Acknowledgement that a slave has taken while its master was away."""

    queue_id: int
    key: PopKey
    offsets: list[int]
    visible_at_ms: int


class Pop:
    """POP of one broker. With POP, consumers take messages without owning a queue.

    Call ``start``, then ``stop``.

    - ``counts``: the counters of records, for the metrics.
    """

    def __init__(
        self, stored: Stored, timers: Timers, forwarding: Forwarding, repair: LogRepair
    ) -> None:
        config = stored.config
        store = stored.store
        tables = stored.tables
        clock = stored.clock
        self._store = store
        self._group_offsets = tables.offsets
        topics = tables.topics
        recover_offsets(store, tables.offsets)
        self._timers_end = store.max_offset(TIMER_TOPIC, 0)
        """End of the timers' queue at the last save of the offsets."""
        self.offsets = PopOffsets(tables.offsets, store.durable)
        self.order = OrderInfo(tables.order_info)
        self.order.begun_ms = tables.begun_ms
        self.order.load()
        tables.save_too(self.order)
        self.counts = PopCounts()
        self.revive_log = ReviveLog(config, forwarding, clock, counts=self.counts)
        self.in_flight = InFlight(
            config.pop_inflight_message_threshold if config.enable_pop_message_threshold else None
        )
        retry_topics = PopRetryTopics(config, store, topics, self.offsets)
        self.view = PopView(
            config, store, topics, self.offsets, self.order, self.in_flight, retry_topics, clock
        )
        self.held = HeldPops(
            stored.turns, self.view, config.pop_polling_size, config.max_pop_polling_size
        )
        self.reader = PopReader(self.view, self.revive_log, stored.statistics, repair)
        topic = self.revive_log.topic
        queues = config.revive_queue_num
        known = topics.find(topic)
        if known is None or known.read_queue_nums < queues:
            topics.put(plain_topic(topic, queues))
        else:
            queues = known.read_queue_nums
        self._redelivery = Redelivery(
            self.view,
            tables.groups,
            forwarding,
            self.held.wake_line,
            stored.statistics.events.dead_letters,
            self.counts,
        )
        self._timers = timers
        self._clock = clock
        # The name of a revive topic contains the name of the cluster. After a change of
        # ``brokerClusterName`` the checkpoints of earlier pops are in another revive topic, so
        # those pops are settled there. With Apache's broker their group never gets these messages.
        self._earlier_logs: list[ReviveLog] = []
        self._revive_queues = [(self.revive_log, queues)]
        for name in topics.names():
            before = topics.find(name) if name.startswith(REVIVE_TOPIC_PREFIX) else None
            if before is None or name == topic:
                continue
            log.info("pops of an earlier brokerClusterName are settled as well topic=%s", name)
            earlier = ReviveLog(config, forwarding, clock, name, self.counts)
            self._earlier_logs.append(earlier)
            self._revive_queues.append((earlier, before.read_queue_nums))
        self.acks_for_master: deque[TakenAcknowledgement] = deque(maxlen=ACKS_KEPT)
        """Acknowledgements that this slave has taken for its master."""
        self._begun_ms = tables.begun_ms
        self._make_reviving(acts=False)

    def _make_reviving(self, *, acts: bool) -> None:
        """Make a task for each revive queue. It begins at the saved offset of the queue."""
        self.reviving = [
            Reviving(
                number,
                self._store,
                self.offsets,
                self._timers,
                self._redelivery,
                revive_log,
                self._clock,
                acts=acts,
            )
            for revive_log, queues in self._revive_queues
            for number in range(queues)
        ]
        self.reviving_now = self.reviving[: self._revive_queues[0][1]]
        """Those of the present revive topic."""

    def start(self) -> None:
        """Start the redelivery of messages that were popped but not acknowledged in time."""
        for each in self.reviving:
            each.start()

    # --- at a slave that acts as the master

    @property
    def acts(self) -> bool:
        """True at a slave that acts as the master."""
        return any(each.acts for each in self.reviving)

    def start_from_copy(self) -> None:
        """Start the redelivery at a slave, from the offsets that it has copied from its master.

        Pops whose checkpoints are in the log count as popped.
        """
        recover_offsets(self._store, self._group_offsets)
        self._make_reviving(acts=True)
        self.start()

    def take_record(self, topic: str, queue_id: int, message: ReceivedMessage) -> None:
        """Take a record that the timers deliver to a revive queue. The slave keeps it in memory.

        Raises StoreError if this broker does not know the queue, or does not act as the master.
        """
        for each in self.reviving:
            if each.acts and (each.topic, each.queue_id) == (topic, queue_id):
                each.take_record(message)
                return
        raise StoreError(f"no messages are revived here for queue {queue_id} of {topic}")

    def needed_ms(self) -> int | None:
        """Return the time from which the timers must deliver again after a restart, in ms since
        1970. Return None if no record is only in memory."""
        times = [time for each in self.reviving if (time := each.needed_ms) is not None]
        return min(times) - RECORDS_SPAN_MS if times else None

    async def pause(self) -> None:
        """Stop the redelivery at a slave, because its master is back.

        Messages whose records are only in memory are delivered again now, a few seconds early.
        Records whose messages no other master stores stay needed (``needed_ms``).
        """
        for each in self.reviving:
            await each.stop()
        for each in self.reviving:
            try:
                await each.settle_early()
            except (StoreError, OSError) as error:
                log.warning(
                    "popped messages are left to the master queue=%d cause=%s", each.queue_id, error
                )

    def end_acting(self) -> None:
        """Forget the records in memory. Call this after ``pause``, and after the timers' save."""
        self._make_reviving(acts=False)

    def acknowledge_in_memory(
        self, queue_id: int, key: PopKey, offsets: list[int], visible_at_ms: int
    ) -> None:
        """Record the acknowledgement of popped messages at a slave that acts as the master."""
        record = Acknowledgement.of(key, offsets)
        for each in self.reviving:
            if each.queue_id == queue_id:
                each.take_acknowledgement(record, visible_at_ms)
        self.acks_for_master.append(TakenAcknowledgement(queue_id, key, offsets, visible_at_ms))

    async def store_acknowledgement(
        self, queue_id: int, key: PopKey, offsets: list[int], visible_at_ms: int
    ) -> PutResult:
        """Store the acknowledgement of popped messages.

        Raises the errors of ``ReviveLog.store_acknowledgement``.
        """
        if self.acts:
            self.acknowledge_in_memory(queue_id, key, offsets, visible_at_ms)
            return PutResult(0, 0, 0)
        if key.pop_time_ms <= self._begun_ms:  # its checkpoint may be in an earlier topic
            for earlier in self._earlier_logs:
                await earlier.store_acknowledgement(queue_id, key, offsets, visible_at_ms)
        return await self.revive_log.store_acknowledgement(queue_id, key, offsets, visible_at_ms)

    def save(self) -> None:
        """Save the table of ordered pops in another thread, if it has changed.

        The broker calls this as often as it saves offsets. The call also records the end of the
        timers' queue at the previous save. ``recover_offsets`` begins to read there, because the
        saved offsets include all earlier pops.
        """
        last = self._timers_end
        self._timers_end = self._store.max_offset(TIMER_TOPIC, 0)
        noted = self._group_offsets.find(REVIVE_GROUP, TIMER_TOPIC, 0)
        if self.revive_log.used and noted != last:
            self._group_offsets.commit(REVIVE_GROUP, TIMER_TOPIC, 0, last)
        self.order.save()

    async def stop(self) -> None:
        """Stop the redelivery and save the offsets of the pops. The next start continues there.

        This may be called twice.
        """
        for each in self.reviving:
            await each.stop()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flushed = self._store.durable
        end = self._store.log.end

        def look() -> None:
            done = not self.offsets.waiting and flushed.value >= end
            if (done or flushed.error is not None) and not settled.done():
                settled.set_result(None)

        self.offsets.settled = look
        waiter = flushed.when(end, look)
        look()
        if not settled.done():
            self._store.flusher.flush_log()
        try:
            async with asyncio.timeout(FLUSH_PATIENCE_S):
                await settled
            for each in self.reviving:
                await each.acknowledge_copies()
        except (TimeoutError, StoreError, OSError):
            pass  # the disk is late or fails: the messages are delivered again
        finally:
            waiter.cancel()


def recover_offsets(store: MessageStore, offsets: ConsumerOffsets) -> None:
    """Advance the offsets of groups past every pop whose checkpoint is in the log.

    Call this before the broker serves clients. After a kill the groups' offsets are those of the
    last save, some seconds old. Each later checkpoint in the log shows the progress of a pop, so
    messages acknowledged in these seconds are not delivered again. The timers' queue is read from
    the saved offset of the revive group. Apache's broker has no such step and delivers these
    messages again.
    """
    at = offsets.find(REVIVE_GROUP, TIMER_TOPIC, 0)
    if at is None:
        return
    reached: dict[tuple[str, str, int], int] = {}
    while at < store.max_offset(TIMER_TOPIC, 0):
        result = store.get(TIMER_TOPIC, 0, at, _AT_ONCE)
        if result.next_offset <= at:
            break
        for message in decode_entries(result.data):
            topic = message.properties.get(REAL_TOPIC, "")
            if message.tags != CHECKPOINT_TAG or not topic.startswith(REVIVE_TOPIC_PREFIX):
                continue
            try:
                record = fastjson.decode(message.body, Checkpoint)
            except fastjson.FastjsonError:
                continue
            queue = (record.group or "", record.topic or "", record.queue_id)
            current = reached.get(queue, offsets.find(*queue))
            # None: the group had no offset in the queue. Another offset: the pop was counted
            # already, or the group moved in another way.
            if current is None or current == record.start_offset:
                following = max(record.offsets(), default=record.start_offset - 1) + 1
                if following <= store.max_offset(queue[1], queue[2]):
                    reached[queue] = following
        at = result.next_offset
    for (group, topic, queue_id), offset in reached.items():
        log.info(
            "pops continue at a recovered offset group=%s topic=%s queue=%s offset=%s",
            group,
            topic,
            queue_id,
            offset,
        )
        offsets.commit(group, topic, queue_id, offset)
