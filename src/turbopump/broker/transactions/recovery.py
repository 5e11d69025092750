"""Recovery of transactions: what a start reads from the queues of half messages and of ends.

After a kill there may be several copies of one half message, and committed ones whose end was not
stored. Source: apache/rocketmq ``TransactionalMessageServiceImpl.check``, which asks again instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from turbopump.broker.counters.transactions import TransactionCounts
from turbopump.broker.reading import ask
from turbopump.broker.transactions.half_messages import (
    OP_TOPIC,
    QUEUE,
    HalfMessage,
    ended_offsets,
    half_of,
)
from turbopump.broker.transactions.pending_halves import PendingHalves
from turbopump.errors import StoreError
from turbopump.message.properties import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    UNIQ_KEY,
    SysFlag,
)
from turbopump.message.rules import GIVEN_UP_TOPIC, HALF_TOPIC
from turbopump.remoting.turns import Turns
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.lookup import StoredEntry

T = TypeVar("T")

log = logging.getLogger(__name__)

MARKS_READ_BACK: Final = 100
"""Number of entries of the op queue that a start reads before the saved offset.

The half messages that these entries list are remembered as ended.
"""
_EVER: Final = 1 << 62


class EndsTransactions(Protocol):
    """Object that records the ended transactions which a start finds."""

    @property
    def counts(self) -> TransactionCounts:
        """Counters of half messages."""

    def note_ended(self, *offsets: int) -> None:
        """Record that the transaction of a half message has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class TransactionRecovery:
    """Reads of one start, in the order of these methods. Each records what it finds."""

    _store: MessageStore
    _turns: Turns
    _pending: PendingHalves
    _endings: EndsTransactions

    async def read_ended(self) -> None:
        """Read the op queue, and mark the transactions in it as ended."""
        begin = self._pending.op_offset
        end = self._store.max_offset(OP_TOPIC, QUEUE)
        first = max(begin - MARKS_READ_BACK, self._store.min_offset(OP_TOPIC, QUEUE))
        for index in range(first, end):
            entry = await self._read_entry(OP_TOPIC, index)
            if entry is None or entry.fault is not None:
                fault = "there is no such entry" if entry is None else entry.fault
                log.error(
                    "record of ended transactions cannot be read, they may be checked again "
                    "offset=%s cause=%s",
                    index,
                    fault,
                )
                continue
            offsets = ended_offsets(entry.message)
            self._pending.note_ended(offsets)
            if index >= begin:
                self._pending.note_mark(index, offsets)

    async def read_copies(self) -> None:
        """Read the half queue. Find the newest copy of each half message, and mark committed ones
        as ended."""
        pending = self._pending
        open_ones: dict[int, HalfMessage] = {}
        for index in range(pending.offset, self._store.max_offset(HALF_TOPIC, QUEUE)):
            if pending.has_ended(index):
                continue
            half = half_of(await self._read_entry(HALF_TOPIC, index))
            if half is None or pending.has_ended(half.origin):
                continue
            if await self._is_committed(half):
                self._endings.note_ended(half.offset, half.origin)
            else:
                pending.note_copy(half.origin, index)
                if index < self._endings.counts.counted_from:
                    open_ones[half.origin] = half
        self._endings.counts.count_earlier(
            half.topic
            for half in open_ones.values()
            if not pending.has_ended(half.offset, half.origin)
        )

    async def read_given_up(self) -> None:
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
        await self._turns.pause()
        return await self._read_patiently(
            lambda: self._store.lookup.entry_in_queue(topic, QUEUE, index)
        )

    async def _read_patiently(self, steps: Callable[[], ReadSteps[T]]) -> T:
        """Run a read of the log. While too many reads wait for the disk, try again every second."""
        while True:
            try:
                return await ask(self._store.cold_reads, steps(), self._turns)
            except StoreError as error:
                log.warning("half messages cannot be read now, trying again cause=%s", error)
                await asyncio.sleep(1)
