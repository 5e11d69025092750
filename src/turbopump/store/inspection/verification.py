"""Check of a whole store: messages must be valid, and queues, indexes and tables must agree with
the log.

One pass over the log, in order: each entry is checked (``LogWalk``), and claims its unit
(``QueueCheck``) and its index entries (``IndexCheck``). Unclaimed units and entries are checked
afterwards. Beside a running broker, only messages dispatched before the start of the check are
checked. Every fault is a finding; only an unreadable directory raises an exception. Nothing is
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.message.codec import entry_fault
from turbopump.message.entry import queue_id_of, queue_offset_of, topic_span
from turbopump.message.properties import TRANSACTION_MASK, SysFlag, property_value
from turbopump.store.files import StorePaths
from turbopump.store.index.index_file import key_hash
from turbopump.store.inspection.entry_facts import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, entry_facts
from turbopump.store.inspection.index_check import IndexCheck, check_chains
from turbopump.store.inspection.log_walk import LogWalk, bad_finding
from turbopump.store.inspection.next_start import MissingUnits, known_ends, topics_known
from turbopump.store.inspection.queue_check import QueueCheck
from turbopump.store.inspection.report import FINDINGS_MAX, Findings, Verification
from turbopump.store.inspection.small_files import (
    ReadTable,
    crc_rule,
    judge_checkpoint,
    judge_offsets,
    read_checkpoint,
    read_tables,
)
from turbopump.store.inspection.snapshot import take_snapshot
from turbopump.store.log.parsed_entry import is_apaches_batch
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE

ATTEMPTS_MAX: Final = 3


def verify_store(
    paths: StorePaths,
    *,
    read_table: ReadTable,
    log_roots: Sequence[Path] = (),
    disk: ReadOnlyDisk | None = None,
    findings_max: int = FINDINGS_MAX,
    on_progress: Callable[[int, int], None] = lambda _done, _size: None,
) -> Verification:
    """Check every file of the store at ``paths``, and return the findings.

    ``on_progress`` gets the number of bytes of the log that are checked, and the total. Raises
    StoreError for a directory that is no store, OSError for files that cannot be opened. Takes 7 to
    9 µs for each message. The check needs memory for some pieces of files, whatever the size of the
    store.
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            check = _Check(disk or ReadOnlyDisk(), paths, log_roots, findings_max, read_table)
            check.check_tables()
            check.check_log(on_progress)
            check.check_unclaimed_units()
            check.check_indexes()
        except FileNotFoundError:  # a running broker has deleted old files since they were listed
            if attempt + 1 == ATTEMPTS_MAX:
                raise
        else:
            break
    return check.result


class _Check:
    """One check of a whole store. The methods are called in order."""

    def __init__(
        self,
        disk: ReadOnlyDisk,
        paths: StorePaths,
        log_roots: Sequence[Path],
        findings_max: int,
        read_table: ReadTable,
    ) -> None:
        self._disk = disk
        self._read_table = read_table
        self._findings = findings = Findings(findings_max)
        self._now = now = take_snapshot(disk, paths, log_roots, findings)
        store = now.store
        topics = topics_known(disk, store.paths, read_table)
        batch_topics = {topic for topic, is_batch in topics.items() if is_batch}
        self._unserved = batch_topics | (store.batch_topics - topics.keys())
        """Topics whose messages need no unit, because their queues are not served."""
        known = known_ends(disk, paths, running=now.state.running)
        self._known = known.without(self._unserved.__contains__)
        self._missing = MissingUnits(disk, now, self._known, findings)
        self.result = Verification(
            paths.root,
            findings,
            log_start=store.log_start,
            segments=len(store.segments),
            queues=len(now.all_queues),
            index_files=len(store.indexes),
            running=now.state.running,
        )

    def check_tables(self) -> None:
        tables = read_tables(self._disk, self._now.store, self._read_table, self._findings)
        self.result.tables = len(tables)
        ends = {(queue.topic, queue.queue_id): queue.end for queue in self._now.all_queues}
        for table in tables:
            if table.path.stem == "consumerOffset" and not self._now.state.running:
                judge_offsets(table, ends, self._findings)

    def check_log(self, on_progress: Callable[[int, int], None]) -> None:
        """Check every message of the log, together with its queue unit and its index entries."""
        now, result = self._now, self.result
        store = now.store
        size = store.log_size
        index = self._index_check()
        walk = LogWalk(
            self._disk,
            store.segments,
            requires_crc=crc_rule(self._disk, store.paths, now.state),
            on_bad=lambda bad: self._findings.add_finding(bad_finding(bad, store)),
            on_progress=lambda offset: on_progress(offset - store.log_start, size),
        )
        queues = now.queues
        deleted = self._known.deleted
        unserved = self._unserved
        prepared = SysFlag.TRANSACTION_PREPARED
        messages = total = newest = 0
        for offset, entry in walk.entries(end=now.end):
            try:
                topic, queue_id, queue_offset, sys_flag, stored_ms, tags, keys, properties = (
                    entry_facts(entry)
                )
            except UnicodeDecodeError as error:
                self._report_not_text(offset, len(entry), error)
                continue
            messages += 1
            entry_size = len(entry)
            total += entry_size
            if stored_ms > newest:
                newest = stored_ms
            if (
                not sys_flag & prepared
                and topic not in unserved
                and not is_apaches_batch(sys_flag, topic)
                and not (deleted and offset < deleted.get(topic, 0))
            ):
                queue = queues.get((topic, queue_id))
                if queue is not None:
                    fault = queue.claim_unit(queue_offset, offset, entry_size, tags, stored_ms)
                else:
                    fault = "" if now.units_checked else None
                if fault is not None:
                    self._missing.claim_failed(topic, queue_id, queue_offset, offset, fault)
                if MULTI_DISPATCH in properties:
                    self._claim_light_queues(properties, offset, entry_size, tags)
            if index is not None and keys and sys_flag & TRANSACTION_MASK != TRANSACTION_MASK:
                index.expect_entries(
                    offset,
                    [key_hash(topic, keys[0])]
                    if len(keys) == 1
                    else [key_hash(topic, key) for key in keys],
                    stored_ms,
                    topic,
                )
        on_progress(size, size)
        result.messages = messages
        result.message_bytes = total
        result.log_end = walk.end
        self._judge_ends(index, newest)

    def _index_check(self) -> IndexCheck | None:
        now = self._now
        if not now.headers:
            return None
        return IndexCheck(
            self._disk,
            now.headers,
            now.store.log_start,
            self._findings,
            now.store.relative,
            growing=now.state.running,
            unfinished=now.state.unfinished,
        )

    def _judge_ends(self, index: IndexCheck | None, newest_ms: int) -> None:
        """Compare the end of the log with every record of that end. Call this after the log is
        read."""
        result, running = self.result, self._now.state.running
        self._missing.judge_ends(result.log_end)
        if index is not None:
            if not running:
                index.report_rest(result.log_end)
            result.index_entries = index.matched
        elif result.messages:
            self._findings.add(
                "no_index",
                "a broker with messageIndexEnable fills the index at its next recovery",
                "index",
            )
        checkpoint = read_checkpoint(self._disk, self._now.store.paths, self._findings)
        if checkpoint is not None and not running:
            judge_checkpoint(checkpoint, newest_ms, result.log_end, self._findings)

    def check_unclaimed_units(self) -> None:
        """Check the queue units that no message in the log has claimed."""
        for queue in self._now.all_queues:
            self.result.units += queue.matched
            if queue.units.unreadable is not None:
                self._findings.add(
                    "unreadable",
                    str(queue.units.unreadable),
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                )
            first_claimed = queue.runs.first
            for indexes in queue.unclaimed():
                for index in indexes:
                    self._judge_unclaimed(
                        queue, index, leading=first_claimed is None or index < first_claimed
                    )
        if not self._now.units_checked:
            self._findings.add("not_checked", "its queues are in RocksDB", "consumequeue")

    def check_indexes(self) -> None:
        """Check the header and the chains of every index file."""
        newest = self._now.headers[-1] if self._now.headers else None
        names = {header.path for header in self._now.headers}
        for path in self._now.store.indexes:
            if path not in names:
                self._findings.add(
                    "index_layout",
                    "the file is too short for a header",
                    self._now.store.relative(path),
                )
        for header in self._now.headers:
            file = self._now.store.relative(header.path)
            if not header.slots:
                text = (
                    f"its {header.size} bytes fit no number of slots that agrees with its entries"
                )
                self._findings.add("index_layout", text, file)
                continue
            growing = self._now.state.running and header is newest
            try:
                check_chains(self._disk, header, self._findings, file, growing=growing)
            except FileNotFoundError:
                raise
            except OSError as error:
                self._findings.add("unreadable", str(error), file)

    def _claim_light_queues(self, properties: str, offset: int, size: int, tags: int) -> None:
        """Check the units of a message in its light queues (LMQ).

        Light queues share the messages of other topics. Only existing queues are checked, because
        brokers without LMQ write none.
        """
        names = (property_value(properties, MULTI_DISPATCH) or "").split(",")
        indexes = (property_value(properties, MULTI_QUEUE_OFFSET) or "").split(",")
        for name, index in zip(names, indexes, strict=False):
            queue = self._now.queues.get((name, 0))
            if queue is not None and index.isdigit():
                fault = queue.claim_unit(int(index), offset, size, tags)
                if fault is not None:
                    self._missing.claim_failed(name, 0, int(index), offset, fault)

    def _judge_unclaimed(self, queue: QueueCheck, index: int, *, leading: bool) -> None:
        unit = queue.units.read(index)
        if not unit:
            return  # no file holds it: reported with the files
        offset, size = queue.units.target(index)
        if leading and (offset < self.result.log_start or (offset, size) == (0, NO_MESSAGE_SIZE)):
            return  # its message was deleted with an old segment
        if offset >= self._now.end:
            return  # written since the check began
        if not any(unit):
            kind = "unit_empty"
            what = "the unit is empty"
        elif size == NO_MESSAGE_SIZE:
            kind = "unit_gap"
            what = f"marked as a gap; the log was damaged at offset {offset}"
        elif offset >= self.result.log_end:
            kind = "queue_ahead" if self._now.state.crashed else "unit_beyond_log"
            what = f"it points to offset {offset}; the log ends at {self.result.log_end}"
        else:
            kind = "unit_wrong"
            what = f"it points to offset {offset} size {size}: {self._what_is_at(offset, size)}"
        self._findings.add(
            kind, what, topic=queue.topic, queue_id=queue.queue_id, index=index, run=index
        )

    def _what_is_at(self, offset: int, size: int) -> str:
        segment = self._now.segment_at(offset)
        if segment is None:
            return "no segment holds that"
        with self._disk.open_file(segment.path) as file:
            try:
                entry = file.read(offset - segment.start, max(min(size, segment.size), 0))
            except OSError as error:
                return str(error)
        fault = entry_fault(entry, offset)
        if fault is not None:
            return f"no good message ({fault})"
        topic = entry[slice(*topic_span(entry))].decode(errors="backslashreplace")
        return f"the message of {topic}/{queue_id_of(entry)} index {queue_offset_of(entry)}"

    def _report_not_text(self, offset: int, size: int, error: UnicodeDecodeError) -> None:
        segment = self._now.segment_at(offset)
        file = self._now.store.relative(segment.path) if segment is not None else None
        what = f"its topic is not UTF-8 ({error.reason})"
        self._findings.add("log_damaged", what, file, offset, offset + size)
