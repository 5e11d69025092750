"""Transactions of a broker. Each open one is checked until it ends.

Source: apache/rocketmq ``TransactionalMessageServiceImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from turbopump.broker.background import stop_task
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask, entry_for
from turbopump.broker.stored import Stored
from turbopump.broker.transactions.checks import TransactionChecks
from turbopump.broker.transactions.endings import Endings, OpQueue, SavedOffsets
from turbopump.broker.transactions.half_messages import GROUP, OP_TOPIC, QUEUE, HalfMessage
from turbopump.broker.transactions.pending_halves import PendingHalves
from turbopump.broker.transactions.recovery import TransactionRecovery
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import REAL_TOPIC, TRANSACTION_PREPARED_QUEUE_OFFSET, whole_number
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.requests.send import TransactionOutcome
from turbopump.remoting.router import RequestContext
from turbopump.remoting.wire import Wire

log = logging.getLogger(__name__)

CLOSE_S: Final = 2.0


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
        self._counts = stored.statistics.events.transactions
        self._counts.counted_from = store.max_offset(HALF_TOPIC, QUEUE)
        self.endings = Endings(
            forwarding, pending, self._ops, self._saved, self._counts, stored.clock
        )
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

    async def write_ends(self) -> None:
        """Store the ends of transactions now, so that the next master does not check these again.

        If the store refuses them, they stay for later.
        """
        await self._ops.write_all()

    async def close(self) -> None:
        """Stop the checks. Store ends of transactions, and the offsets for the next start."""
        if self._task is not None:
            task, self._task = self._task, None
            await stop_task(task)
            await self._ops.close(CLOSE_S)
            self._saved.save_now()

    async def _run(self) -> None:
        try:
            recovery = TransactionRecovery(
                self._store, self._forwarding.turns, self._pending, self.endings
            )
            await recovery.read_ended()
            self._ended_known.set()
            await recovery.read_copies()
            await recovery.read_given_up()
            self._copies_known.set()
            await self.checks.run()
        except Exception:
            log.exception("transactions are not checked any more until the next start")
            self._ended_known.set()
            self._copies_known.set()

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
        self._counts.count_begun(message.properties.get(REAL_TOPIC, ""))
        if origin is not None:
            self._pending.note_copy(origin, stored.queue_offset)
        await self._forwarding.confirmed(stored)
        return True
