"""Wait for the disk under SYNC_FLUSH, and for slaves if the settings promise copies.

One sync serves all messages that a turn of the loop stores. With other settings nobody waits, and
the timetable syncs.
"""

from __future__ import annotations

import asyncio

from turbopump.broker.background import wait_for
from turbopump.store.flusher import Flusher


class FlushWait:
    """Wait for the flush and the copies that the settings promise.

    - ``flushes``: answered messages are on this broker's disk.
    - ``copies``: answered messages are on slaves.
    - ``sync``: one of these, so that answers wait.
    """

    def __init__(self, flusher: Flusher, *, flushes: bool, copies: bool = False) -> None:
        self._flusher = flusher
        self._flushes = flushes
        self.sync = flushes or copies
        self.due = False
        """True if ``begin_soon`` was called in this turn."""

    def begin_soon(self) -> None:
        """Begin a sync at the end of this turn, or see what is confirmed without one."""
        if self.sync and not self.due:
            self.due = True
            asyncio.get_running_loop().call_soon(self._begin_sync)

    async def confirmed(self, log_end: int) -> None:
        """Wait until the log is confirmed up to ``log_end``. Raises StoreError if the disk has
        failed."""
        confirmed = self._flusher.confirmed
        if confirmed.error is None and confirmed.value < log_end:
            await wait_for((confirmed, log_end))
        if confirmed.error is not None:
            raise confirmed.error

    def _begin_sync(self) -> None:
        self.due = False
        if self._flushes:
            self._flusher.flush_log()
        else:
            self._flusher.confirmed.show_confirmed()
