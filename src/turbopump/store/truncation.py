"""Cut the log of a closed store, so that the next start ends it at an earlier offset.

A replica does so when its log ends in messages that its new master does not have. These messages
were never confirmed, so their producers got no answer that they are stored.

::

    1  abort file                  the next start recovers, whatever happens from here on
    2  checkpoint, queue ends      they must not claim more than the log will have
    3  segments, newest first      each removal is on the disk before the next one
    4  the segment with the end    filled with zeros from its end back to the offset, piece by piece
    5  queues, key index           what points behind the offset
    6  origin, abort file          the store is as after a clean stop at the offset

A crash at any step leaves a log that begins with the same bytes and still has the offset. Then the
replica compares its epochs again, and repeats the cut. Between two pieces of step 4 nothing good
follows the zeros. Inside of a piece a power cut may leave an entry behind zeros; it is a damaged
range until the cut is repeated.

Step 6 is only for a store that our broker has closed cleanly. The next start then reads nothing of
the log before the offset, and is quick. After any other cut recovery does the rest: it takes
queues, key index and checkpoint to the new end of the log, as after a power cut. Timers and offsets
of groups need nothing, because they only know confirmed messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.errors import StoreDamagedError
from turbopump.store.holes import STEP, data_steps, is_all_zeros
from turbopump.store.log.scanner import entry_at
from turbopump.store.mapped_file_queue import MappedFileQueue
from turbopump.store.opening import StoreFiles, StoreHooks, make_files
from turbopump.store.provenance import ABORT_MARK, LOCK_MARK, LastRun
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import (
    EndsSnapshot,
    NotedQueueEnds,
    decode_known,
    encode_known,
    ends_by_topic,
)
from turbopump.store.roots import StoreLock
from turbopump.store.store_config import StoreConfig


def cut_store(
    config: StoreConfig, disk: Disk, clock: Clock, offset: int, log_error: Callable[[str], None]
) -> None:
    """Cut the log of a closed store at ``offset``, the end of a message. Call it in a thread.

    The cut is on the disk when the call returns. It may be repeated, also after a crash. A log that
    ends before ``offset`` stays as it is. Cost: some syncs, and what is cut is read, and
    overwritten if it lies in the segment of ``offset``.

    ``log_error`` gets a line when a file cannot be read. Raises StoreLockedError if a broker has
    opened the store, StoreDamagedError if its files do not belong together or begin behind
    ``offset``, and OSError.
    """
    hooks = StoreHooks(log_error, log_info=log_error)
    lock = StoreLock(disk, config.paths)
    try:
        lock.lock_directories(config.paths)
        files = make_files(config, disk, clock, hooks)
        last = LastRun.of(lock.found_mark, disk.read_file(config.paths.abort), files.provenance)
        try:
            _cut(config, disk, files, last, offset)
        finally:
            files.close()
        lock.mark(LOCK_MARK)
    finally:
        lock.release()


def _cut(config: StoreConfig, disk: Disk, files: StoreFiles, last: LastRun, offset: int) -> None:
    row, queues = files.log.files, files.queues
    files.log.load()
    clean = last.clean and last.ours
    end = row.files[-1].end if row else 0
    if clean:
        end = min(end, files.checkpoint.log_end)
    if end <= offset:
        return
    if offset < row.start:
        raise StoreDamagedError(
            f"the log begins at {row.start}, and cannot be cut at {offset}: empty the store, so "
            "that it is copied again"
        )
    disk.write_file(config.paths.abort, str(os.getpid()).encode() + ABORT_MARK)
    disk.sync_directory(config.paths.abort.parent)
    files.provenance.load(crashed_here=last.crashed_here, clean=last.clean)
    queues.load()
    # Readers who have seen unconfirmed messages must find out that these are gone, as after a
    # crash.
    clean = clean and not queues.damaged and not config.shows_unconfirmed
    ends = [queue.first_at(offset) for queue in queues]

    _lower_checkpoint(disk, files, ends, offset)
    snapshot = EndsSnapshot(offset, ends_by_topic(list(queues), ends)) if clean else None
    clean = _lower_queue_ends(config, disk, offset, snapshot) and clean

    _remove_segments(disk, files, offset)
    _fill_with_zeros(row, offset, end)
    _cut_queues(disk, queues, offset)
    if clean and [queue.max_index for queue in queues] == ends:
        _leave_clean(config, disk, files, offset)


def _lower_checkpoint(disk: Disk, files: StoreFiles, ends: list[int], offset: int) -> None:
    """Let the checkpoint end at ``offset``. The queues will have ``ends``."""
    checkpoint = files.checkpoint
    newest_ms = _newest_ms(files, ends)
    checkpoint.log_timestamp = min(checkpoint.log_timestamp, newest_ms)
    checkpoint.queues_timestamp = min(checkpoint.queues_timestamp, newest_ms)
    checkpoint.safe_offset = min(checkpoint.safe_offset, offset)
    checkpoint.confirmed_offset = min(checkpoint.confirmed_offset, offset)
    checkpoint.master_flushed_offset = min(checkpoint.master_flushed_offset, offset)
    checkpoint.log_end = offset  # these two count only after step 6
    checkpoint.queue_units = sum(ends)
    checkpoint.write()
    disk.sync([checkpoint.segment])


def _newest_ms(files: StoreFiles, ends: list[int]) -> int:
    """Return the store time of the last message that stays, or 0. The queues will have ``ends``."""
    units = (queue.unit(end - 1) for queue, end in zip(files.queues, ends, strict=True))
    last = max((unit for unit in units if unit is not None), default=None)
    parsed = entry_at(files.log, last[0]) if last is not None else None
    return parsed.store_timestamp if parsed is not None else 0


def _lower_queue_ends(
    config: StoreConfig, disk: Disk, offset: int, snapshot: EndsSnapshot | None
) -> bool:
    """Forget the ends of queues that were recorded behind ``offset``, and record ``snapshot``.

    If a topic was deleted behind it, all is forgotten, and False is returned: the topic exists
    again, and the next start finds out from the log that its queues are missing.
    """
    path = config.paths.queue_ends
    data = disk.read_file(path)
    if data is None:
        return True
    try:
        known = decode_known(data)
    except (ValueError, msgspec.MsgspecError):
        return False  # recovery does without it
    kept = {topic: at for topic, at in known.deleted.items() if at <= offset}
    undeleted = kept != known.deleted
    snapshots = [one for one in known.snapshots if one.at <= offset and not undeleted]
    if snapshot is not None and not undeleted:
        snapshots = [one for one in snapshots if one.at < offset] + [snapshot]
    if undeleted or snapshots != known.snapshots:
        disk.replace_file(path, encode_known(NotedQueueEnds(snapshots, known.firsts, kept)))
    return not undeleted


def _remove_segments(disk: Disk, files: StoreFiles, offset: int) -> None:
    """Remove the segments that begin at ``offset`` or behind it, newest first.

    The first segment of the log stays in any case.
    """
    row = files.log.files
    while len(row.files) > 1 and row.files[-1].start >= offset:
        last = row.files[-1]
        files.roots.before_deleting(last)
        row.remove_last()
        disk.sync_directory(last.segment.path.parent)


def _fill_with_zeros(row: MappedFileQueue, offset: int, end: int) -> None:
    """Fill the segment with ``offset`` with zeros from there on. The log ended at ``end``."""
    file = row.at(offset)
    if file is None:
        return  # the log ends with a whole segment
    segment = file.segment
    last = min(end - file.start, segment.size)
    steps = [start for start in data_steps(segment, offset - file.start) if start < last]
    for start in reversed(steps):
        size = min(STEP, segment.size - start)
        if not is_all_zeros(segment.read_cold(start, size)):
            segment.buffer[start : start + size] = bytes(size)
            segment.sync()


def _cut_queues(disk: Disk, queues: ConsumeQueueTable, offset: int) -> None:
    if not queues.damaged:  # else recovery writes them again
        for queue in queues:
            queue.cut_at(offset, _is_there)
    disk.sync(queues.take_dirty())


def _leave_clean(config: StoreConfig, disk: Disk, files: StoreFiles, offset: int) -> None:
    """Cut the key index too, and mark the store as one that was stopped cleanly at ``offset``."""
    names = files.provenance.index_names
    index = files.index
    if index is not None and index.load():
        if index.rewind(offset, after_crash=False) < offset:
            return  # it is damaged, and recovery fills it again
        newest = entry_at(files.log, index.end_offset)
        if newest is not None:
            index.end_at(newest.store_timestamp)
        disk.sync(index.dirty_segments())
        names = index.names
    files.provenance.note_cut(offset, names)
    disk.remove(config.paths.abort)


def _is_there(_queue: ConsumeQueue, _index: int, _offset: int, _size: int) -> bool:
    """Return True: recovery looks at the messages themselves."""
    return True
