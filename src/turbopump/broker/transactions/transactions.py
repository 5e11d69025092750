"""Transactions of a broker. Each open one is checked until it ends.

Source: apache/rocketmq ``TransactionalMessageServiceImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from turbopump.broker.background import stop_task
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask, entry_for
from turbopump.broker.stored import Stored
from turbopump.broker.transactions.checks import TransactionChecks
from turbopump.broker.transactions.endings import Endings, OpQueue, SavedOffsets
from turbopump.broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    GROUP,
    OP_TOPIC,
    QUEUE,
    HalfMessage,
    ended_offsets,
    half_of,
)
from turbopump.broker.transactions.pending_halves import PendingHalves
from turbopump.errors import StoreError
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    UNIQ_KEY,
    SysFlag,
    whole_number,
)
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.requests.send import TransactionOutcome
from turbopump.remoting.router import RequestContext
from turbopump.remoting.wire import Wire
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.queues.lookup import StoredEntry

T = TypeVar("T")

log = logging.getLogger(__name__)

MARKS_READ_BACK: Final = 100
"""Number of entries of the op queue that a start reads before the saved offset.

The half messages that these entries list are remembered as ended.
"""
CLOSE_S: Final = 2.0
_EVER: Final = 1 << 62


class Transactions:
    """All transactions of a broker.

    ``start`` reads the state that the last run has stored. Requests that end a transaction wait
    until it is read.
    """

    def __init__(
        self, stored: Stored, forwarding: Forwarding, may_publish: Callable[[Wire, str], bool]
    ) -> None:
        config, store, offsets = stored.config, stored.store, stored.tables.offsets
        self._store = store
        self._forwarding = forwarding
        self._flush = forwarding.flush
        self._offsets = offsets
        self._pending = pending = PendingHalves(
            self._saved_offset(HALF_TOPIC), self._saved_offset(OP_TOPIC)
        )
        self._saved = SavedOffsets(store, offsets, pending)
        self._ops = OpQueue(
            forwarding,
            pending,
            self._saved,
            size_max=config.transaction_op_msg_max_size,
            interval=config.transaction_op_batch_interval / 1000,
        )
        self.endings = Endings(forwarding, pending, self._ops, self._saved)
        self.checks = TransactionChecks(
            config,
            store,
            forwarding,
            stored.tables.topics,
            stored.clients,
            stored.clock,
            self.endings,
            may_publish,
        )
        self._ended_known = asyncio.Event()
        self._copies_known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def _saved_offset(self, topic: str) -> int:
        """Return the offset at which the last run stopped reading a transaction queue."""
        saved = self._offsets.find(GROUP, topic, QUEUE)
        return max(saved or 0, self._store.min_offset(topic, QUEUE))

    def figures(self) -> dict[str, str]:
        """Return the number of open transactions, for the broker's runtime table.

        RocketMQ has no such key.
        """
        end = self._store.max_offset(HALF_TOPIC, QUEUE)
        return {"transactionsPending": str(max(self._pending.count(end), 0))}

    def start(self) -> None:
        """Start a task. It reads the pending half messages, and then checks them."""
        self._store.retention.needed_from.append(self._needed_from)
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="turbopump transactions"
        )

    def _needed_from(self) -> int | None:
        """Return the log offset from which retention keeps the log. Return None while no checks
        run."""
        return None if self._task is None or self._task.done() else self._saved.needed_from()

    async def close(self) -> None:
        """Stop the checks. Store ends of transactions, and the offsets for the next start."""
        if self._task is not None:
            task, self._task = self._task, None
            await stop_task(task)
            await self._ops.close(CLOSE_S)
            self._saved.save_now()

    async def _run(self) -> None:
        try:
            await self._read_ended()
            self._ended_known.set()
            await self._read_copies()
            await self._read_given_up()
            self._copies_known.set()
            await self.checks.run()
        except Exception:
            log.exception("transactions are not checked any more until the next start")
            self._ended_known.set()
            self._copies_known.set()

    # --- what a start reads

    async def _read_ended(self) -> None:
        """Read the op queue, and mark the transactions in it as ended."""
        begin = self._pending.op_offset
        end = self._store.max_offset(OP_TOPIC, QUEUE)
        first = max(begin - MARKS_READ_BACK, self._store.min_offset(OP_TOPIC, QUEUE))
        for index in range(first, end):
            entry = await self._read_entry(OP_TOPIC, index)
            if entry is None or entry.fault is not None:
                fault = "there is no such entry" if entry is None else entry.fault
                log.error(
                    "record of ended transactions cannot be read, they may be checked "
                    f"again offset={index} cause={fault}"
                )
                continue
            offsets = ended_offsets(entry.message)
            self._pending.note_ended(offsets)
            if index >= begin:
                self._pending.note_mark(index, offsets)

    async def _read_copies(self) -> None:
        """Read the half queue. Find the newest copy of each half message, and mark committed ones
        as ended."""
        pending = self._pending
        for index in range(pending.offset, self._store.max_offset(HALF_TOPIC, QUEUE)):
            if pending.has_ended(index):
                continue
            half = half_of(await self._read_entry(HALF_TOPIC, index))
            if half is None or pending.has_ended(half.origin):
                continue
            if await self._is_committed(half):
                self.endings.note_ended(half.offset, half.origin)
            else:
                pending.note_copy(half.origin, index)

    async def _read_given_up(self) -> None:
        """Find pending half messages that the last run gave up after its last save.

        Their dead letters are in the log behind the first pending half message.
        """
        store = self._store
        queue = store.queues.find(HALF_TOPIC, QUEUE)
        if queue is None:
            return
        first = queue.unit(max(self._pending.offset, queue.min_index))
        if first is None:
            return
        low = store.min_offset(GIVEN_UP_TOPIC, QUEUE)
        for index in reversed(range(low, store.max_offset(GIVEN_UP_TOPIC, QUEUE))):
            entry = await self._read_entry(GIVEN_UP_TOPIC, index)
            if entry is None or entry.fault is not None:
                continue
            if entry.offset <= first[0]:
                break
            letter = half_of(entry)
            if letter is None or TRANSACTION_PREPARED_QUEUE_OFFSET not in entry.message.properties:
                continue
            if not self._pending.note_given_up(entry.offset, letter.origin):
                break

    async def _is_committed(self, half: HalfMessage) -> bool:
        """Return True if the message of a transaction was already delivered to its destination.

        This happens if a kill came before the end was stored. The message is found by the key
        index. RocketMQ checks such a half message, and delivers it twice.
        """
        unique = half.message.properties.get(UNIQ_KEY)
        if unique is None:
            return False
        lookup = self._store.lookup
        # The message at the destination names the log offset of the half message that was ended.
        # This is the present entry, or the first entry if the end came before the half message was
        # stored again. Entries between these two have the offset of the first one in their
        # properties. Index files that end before the first entry are not read. If retention has
        # deleted the first entry, all index files are read.
        positions = {half.message.commit_log_offset}
        behind = half.message.commit_log_offset
        if half.origin != half.offset:
            first = await self._read_entry(HALF_TOPIC, half.origin)
            if first is None:
                behind = 0
            else:
                positions.add(first.offset)
                behind = first.offset
        answer = await self._read_patiently(
            lambda: lookup.by_key(half.topic, unique, 0, _EVER, unique=True, behind=behind)
        )
        for entry in answer.found:
            message = entry.message
            if message.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT and (
                message.prepared_transaction_offset in positions
                or message.properties.get(TRANSACTION_PREPARED_QUEUE_OFFSET) == str(half.origin)
            ):
                return True
        return False

    async def _read_entry(self, topic: str, index: int) -> StoredEntry | None:
        await self._forwarding.turns.pause()
        return await self._read_patiently(
            lambda: self._store.lookup.entry_in_queue(topic, QUEUE, index)
        )

    async def _read_patiently(self, steps: Callable[[], ReadSteps[T]]) -> T:
        """Run a read of the log. While too many reads wait for the disk, try again every second."""
        while True:
            try:
                return await ask(self._store.cold_reads, steps(), self._forwarding.turns)
            except StoreError as error:
                log.warning("half messages cannot be read now, trying again cause=%s", error)
                await asyncio.sleep(1)

    # --- for the handlers

    async def message_at(self, offset: int, context: RequestContext) -> ReceivedMessage | None:
        """Return the valid message at an offset of the log. Return None if there is no such
        message.

        If this broker confirms messages only when they are on the disk, the call waits for that.
        """
        if self._store.confirmed.value <= offset < self._store.log.end:
            await self._flush.confirmed(offset + 1)  # its producer has not waited for this
        steps = entry_for(context, self._store.lookup, offset)
        entry = await ask(self._store.cold_reads, steps, context.served.turns)
        return entry.message if entry is not None and entry.fault is None else None

    async def end_transaction(
        self, half: HalfMessage, outcome: TransactionOutcome, *, lasting: bool
    ) -> bool:
        """End a transaction, after the state of the last run is known. See
        ``Endings.end_transaction``."""
        await self._ended_known.wait()
        if half.offset < self._pending.offset:
            await self._copies_known.wait()
        return await self.endings.end_transaction(half, outcome, lasting=lasting)

    async def resume_half(self, message: ReceivedMessage, properties: str) -> bool:
        """Store a given-up message as a half message again. The checks then continue.

        Return False if its transaction has ended. Raises the errors of ``Forwarding.forward``.
        """
        await self._copies_known.wait()
        origin = whole_number(message.properties.get(TRANSACTION_PREPARED_QUEUE_OFFSET))
        if origin is not None and self._pending.has_ended(origin):
            return False
        stored = await self._forwarding.forward(message, HALF_TOPIC, QUEUE, properties=properties)
        if origin is not None:
            self._pending.note_copy(origin, stored.queue_offset)
        await self._forwarding.confirmed(stored)
        return True
