"""Cut the log of a closed store, so that the next start ends it at an earlier offset.

A replica does so when its log ends in messages that its new master does not have. These messages
were never confirmed, so their producers got no answer that they are stored.

::

    1  abort file                  the next start recovers, whatever happens from here on
    2  checkpoint, queue ends      they must not claim more than the log will have
    3  segments, newest first      each removal is on the disk before the next one
    4  the segment with the end    filled with zeros from its end back to the offset, piece by piece
    5  queue files                 units behind the offset

A crash at any step leaves a log that begins with the same bytes and still has the offset. Then the
replica compares its epochs again, and repeats the cut. Between two pieces of step 4 nothing good
follows the zeros. Inside of a piece a power cut may leave an entry behind zeros; it is a damaged
range until the cut is repeated.

Recovery does the rest: it takes queues, key index and checkpoint to the new end of the log, as
after a power cut. Timers and offsets of groups need nothing, because they only know confirmed
messages.
"""

from __future__ import annotations

import os

import msgspec

from turbopump.disk.disk import Disk
from turbopump.errors import StoreDamagedError
from turbopump.store.holes import STEP, data_steps
from turbopump.store.mapped_file_queue import MappedFileQueue
from turbopump.store.provenance import ABORT_MARK, LOCK_MARK, Provenance
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import NotedQueueEnds, decode_known, encode_known
from turbopump.store.recovery.checkpoint import StoreCheckpoint
from turbopump.store.roots import LogRoots, StoreLock
from turbopump.store.store_config import StoreConfig


def cut_store(config: StoreConfig, disk: Disk, offset: int) -> None:
    """Cut the log of a closed store at ``offset``, the end of a message. Call it in a thread.

    The cut is on the disk when the call returns. It may be repeated, also after a crash. A log that
    ends before ``offset`` stays as it is. Cost: what is cut is read, and overwritten if it lies in
    the segment of ``offset``.

    Raises StoreLockedError if a broker has opened the store, StoreDamagedError if its files do not
    belong together or begin behind ``offset``, and OSError.
    """
    lock = StoreLock(disk, config.paths)
    try:
        lock.lock_directories(config.paths)
        files = MappedFileQueue(
            disk,
            config.paths.commit_logs,
            config.segment_size,
            read_only=config.paths.read_only_commit_logs,
            ahead=True,
            aligned=True,
        )
        files.load()
        try:
            _cut(config, disk, files, offset)
        finally:
            files.close()
        lock.mark(LOCK_MARK)
    finally:
        lock.release()


def _cut(config: StoreConfig, disk: Disk, files: MappedFileQueue, offset: int) -> None:
    if not files or files.files[-1].end <= offset:
        return
    if offset < files.start:
        raise StoreDamagedError(
            f"the log begins at {files.start}, and cannot be cut at {offset}: empty the store, so "
            "that it is copied again"
        )
    disk.write_file(config.paths.abort, str(os.getpid()).encode() + ABORT_MARK)
    disk.sync_directory(config.paths.abort.parent)
    _lower_checkpoint(config, disk, offset)
    _lower_queue_ends(config, disk, offset)
    _remove_segments(config, disk, files, offset)
    _fill_with_zeros(files, offset)
    _cut_queues(config, disk, offset)


def _lower_checkpoint(config: StoreConfig, disk: Disk, offset: int) -> None:
    checkpoint = StoreCheckpoint(disk, config.paths.checkpoint)
    checkpoint.safe_offset = min(checkpoint.safe_offset, offset)
    checkpoint.confirmed_offset = min(checkpoint.confirmed_offset, offset)
    checkpoint.log_end = checkpoint.queue_units = 0  # of a clean stop, which this is not
    checkpoint.write()
    disk.sync([checkpoint.segment])
    checkpoint.close()


def _lower_queue_ends(config: StoreConfig, disk: Disk, offset: int) -> None:
    """Forget the ends of queues that were recorded behind ``offset``.

    If a topic was deleted behind it, all is forgotten: the topic exists again, and the next start
    finds out from the log that its queues are missing.
    """
    path = config.paths.queue_ends
    data = disk.read_file(path)
    if data is None:
        return
    try:
        known = decode_known(data)
    except (ValueError, msgspec.MsgspecError):
        return  # recovery does without it
    kept = {topic: at for topic, at in known.deleted.items() if at <= offset}
    snapshots = [one for one in known.snapshots if one.at <= offset and kept == known.deleted]
    if kept != known.deleted or snapshots != known.snapshots:
        disk.replace_file(path, encode_known(NotedQueueEnds(snapshots, known.firsts, kept)))


def _remove_segments(config: StoreConfig, disk: Disk, files: MappedFileQueue, offset: int) -> None:
    """Remove the segments that begin at ``offset`` or behind it, newest first.

    The first segment of the log stays in any case.
    """
    provenance = Provenance(disk, config.paths.provenance)
    provenance.load(crashed_here=True, clean=False)
    roots = LogRoots(disk, files, provenance)
    while len(files.files) > 1 and files.files[-1].start >= offset:
        last = files.files[-1]
        roots.before_deleting(last)
        files.remove_last()
        disk.sync_directory(last.segment.path.parent)


def _fill_with_zeros(files: MappedFileQueue, offset: int) -> None:
    file = files.at(offset)
    if file is None:
        return  # the log ends with a whole segment
    segment = file.segment
    for start in reversed(list(data_steps(segment, offset - file.start))):
        size = min(STEP, segment.size - start)
        if any(segment.read_cold(start, size)):
            segment.buffer[start : start + size] = bytes(size)
            segment.sync()


def _cut_queues(config: StoreConfig, disk: Disk, offset: int) -> None:
    queues = ConsumeQueueTable(disk, config.paths, config.queue_file_size)
    queues.load()
    if not queues.damaged:  # else recovery writes them again
        for queue in queues:
            queue.cut_at(offset, _is_there)
    disk.sync(queues.take_dirty())
    queues.close()


def _is_there(_queue: ConsumeQueue, _index: int, _offset: int, _size: int) -> bool:
    """Return True: recovery looks at the messages themselves."""
    return True
