"""Waiting for the disk under SYNC_FLUSH: one sync for all that a turn of the loop stores, and an
awaitable face for ``flushed``.

Under ASYNC_FLUSH nobody waits, and the timetable syncs.
"""

from __future__ import annotations

import asyncio

from turbopump.store.log.flusher import Flusher


class FlushWait:
    """``sync``: whether this broker promises that what it has answered is on the disk."""

    def __init__(self, flusher: Flusher, *, sync: bool) -> None:
        self._flusher = flusher
        self.sync = sync
        self._due = False

    def begin_soon(self) -> None:
        """Begin a sync at the end of this turn."""
        if self.sync and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    async def flushed(self, log_end: int) -> None:
        """Wait until the flush has passed ``log_end``. Raises StoreError if the disk has failed."""
        flushed = self._flusher.flushed
        if self.sync and flushed.error is None and flushed.value < log_end:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake() -> None:
                if not reached.done():
                    reached.set_result(None)

            waiter = flushed.when(log_end, wake)
            try:
                await reached
            finally:
                waiter.cancel()
        if flushed.error is not None:
            raise flushed.error

    def _begin(self) -> None:
        self._due = False
        self._flusher.flush_log()
