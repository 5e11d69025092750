"""Ends of transactions. A committed message is delivered, then the end is recorded.

The message is stored at its destination and confirmed, then its end is recorded. If a kill comes
between the two, the next start finds the message. Source: apache/rocketmq
``EndTransactionProcessor``. There, a repeated end delivers the message twice, and so does a late
end for a half message that was stored again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from turbopump.broker.counters.transactions import TransactionCounts
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.transactions.half_messages import (
    GROUP,
    OP_PROPERTIES,
    OP_TOPIC,
    QUEUE,
    HalfMessage,
)
from turbopump.broker.transactions.pending_halves import PendingHalves
from turbopump.clock import Clock
from turbopump.errors import MessageError, StoreError
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.requests.send import TransactionOutcome
from turbopump.store.log.commit_log import PutResult
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Endings:
    """Commits and roll-backs of transactions. A transaction ends only once."""

    forwarding: Forwarding
    pending: PendingHalves
    ops: OpQueue
    saved: SavedOffsets
    counts: TransactionCounts
    clock: Clock
    _under_way: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    async def end_transaction(
        self, half: HalfMessage, outcome: TransactionOutcome, *, lasting: bool
    ) -> bool:
        """Commit a transaction or roll it back. Return False if it had ended before.

        - ``lasting``: True to wait until a roll-back is confirmed too, if answers wait for the disk
          or for slaves.

        Raises the errors of ``MessageStore.put``. The transaction is then still open.
        """
        # ``_under_way`` lets one end of a transaction wait for another: between storing the message
        # and recording the end there are awaits, and a second commit then would deliver the message
        # twice. The key is the first offset, which all copies of a half message share. If storing
        # fails, nothing is recorded, so the producer may end the transaction again.
        await self.wait_for_end(half)
        if self.pending.has_ended(half.offset, half.origin):
            return False
        done = self._under_way[half.origin] = asyncio.get_running_loop().create_future()
        try:
            if outcome is TransactionOutcome.COMMIT:
                stored = await self.forwarding.forward(
                    half.message,
                    half.topic,
                    half.queue_id,
                    sys_flag=half.final_flag,
                    prepared_transaction_offset=half.message.commit_log_offset,
                )
                await self.forwarding.confirmed(stored)
            self.note_ended(half.offset, half.origin)
            if outcome is TransactionOutcome.COMMIT:
                took_ms = self.clock.now_ms() - half.message.born_timestamp
                self.counts.count_commit(half.topic, half.offset, took_ms)
            else:
                self.counts.count_rollback(half.topic, half.offset)
        finally:
            del self._under_way[half.origin]
            done.set_result(None)
        if outcome is not TransactionOutcome.COMMIT and lasting and self.forwarding.flush.sync:
            await self._store_ending()
        return True

    async def wait_for_end(self, half: HalfMessage) -> None:
        """Wait while another request ends the transaction of this half message."""
        while (other := self._under_way.get(half.origin)) is not None:
            await asyncio.wait([other])

    def note_ended(self, *offsets: int) -> None:
        """Record that the transaction of a half message has ended.

        - ``offsets``: the present and earlier offsets of the half message in its queue.
        """
        self.ops.add_offsets(self.pending.mark_ended(*offsets))
        self.saved.save_soon()

    async def _store_ending(self) -> None:
        mark = await self.ops.write_all()
        if mark is None:
            raise StoreError("the roll-back could not be stored yet; the broker tries again")
        await self.forwarding.confirmed(mark)


AGAIN_S: Final = 1.0
"""Seconds after which an entry that the store has refused is stored again."""


@dataclass(slots=True, eq=False)
class OpQueue:
    """Writer of the op queue. Each entry lists half messages of ended transactions.

    If the store refuses an entry, its offsets are kept and tried again. Source: apache/rocketmq
    ``TransactionalOpBatchService``.

    - ``size_max``: the approximate maximum size of an entry, in bytes.
    - ``interval``: the maximum seconds between an end and its entry.
    """

    forwarding: Forwarding
    pending: PendingHalves
    saved: SavedOffsets
    size_max: int
    interval: float
    _held: list[int] = field(default_factory=list)
    _size: int = 0
    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.Task[PutResult | None] | None = None
    _failing: bool = False
    _closed: bool = False

    def add_offsets(self, offsets: Iterable[int]) -> None:
        """Add the offsets of ended half messages. Soon an entry with these offsets is stored."""
        for offset in offsets:
            self._held.append(offset)
            self._size += len(str(offset)) + 1
        if self._size > self.size_max:
            self._start()
        elif self._held:
            self._start_within(self.interval)

    async def write_all(self) -> PutResult | None:
        """Store all added offsets now. Return the position of the last entry.

        Return None if the store refuses an entry, or if there are no offsets.
        """
        last: PutResult | None = None
        while self._held:
            self._start()
            assert self._writing is not None
            last = await asyncio.shield(self._writing)
            if self._failing:
                return None
        return last

    async def close(self, seconds: float) -> None:
        """Store the added offsets and close the op queue, in at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self.write_all()
        except TimeoutError:
            log.warning(
                "ended transactions are not stored, they will be checked again count=%s",
                len(self._held),
            )
        self._closed = True
        self._stop_timer()
        if self._writing is not None:
            self._writing.cancel()

    def _start_within(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._stop_timer()
        if self._held and not self._closed and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(
                self._write_entries(), name="turbopump op queue"
            )

    async def _write_entries(self) -> PutResult | None:
        """Store one entry. Store further entries while there are enough offsets for a full one.

        Return the position of the last entry, or None if the store refuses an entry.
        """
        while True:
            count = size = 0
            while count < len(self._held) and (not count or size < self.size_max):
                size += len(str(self._held[count])) + 1
                count += 1
            offsets = self._held[:count]
            body = "".join([f"{offset}," for offset in offsets]).encode()
            try:
                stored = await self.forwarding.append(OP_TOPIC, QUEUE, body, OP_PROPERTIES)
            except (OSError, StoreError, MessageError) as error:
                if not self._failing:
                    log.warning(
                        "ended transactions cannot be stored now, trying again count=%s cause=%s",
                        len(self._held),
                        error,
                    )
                self._failing = True
                self._start_within(AGAIN_S)
                return None
            self._failing = False
            del self._held[:count]
            self._size -= size
            self.pending.note_mark(stored.queue_offset, offsets)
            self.saved.save_soon()
            if self._size <= self.size_max:
                break
        if self._held:
            self._start_within(self.interval)
        return stored

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SavedOffsets:
    """Saved offsets in the half queue and the op queue. The next start begins to read there.

    They are saved as offsets of the consumer group ``CID_RMQ_SYS_TRANS``, but only when the log
    before them is on the disk. Otherwise a power cut could lose a committed message and keep the
    offset behind its half message.
    """

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, pending: PendingHalves
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._pending = pending
        self._saved = (pending.offset, pending.op_offset)
        self._waiting = False

    def save_soon(self) -> None:
        """Save the present offsets as soon as the present log is on the disk."""
        # The offsets are captured together with the end of the log, and saved when the log is on
        # the disk up to that end: every message that belongs to them is before it. One wait at a
        # time is enough, because the offsets are compared again at its end.
        offsets = (self._pending.offset, self._pending.op_offset)
        durable = self._store.durable
        end = self._store.log.end
        if self._waiting or offsets == self._saved or durable.error is not None:
            return
        if durable.value >= end:
            self._commit_offsets(*offsets)
        else:
            self._waiting = True
            durable.when(end, partial(self._save_durable, *offsets))

    def needed_from(self) -> int | None:
        """Return the log offset of the first half message for the next start, or None.

        Retention keeps the log from this offset on. The offset advances with each check, because a
        check stores half messages again at the end. So half messages do not keep their segments for
        long.
        """
        self.save_soon()  # skipping half messages that ended before the start saves nothing
        queue = self._store.queues.find(HALF_TOPIC, QUEUE)
        if queue is None:
            return None
        unit = queue.unit(max(self._saved[0], queue.min_index))
        return unit[0] if unit is not None else None

    def save_now(self) -> None:
        """Save the present offsets at a clean stop, when everything is on the disk."""
        if self._store.durable.error is None:
            self._commit_offsets(self._pending.offset, self._pending.op_offset)

    def _save_durable(self, offset: int, op_offset: int) -> None:
        self._waiting = False
        if self._store.durable.error is None:
            self._commit_offsets(offset, op_offset)
            self.save_soon()

    def _commit_offsets(self, offset: int, op_offset: int) -> None:
        if self._saved[0] != offset:
            self._offsets.commit(GROUP, HALF_TOPIC, QUEUE, offset)
        if self._saved[1] != op_offset:
            self._offsets.commit(GROUP, OP_TOPIC, QUEUE, op_offset)
        self._saved = (offset, op_offset)
