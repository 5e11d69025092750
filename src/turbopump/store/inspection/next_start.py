"""What the next start will do to the queues: what it knows of their ends, and from where on it reads the log (``recovery.py``).

Its one rule: nothing is promised that ``Recovery`` does not do. It must not know how units are checked.
"""

from __future__ import annotations

import struct
from typing import Final

from turbopump.store.checkpoint import CHECKPOINT_SIZE, SAFETY_MS
from turbopump.store.files import StorePaths
from turbopump.store.inspection.entry_facts import entry_facts
from turbopump.store.inspection.log_walk import LogWalk
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.provenance import APACHE_LOCK_MARK
from turbopump.store.queue_ends import KnownEnds, decode_known
from turbopump.store.read_only_disk import ReadOnlyDisk

_TIMES: Final = struct.Struct(">qq")
_SAFE_OFFSET: Final = struct.Struct(">q")
_SAFE_OFFSET_AT: Final = CHECKPOINT_SIZE - 24


def known_ends(disk: ReadOnlyDisk, paths: StorePaths, *, running: bool) -> KnownEnds:
    """What Turbopump noted of its queues; nothing, if another broker has had the store since, or nothing can be read."""
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
