"""Revival: popped messages without an acknowledgement become visible again. Each queue of the
revive topic has one task.

The task reads the records as the timers deliver them. A checkpoint is settled after its time, when
no earlier acknowledgement can be missing: the timers have delivered everything due by then, and the
task has read it. That is at most one timer slot (1 s) after the messages' time.

The saved offset in the queue is behind settled checkpoints that are on the disk, so a kill repeats
and never skips. The revival is recorded too, but only when the copies are on the disk. Otherwise a
power cut could lose a copy and keep its record.

Source: apache/rocketmq ``PopReviveService``, which waits 2 s for acknowledgements, and up to 4 s
for its own queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from turbopump.broker.background import RetryingTask, wait_for
from turbopump.broker.dead_letters import dead_letter_topic
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.groups import GroupTable
from turbopump.broker.pop import records
from turbopump.broker.pop.offsets import GroupQueue, PopOffsets
from turbopump.broker.pop.view import PopView, TopicGroup
from turbopump.broker.reading import ask, read_queue
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.topics import is_batch_cq
from turbopump.clock import Clock
from turbopump.errors import MessageError, StoreError
from turbopump.message.codec import decode_entries
from turbopump.message.handles import original_topic
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    ORIGIN_MESSAGE_ID,
    POP_CK,
    RETRY_TOPIC,
    TIMER_DELIVER_MS,
    encode_properties,
    whole_number,
)
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.store.message_store import MessageStore

SETTLING_S: Final = 0.02
"""Seconds between two checks of the timers' progress."""
SETTLING_LATE_S: Final = 0.5
"""Seconds between two checks when the timers are late."""
SLEEP_MAX_S: Final = 60.0
_AT_ONCE: Final = 32
"""Records that are read at once."""

log = logging.getLogger(__name__)


class PutBack(NamedTuple):
    """Messages of a checkpoint whose copies end at ``log_end``."""

    log_end: int
    key: records.PopKey
    offsets: list[int]
    visible_at_ms: int


class Reviving:
    """Task that revives the messages of one revive queue. Call ``start``, then ``stop``."""

    def __init__(
        self,
        queue_id: int,
        store: MessageStore,
        offsets: PopOffsets,
        timers: Timers,
        redelivery: Redelivery,
        revive_log: records.ReviveLog,
        clock: Clock,
    ) -> None:
        self._group_queue = GroupQueue(records.REVIVE_GROUP, revive_log.topic, queue_id)
        self._store = store
        self._offsets = offsets
        self._timers = timers
        self._redelivery = redelivery
        self._revive_log = revive_log
        self._clock = clock
        self._queue = store.queues.find_or_make(revive_log.topic, queue_id)
        saved = offsets.find(self._group_queue)  # RocketMQ: of the last record that is settled
        self._open = OpenCheckpoints(revive_log.broker_name, saved + 1 if saved is not None else 0)
        self._saved = self._open.position
        self._task = RetryingTask(
            f"reviving {queue_id}",
            self._step,
            log,
            failing=f"popped messages are not put back, trying again queue={queue_id}",
            again=f"popped messages are put back again queue={queue_id}",
        )
        self._settling_since: float | None = None
        self._back: deque[PutBack] = deque()
        """Copies whose acknowledgement is not stored yet, in the order of the log."""
        self.start = self._task.start
        self.stop = self._task.stop

    async def _step(self) -> None:
        await self._take_in()
        seconds = await self._settle()
        await self.write_down()
        self._task.works()
        wanted = [(self._queue.end, self._open.read + 1)]
        if self._back:
            wanted.append((self._store.durable, self._back[0].log_end))
        await wait_for(*wanted, seconds=seconds)

    async def _take_in(self) -> None:
        _, topic, queue_id = self._group_queue
        opened = self._open
        while opened.read < self._queue.end.value:
            result = await read_queue(self._store, topic, queue_id, opened.read, _AT_ONCE)
            for message in decode_entries(result.data):
                self._take(message)
            if result.next_offset <= opened.read:
                raise StoreError(
                    f"queue offset {opened.read} of {topic} cannot be read: {result.status.value}"
                )
            opened.read = result.next_offset
            await self._redelivery.forwarding.turns.pause()

    def _take(self, message: ReceivedMessage) -> None:
        offset = message.queue_offset
        try:
            if message.tags == records.CHECKPOINT_TAG:
                checkpoint = fastjson.decode(message.body, records.Checkpoint)
                if checkpoint.topic and checkpoint.group:
                    self._open.checkpoint(checkpoint, offset)
            elif message.tags in (records.ACK_TAG, records.BATCH_ACK_TAG):
                deliver = whole_number(message.properties.get(TIMER_DELIVER_MS))
                time = message.store_timestamp if deliver is None else deliver
                self._open.acknowledge(
                    fastjson.decode(message.body, records.Acknowledgement), time, offset
                )
        except fastjson.FastjsonError as error:
            log.error(
                f"record of the revive log cannot be read queue={self._group_queue.queue_id} "
                f"offset={offset} cause={error}"
            )

    async def _settle(self) -> float:
        """Settle the checkpoints whose time has come. Return the seconds until the next check."""
        # The order of these steps is what makes a kill at any point repeat messages and not lose
        # any:
        #
        # 1. The copies of what is left of a checkpoint are appended to the log.
        # 2. The checkpoint is closed, in memory only.
        # 3. The revive offset is saved with the end of the log at this moment: a flush of offsets
        #    writes it only when the log is durable up to there, that is, with the copies.
        # 4. ``write_down`` appends the acknowledgement of the copies when they are durable.
        #
        # A kill before 3 has taken effect reads the checkpoint again and puts back what 4 has not
        # acknowledged. A checkpoint that is not complete (``_is_complete``) keeps its record
        # needed, and with it every later one: ``position`` is the lowest that is still open.
        now = self._clock.now_ms()
        settling = False
        for entry in self._open.ripe(now):
            if not self._is_complete(entry):
                settling = True
                continue
            if entry.checkpoint is not None:
                offsets = await self._redelivery.put_back(entry)
                if offsets:
                    self._back.append(
                        PutBack(self._store.log.end, entry.key, offsets, entry.visible_at_ms)
                    )
            self._open.close(entry)
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
        """Return True if all acknowledgements in time have been read; later ones do not count."""
        # An acknowledgement is a timer message: it reaches this queue only when its time comes, at
        # most one slot after that of the checkpoint. To look at the queue at the checkpoint's time
        # would therefore miss some of those that came in time. Two marks tell when none is missing:
        # the end of the timers' own queue now (everything that was sent in time is before it), and,
        # once the timers have delivered all that is due of it, the end of this queue.
        if entry.timers_mark is None:
            entry.timers_mark = self._timers.queue_end
        if entry.queue_mark is None:
            if not self._timers.has_delivered(entry.visible_at_ms, entry.timers_mark):
                return False
            entry.queue_mark = self._queue.max_index
        return self._open.read >= entry.queue_mark

    async def write_down(self) -> None:
        """Store acknowledgements for copies that are on the disk. A start after a kill that reads
        the checkpoint again then makes no second copies. Raises StoreError, OSError."""
        while self._back and self._back[0].log_end <= self._store.durable.value:
            _, key, offsets, visible_at_ms = self._back[0]
            await self._revive_log.acknowledge(
                self._group_queue.queue_id, key, offsets, visible_at_ms
            )
            self._back.popleft()


# --- A popped message that nobody acknowledged goes to its group's retry topic, or after too many
# attempts to the dead letters.
#
# Source: apache/rocketmq ``PopReviveService.reviveRetry``. Ours: ``retryMaxTimes`` of the group
# counts here too; with Apache a message that kills its consumer comes again for ever.
# ``ORIGIN_MESSAGE_ID`` and ``RETRY_TOPIC`` are kept as for messages that were sent back, where the
# properties have room for them.

FIRST_POP_TIME = "1ST_POP_TIME"


@dataclass(slots=True, eq=False)
class Redelivery:
    """Second delivery of popped messages. ``look`` is called with the group and topic of a stored
    copy, to wake waiting pops."""

    view: PopView
    groups: GroupTable
    forwarding: Forwarding
    look: Callable[[TopicGroup], None]

    async def put_back(self, entry: OpenCheckpoint) -> list[int]:
        """Store copies of the messages left in a checkpoint. Return their offsets, or none if the
        topic or group is gone. Raises StoreError, OSError; the rest then stays in
        ``entry.left``."""
        key = entry.key
        self.view.in_flight.ended(GroupQueue(key.group, key.topic, key.queue_id), entry.left)
        topic = original_topic(key.topic, key.group)
        config = self.view.topics.find(topic)
        if config is None or is_batch_cq(config) or self.groups.get(key.group) is None:
            log.warning(
                "popped messages are forgotten: topic or group is gone or not served "
                f"topic={key.topic} group={key.group}"
            )
            return []
        offsets = list(entry.left)
        for offset in offsets:
            await self.forwarding.turns.pause()
            fault = await self._put_back_one(key, offset)
            if fault is not None:
                log.error(
                    f"popped message cannot be put back topic={key.topic} group={key.group} "
                    f"queue={key.queue_id} offset={offset} cause={fault}"
                )
            entry.left.remove(offset)
        self.look(TopicGroup(topic, key.group))
        return offsets

    async def _put_back_one(self, key: records.PopKey, offset: int) -> str | None:
        """Store a copy of one message. Return the reason if that is impossible, or None."""
        question = self.view.store.lookup.entry_in_queue(key.topic, key.queue_id, offset)
        found = await ask(self.view.store.cold_reads, question)
        if found is None:
            return "it is not in the log any more"
        if found.fault is not None:
            return found.fault
        try:
            await self.forwarding.turns.pause()
            await self._put(found.message, key)
        except MessageError as error:
            return str(error)
        return None

    async def _put(self, message: ReceivedMessage, key: records.PopKey) -> None:
        group = self.groups.find_or_create(key.group)
        attempts_max = group.retry_max_times if group is not None else 0
        kept = {name: value for name, value in message.properties.items() if name != POP_CK}
        properties = dict(kept)
        if message.reconsume_times == 0 or FIRST_POP_TIME not in properties:
            properties[FIRST_POP_TIME] = str(key.pop_time_ms)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
        if 0 <= attempts_max <= message.reconsume_times:
            topic = dead_letter_topic(self.view.topics, key.group)
            properties[RETRY_TOPIC] = original_topic(key.topic, key.group)
            properties[DELAY_TIME_LEVEL] = "0"
        else:
            name = key.topic
            if not name.startswith(RETRY_PREFIX):
                name = self.view.retry_topic(TopicGroup(key.topic, key.group))
            topic = self.view.topics.find_or_make(name, 1)
        assert topic.topic_name is not None
        attempts = message.reconsume_times + 1
        text = encode_properties(properties)
        try:
            await self.forwarding.forward(
                message, topic.topic_name, 0, properties=text, reconsume_times=attempts
            )
        except MessageError:  # perhaps the properties are full: without those that are added here
            as_it_was = encode_properties(kept) if POP_CK in message.properties else None
            await self.forwarding.forward(
                message, topic.topic_name, 0, properties=as_it_was, reconsume_times=attempts
            )


# --- Which messages are popped and not acknowledged: the one state machine of POP, fed with the
# records of one revive queue in their order. No I/O, loop or clock.
#
# A checkpoint opens an entry, acknowledgements take messages out of it. When its time has come, and
# nothing that was acknowledged before can be missing any more, what is left in it goes back to
# consumers and it is closed. An acknowledgement that comes before its checkpoint waits for it.
# ``position`` never passes a record that is still needed, so that a start from there comes to the
# same state. RocketMQ: ``PopReviveService.consumeReviveMessage``, ``mergeAndRevive``.


@dataclass(slots=True, eq=False)
class OpenCheckpoint:
    """A checkpoint with its acknowledgements.

    - ``left``: queue offsets of messages that are not acknowledged.
    - ``visible_at_ms``: time when these become visible again.
    - ``checkpoint``: None while only acknowledgements have arrived.
    """

    key: records.PopKey
    visible_at_ms: int
    first: int
    """Revive offset of the first record with this key."""
    checkpoint: records.Checkpoint | None = None
    left: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    timers_mark: int | None = None
    queue_mark: int | None = None


class OpenCheckpoints:
    """Open checkpoints of one revive queue. ``read``: the revive offset after the last record that
    was read."""

    def __init__(self, broker_name: str, read: int) -> None:
        self._broker_name = broker_name
        self._open: dict[records.PopKey, OpenCheckpoint] = {}
        self.read = read

    def __len__(self) -> int:
        return len(self._open)

    @property
    def position(self) -> int:
        """Lowest revive offset that is still needed."""
        return min((entry.first for entry in self._open.values()), default=self.read)

    @property
    def next_time_ms(self) -> int | None:
        """Time when the first messages become visible again."""
        return min((entry.visible_at_ms for entry in self._open.values()), default=None)

    def checkpoint(self, record: records.Checkpoint, revive_offset: int) -> None:
        """Add a checkpoint. A repeated one, after a crash of the timers, changes nothing."""
        key = record.key(self._broker_name)
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = OpenCheckpoint(key, record.visible_at_ms, revive_offset)
        elif entry.checkpoint is not None and len(entry.checkpoint.offsets()) >= len(
            record.offsets()
        ):
            return
        entry.checkpoint = record
        entry.visible_at_ms = record.visible_at_ms
        entry.left = [
            offset for offset in record.unacknowledged() if offset not in entry.acknowledged
        ]
        if not entry.left:
            del self._open[key]

    def acknowledge(
        self, record: records.Acknowledgement, visible_at_ms: int, revive_offset: int
    ) -> None:
        """Add an acknowledgement for messages that would become visible again at
        ``visible_at_ms``."""
        key = record.key(self._broker_name)
        offsets = {record.offset} if record.offsets is None else set(record.offsets)
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = OpenCheckpoint(key, visible_at_ms, revive_offset)
        entry.acknowledged |= offsets
        if entry.checkpoint is not None:
            entry.left = [offset for offset in entry.left if offset not in offsets]
            if not entry.left:
                del self._open[key]

    def ripe(self, now_ms: int) -> list[OpenCheckpoint]:
        """Return the entries whose time has come, oldest first."""
        return sorted(
            (entry for entry in self._open.values() if entry.visible_at_ms <= now_ms), key=_order
        )

    def close(self, entry: OpenCheckpoint) -> None:
        """Remove an entry whose messages are stored again, or whose acknowledgements have no
        checkpoint."""
        self._open.pop(entry.key, None)


def _order(entry: OpenCheckpoint) -> tuple[int, int]:
    return entry.visible_at_ms, entry.first
