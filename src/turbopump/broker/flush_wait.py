"""Wait for the disk under SYNC_FLUSH, and for slaves if the settings promise copies.

One sync serves all messages that are stored in one run of the event loop. With other settings no
answer waits, and the log is synced at intervals.
"""

from __future__ import annotations

import asyncio

from turbopump.broker.background import wait_for
from turbopump.store.flusher import Flusher


class FlushWait:
    """Wait for stored messages to reach the disk and slaves, as the settings promise.

    - ``flushes``: True if an answer promises that the message is on this broker's disk.
    - ``copies``: True if an answer promises that the message is on slaves.
    - ``sync``: True if one of these is promised, so that answers wait.
    """

    def __init__(self, flusher: Flusher, *, flushes: bool, copies: bool = False) -> None:
        self._flusher = flusher
        self._flushes = flushes
        self.sync = flushes or copies
        self.due = False
        """True while a sync is scheduled."""

    def begin_soon(self) -> None:
        """Schedule one sync for all messages that are stored in this run of the event loop.

        If only copies are promised, the log is not synced. The confirmed offset is updated instead.
        """
        if self.sync and not self.due:
            self.due = True
            asyncio.get_running_loop().call_soon(self._begin_sync)

    async def confirmed(self, log_end: int) -> None:
        """Wait until the log is confirmed up to the offset ``log_end``.

        Raises StoreError if the disk has failed.
        """
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
