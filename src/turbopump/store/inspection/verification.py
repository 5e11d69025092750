"""Checking a whole store: every message, and whether queues, indexes and tables agree with the log.

One pass over the log, in order: each entry is checked (``LogWalk``), claims its unit (``QueueCheck``) and its index entries
(``IndexCheck``). Then what nobody claimed is judged by itself. Beside a running broker only what was dispatched before the start is judged.
The rule: everything found is a finding, nothing is an exception but a directory that cannot be read. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turbopump.message.codec import entry_fault
from turbopump.message.properties import property_value
from turbopump.message.sysflag import TRANSACTION_MASK, SysFlag
from turbopump.store.batch_consume_queue import BATCH_UNIT_SIZE, BatchUnit
from turbopump.store.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE
from turbopump.store.entry_mark import batch_size
from turbopump.store.files import StorePaths
from turbopump.store.index_file import key_hash
from turbopump.store.inspection.batch_queue_check import BatchQueueCheck
from turbopump.store.inspection.entry_facts import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, entry_facts, entry_topic
from turbopump.store.inspection.findings import FINDINGS_MAX, Finding, Findings
from turbopump.store.inspection.index_check import IndexCheck
from turbopump.store.inspection.index_layout import IndexHeader, check_chains, read_headers
from turbopump.store.inspection.log_walk import BadRange, LogWalk
from turbopump.store.inspection.next_start import (
    begun_at,
    files_have_all_written_again,
    first_unit_at,
    known_ends,
    last_unit_at,
    reads_from,
    topics_known,
)
from turbopump.store.inspection.origin import crc_rule
from turbopump.store.inspection.queue_check import UNIT, QueueCheck, QueueUnits
from turbopump.store.inspection.report import Verification
from turbopump.store.inspection.store_files import StoreFile, StoreFiles, list_store
from turbopump.store.inspection.tables import (
    ReadTable,
    RunState,
    judge_checkpoint,
    judge_offsets,
    read_checkpoint,
    read_run_state,
    read_tables,
)
from turbopump.store.queue_comparison import lacks
from turbopump.store.read_only_disk import ReadOnlyDisk

ATTEMPTS_MAX: Final = 3

WINDOWS_SIZE: Final = 64 * 1024 * 1024
"""Bytes for the windows of all queues together."""


def verify_store(
    paths: StorePaths,
    *,
    read_table: ReadTable,
    log_roots: Sequence[Path] = (),
    disk: ReadOnlyDisk | None = None,
    findings_max: int = FINDINGS_MAX,
    on_progress: Callable[[int, int], None] = lambda _done, _size: None,
) -> Verification:
    """Check the store at ``paths``. ``on_progress`` hears bytes of the log done, of how many.

    Raises StoreError for a directory that is no store, OSError for files that cannot be opened. 7 to 9 µs a message; memory: some pieces
    of files, whatever the size of the store.
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            check = _Check(disk or ReadOnlyDisk(), paths, log_roots, findings_max)
            check.tables(read_table)
            check.log(on_progress)
            check.unclaimed_units()
            check.indexes()
        except FileNotFoundError:  # a running broker has deleted old files since they were listed
            if attempt + 1 == ATTEMPTS_MAX:
                raise
        else:
            break
    return check.result


@dataclass(slots=True)
class _Snapshot:
    """What there was when the check began. ``end``: beside a running broker, the end of the newest message that a queue has."""

    state: RunState
    store: StoreFiles
    end: int
    queues: dict[tuple[str, int], QueueCheck] = field(default_factory=dict)
    batch_queues: dict[tuple[str, int], BatchQueueCheck] = field(default_factory=dict)
    headers: list[IndexHeader] = field(default_factory=list)

    @property
    def all_queues(self) -> list[QueueCheck | BatchQueueCheck]:
        return [*self.queues.values(), *self.batch_queues.values()]

    def queue(self, key: tuple[str, int]) -> QueueCheck | BatchQueueCheck | None:
        return self.queues.get(key) or self.batch_queues.get(key)


class _Check:
    """One run. The methods are its steps, in order."""

    def __init__(self, disk: ReadOnlyDisk, paths: StorePaths, log_roots: Sequence[Path], findings_max: int) -> None:
        self._disk = disk
        self._findings = findings = Findings(findings_max)
        state = read_run_state(disk, paths, findings)
        end = _dispatched(disk, list_store(disk, paths, Findings(), log_roots)) if state.running else 1 << 62
        self._now = now = _Snapshot(
            state, list_store(disk, paths, findings, log_roots), end
        )  # listed anew: it has all before ``end``
        store = now.store
        window = min(max(WINDOWS_SIZE // 20 // max(len(store.queues), 1), 64), 4096)
        for key, files in store.queues.items():
            now.queues[key] = QueueCheck(*key, QueueUnits(disk, files, window))
        for key, files in store.batch_queues.items():
            now.batch_queues[key] = BatchQueueCheck(disk, files, window)
        now.headers = read_headers(disk, store.indexes)
        self._units_checked = not store.unit_files_elsewhere
        self._known = known_ends(disk, paths, running=state.running)
        self._behind: dict[tuple[str, int], Finding] = {}
        self._behind_at: dict[tuple[str, int], int] = {}
        self._behind_from: dict[tuple[str, int], int] = {}
        self._lacking: set[tuple[str, int]] = set()
        self._old_at: dict[str, int] = {}
        self._topics: frozenset[str] = frozenset()
        self.result = Verification(
            paths.root,
            findings,
            log_start=store.log_start,
            segments=len(store.segments),
            queues=len(now.queues) + len(now.batch_queues),
            index_files=len(store.indexes),
            running=now.state.running,
        )

    def tables(self, read_table: ReadTable) -> None:
        tables = read_tables(self._disk, self._now.store, read_table, self._findings)
        self.result.tables = len(tables)
        self._topics = topics_known(self._disk, self._now.store.paths, read_table)
        ends = {(queue.topic, queue.queue_id): queue.end for queue in self._now.all_queues}
        for table in tables:
            if table.path.stem == "consumerOffset" and not self._now.state.running:
                judge_offsets(table, ends, self._findings)

    def log(self, on_progress: Callable[[int, int], None]) -> None:
        """Walk the log; every entry claims what is derived from it."""
        now, result = self._now, self.result
        store, size = now.store, now.store.log_size
        index = None
        if now.headers:
            index = IndexCheck(
                self._disk,
                now.headers,
                store.log_start,
                self._index_finding,
                store.relative,
                growing=now.state.running,
                unfinished=now.state.unfinished,
            )
        walk = LogWalk(
            self._disk,
            store.segments,
            requires_crc=crc_rule(self._disk, store.paths, now.state),
            on_bad=self._bad_range,
            on_progress=lambda offset: on_progress(offset - store.log_start, size),
        )
        self._behind.clear()
        queues, prepared, deleted = now.queues, SysFlag.TRANSACTION_PREPARED, self._known.deleted
        messages = total = newest = 0
        for offset, entry in walk.entries(end=now.end):
            try:
                topic, queue_id, queue_offset, sys_flag, stored_ms, tags, keys, properties = entry_facts(entry)
            except UnicodeDecodeError as error:
                self._not_text(offset, len(entry), error)
                continue
            messages += 1
            entry_size = len(entry)
            total += entry_size
            if stored_ms > newest:
                newest = stored_ms
            if not sys_flag & prepared and not (deleted and offset < deleted.get(topic, 0)):
                queue = queues.get((topic, queue_id))
                if queue is not None:
                    fault = queue.claim(queue_offset, offset, entry_size, tags, stored_ms)
                else:
                    fault = self._claim_elsewhere(
                        (topic, queue_id), offset, entry_size, tags, stored_ms, queue_offset, sys_flag, properties
                    )
                if fault is not None:
                    self._claim_failed(topic, queue_id, queue_offset, offset, fault)
                if MULTI_DISPATCH in properties:
                    self._claim_light_queues(properties, offset, entry_size, tags)
            if index is not None and keys and sys_flag & TRANSACTION_MASK != TRANSACTION_MASK:
                index.expect(
                    offset,
                    [key_hash(topic, keys[0])] if len(keys) == 1 else [key_hash(topic, key) for key in keys],
                    stored_ms,
                    topic,
                )
        on_progress(size, size)
        self._judge_ends(walk.end)
        result.messages, result.message_bytes, result.newest_ms, result.log_end = messages, total, newest, walk.end
        if index is not None:
            if not now.state.running:
                index.finish(walk.end)
            result.index_entries = index.matched
        elif messages:
            self._findings.add(Finding("no_index", "a broker with messageIndexEnable fills them at its next recovery", "index"))
        checkpoint = read_checkpoint(self._disk, store.paths, self._findings)
        if checkpoint is not None and not now.state.running:
            judge_checkpoint(checkpoint, newest, walk.end, self._findings)

    def unclaimed_units(self) -> None:
        """Judge the units that no entry of the log claimed."""
        for queue in self._now.all_queues:
            self.result.units += queue.matched
            if queue.units.unreadable is not None:
                finding = Finding("unreadable", str(queue.units.unreadable), topic=queue.topic, queue_id=queue.queue_id)
                self._findings.add(finding)
            first_claimed = queue.runs.first
            for indexes in queue.unclaimed():
                for index in indexes:
                    self._judge_unclaimed(queue, index, leading=first_claimed is None or index < first_claimed)
        if not self._units_checked:
            self._findings.add(
                Finding("not_checked", "its queues are in RocksDB (consumequeue_rocksdb)", "consumequeue_rocksdb")
            )

    def indexes(self) -> None:
        """Judge every index file in itself."""
        newest = self._now.headers[-1] if self._now.headers else None
        names = {header.path for header in self._now.headers}
        for path in self._now.store.indexes:
            if path not in names:
                self._index_finding(
                    Finding("index_layout", "it is too short to have a head", self._now.store.relative(path)), -1
                )
        for header in self._now.headers:
            file = self._now.store.relative(header.path)
            if not header.slots:
                text = f"its {header.size} bytes fit no number of slots that agrees with its entries"
                self._findings.add(Finding("index_layout", text, file))
                continue
            growing = self._now.state.running and header is newest
            try:
                for kind, number, what in check_chains(self._disk, header, growing=growing):
                    self._findings.add(Finding(kind, what, file, index=number), run=((kind, file), number or -1))
            except FileNotFoundError:
                raise
            except OSError as error:
                self._findings.add(Finding("unreadable", str(error), file))

    def _claim_elsewhere(
        self,
        key: tuple[str, int],
        offset: int,
        size: int,
        tags: int,
        stored_ms: int,
        index: int,
        sys_flag: int,
        properties: str,
    ) -> str | None:
        """What is wrong with the unit of an entry that no plain queue has."""
        batches = self._now.batch_queues.get(key)
        if batches is None:
            return "" if self._units_checked else None
        messages = batch_size(properties) if sys_flag & SysFlag.INNER_BATCH else 1
        return batches.claim(BatchUnit(offset, size, tags, stored_ms, index, messages))

    def _claim_failed(self, topic: str, queue_id: int, index: int, offset: int, fault: str) -> None:
        queue = self._now.queue((topic, queue_id))
        if offset < first_unit_at(queue):
            self._old_at[topic] = offset
        if not fault and self._now.state.crashed and (queue is None or index >= queue.end):
            self._behind_at[topic, queue_id] = offset
            self._behind_from.setdefault((topic, queue_id), offset)
            finding = self._behind.get((topic, queue_id))
            if finding is None:
                self._behind[topic, queue_id] = Finding("queue_behind", "", topic=topic, queue_id=queue_id, index=index)
            else:
                finding.count += 1
            return
        if not fault:
            self._lacking.add((topic, queue_id))
        kind, what = ("unit_wrong", fault) if fault else ("unit_missing", "there is no unit")
        finding = Finding(kind, what, offset=offset, topic=topic, queue_id=queue_id, index=index)
        self._findings.add(finding, run=((kind, topic, queue_id), index))

    def _judge_ends(self, log_end: int) -> None:
        """Judge the queues that end too early after a crash, and those of whose end only a note tells."""
        known = self._known.since(self._now.store.log_start)
        place = known.newest(log_end)
        all_noticed = place is not None or not any(queue.end for queue in self._now.all_queues)
        begin = 0 if all_noticed or not self._behind else reads_from(self._disk, self._now.store)
        begun = begun_at(self._now.all_queues) if begin else {}
        unmissed = [key for key in self._behind if not self._is_missed(key, begin, begun, log_end)]
        missed = any(self._behind_from[key] < begin and key not in unmissed for key in self._behind)
        now = self._now
        if missed or (unmissed and files_have_all_written_again(self._disk, now.store, ours=now.state.ours)):
            unmissed = []  # then all queues are written again
        for key, finding in self._behind.items():
            finding.what = f"behind: {finding.count} units will be rebuilt at the next start"
            if key in unmissed:
                finding.kind = "unit_missing"
                finding.what = (
                    f"there are no units, and the next start writes only those from {begin} on again: it takes these messages for those "
                    "of a deleted topic. If they are not, stop the broker and remove the file checkpoint, and it will write them"
                )
            self._findings.add(finding)
        judged = self._units_checked and not self._now.state.running
        ends = known.least_ends(place) if place is not None and judged else {}
        found = {(queue.topic, queue.queue_id): queue.end for queue in self._now.all_queues}
        for key, end in ends.items():
            if found.get(key, 0) < end and key not in self._behind and key not in self._lacking:
                text = f"it ends at {found.get(key, 0)}, and ended at {end} when the log was at {place.at if place else 0}"
                self._findings.add(Finding("queue_end", text, topic=key[0], queue_id=key[1]))

    def _is_missed(self, key: tuple[str, int], begin: int, begun: dict[str, int], log_end: int) -> bool:
        """Whether the next start, which reads from ``begin`` on, sees that units of a queue are missing at its end."""
        topic, message_at = key[0], self._behind_at[key]
        last = last_unit_at(self._now.queue(key), log_end) if message_at < begin else None
        known = topic in self._topics
        return message_at >= begin or lacks(
            message_at, last, topic, known=known, begun_at=begun.get(topic), old_at=self._old_at.get(topic, -1)
        )

    def _claim_light_queues(self, properties: str, offset: int, size: int, tags: int) -> None:
        """Light queues (LMQ) share the entries of other topics. Brokers without them write none: only those that exist are checked."""
        names = (property_value(properties, MULTI_DISPATCH) or "").split(",")
        indexes = (property_value(properties, MULTI_QUEUE_OFFSET) or "").split(",")
        for name, index in zip(names, indexes, strict=False):
            queue = self._now.queues.get((name, 0))
            if queue is not None and index.isdigit():
                fault = queue.claim(int(index), offset, size, tags)
                if fault is not None:
                    self._claim_failed(name, 0, int(index), offset, fault)

    def _judge_unclaimed(self, queue: QueueCheck | BatchQueueCheck, index: int, *, leading: bool) -> None:
        unit = queue.units.read(index)
        if not unit:
            return  # no file holds it: reported with the files
        offset, size, _ = UNIT.unpack_from(unit)
        if leading and (offset < self.result.log_start or (offset, size) == (0, NO_MESSAGE_SIZE)):
            return  # its message was deleted with an old segment
        if offset >= self._now.end:
            return  # written since the check began
        if not any(unit):
            kind, what = "unit_empty", "the unit is empty"
        elif size == NO_MESSAGE_SIZE:
            kind, what = "unit_gap", f"marked as a gap; the log was damaged at offset {offset}"
        elif offset >= self.result.log_end:
            kind = "queue_ahead" if self._now.state.crashed else "unit_beyond_log"
            what = f"it points to offset {offset}; the log ends at {self.result.log_end}"
        else:
            kind, what = "unit_wrong", f"it points to offset {offset} size {size}: {self._what_is_at(offset, size)}"
        finding = Finding(kind, what, topic=queue.topic, queue_id=queue.queue_id, index=index)
        self._findings.add(finding, run=((kind, queue.topic, queue.queue_id), index))

    def _what_is_at(self, offset: int, size: int) -> str:
        segment = _segment_at(self._now.store.segments, offset)
        if segment is None:
            return "no segment holds that"
        with self._disk.open_file(segment.path) as file:
            try:
                entry = file.read(offset - segment.start, min(size, segment.size)) if size > 0 else b""
            except OSError as error:
                return str(error)
        fault = entry_fault(entry, offset)
        if fault is not None:
            return f"no good message ({fault})"
        topic = entry_topic(entry).decode(errors="backslashreplace")
        return f"the message of {topic}/{int.from_bytes(entry[12:16])} index {int.from_bytes(entry[20:28])}"

    def _bad_range(self, bad: BadRange) -> None:
        kind = "unreadable" if bad.unread else "log_torn_tail" if bad.tail else "log_damaged"
        file = self._now.store.relative(bad.segment.path)
        self._findings.add(Finding(kind, bad.fault, file, bad.start, bad.end))

    def _not_text(self, offset: int, size: int, error: UnicodeDecodeError) -> None:
        segment = _segment_at(self._now.store.segments, offset)
        file = self._now.store.relative(segment.path) if segment is not None else None
        what = f"its topic or properties are not UTF-8 ({error.reason})"
        self._findings.add(Finding("log_damaged", what, file, offset, offset + size))

    def _index_finding(self, finding: Finding, number: int) -> None:
        self._findings.add(finding, run=((finding.kind, finding.file), number) if number >= 0 else None)


def _segment_at(segments: Sequence[StoreFile], offset: int) -> StoreFile | None:
    return next((segment for segment in segments if segment.start <= offset < segment.end), None)


def _dispatched(disk: ReadOnlyDisk, store: StoreFiles) -> int:
    """The end of the newest message that any queue has: everything before it has been dispatched."""
    newest = store.log_start
    rows = [
        *((files, UNIT_SIZE) for files in store.queues.values()),
        *((f, BATCH_UNIT_SIZE) for f in store.batch_queues.values()),
    ]
    for files, unit_size in rows:
        units = QueueUnits(disk, files, 1, unit_size)
        unit = units.read(units.max_index - 1)
        if unit:
            offset, size, _ = UNIT.unpack_from(unit)
            newest = max(newest, offset + size if size != NO_MESSAGE_SIZE else offset)
    return newest
