"""Small files of a store: checkpoint, abort, lock, JSON tables, and Turbopump's own records. The
caller passes the parser of tables, since the store does not know the JSON dialect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from turbopump.disk.read_only_disk import LockState, ReadOnlyDisk
from turbopump.errors import TurbopumpError
from turbopump.store.files import StorePaths
from turbopump.store.inspection.report import Findings
from turbopump.store.inspection.store_files import StoreFiles, provenance_of
from turbopump.store.provenance import LOCK_MARK, LastRun
from turbopump.store.recovery.checkpoint import CHECKPOINT_SIZE, CheckpointFields

ReadTable = Callable[[bytes], Any]
"""Function that parses the text of a table into dicts, lists and plain values. It raises ValueError
or a TurbopumpError for invalid text."""

_MAIN_MEMBERS: Final = {
    "topics": "topicConfigTable",
    "subscriptionGroup": "subscriptionGroupTable",
    "consumerOffset": "offsetTable",
    "delayOffset": "offsetTable",
    "queueLocks": "locks",
    "consumerFilter": "filterDataByTopic",
    "topicQueueMapping": "topicQueueMappingDetailMap",
    "consumerOrderInfo": "table",
    "messageRequestMode": "messageRequestModeMap",
    "lmqConsumerOffset": "offsetTable",
}
"""Member of each table whose entries are counted. For other tables, every member that is an object
is counted."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Run state of a store: if a broker has it open, and how the last run ended.

    - ``abort``: there is an abort file.
    - ``ours``: the last run was Turbopump's.
    - ``unfinished``: the last run did not stop cleanly, according to the abort file or Turbopump's
      own record.
    """

    abort: bool
    ours: bool
    lock: LockState
    unfinished: bool

    @property
    def running(self) -> bool:
        return self.lock.held

    @property
    def crashed(self) -> bool:
        return self.unfinished and not self.lock.held


@dataclass(frozen=True, slots=True)
class TableFile:
    """JSON table of a store, with the number of its entries.

    ``entries`` is None if the table cannot be read.
    """

    path: Path
    size: int
    entries: int | None
    content: Any = None


def read_run_state(disk: ReadOnlyDisk, paths: StorePaths, findings: Findings) -> RunState:
    """Return whether a broker has the store open, and how the last run ended.

    A broker that is running, or did not stop cleanly, is reported to ``findings``.
    """
    abort = disk.read_file(paths.abort)
    our_own = abort is not None and _process_id(abort) == os.getpid()
    # Our own lock is not queried: closing the lock file here would release it.
    lock = LockState(True, os.getpid()) if our_own else disk.lock_state(paths.lock)
    found = LOCK_MARK if our_own else disk.read_file(paths.lock) or b""
    last = LastRun.of(found, abort, provenance_of(disk, paths))
    state = RunState(abort is not None, last.crashed_here, lock, not last.clean)
    if state.running:
        by = f"process {lock.pid} holds it" if lock.pid is not None else "its lock is held"
        findings.add("running", f"a broker has the store open, {by}", "lock")
    elif state.crashed:
        file = "abort" if state.abort else paths.provenance.name
        findings.add(
            "unclean_stop",
            "the last broker was killed or lost its power; the next start recovers the store",
            file,
        )
    return state


def read_checkpoint(
    disk: ReadOnlyDisk, paths: StorePaths, findings: Findings
) -> CheckpointFields | None:
    """Return the fields of the store's checkpoint, or None if it is missing or unreadable.

    Faults are reported to ``findings``.
    """
    data = disk.read_file(paths.checkpoint)
    if data is None:
        return None
    if len(data) != CHECKPOINT_SIZE:
        findings.add(
            "checkpoint",
            f"it has {len(data)} bytes; a checkpoint has {CHECKPOINT_SIZE}",
            "checkpoint",
        )
    if len(data) < 5 * 8:
        return None
    fields = CheckpointFields.decode(data)
    for name in ("log_timestamp", "queues_timestamp", "index_timestamp"):
        if not 0 <= getattr(fields, name) < 1 << 43:  # the year 2248
            findings.add(
                "checkpoint", f"{name} {getattr(fields, name)} is no time in ms", "checkpoint"
            )
    for name in ("master_flushed_offset", "confirmed_offset"):
        if getattr(fields, name) < -1:
            findings.add("checkpoint", f"{name} {getattr(fields, name)} is no offset", "checkpoint")
    return fields


def judge_checkpoint(
    fields: CheckpointFields, newest_ms: int, log_end: int, findings: Findings
) -> None:
    """Compare the checkpoint with the newest message and the end of the log.

    Differences are reported to ``findings``.
    """
    for name in ("log_timestamp", "queues_timestamp"):
        value = getattr(fields, name)
        if newest_ms < value < 1 << 43:
            text = f"its {name} is {value - newest_ms} ms later than the newest message"
            findings.add("checkpoint_ahead", text, "checkpoint")
    for name in ("master_flushed_offset", "confirmed_offset"):
        if getattr(fields, name) > log_end:
            text = f"its {name} {getattr(fields, name)} is beyond the end of the log, {log_end}"
            findings.add("checkpoint_ahead", text, "checkpoint")


def read_tables(
    disk: ReadOnlyDisk, store: StoreFiles, read: ReadTable, findings: Findings
) -> list[TableFile]:
    """Read every JSON table of a store, and report tables that cannot be read."""
    tables = []
    for path in store.tables:
        data = disk.read_file(path)
        if data is None:
            continue
        try:
            content = read(data) if data.strip() else {}
        except (ValueError, TurbopumpError) as error:
            there = disk.file_size(path.with_name(path.name + ".bak")) is not None
            bak = "; a broker would use its .bak" if there else "; it has no .bak"
            findings.add("table_unreadable", f"{error}{bak}", store.relative(path))
            tables.append(TableFile(path, len(data), None))
            continue
        tables.append(TableFile(path, len(data), _count(path.stem, content), content))
    return tables


def judge_offsets(
    table: TableFile, ends: Mapping[tuple[str, int], int], findings: Findings
) -> None:
    """Report consumer offsets that lie beyond the end of their queue.

    ``table`` is ``consumerOffset``, and ``ends`` has the ends of the queues.
    """
    offsets = table.content.get("offsetTable") if isinstance(table.content, dict) else None
    for name, queues in (offsets or {}).items():
        topic, _, group = str(name).partition("@")
        for queue_id, offset in (queues if isinstance(queues, dict) else {}).items():
            end = ends.get((topic, int(queue_id))) if str(queue_id).isdigit() else None
            if end is not None and isinstance(offset, int) and offset > end:
                text = f"group {group} is at {offset}; the queue ends at {end}"
                findings.add("offset_beyond_queue", text, topic=topic, queue_id=int(queue_id))


def _process_id(abort: bytes) -> int | None:
    first = abort.split()[:1]
    return int(first[0]) if first and first[0].isdigit() else None


def _count(name: str, content: Any) -> int:
    if not isinstance(content, dict):
        return len(content) if isinstance(content, list) else 0
    member = _MAIN_MEMBERS.get(name)
    if member is not None:
        main = content.get(member)
        return len(main) if isinstance(main, dict | list) else 0
    return sum(
        len(value)
        for key, value in content.items()
        if key != "dataVersion" and isinstance(value, dict)
    )


def crc_rule(
    disk: ReadOnlyDisk, paths: StorePaths, state: RunState
) -> Callable[[int], bool] | None:
    """Return a function that tells if the entry at a log offset must have a CRC.

    An entry that was written with a CRC is damaged if the CRC is missing. Return None if no part of
    the log is known to be written by Turbopump.
    """
    if disk.file_size(paths.provenance) is None:
        return None
    provenance = provenance_of(disk, paths)
    provenance.load(crashed_here=state.ours, clean=not state.unfinished)
    return provenance.requires_crc
