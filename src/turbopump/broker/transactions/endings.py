"""Ending transactions: the message goes where it is meant to go, or nowhere, and that is written
down.

The rule: a committed message is stored, and on the disk if this broker promises that, before it is
written down that its transaction has ended; what a kill takes in between, the next start finds out.
Source: apache/rocketmq ``EndTransactionProcessor``; there an end that comes twice, or late for a
half message that stands again further behind, delivers the message twice.
"""

from __future__ import annotations

import asyncio

from turbopump.broker.flush_wait import FlushWait
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.transactions.half_messages import Half
from turbopump.broker.transactions.op_queue import OpQueue
from turbopump.broker.transactions.pending import PendingHalves
from turbopump.broker.transactions.saved_place import SavedPlace
from turbopump.errors import StoreError
from turbopump.protocol.requests.transactions import Outcome


class Endings:
    """Ends them, each once. ``committed`` and ``rolled_back`` count since the start."""

    def __init__(
        self,
        forwarding: Forwarding,
        flush: FlushWait,
        pending: PendingHalves,
        ops: OpQueue,
        place: SavedPlace,
    ) -> None:
        self._forwarding = forwarding
        self._flush = flush
        self._pending = pending
        self._ops = ops
        self._place = place
        self._under_way: dict[int, asyncio.Future[None]] = {}
        self.committed = 0
        self.rolled_back = 0

    async def end(self, half: Half, outcome: Outcome, *, lasting: bool) -> bool:
        """Commit or roll back; False if the transaction had ended before. ``lasting``: return only
        when a roll-back is on the disk, too, if this broker promises so. Raises what
        ``MessageStore.put`` does: it has not ended then."""
        await self.settled(half)
        if self._pending.has_ended(half.offset, half.origin):
            return False
        done = self._under_way[half.origin] = asyncio.get_running_loop().create_future()
        try:
            if outcome is Outcome.COMMIT:
                placed = await self._forwarding.forward(
                    half.message,
                    half.topic,
                    half.queue_id,
                    sys_flag=half.final_flag,
                    prepared_transaction_offset=half.message.commit_log_offset,
                )
                await self._forwarding.flushed(placed)
            self.note_ended(half.offset, half.origin)
        finally:
            del self._under_way[half.origin]
            done.set_result(None)
        if outcome is Outcome.COMMIT:
            self.committed += 1
        else:
            self.rolled_back += 1
            if lasting and self._flush.sync:
                await self._written_down()
        return True

    async def settled(self, half: Half) -> None:
        """Return when nobody is ending this transaction right now."""
        while (other := self._under_way.get(half.origin)) is not None:
            await asyncio.wait([other])

    def note_ended(self, *offsets: int) -> None:
        """Have it written that nothing is to be done any more for the half message that stands, or
        stood, at these offsets."""
        self._ops.add(self._pending.end(*offsets))
        self._place.moved()

    async def _written_down(self) -> None:
        mark = await self._ops.write()
        if mark is None:
            raise StoreError(
                "that the transaction is rolled back could not be written down yet; "
                "the broker tries again"
            )
        await self._forwarding.flushed(mark)
