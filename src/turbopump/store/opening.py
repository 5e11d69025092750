"""Opening a store's directory: who had it last and how that ended, then recovery, then what says
that we have it now.

One rule: nothing is changed before it is certain that the log can be opened; what tells the next
start of this one is written last. It must not know how the log is read (``recovery.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turbopump.store.disk import Disk
from turbopump.store.disk_space import with_free_bytes
from turbopump.store.files import StorePaths
from turbopump.store.lost_end import KnownEnd
from turbopump.store.provenance import ABORT_MARK, APACHE_LOCK_MARK, LOCK_MARK, Provenance
from turbopump.store.queue_ends import KnownEnds
from turbopump.store.recovery import Recovery, RecoveryReport
from turbopump.store.roots import StoreLock, make_directories

if TYPE_CHECKING:
    from turbopump.store.message_store import MessageStore

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LastRun:
    """Who had the directory last: ``ours``, and nobody since, or ``apache``'s broker; ``clean``: it
    was stopped; ``crashed_here``: it was one of ours that was killed."""

    ours: bool
    apache: bool
    clean: bool
    crashed_here: bool

    @classmethod
    def of(cls, lock_mark: bytes, abort: bytes | None, provenance: Provenance) -> LastRun:
        """By what the lock file held and what the abort file holds (None: it is not there)."""
        ours, apache = lock_mark == LOCK_MARK, lock_mark.startswith(APACHE_LOCK_MARK)
        clean = abort is None and (apache or not provenance.unfinished())
        return cls(
            ours,
            apache,
            clean,
            not clean and (abort is None or (abort.endswith(ABORT_MARK) and ours)),
        )


def opened(
    make: Callable[[], MessageStore],
    paths: StorePaths,
    disk: Disk,
    lock: StoreLock,
    on_progress: Progress,
) -> MessageStore:
    """The store that ``make`` makes, open. ``lock`` is let go if that fails. Raises as
    ``MessageStore.open``."""
    try:
        make_directories(disk, paths)
        lock.lock_directories(paths)
        store = make()
        last = LastRun.of(lock.found, disk.read_file(paths.abort), store.provenance)
        store.provenance.load(crashed_here=last.crashed_here, clean=last.clean)
        store.log.load()
        store.roots.check()
        known = store.queue_ends.load(trusted=not last.apache)
        known_end = KnownEnd.of(store.checkpoint, known, clean=last.clean, ours=last.ours)
        known_end.refuse_missing(store.log)
        disk.write_file(paths.abort, str(os.getpid()).encode() + ABORT_MARK)
        store.queues.load()
        store.recovery = _recovered(store, last, known, known_end, on_progress)
        # Not before: if another broker has had the store, what we had noted is true again only now.
        lock.mark(LOCK_MARK)
        if not last.clean or store.log.end < known_end.synced:
            store.flusher.flush_all_now()
        elif not store.recovery.entries:
            store.flusher.queues_synced = store.log.end  # nothing was written since the clean stop
        store.flushed.advance(store.log.end)
        store.latency.begin()
        store.dispatcher.show_flushed()
        store.reader.open_at(store.log.end, after_crash=not last.clean)
        for queue in store.queues:
            queue.opened_at = queue.max_index
            queue.deleted_until = store.queue_ends.deleted_until(queue.topic)
        if store.index is not None:
            store.index.warm()
    except OSError as error:
        lock.release()
        raise with_free_bytes(error, disk) from None
    except BaseException:
        lock.release()
        raise
    return store


def _recovered(
    store: MessageStore, last: LastRun, known: KnownEnds, known_end: KnownEnd, on_progress: Progress
) -> RecoveryReport:
    """Bring the store to one consistent end, tell what was wrong, and begin to note what the next
    start is to know."""
    complete = store.index_notes.load()
    recovery = Recovery(
        store.log,
        store.queues,
        store.index,
        store.dispatcher,
        store.checkpoint,
        clean=last.clean,
        derived_complete=complete,
        index_synced=store.provenance.crashed_here,
        stopped_here=last.clean and last.ours,
        on_progress=on_progress,
        known=known,
    )
    report = recovery.run()
    lost = known_end.lost(store.log, report.log_end, report.torn)
    if lost is not None:
        store.on_failure(lost)
    if report.misfit is not None:
        part = f"queues are written again from {report.begun_at} on"
        again = "all queues and indexes are written again" if report.rebuilt else part
        store.on_failure(f"a consume queue was not as it should be, {again}: {report.misfit}")
    store.queue_ends.begin(
        store.log.start,
        report.log_end,
        recovery.known.deleted,
        agreed=report.misfit is None and not report.rebuilt,
        all_read=store.log.is_young,
    )
    store.log.on_segment = lambda start: store.queue_ends.note(start) if start > 0 else None
    index_names = store.index.names if store.index is not None else None
    store.provenance.begin(report.log_end, index_names, with_crc=store.with_crc)
    store.roots.note()
    store.index_notes.begin()
    return report
