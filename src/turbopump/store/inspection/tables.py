"""The small files of a store: checkpoint, abort, lock, JSON tables.

The rule: read, judge, never repair. What a table's text means in detail is its owner's; here it
must be readable, and is counted. The reader of the text is given from outside, since the store does
not know the protocol's JSON dialect.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from turbopump.errors import TurbopumpError
from turbopump.store.checkpoint import CHECKPOINT_SIZE
from turbopump.store.disk import Disk
from turbopump.store.files import StorePaths
from turbopump.store.inspection.findings import Finding, Findings
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.provenance import ABORT_MARK, APACHE_LOCK_MARK, LOCK_MARK, Provenance
from turbopump.store.read_only_disk import LockState, ReadOnlyDisk

ReadTable = Callable[[bytes], Any]
"""Text of a table → dicts, lists and plain values. Raises ValueError or a TurbopumpError for text
that makes no sense."""

_CHECKPOINT: Final = struct.Struct(">qqqqq")
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
"""What is counted of a table; of others every member that is an object."""


@dataclass(frozen=True, slots=True)
class CheckpointFields:
    """Times in ms, offsets in bytes of the log."""

    log_timestamp: int
    queues_timestamp: int
    index_timestamp: int
    master_flushed_offset: int
    confirmed_offset: int


@dataclass(frozen=True, slots=True)
class RunState:
    """Who has the store, and how the last run ended. ``abort``: there is an abort file;
    ``unfinished``: the last run did not stop cleanly, by that file or by what Turbopump noted;
    ``ours``: and it was Turbopump's."""

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
    """A JSON table: how many entries it has, None if it cannot be read."""

    path: Path
    size: int
    entries: int | None
    content: Any = None


def read_run_state(disk: ReadOnlyDisk, paths: StorePaths, findings: Findings) -> RunState:
    """Whether a broker has the store open, or left it without a clean stop."""
    abort = disk.read_file(paths.abort)
    our_own = abort is not None and _process_id(abort) == os.getpid()
    # our own is not asked about: closing the lock file here would release it
    lock = LockState(True, os.getpid()) if our_own else disk.lock_state(paths.lock)
    found = LOCK_MARK if our_own else disk.read_file(paths.lock) or b""
    noted = (
        not found.startswith(APACHE_LOCK_MARK)
        and Provenance(cast(Disk, disk), paths.provenance).unfinished()
    )
    # the same as the next start asks: ``MessageStore.open``
    ours = (
        noted if abort is None else our_own or (abort.endswith(ABORT_MARK) and found == LOCK_MARK)
    )
    state = RunState(abort is not None, ours, lock, abort is not None or noted)
    if state.running:
        by = f"process {lock.pid} holds it" if lock.pid is not None else "its lock is held"
        findings.add(Finding("running", f"a broker has the store open, {by}", "lock"))
    elif state.crashed:
        file = "abort" if state.abort else paths.provenance.name
        findings.add(
            Finding(
                "unclean_stop",
                "the last broker was killed or lost its power; the next one recovers",
                file,
            )
        )
    return state


def read_checkpoint(
    disk: ReadOnlyDisk, paths: StorePaths, findings: Findings
) -> CheckpointFields | None:
    """The checkpoint's fields; None if there is none, or none that can be read."""
    data = disk.read_file(paths.checkpoint)
    if data is None:
        return None
    if len(data) != CHECKPOINT_SIZE:
        findings.add(
            Finding(
                "checkpoint",
                f"it has {len(data)} bytes; a checkpoint has {CHECKPOINT_SIZE}",
                "checkpoint",
            )
        )
    if len(data) < _CHECKPOINT.size:
        return None
    fields = CheckpointFields(*_CHECKPOINT.unpack_from(data))
    for name in ("log_timestamp", "queues_timestamp", "index_timestamp"):
        if not 0 <= getattr(fields, name) < 1 << 43:  # the year 2248
            findings.add(
                Finding(
                    "checkpoint",
                    f"its {name} {getattr(fields, name)} is no time in ms",
                    "checkpoint",
                )
            )
    for name in ("master_flushed_offset", "confirmed_offset"):
        if getattr(fields, name) < -1:
            findings.add(
                Finding(
                    "checkpoint", f"its {name} {getattr(fields, name)} is no offset", "checkpoint"
                )
            )
    return fields


def judge_checkpoint(
    fields: CheckpointFields, newest_ms: int, log_end: int, findings: Findings
) -> None:
    """Compare with the log's newest message and its end."""
    for name in ("log_timestamp", "queues_timestamp"):
        value = getattr(fields, name)
        if newest_ms < value < 1 << 43:
            text = f"its {name} is {value - newest_ms} ms later than the newest message"
            findings.add(Finding("checkpoint_ahead", text, "checkpoint"))
    for name in ("master_flushed_offset", "confirmed_offset"):
        if getattr(fields, name) > log_end:
            text = f"its {name} {getattr(fields, name)} is beyond the end of the log, {log_end}"
            findings.add(Finding("checkpoint_ahead", text, "checkpoint"))


def read_tables(
    disk: ReadOnlyDisk, store: StoreFiles, read: ReadTable, findings: Findings
) -> list[TableFile]:
    """Every JSON table below ``config``."""
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
            findings.add(Finding("table_unreadable", f"{error}{bak}", store.relative(path)))
            tables.append(TableFile(path, len(data), None))
            continue
        tables.append(TableFile(path, len(data), _count(path.stem, content), content))
    return tables


def judge_offsets(
    table: TableFile, ends: Mapping[tuple[str, int], int], findings: Findings
) -> None:
    """Compare the offsets of ``consumerOffset`` with the ends of the queues."""
    offsets = table.content.get("offsetTable") if isinstance(table.content, dict) else None
    for name, queues in (offsets or {}).items():
        topic, _, group = str(name).partition("@")
        for queue_id, offset in (queues if isinstance(queues, dict) else {}).items():
            end = ends.get((topic, int(queue_id))) if str(queue_id).isdigit() else None
            if end is not None and isinstance(offset, int) and offset > end:
                text = f"group {group} is at {offset}; the queue ends at {end}"
                finding = Finding("offset_beyond_queue", text, topic=topic, queue_id=int(queue_id))
                findings.add(finding)


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
