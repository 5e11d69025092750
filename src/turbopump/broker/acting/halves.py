"""Open transactions of a slave whose master is away. Their half messages go to another master.

The other master asks the producers for the outcome. A half message that has ended by the log of
this slave is left out, and so is one whose message was delivered. Source: apache/rocketmq
``TransactionalMessageServiceImpl.check``, which moves them in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from turbopump.broker.acting.escape import EscapingForwarding
from turbopump.broker.background import RetryingTask, wait_for
from turbopump.broker.counters.transactions import TransactionCounts
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.reading import ask
from turbopump.broker.transactions.half_messages import GROUP, OP_TOPIC, QUEUE, half_of
from turbopump.broker.transactions.pending_halves import PendingHalves
from turbopump.broker.transactions.recovery import TransactionRecovery
from turbopump.message.rules import HALF_TOPIC
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class EndedHalves:
    """Ends of transactions that the log of a slave shows. The slave stores none itself."""

    pending: PendingHalves
    counts: TransactionCounts = field(default_factory=TransactionCounts)

    def note_ended(self, *offsets: int) -> None:
        """Record that the transaction of a half message has ended."""
        self.pending.mark_ended(*offsets)


class EscapingHalves:
    """Task that sends the open half messages of a slave to another master.

    The offset of CID_RMQ_SYS_TRANS passes a half message when the other master has it. The
    master of this slave takes this offset when it comes back, so it does not check the half message
    again.

    Call ``start``, then ``stop``. Both may be repeated.
    """

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, forwarding: EscapingForwarding
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._forwarding = forwarding
        self._pending = PendingHalves()
        self._recovered = False
        self._unreadable: set[int] = set()
        self._task = RetryingTask(
            "escaping half messages",
            self._step,
            log,
            failing="half messages wait, trying again",
            again="half messages are sent to another master again",
        )

    def start(self) -> None:
        """Read the ended transactions, then send the others to another master."""
        self._pending = PendingHalves(self._saved_offset(HALF_TOPIC), self._saved_offset(OP_TOPIC))
        self._recovered = False
        self._unreadable.clear()
        self._task.start()

    async def stop(self) -> None:
        """Stop sending. The method may be called twice."""
        await self._task.stop()

    def _saved_offset(self, topic: str) -> int:
        saved = self._offsets.find(GROUP, topic, QUEUE)
        return max(saved or 0, self._store.min_offset(topic, QUEUE))

    async def _step(self) -> None:
        pending = self._pending
        if not self._recovered:
            recovery = TransactionRecovery(
                self._store, self._forwarding.turns, pending, EndedHalves(pending)
            )
            await recovery.read_ended()
            await recovery.read_copies()
            self._recovered = True
        for offset in self._open_offsets():
            await self._send(offset)
            self._task.works()
        self._save_offsets()
        self._offsets.save()  # else a kill in the next seconds would send all of them again
        queue = self._store.queues.find_or_make(HALF_TOPIC, QUEUE)
        await wait_for((queue.end, queue.end.value + 1))

    def _open_offsets(self) -> Iterable[int]:
        for offset in range(self._pending.offset, self._store.max_offset(HALF_TOPIC, QUEUE)):
            if not self._pending.is_finished(offset) and offset not in self._unreadable:
                yield offset

    async def _send(self, offset: int) -> None:
        question = self._store.lookup.entry_in_queue(HALF_TOPIC, QUEUE, offset)
        half = half_of(await ask(self._store.cold_reads, question, self._forwarding.turns))
        if half is None:
            log.error("half message cannot be read, the master checks it offset=%s", offset)
            self._unreadable.add(offset)
            return
        is_old = self._pending.copies.get(half.origin, offset) != offset
        if not is_old and not self._pending.has_ended(half.offset, half.origin):
            await self._forwarding.forward_half(half)
        self._pending.skip(offset)
        self._save_offsets()

    def _save_offsets(self) -> None:
        pending = self._pending
        while not pending.advance():
            pass
        for topic, offset in ((HALF_TOPIC, pending.offset), (OP_TOPIC, pending.op_offset)):
            if self._offsets.find(GROUP, topic, QUEUE) != offset:
                self._offsets.commit(GROUP, topic, QUEUE, offset)
