"""Flush written bytes to the disk, and record the offsets up to which the bytes are durable. For
each kind of file, one fdatasync at a time runs in a thread.

A failed sync of the log is final: the kernel may have dropped the dirty pages, so a second
fdatasync would report a false success. Then ``durable`` fails, its waiters get the error, and the
store accepts no more writes. A log file that was deleted or cut under the running process has the
same effect: its sync succeeds and keeps nothing. Each sync checks the synced files before it
reports success, and ``check_files`` checks the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import StoreError
from turbopump.store.confirmed import Confirmed
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.recovery.checkpoint import StoreCheckpoint


@dataclass(slots=True, eq=False)
class Flusher:
    """Writes the log and the queues of a store to the disk in the background.

    The owner of the clock calls ``flush_log`` and ``flush_queues`` periodically.

    - ``monotonic``: returns a time in seconds.
    - ``on_log_synced``: called with the seconds that each successful sync of the log took.
    """

    disk: Disk
    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    dispatcher: Dispatcher
    checkpoint: StoreCheckpoint
    confirmed: Confirmed
    log_error: Callable[[str], None]
    monotonic: Callable[[], float]
    on_log_synced: Callable[[float], None] = lambda _seconds: None
    queues_synced: int = 0
    """Log offset up to which queues and index are on the disk, as far as this run knows."""
    queues_failed: bool = False
    """True if a sync of a queue has failed. The queues on the disk are then unknown until they are
    rebuilt."""
    log_busy: bool = False
    _lost_pages: int = 0
    _looked_at: int = 0
    """Index in the log's files of the segment that was checked last."""
    _log_again: bool = False
    _queues_busy: bool = False

    def __post_init__(self) -> None:
        self._lost_pages = self.disk.lost_pages()

    @property
    def synced(self) -> int:
        """Offset up to which the log, the queues and the index are on the disk."""
        return min(self.queues_synced, self.confirmed.durable.value)

    def flush_log(self) -> None:
        """Start to write the log to the disk in a thread.

        While one sync runs, the next one begins when it ends (group commit).
        """
        if self.confirmed.durable.error is not None or self.confirmed.durable.value >= self.log.end:
            return
        if self.log_busy:
            self._log_again = True
            return
        self.log_busy = True
        # The end and the time are noted before the dirty files are listed. So the sync covers at
        # least the bytes before this end. Bytes that are written while it runs are not counted: the
        # sync may or may not have taken them, and ``durable`` must never be too far.
        target = self.log.end
        timestamp = self.dispatcher.last_store_timestamp
        segments = self.log.files.dirty_segments()
        began = self.monotonic()

        def done(error: OSError | None) -> None:
            self.log_busy = False
            if error is not None:
                self._stop_writing(
                    f"fdatasync of the commit log failed ({error.strerror or error})"
                )
            elif (lost := self._lost_file(segments)) is not None:
                self._stop_writing(lost)
            if self._has_failed:
                return
            self.on_log_synced(self.monotonic() - began)
            self.checkpoint.log_timestamp = max(self.checkpoint.log_timestamp, timestamp)
            self.confirmed.note_flushed(target)
            if self._log_again:
                self._log_again = False
                self.flush_log()

        self.disk.start_sync(segments, done)

    def check_files(self) -> None:
        """Check that the files of the log still exist, and report a missing file.

        The caller repeats the call twice a second. If the file being written is lost, the store
        stops accepting messages. The other files are checked one at a time. Their loss is only
        logged, because open files can still be read.
        """
        files = self.log.files.files
        if not files or self.confirmed.durable.error is not None:
            return
        lost = self._lost_file([files[-1].segment], by_name=True)
        if lost is not None:
            self._stop_writing(lost)
        # Not the first: retention may be about to delete it.
        self._looked_at += 1
        if self._looked_at + 1 >= len(files):
            self._looked_at = 1
        if self._looked_at + 1 < len(files):
            older = files[self._looked_at]
            fault = older.segment.lost(by_name=True) if not older.reported_lost else None
            if fault is not None:
                older.reported_lost = True
                self.log_error(
                    f"{fault}: copy its content back before the next start, which is refused "
                    "without it"
                )

    def _lost_file(self, segments: list[Segment], *, by_name: bool = False) -> str | None:
        """Describe a damage that makes files of the log lose written bytes. Return None without
        such damage."""
        for segment in segments:
            if (lost := segment.lost(by_name=by_name)) is not None:
                return f"a file of the commit log is lost: {lost}"
        if (pages := self.disk.lost_pages()) > self._lost_pages:
            return (
                f"{pages - self._lost_pages} pages of the store's files are lost: a file "
                "was cut, or its disk cannot be read (see the system's log)"
            )
        return None

    @property
    def _has_failed(self) -> bool:
        return self.confirmed.durable.error is not None

    def _stop_writing(self, cause: str) -> None:
        if self._has_failed:
            return
        text = f"{cause}; the store is read-only until a restart"
        self.confirmed.fail(StoreError(text))
        self.log_error(text)

    def flush_queues(self) -> None:
        """Start to write the queues, the index and the checkpoint to the disk in a thread.

        An error is logged. After it, queues are no longer synced, and the next start rebuilds them
        from the log.
        """
        if self._queues_busy or self.queues_failed or self.confirmed.durable.error is not None:
            return
        segments = self._dirty_derived()
        if not segments:
            return
        self._queues_busy = True
        # As in ``flush_log``, the offset is noted before the sync. The checkpoint moves only after
        # it, because a start trusts queues and index up to there and reads the log from there on.
        # Index entries that wait for space are in no file, so the checkpoint must not pass them.
        # The queues' time never passes the log's: a unit may be on the disk before its message.
        timestamp = self.dispatcher.last_store_timestamp
        offset = self.dispatcher.dispatched
        whole = self.index is None or not self.index.lacking

        def done(error: OSError | None) -> None:
            self._queues_busy = False
            if error is not None:
                self.queues_failed = True
                self.log_error(
                    f"fdatasync of a consume queue failed ({error.strerror or error}); it will "
                    "be rebuilt at the next start"
                )
                return
            if not whole:
                return  # after a crash, entries still waiting for space are read from the log
            checkpoint = self.checkpoint
            checkpoint.queues_timestamp = max(
                checkpoint.queues_timestamp, min(timestamp, checkpoint.log_timestamp or timestamp)
            )
            self.queues_synced = offset
            checkpoint.safe_offset = min(offset, self.confirmed.durable.value)
            self._note_confirmed()
            checkpoint.write()
            self.disk.start_sync([checkpoint.segment], lambda _error: None)

        self.disk.start_sync(segments, done)

    def flush_all_now(self) -> None:
        """Write all changes to the disk, and wait until that is done.

        The call blocks the thread, at a clean stop. Raises OSError if a sync fails.
        """
        checkpoint, durable = self.checkpoint, self.confirmed.durable
        if durable.error is None:
            self.disk.sync(self.log.files.dirty_segments())
            self.check_files()
        if durable.error is None:
            self.confirmed.note_flushed(self.log.end)
            newest = self.dispatcher.last_store_timestamp
            checkpoint.log_timestamp = max(checkpoint.log_timestamp, newest)
            if not self.queues_failed:
                self.disk.sync(self._dirty_derived())
                checkpoint.queues_timestamp = max(checkpoint.queues_timestamp, newest)
                checkpoint.safe_offset = self.queues_synced = durable.value
        checkpoint.log_end = self.log.end
        checkpoint.queue_units = self.queues.units
        self._note_confirmed()
        checkpoint.write()
        self.disk.sync([checkpoint.segment])

    def _note_confirmed(self) -> None:
        """Set the confirmed offset of a replica in the checkpoint, where the next start needs
        it."""
        if self.confirmed.is_replica:
            self.checkpoint.confirmed_offset = self.confirmed.value

    def _dirty_derived(self) -> list[Segment]:
        """Return the queue and index segments that were written after the last call."""
        segments = self.queues.take_dirty()
        if self.index is not None:
            segments.extend(self.index.dirty_segments())
        return segments
