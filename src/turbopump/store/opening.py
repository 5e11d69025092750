"""Open a store: make its parts, in frozen groups, then load and recover them.

Each group is made from those before it. Making a part reads no file. ``open_parts`` loads the
files, recovers them, and returns what it found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.store.confirmed import Confirmed
from turbopump.store.copied_log import CopiedLog
from turbopump.store.disk_space import SpaceWatch
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.flusher import Flusher
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.cold_reads import ColdReads
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.provenance import ABORT_MARK, LOCK_MARK, LastRun, Provenance
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.lookup import Lookup
from turbopump.store.queues.queue_ends import NotedQueueEnds, QueueEnds
from turbopump.store.queues.queue_reader import QueueReader
from turbopump.store.recovery.checkpoint import StoreCheckpoint
from turbopump.store.recovery.known_log_end import KnownLogEnd
from turbopump.store.recovery.recovery import Recovery, RecoveryReport
from turbopump.store.repair.queue_rebuild import QueueRebuild
from turbopump.store.retention import Retention
from turbopump.store.roots import LogRoots, StoreLock, make_directories
from turbopump.store.start_reserve import StartReserve
from turbopump.store.store_config import StoreConfig


@dataclass(frozen=True, slots=True)
class StoreHooks:
    """Functions of the caller that a store calls.

    - ``log_error``: gets a line when something is wrong.
    - ``log_info``: gets a line when files were deleted or an error is over.
    - ``on_progress``: gets the progress of ``Recovery``.
    - ``is_batch``: returns True if a topic has ``queue.type=BatchCQ``, and None if that is
      unknown.
    """

    log_error: Callable[[str], None]
    log_info: Callable[[str], None]
    on_progress: Callable[[int, int], None] = lambda _offset, _end: None
    is_batch: Callable[[str], bool | None] = lambda _topic: None


@dataclass(frozen=True, slots=True, eq=False)
class StoreFiles:
    """Files of an open store. ``index`` is None if messages are not indexed by key."""

    space: SpaceWatch
    start_reserve: StartReserve
    provenance: Provenance
    checkpoint: StoreCheckpoint
    log: CommitLog
    roots: LogRoots
    queues: ConsumeQueueTable
    queue_ends: QueueEnds
    index: KeyIndex | None

    def close(self) -> None:
        """Close all files. The others are closed too if one cannot be closed."""
        with ExitStack() as ends:
            for part in (self.index, self.checkpoint, self.queues, self.log):
                if part is not None:
                    ends.callback(part.close)


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """Parts of a store that dispatch, flush and delete messages."""

    confirmed: Confirmed
    dispatcher: Dispatcher
    flusher: Flusher
    retention: Retention


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Parts of a store that read messages and rebuild damaged queues."""

    cold_reads: ColdReads
    rebuild: QueueRebuild
    reader: QueueReader
    lookup: Lookup


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """Parts of an open store, and the result of its recovery.

    - ``unchanged``: log offset up to which the log is unchanged since our last run ended. 0 if
      another program has used the directory since.
    - ``copied``: appends bytes of the master's log. None unless this broker is a slave.
    """

    files: StoreFiles
    writing: Writing
    reading: Reading
    recovery: RecoveryReport
    unchanged: int
    copied: CopiedLog | None


def open_parts(
    config: StoreConfig, disk: Disk, clock: Clock, hooks: StoreHooks, ends: ExitStack
) -> Opened:
    """Lock a store directory, and open and recover all its parts.

    ``ends`` releases the lock later. Raises the errors of ``MessageStore.open``.
    """
    lock = StoreLock(disk, config.paths)
    ends.callback(lock.release)
    make_directories(disk, config.paths)
    lock.lock_directories(config.paths)
    files = make_files(config, disk, clock, hooks)
    writing = _make_writing(config, disk, clock, hooks, files)
    reading = _make_reading(config, disk, clock, hooks, files, writing)

    # Nothing is changed before the log can surely be opened. The notes for the next start are
    # written last: if another broker has used the store, our older notes become true again only
    # after recovery.
    log = files.log
    abort = config.paths.abort
    files.start_reserve.use_if_full()
    last = LastRun.of(lock.found_mark, disk.read_file(abort), files.provenance)
    files.provenance.load(crashed_here=last.crashed_here, clean=last.clean)
    log.load()
    files.roots.check()
    if config.is_replica and last.ours:
        files.roots.refuse_lost_front()
    known = files.queue_ends.load(trusted=not last.apache)
    known_end = KnownLogEnd.of(files.checkpoint, known, clean=last.clean, ours=last.ours)
    known_end.refuse_missing(log)
    disk.write_file(abort, str(os.getpid()).encode() + ABORT_MARK)
    files.queues.load()
    report = _recover(config, hooks, files, writing, last, known, known_end)
    _show_queues(config, disk, files, writing.confirmed, report.log_end)
    unchanged = 0
    if last.ours:
        holes = [damage.start for damage in report.damages]
        synced = log.end if last.clean else files.checkpoint.safe_offset
        unchanged = min(log.end, synced, *holes)
    # The lock file says "ours" only after the notes are written. A kill before that leaves the mark
    # of the last broker. If that was Apache's, the next start does not trust our older notes.
    lock.mark(LOCK_MARK)
    if not last.clean or log.end < known_end.synced:
        writing.flusher.flush_all_now()
    elif not report.entries:
        writing.flusher.queues_synced = log.end  # nothing was written since the clean stop
    writing.confirmed.note_flushed(log.end)
    reading.reader.open_at(log.end, after_crash=not last.clean)
    for queue in files.queues:
        queue.forget_found()
        queue.opened_at = queue.max_index
        queue.deleted_until = files.queue_ends.deleted_until(queue.topic)
    if files.index is not None:
        files.index.warm()
    copied = None
    if config.is_copy:
        copied = CopiedLog(log, files.queues, writing.dispatcher)
    return Opened(files, writing, reading, report, unchanged, copied)


def make_files(config: StoreConfig, disk: Disk, clock: Clock, hooks: StoreHooks) -> StoreFiles:
    """Make the parts that hold the files of a store. Only the checkpoint is opened."""
    paths = config.paths
    space = SpaceWatch(
        disk,
        paths.commit_logs,
        (paths.consume_queues, paths.index),
        config.space,
        hooks.log_error,
        hooks.log_info,
        forcibly=config.retention.forcibly,
    )
    provenance = Provenance(disk, paths.provenance)

    def segment_begun(start: int) -> None:
        roots.segment_begun()
        if start > 0:
            queue_ends.note_ends(start)

    log = CommitLog(
        disk,
        paths.commit_logs,
        config.segment_size,
        paths.read_only_commit_logs,
        synced_often=config.flushed_only,
        requires_crc=provenance.requires_crc,
        full_roots=lambda: space.full_roots,
        on_segment=segment_begun,
    )
    roots = LogRoots(disk, log.files, provenance)
    queues = ConsumeQueueTable(
        disk,
        paths,
        config.queue_file_size,
        hooks.is_batch,
        lambda topic: queue_ends.deleted_until(topic),
    )
    queue_ends = QueueEnds(disk, paths.queue_ends, queues, hooks.log_error, hooks.log_info)
    index = None
    if config.index_entries:
        index = KeyIndex(
            disk,
            clock,
            paths.index,
            config.index_slots,
            config.index_entries,
            provenance,
            space,
            hooks.log_error,
        )
    return StoreFiles(
        space,
        StartReserve(disk, paths.reserve, hooks.log_info),
        provenance,
        StoreCheckpoint(disk, paths.checkpoint),
        log,
        roots,
        queues,
        queue_ends,
        index,
    )


def _make_writing(
    config: StoreConfig, disk: Disk, clock: Clock, hooks: StoreHooks, files: StoreFiles
) -> Writing:
    log = files.log
    queues = files.queues
    index = files.index
    confirmed = Confirmed(
        log,
        flushed_only=config.flushed_only,
        copied_only=config.copied_only,
        is_replica=config.is_replica,
        shows_all=config.shows_unconfirmed,
    )
    dispatcher = Dispatcher(index, confirmed, config.delay_levels)
    flusher = Flusher(
        disk,
        log,
        queues,
        index,
        dispatcher,
        files.checkpoint,
        confirmed,
        hooks.log_error,
        clock.monotonic,
    )
    retention = Retention(
        disk,
        clock,
        log,
        queues,
        index,
        config.retention,
        files.space,
        flusher,
        files.roots,
        files.queue_ends,
        hooks.log_error,
        hooks.log_info,
    )
    return Writing(confirmed, dispatcher, flusher, retention)


def _make_reading(
    config: StoreConfig,
    disk: Disk,
    clock: Clock,
    hooks: StoreHooks,
    files: StoreFiles,
    writing: Writing,
) -> Reading:
    log = files.log
    queues = files.queues
    cold_reads = ColdReads(disk)
    rebuild = QueueRebuild(
        log, queues, ColdReads(disk), writing.dispatcher.unit_tags, hooks.log_error
    )
    reader = QueueReader(log, queues, config.limits, cold_reads, rebuild.mark_unit, clock.monotonic)
    lookup = Lookup(log, queues, files.index, writing.confirmed, rebuild.mark_unit)
    return Reading(cold_reads, rebuild, reader, lookup)


def _show_queues(
    config: StoreConfig, disk: Disk, files: StoreFiles, confirmed: Confirmed, log_end: int
) -> None:
    """Show readers the recovered messages. At a replica, only those confirmed before.

    A replica has epochs before its first message, and a confirmed offset only after its first
    checkpoint.
    """
    if not config.is_replica:
        for queue in files.queues:
            queue.end.advance(queue.max_index)
        return
    before = files.checkpoint.confirmed_offset
    if before or disk.file_size(config.paths.epochs) is not None:
        shown = min(max(before, files.log.start), log_end)
    else:  # readers have seen all messages of a store that was no replica before
        shown = log_end
    confirmed.begin_at(shown, files.queues)


def _recover(
    config: StoreConfig,
    hooks: StoreHooks,
    files: StoreFiles,
    writing: Writing,
    last: LastRun,
    known: NotedQueueEnds,
    known_end: KnownLogEnd,
) -> RecoveryReport:
    """Bring log, queues and index to one consistent end, and return a report of the recovery.

    The call also starts the records that the next start needs.
    """
    log = files.log
    index = files.index
    recovery = Recovery(
        log,
        files.queues,
        index,
        writing.dispatcher,
        files.checkpoint,
        clean=last.clean,
        derived_complete=index is None or index.load(),
        index_synced=files.provenance.crashed_here,
        stopped_here=last.clean and last.ours,
        copied_again=(config.is_replica or (config.is_copy and config.flushed_only))
        and not last.clean,
        on_progress=hooks.on_progress,
        known=known,
    )
    report = recovery.run()
    lost = known_end.describe_loss(log, report.log_end, report.torn, report.queued)
    if lost is not None:
        hooks.log_error(lost)
    if report.mismatch is not None:
        again = f"queues are written again from {report.begun_at} on"
        if report.rebuilt:
            again = "all queues and indexes are written again"
        hooks.log_error(f"a consume queue was not as it should be, {again}: {report.mismatch}")
    files.queue_ends.begin_notes(
        log.start,
        report.log_end,
        recovery.known.deleted,
        agreed=report.mismatch is None and not report.rebuilt,
        all_read=log.is_young,
    )
    names = index.names if index is not None else None
    files.provenance.log_start = log.start if log.files else None
    files.provenance.begin_run(report.log_end, names, with_crc=config.writes_crc)
    files.roots.note_segments()
    if index is not None:
        index.begin_noting()
    return report
