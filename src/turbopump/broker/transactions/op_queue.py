"""Writing down which half messages have ended: some at a time, in entries of the op queue.

The rule: what was added is written, within an interval or when it is much; what the store refuses
is kept and tried again. Source: apache/rocketmq ``TransactionalOpBatchService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.transactions.half_messages import OP_PROPERTIES, OP_TOPIC, QUEUE
from turbopump.broker.transactions.pending import PendingHalves
from turbopump.broker.transactions.saved_place import SavedPlace
from turbopump.errors import MessageError, StoreError
from turbopump.store.log.commit_log import Placed

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""After how long an entry that the store has refused is tried again."""


class OpQueue:
    """Writes entries of about ``size_max`` bytes, ``interval`` seconds after the first of what they
    name was added at the latest."""

    def __init__(
        self,
        forwarding: Forwarding,
        pending: PendingHalves,
        place: SavedPlace,
        *,
        size_max: int,
        interval: float,
    ) -> None:
        self._forwarding = forwarding
        self._pending = pending
        self._place = place
        self._size_max = size_max
        self._interval = interval
        self._held: list[int] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[Placed | None] | None = None
        self._failing = False
        self._closed = False

    def add(self, offsets: Iterable[int]) -> None:
        """Have it written that these have ended."""
        for offset in offsets:
            self._held.append(offset)
            self._size += len(str(offset)) + 1
        if self._size > self._size_max:
            self._start()
        elif self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._start)

    async def write(self) -> Placed | None:
        """Write what was added; the last entry, or None if there is none now because the store
        takes none."""
        last: Placed | None = None
        while self._held:
            self._start()
            assert self._writing is not None
            last = await asyncio.shield(self._writing)
            if self._failing:
                return None
        return last

    async def close(self, seconds: float) -> None:
        """Write what was added, if that takes no longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self.write()
        except TimeoutError:
            log.warning(
                "ended transactions not written down, they will be asked about again count=%d",
                len(self._held),
            )
        self._closed = True
        self._stop_timer()
        if self._writing is not None:
            self._writing.cancel()

    def _start(self) -> None:
        self._stop_timer()
        if self._held and not self._closed and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(
                self._write_much(), name="turbopump op queue"
            )

    async def _write_much(self) -> Placed | None:
        """One entry, and more while there is enough for them."""
        while True:
            count, size = 0, 0
            while count < len(self._held) and (not count or size < self._size_max):
                size += len(str(self._held[count])) + 1
                count += 1
            offsets = self._held[:count]
            body = "".join([f"{offset}," for offset in offsets]).encode()
            try:
                placed = await self._forwarding.append(OP_TOPIC, QUEUE, body, OP_PROPERTIES)
            except (OSError, StoreError, MessageError) as error:
                if not self._failing:
                    log.warning(
                        "ended transactions cannot be written down now, tried again count=%d "
                        "cause=%s",
                        len(self._held),
                        error,
                    )
                self._failing = True
                self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._start)
                return None
            self._failing = False
            del self._held[:count]
            self._size -= size
            self._pending.note_mark(placed.queue_offset, offsets)
            self._place.moved()
            if self._size <= self._size_max:
                break
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._start)
        return placed

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
