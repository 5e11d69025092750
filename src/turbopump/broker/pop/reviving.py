"""Messages that were popped and not acknowledged become visible again: one task for each queue of
the revive topic.

It takes in the records as the timers deliver them (``open_checkpoints.py``). A checkpoint whose
time has come is settled when nothing that was acknowledged before can be missing: the timers have
delivered what was due then, and all of that is taken in. That is at most one timer slot (1 s) after
the messages' time. The place in the queue is saved behind what is settled and on the disk: a kill
repeats, never skips. That messages are back is written down, too, when their copies are on the disk
and not before: of what is not, a power cut may take a piece and leave what stands behind it.
Source: apache/rocketmq ``PopReviveService``, which waits 2 s for acknowledgements, and up to 4 s
for its own queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from turbopump.broker.asking import ask
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.held_pops import Line
from turbopump.broker.pop.in_flight import InFlight
from turbopump.broker.pop.open_checkpoints import OpenCheckpoint, OpenCheckpoints
from turbopump.broker.pop.places import FlushedOffsets, GroupQueue
from turbopump.broker.pop.putting_back import PuttingBack
from turbopump.broker.pop.reading import read_queue
from turbopump.broker.pop.records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    REVIVE_GROUP,
    Acknowledgement,
    Checkpoint,
    PopKey,
)
from turbopump.broker.pop.revive_log import ReviveLog
from turbopump.broker.schedule.timers import Timers
from turbopump.clock import Clock
from turbopump.errors import MessageError, StoreError
from turbopump.message.codec import decode_entries
from turbopump.message.message import ReceivedMessage
from turbopump.message.pop_handle import original_topic
from turbopump.message.properties import TIMER_DELIVER_MS
from turbopump.protocol import fastjson
from turbopump.store.message_store import MessageStore

TRIED_AGAIN_S: Final = 1.0
"""After how long a message that the store refuses, or a queue that cannot be read, is tried
again."""
SETTLING_S: Final = 0.02
"""So often it looks whether the timers have delivered what was due."""
SETTLING_LATE_S: Final = 0.5
"""The same when that takes long."""
SLEEP_MAX_S: Final = 60.0
_AT_ONCE: Final = 32

log = logging.getLogger(__name__)


class Back(NamedTuple):
    """Messages of a checkpoint whose copies end at ``log_end``."""

    log_end: int
    key: PopKey
    offsets: list[int]
    visible_at_ms: int


class Reviving:
    """Of one revive queue. ``look`` is told where there is something for pops that wait. ``start``,
    then ``stop``."""

    def __init__(
        self,
        queue_id: int,
        broker_name: str,
        store: MessageStore,
        offsets: ConsumerOffsets,
        flushed_offsets: FlushedOffsets,
        timers: Timers,
        putting_back: PuttingBack,
        revive_log: ReviveLog,
        in_flight: InFlight,
        clock: Clock,
        look: Callable[[Line], None],
    ) -> None:
        self._place = GroupQueue(REVIVE_GROUP, revive_log.topic, queue_id)
        self._store = store
        self._flushed_offsets = flushed_offsets
        self._timers = timers
        self._putting_back = putting_back
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._clock = clock
        self._look = look
        self._queue = store.queues.find_or_make(revive_log.topic, queue_id)
        saved = offsets.find(*self._place)  # RocketMQ: of the last record that is settled
        self._open = OpenCheckpoints(broker_name, saved + 1 if saved is not None else 0)
        self._saved = self._open.place
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._settling_since: float | None = None
        self._back: deque[Back] = deque()
        """To be written down, in the order of the log."""
        self.put_back = 0
        """Messages since the start."""

    def start(self) -> None:
        """Settle from now on."""
        self._task = asyncio.create_task(self._run(), name=f"reviving {self._place.queue_id}")

    async def stop(self) -> None:
        """Settle no more. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._take_in()
                wait = await self._settle()
                await self.write_down()
                if self._failing:
                    self._failing = False
                    log.info("popped messages are put back again queue=%d", self._place.queue_id)
            except Exception as error:  # most likely the disk is full: nothing is skipped
                if not self._failing:
                    self._failing = True
                    unexpected = not isinstance(error, StoreError | OSError)
                    log.warning(
                        "popped messages are not put back, trying again queue=%d cause=%s",
                        *(self._place.queue_id, error),
                        exc_info=unexpected,
                    )
                await asyncio.sleep(TRIED_AGAIN_S)
                continue
            await self._sleep(wait)

    # --- in
    # ----------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        opened = self._open
        while opened.read < self._queue.end.value:
            result = await read_queue(self._store, self._place, opened.read, _AT_ONCE)
            for message in decode_entries(result.data):
                self._take(message)
            if result.next_offset <= opened.read:
                raise StoreError(
                    f"queue offset {opened.read} of {self._place.topic} cannot be "
                    f"read: {result.status.value}"
                )
            opened.read = result.next_offset
            await asyncio.sleep(0)

    def _take(self, message: ReceivedMessage) -> None:
        try:
            if message.tags == CHECKPOINT_TAG:
                checkpoint = fastjson.decode(message.body, Checkpoint)
                if checkpoint.topic and checkpoint.group:
                    self._open.checkpoint(checkpoint, message.queue_offset)
            elif message.tags in (ACK_TAG, BATCH_ACK_TAG):
                deliver = message.properties.get(TIMER_DELIVER_MS, "")
                time = (
                    int(deliver)
                    if deliver.isascii() and deliver.isdigit()
                    else message.store_timestamp
                )
                self._open.acknowledge(
                    fastjson.decode(message.body, Acknowledgement), time, message.queue_offset
                )
        except fastjson.FastjsonError as error:
            log.error(
                "record of the revive log cannot be read queue=%d offset=%d cause=%s",
                *self._place[1:],
                error,
            )

    # --- out
    # ----------------------------------------------------------------------------------------------

    async def _settle(self) -> float:
        """Settle what is ripe; after how many seconds to look again."""
        now = self._clock.now_ms()
        settling = False
        for entry in self._open.ripe(now):
            if not self._is_complete(entry):
                settling = True
                continue
            if entry.checkpoint is not None:
                await self._put_back(entry)
            self._open.close(entry)
        self._save_place()
        if settling:
            loop_time = asyncio.get_running_loop().time()
            self._settling_since = self._settling_since or loop_time
            return SETTLING_S if loop_time - self._settling_since < 5 else SETTLING_LATE_S
        self._settling_since = None
        next_time = self._open.next_time_ms
        return (
            SLEEP_MAX_S
            if next_time is None
            else min(max(next_time - self._clock.now_ms(), 1) / 1000, SLEEP_MAX_S)
        )

    def _is_complete(self, entry: OpenCheckpoint) -> bool:
        """Whether all that was acknowledged in time is taken in. Nobody can acknowledge in time any
        more."""
        if entry.timers_mark is None:
            entry.timers_mark = self._timers.queue_end
        if entry.queue_mark is None:
            if not self._timers.has_delivered(entry.visible_at_ms, entry.timers_mark):
                return False
            entry.queue_mark = self._queue.max_index
        return self._open.read >= entry.queue_mark

    async def _put_back(self, entry: OpenCheckpoint) -> None:
        key = entry.key
        self._in_flight.ended(GroupQueue(key.group, key.topic, key.queue_id), entry.left)
        if not self._putting_back.is_wanted(key):
            log.warning(
                "popped messages are forgotten, topic or group is gone topic=%s group=%s",
                key.topic,
                key.group,
            )
            return
        offsets = list(entry.left)
        for number, offset in enumerate(offsets):
            found = await ask(
                self._store.cold_reads,
                self._store.lookup.entry_in_queue(key.topic, key.queue_id, offset),
            )
            if found is None or found.fault is not None:
                cause = found.fault if found is not None else "it is not in the log any more"
                log.error(
                    "popped message cannot be put back topic=%s group=%s queue=%d offset=%d "
                    "cause=%s",
                    *(key.topic, key.group, key.queue_id, offset, cause),
                )
            else:
                try:
                    await self._putting_back.put(found.message, key)
                    self.put_back += 1
                except MessageError as error:
                    log.error(
                        "popped message cannot be put back topic=%s group=%s queue=%d offset=%d "
                        "cause=%s",
                        *(key.topic, key.group, key.queue_id, offset, error),
                    )
            entry.left.remove(offset)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        self._look(Line(original_topic(key.topic, key.group), key.group))
        self._back.append(Back(self._store.log.end, key, offsets, entry.visible_at_ms))

    async def write_down(self) -> None:
        """Write down what is back and on the disk: whoever reads its checkpoint again after a kill
        knows that it is there. Raises StoreError, OSError."""
        while self._back and self._back[0].log_end <= self._store.flushed.value:
            _, key, offsets, visible_at_ms = self._back[0]
            await self._revive_log.acknowledge(self._place.queue_id, key, offsets, visible_at_ms)
            self._back.popleft()

    def _save_place(self) -> None:
        place = self._open.place
        if place > self._saved:
            self._saved = place
            self._flushed_offsets.commit(self._place, place - 1, self._store.log.end)

    async def _sleep(self, seconds: float) -> None:
        """Until the time is over, the queue has grown, or what is back is on the disk."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        wanted = [(self._queue.end, self._open.read + 1)]
        if self._back:
            wanted.append((self._store.flushed, self._back[0].log_end))
        waiters = [watermark.when(threshold, wake) for watermark, threshold in wanted]
        timer = loop.call_later(seconds, wake)
        if any(watermark.value >= threshold for watermark, threshold in wanted):
            wake()
        try:
            await woken
        finally:
            for waiter in waiters:
                waiter.cancel()
            timer.cancel()
