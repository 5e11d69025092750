"""Bringing written bytes to the disk: one fdatasync at a time per kind, in a thread, and what it
proves.

A failed sync of the log is final: the kernel may have dropped the dirty pages, so a second
fdatasync would lie. Then ``durable`` has failed, its waiters know, and the store takes no more
writes.
"""

from __future__ import annotations

from collections.abc import Callable

from turbopump.errors import StoreError
from turbopump.store.confirmed import Confirmed
from turbopump.store.disk import Disk, Segment
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.dispatcher import Dispatcher
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.recovery.checkpoint import Checkpoint


class Flusher:
    """Flushes the log and the queues. Whoever owns the clock calls ``flush_log`` and
    ``flush_queues`` from time to time."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: KeyIndex | None,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        confirmed: Confirmed,
        on_failure: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self.confirmed = confirmed
        self._durable = confirmed.durable
        self._on_failure = on_failure
        self._log_busy = False
        self._log_again = False
        self._queues_busy = False
        self.queues_synced = 0
        """Up to which offset of the log everything derived from it is on the disk, as far as this
        run knows."""
        self.queues_failed = False
        """Whether a sync of a queue has failed: what the queues have on the disk is unknown from
        then on, until they are rebuilt."""

    @property
    def synced(self) -> int:
        """Up to which offset the log and everything derived from it are on the disk."""
        return min(self.queues_synced, self._durable.value)

    def flush_log(self) -> None:
        """Begin to sync what the log has; while one sync runs, the next begins when it ends (group
        commit)."""
        if self._durable.error is not None or self._durable.value >= self._log.end:
            return
        if self._log_busy:
            self._log_again = True
            return
        self._log_busy = True
        target, timestamp = self._log.end, self._dispatcher.last_store_timestamp

        def done(error: OSError | None) -> None:
            self._log_busy = False
            if error is not None:
                text = (
                    f"fdatasync of the commit log failed ({error.strerror or error}); the "
                    "store is read-only until a restart"
                )
                self._durable.fail(StoreError(text))
                self._on_failure(text)
                return
            self._checkpoint.log_timestamp = max(self._checkpoint.log_timestamp, timestamp)
            self.confirmed.flushed(target)
            if self._log_again:
                self._log_again = False
                self.flush_log()

        self._disk.start_sync(self._log.files.dirty_segments(), done)

    def flush_queues(self) -> None:
        """Begin to sync the queues and the checkpoint. An error is reported and final; the next
        start rebuilds from the log."""
        if self._queues_busy or self.queues_failed or self._durable.error is not None:
            return
        segments = self._dirty_derived()
        if not segments:
            return
        self._queues_busy = True
        timestamp, offset = self._dispatcher.last_store_timestamp, self._dispatcher.dispatched
        whole = self._index is None or not self._index.lacking

        def done(error: OSError | None) -> None:
            self._queues_busy = False
            if error is not None:
                self.queues_failed = True
                self._on_failure(
                    f"fdatasync of a consume queue failed ({error.strerror or error}); it will "
                    "be rebuilt at the next start"
                )
                return
            if not whole:
                return  # a crash must bring back what the index has no room for
            checkpoint = self._checkpoint
            checkpoint.queues_timestamp = max(
                checkpoint.queues_timestamp, min(timestamp, checkpoint.log_timestamp or timestamp)
            )
            self.queues_synced = offset
            checkpoint.safe_offset = min(offset, self._durable.value)
            checkpoint.write()
            self._disk.start_sync([checkpoint.segment], lambda _error: None)

        self._disk.start_sync(segments, done)

    def flush_all_now(self) -> None:
        """Sync everything in this thread, at a clean stop. Raises OSError."""
        if self._durable.error is None:
            for segment in self._log.files.dirty_segments():
                segment.sync()
            self.confirmed.flushed(self._log.end)
        newest = self._dispatcher.last_store_timestamp
        if self._durable.error is None:
            self._checkpoint.log_timestamp = max(self._checkpoint.log_timestamp, newest)
        if self._durable.error is None and not self.queues_failed:
            for segment in self._dirty_derived():
                segment.sync()
            self._checkpoint.queues_timestamp = max(self._checkpoint.queues_timestamp, newest)
            self._checkpoint.safe_offset = self.queues_synced = self._durable.value
        self._checkpoint.log_end, self._checkpoint.queue_units = self._log.end, self._queues.units
        self._checkpoint.write()
        self._checkpoint.segment.sync()

    def _dirty_derived(self) -> list[Segment]:
        """What was written of queues and indexes since it was last asked for."""
        segments: list[Segment] = []
        for queue in self._queues:
            segments.extend(queue.dirty_segments())
        if self._index is not None:
            segments.extend(self._index.dirty_segments())
        return segments
