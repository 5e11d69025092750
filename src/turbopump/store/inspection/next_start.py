"""What the next start will do to the queues: what it knows of their ends, from where on it reads
the log (``recovery.py``), and what it compares where it knows nothing (``queue_comparison.py``).

Its one rule: nothing is promised that ``Recovery`` does not do. It must not know how units are
checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from turbopump.errors import TurbopumpError
from turbopump.store.checkpoint import CHECKPOINT_SIZE, SAFETY_MS
from turbopump.store.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.files import StorePaths
from turbopump.store.inspection.batch_queue_check import BatchQueueCheck
from turbopump.store.inspection.entry_facts import entry_facts
from turbopump.store.inspection.log_walk import LogWalk
from turbopump.store.inspection.origin import index_names
from turbopump.store.inspection.queue_check import UNIT, QueueCheck
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.inspection.tables import ReadTable
from turbopump.store.provenance import APACHE_LOCK_MARK
from turbopump.store.queue_ends import KnownEnds, decode_known
from turbopump.store.read_only_disk import ReadOnlyDisk

_TIMES: Final = struct.Struct(">qq")
_SAFE_OFFSET: Final = struct.Struct(">q")
_SAFE_OFFSET_AT: Final = CHECKPOINT_SIZE - 24


def known_ends(disk: ReadOnlyDisk, paths: StorePaths, *, running: bool) -> KnownEnds:
    """What Turbopump noted of its queues; nothing, if another broker has had the store since, or
    nothing can be read."""
    # our own lock file must not be opened: closing it would release the lock
    if not running and (disk.read_file(paths.lock) or b"").startswith(APACHE_LOCK_MARK):
        return KnownEnds()
    for path in (paths.queue_ends, paths.queue_ends.with_name(paths.queue_ends.name + ".bak")):
        try:
            data = disk.read_file(path)
            if data:
                return decode_known(data)
        except (ValueError, OSError):
            continue
    return KnownEnds()


def reads_from(disk: ReadOnlyDisk, store: StoreFiles) -> int:
    """From which offset on the next start reads the log, the last broker having been killed."""
    data = disk.read_file(store.paths.checkpoint)
    if data is None or len(data) != CHECKPOINT_SIZE:
        return store.log_start
    safe_ms = max(min(_TIMES.unpack_from(data)) - SAFETY_MS, 0)
    (safe_offset,) = _SAFE_OFFSET.unpack_from(data, _SAFE_OFFSET_AT)
    for segment in reversed(store.segments):
        if safe_offset and segment.start > safe_offset:
            continue
        for offset, entry in LogWalk(disk, [segment]).entries(end=segment.start + 1):
            if offset == segment.start and entry_facts(entry)[4] <= safe_ms:
                return segment.start
    return store.log_start


def files_have_all_written_again(disk: ReadOnlyDisk, store: StoreFiles, *, ours: bool) -> bool:
    """Whether the next start writes all queues again for the files there are, where a kill was the
    end and nothing is noted of the queues: a file is missing between others of a queue, or the
    first of one in a log that has its front, or an index file that our run (``ours``) had. Only
    what is certain: whether it will index messages, its settings say."""
    queues = [*store.queues.values(), *store.batch_queues.values()]
    if any(one.end != other.start for queue in queues for one, other in pairwise(queue.files)):
        return True
    if store.log_start == 0 and any(
        queue.files[0].start for queue in store.queues.values() if queue.files
    ):
        return True
    names = index_names(disk, store.paths) if ours else None
    return names is not None and not names <= {path.name for path in store.indexes}


def topics_known(disk: ReadOnlyDisk, paths: StorePaths, read_table: ReadTable) -> frozenset[str]:
    """The topics that there are, as far as ``topics.json`` or its backup tells."""
    path = paths.table("topics")
    for one in (path, path.with_name(path.name + ".bak")):
        try:
            data = disk.read_file(one)
            content = read_table(data) if data is not None else None
        except (OSError, ValueError, TurbopumpError):
            continue
        if content is not None:
            topics = content.get("topicConfigTable") if isinstance(content, dict) else None
            return frozenset(map(str, topics)) if isinstance(topics, dict) else frozenset()
    return frozenset()


def begun_at(queues: Iterable[QueueCheck | BatchQueueCheck]) -> dict[str, int]:
    """Where the oldest unit of any queue of a topic points."""
    begun: dict[str, int] = {}
    for queue in queues:
        for index in range(queue.units.min_index, queue.units.max_index):
            offset, size, _ = UNIT.unpack_from(queue.units.read(index) or bytes(UNIT.size))
            if (offset, size) != (0, NO_MESSAGE_SIZE):  # a leading unit
                if size > 0:
                    begun[queue.topic] = min(begun.get(queue.topic, offset), offset)
                break
    return begun


def first_unit_at(queue: QueueCheck | BatchQueueCheck | None) -> int:
    """Where the unit with the index 0 of a queue points; 0 if it has none."""
    if queue is None or queue.units.min_index:
        return 0
    if queue.begins_at is None:
        queue.begins_at, size, _ = UNIT.unpack_from(queue.units.read(0) or bytes(UNIT.size))
        if not 0 < size < NO_MESSAGE_SIZE or (
            isinstance(queue, BatchQueueCheck) and queue.begin(0)
        ):
            queue.begins_at = 0
    return queue.begins_at


def last_unit_at(queue: QueueCheck | BatchQueueCheck | None, log_end: int) -> int | None:
    """Where the last unit of a queue points that recovery will not cut; None if it has never had
    one, as far as its files tell."""
    if queue is None or not queue.units.max_index:
        return None
    for index in range(queue.units.max_index - 1, queue.units.min_index - 1, -1):
        offset, size, _ = UNIT.unpack_from(queue.units.read(index) or bytes(UNIT.size))
        if 0 <= offset < log_end and size > 0:
            return int(offset)
    return -1
