"""Revival of popped messages. A message without an acknowledgement is delivered again.

Each queue of the revive topic has one task. The task reads the records as the timers deliver them.
A checkpoint is settled after its time, when no earlier acknowledgement can be missing: the timers
have delivered everything due by then, and the task has read it. That is at most one timer slot (1
s) after the messages' time.

The saved offset in the queue is behind settled checkpoints that are on the disk, so a kill repeats
and never skips. The revival is recorded too, but only when the copies are on the disk. Otherwise a
power cut could lose a copy and keep its record.

A slave that acts as the master writes no records. Its timers hand the records to the task
(``take_record``), which keeps them in memory until they are settled (``acts``).

Source: apache/rocketmq ``PopReviveService``, which waits 2 s for acknowledgements, and up to 4 s
for its own queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NamedTuple

from turbopump.broker.background import RetryingTask, wait_for
from turbopump.broker.counters.pop import ACKNOWLEDGEMENT, CHECKPOINT
from turbopump.broker.pop import records
from turbopump.broker.pop.group_queue import GroupQueue
from turbopump.broker.pop.offsets import PopOffsets
from turbopump.broker.pop.open_checkpoints import OpenCheckpoint, OpenCheckpoints
from turbopump.broker.pop.redelivery import Redelivery
from turbopump.broker.reading import read_queue
from turbopump.broker.schedule.timers import Timers
from turbopump.clock import Clock
from turbopump.errors import StoreError
from turbopump.log_keys import LogKeys
from turbopump.message.codec import decode_entries
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import TIMER_DELIVER_MS, whole_number
from turbopump.protocol import fastjson
from turbopump.store.message_store import MessageStore

SETTLING_S: Final = 0.02
"""Seconds between two checks whether the timers have delivered all due records."""
SETTLING_LATE_S: Final = 0.5
"""Seconds between two checks of the timers once they are five seconds late."""
LOOK_S: Final = 0.2
"""Seconds between two checks of an acting slave for due checkpoints."""
SLEEP_MAX_S: Final = 60.0
_AT_ONCE: Final = 32
"""Maximum number of records in one read of the revive queue."""

log = logging.getLogger(__name__)


class StoredCopies(NamedTuple):
    """Copies of messages of one checkpoint, stored for a second delivery.

    - ``log_end``: the end of the copies in the log.
    - ``offsets``: the queue offsets of the original messages.
    """

    log_end: int
    key: records.PopKey
    offsets: list[int]
    visible_at_ms: int


class Reviving:
    """Task for one revive queue. It delivers popped messages again if they are not acknowledged in
    time.

    Call ``start``, then ``stop``.

    - ``queue_id``: the number of the revive queue.
    - ``acts``: True at a slave that acts as the master. Records then come by ``take_record``, and
      copies go to another master.
    """

    def __init__(
        self,
        queue_id: int,
        store: MessageStore,
        offsets: PopOffsets,
        timers: Timers,
        redelivery: Redelivery,
        revive_log: records.ReviveLog,
        clock: Clock,
        *,
        acts: bool = False,
    ) -> None:
        self.queue_id = queue_id
        self.acts = acts
        self._in_memory: dict[records.PopKey, int] = {}
        """Times of checkpoints that came by ``take_record``, in ms since 1970."""
        self._group_queue = GroupQueue(records.REVIVE_GROUP, revive_log.topic, queue_id)
        self._store = store
        self._offsets = offsets
        self._timers = timers
        self._redelivery = redelivery
        self._revive_log = revive_log
        self._clock = clock
        self._queue = store.queues.find_or_make(revive_log.topic, queue_id)
        saved = offsets.find(
            self._group_queue
        )  # as RocketMQ saves it: the offset of the last settled record
        self._open = OpenCheckpoints(revive_log.broker_name, saved + 1 if saved is not None else 0)
        self._saved = self._open.position
        self._task = RetryingTask(
            f"reviving {queue_id}",
            self._step,
            log,
            failing="popped messages are not delivered again, trying again",
            again="popped messages are delivered again",
            keys=LogKeys(queue=queue_id),
        )
        self._settling_since: float | None = None
        self._copies: deque[StoredCopies] = deque()
        """Copies whose acknowledgement is not stored yet, in the order in which they are in the
        log."""
        self.start = self._task.start
        self.stop = self._task.stop

    @property
    def behind(self) -> int:
        """Number of records of the queue that are not settled."""
        return max(self._queue.max_index - self._open.position, 0)

    @property
    def late_ms(self) -> int:
        """Milliseconds by which the oldest open checkpoint is late. 0 if none is due."""
        due = self._open.next_time_ms
        return 0 if due is None else max(self._clock.now_ms() - due, 0)

    @property
    def open_count(self) -> int:
        """Number of checkpoints in memory with messages that are not acknowledged."""
        return len(self._open)

    @property
    def topic(self) -> str:
        """Revive topic of the queue."""
        return self._revive_log.topic

    @property
    def needed_ms(self) -> int | None:
        """Time of the earliest checkpoint that is only in memory, in ms since 1970, or None."""
        for key in [key for key in self._in_memory if key not in self._open]:
            del self._in_memory[key]
        return min(self._in_memory.values(), default=None)

    def take_record(self, message: ReceivedMessage) -> None:
        """Take a record that the timers of an acting slave deliver."""
        checkpoint = self._add_record(message, self._open.read)
        if checkpoint is not None:
            key = checkpoint.key(self._revive_log.broker_name)
            self._in_memory[key] = checkpoint.visible_at_ms

    def take_acknowledgement(self, record: records.Acknowledgement, visible_at_ms: int) -> None:
        """Take an acknowledgement that a consumer has sent to an acting slave.

        - ``visible_at_ms``: the time when the messages would become visible again without it.
        """
        self._open.add_acknowledgement(record, visible_at_ms, self._open.read)

    async def settle_early(self) -> None:
        """Deliver the messages of checkpoints that are only in memory again, before their time.

        The messages become visible again within a few seconds anyway. Raises StoreError; the rest
        is then still in memory.
        """
        for entry in self._open.entries(self._in_memory):
            if entry.checkpoint is not None:
                await self._redelivery.redeliver(entry)
            self._open.close_entry(entry)
        self._in_memory.clear()

    async def _step(self) -> None:
        await self._read_records()
        seconds = await self._settle_ripe()
        await self.acknowledge_copies()
        self._task.works()
        if self.acts:
            seconds = min(seconds, LOOK_S)
        wanted = [(self._queue.end, self._open.read + 1)]
        if self._copies:
            wanted.append((self._store.durable, self._copies[0].log_end))
        await wait_for(*wanted, seconds=seconds)

    async def _read_records(self) -> None:
        _, topic, queue_id = self._group_queue
        opened = self._open
        while opened.read < self._queue.end.value:
            result = await read_queue(self._store, topic, queue_id, opened.read, _AT_ONCE)
            for message in decode_entries(result.data):
                self._add_record(message, message.queue_offset)
            if result.next_offset <= opened.read:
                raise StoreError(
                    f"queue offset {opened.read} of {topic} cannot be read: {result.status.value}"
                )
            opened.read = result.next_offset
            await self._redelivery.forwarding.turns.pause()

    def _add_record(self, message: ReceivedMessage, offset: int) -> records.Checkpoint | None:
        """Add a record to the open checkpoints. Return the record if it is a checkpoint.

        - ``offset``: the offset of the record in the revive queue.
        """
        try:
            if message.tags == records.CHECKPOINT_TAG:
                checkpoint = fastjson.decode(message.body, records.Checkpoint)
                if checkpoint.topic and checkpoint.group:
                    self._open.add_checkpoint(checkpoint, offset)
                    self._count_read(checkpoint, CHECKPOINT)
                    return checkpoint
            elif message.tags in (records.ACK_TAG, records.BATCH_ACK_TAG):
                deliver = whole_number(message.properties.get(TIMER_DELIVER_MS))
                time = message.store_timestamp if deliver is None else deliver
                acknowledgement = fastjson.decode(message.body, records.Acknowledgement)
                self._open.add_acknowledgement(acknowledgement, time, offset)
                self._count_read(acknowledgement, ACKNOWLEDGEMENT)
        except fastjson.FastjsonError as error:
            log.error(
                "record of the revive topic cannot be read queue=%s offset=%s cause=%s",
                self._group_queue.queue_id,
                offset,
                error,
            )
        return None

    def _count_read(self, record: records.Record, kind: str) -> None:
        counts = self._revive_log.counts
        counts.add_read(record.group or "", record.topic or "", self.queue_id, kind)

    async def _settle_ripe(self) -> float:
        """Settle due checkpoints: redeliver their unacknowledged messages. Return the seconds until
        the next check."""
        # This order of steps makes sure that a kill at any point repeats messages and loses none:
        #
        # 1. The copies of what is left of a checkpoint are appended to the log.
        # 2. The checkpoint is closed, in memory only.
        # 3. The revive offset is saved with the end of the log at this moment: a flush of offsets
        #    writes it only when the log is durable up to there, that is, with the copies.
        # 4. ``acknowledge_copies`` appends the acknowledgement of the copies when they are durable.
        #
        # After a kill before step 3 has taken effect, the start reads the checkpoint again, and
        # stores copies of the messages that step 4 has not acknowledged. The record of an open
        # checkpoint is still needed, and so is every later record: ``position`` is the offset of
        # the first record of any open checkpoint.
        now = self._clock.now_ms()
        settling = False
        began = self._clock.monotonic()
        ripe = self._open.ripe_entries(now)
        self._revive_log.counts.add_scan(self._clock.monotonic() - began)
        for entry in ripe:
            if not self._is_complete(entry):
                settling = True
                continue
            if entry.checkpoint is not None:
                offsets = await self._redelivery.redeliver(entry)
                if offsets and not self.acts:
                    self._copies.append(
                        StoredCopies(self._store.log.end, entry.key, offsets, entry.visible_at_ms)
                    )
            self._open.close_entry(entry)
        if self._open.position > self._saved:
            self._saved = self._open.position
            self._offsets.commit(self._group_queue, self._saved - 1, self._store.log.end)
        if settling:
            loop_time = asyncio.get_running_loop().time()
            self._settling_since = self._settling_since or loop_time
            return SETTLING_S if loop_time - self._settling_since < 5 else SETTLING_LATE_S
        self._settling_since = None
        next_time = self._open.next_time_ms
        if next_time is None:
            return SLEEP_MAX_S
        return min(max(next_time - self._clock.now_ms(), 1) / 1000, SLEEP_MAX_S)

    def _is_complete(self, entry: OpenCheckpoint) -> bool:
        """Return True if each timely acknowledgement for a checkpoint has been read."""
        # An acknowledgement is a timer message. It reaches this queue only at its own time, at most
        # one slot after the time of the checkpoint. So the queue may lack some acknowledgements
        # that came in time. Two marks show when none is missing. The first is the end of the
        # timers' own queue now: every acknowledgement that came in time is before it. The second is
        # the end of this queue, once the timers have delivered all due messages before the first
        # mark.
        if entry.timers_mark is None:
            entry.timers_mark = self._timers.queue_end
        if entry.queue_mark is None:
            if not self._timers.has_delivered(entry.visible_at_ms, entry.timers_mark):
                return False
            entry.queue_mark = self._queue.max_index
        return self._open.read >= entry.queue_mark

    async def acknowledge_copies(self) -> None:
        """Acknowledge the redelivered messages whose copies are on the disk.

        After a kill, a start may read the checkpoint again. The acknowledgement then prevents
        second copies. Raises StoreError, OSError.
        """
        while self._copies and self._copies[0].log_end <= self._store.durable.value:
            _, key, offsets, visible_at_ms = self._copies[0]
            await self._revive_log.store_acknowledgement(
                self._group_queue.queue_id, key, offsets, visible_at_ms
            )
            self._copies.popleft()
