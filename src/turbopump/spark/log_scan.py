"""Scan of a part of a CommitLog segment into Arrow record batches, from the files alone.

Every byte of the part is accounted for. It belongs to a valid entry, to a damaged entry (a row with
a ``status``), to the blank at the end of a segment, or to space after the log's end. Spark and
brokers are unknown here. Files are opened for reading only.

One compiled function finds and checks adjacent valid entries. ConsumeQueues help with the rest, but
are not trusted alone. A unit is the record of one entry in a ConsumeQueue. Units without a gap
between their entries give the starts of entries. So the scan can skip unwanted entries, and knows
the topic, queue and size of a damaged one. Elsewhere the scan walks by the sizes of the entries. At
a position without an entry, it searches for the next magic number whose entry is valid and contains
its own position.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.message.codec import head_fault
from turbopump.message.entry import (
    FIXED_SIZE,
    HEAD_SIZE,
    MAGIC_BLANK,
    PHYSICAL_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    V6_EXTRA,
    store_timestamp_of,
)
from turbopump.message.pulled import good_positions
from turbopump.spark.arrow_arrays import Ints, Mask
from turbopump.spark.decode import record_batches, topics
from turbopump.spark.entries import (
    CRC_MISMATCH,
    OK,
    STATUSES,
    TRUNCATED,
    UNREADABLE,
    Entries,
    entries_between,
)
from turbopump.spark.inner_batches import expand_batches
from turbopump.store.files import StorePaths, segment_offset
from turbopump.store.inspection.report import Findings
from turbopump.store.inspection.small_files import crc_rule, read_run_state
from turbopump.store.log.commit_log import BLANK_SIZE_MIN
from turbopump.store.log.scanner import LogScanner, entry_starts
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE

PIECE_SIZE: Final = 4 << 20
"""Bytes of a segment that become one record batch."""

_DAMAGED_ROWS_MAX: Final = 10_000
_PAGE: Final = 4096
_SEARCH_STEP: Final = 1 << 20
_INT_MAX: Final = (1 << 31) - 1
_LOOK: Final = struct.Struct(">iI")
_ZEROS: Final = bytes(_SEARCH_STEP)
_UNIT_HEAD: Final = struct.Struct(">qi")
_END: Final = 1 << 62


class LogRange(NamedTuple):
    """Part of one CommitLog segment. ``begin`` and ``end`` are offsets in the log.

    An entry begins at ``begin``. The next part or the next segment begins at ``end``.
    """

    path: str
    start: int
    """Offset of the file's first byte in the log."""
    begin: int
    end: int
    is_last: bool
    """True if no later part or segment follows this part."""
    is_live: bool
    """True if a broker may be writing. Bytes at the end of the log that are no entry are then not
    damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Options of the scan of a CommitLog.

    Times are in ms since 1970 UTC. ``ending_ms`` is exclusive.
    """

    schema: pa.Schema
    broker_name: str | None = None
    topics: frozenset[str] = frozenset()
    """Wanted topics. If empty, all topics are wanted."""
    starting_ms: int | None = None
    ending_ms: int | None = None
    store: str | None = None
    """Directory of the store with the ConsumeQueues, or None if there are none."""


def scan(part: LogRange, options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """Yield the entries in a part of the log, as record batches.

    Damaged entries are rows with a ``status``. An unreadable page of the file counts as damage.
    Raises OSError if the file cannot be opened.
    """
    with _open_file(part.path) as fd:
        yield from _Scan(fd, part, options).batches()


def first_good_entry(path: str, start: int, begin: int, end: int) -> int | None:
    """Find the first valid entry that begins between ``begin`` and ``end``. Return its offset, or
    None.

    ``start`` is the offset in the log at which the file begins.
    """
    with _open_file(path) as fd:
        return _next_good(fd, start, begin, end)


def store_time_at(path: str, start: int, offset: int) -> int | None:
    """Return the store time (ms) of the entry at an offset. Return None if the entry is damaged.

    ``start`` is the offset in the log at which the file begins.
    """
    with _open_file(path) as fd:
        head = _read_bytes(fd, offset - start, STORE_TIMESTAMP_AT + 8 + V6_EXTRA)
    if len(head) < STORE_TIMESTAMP_AT + 8 + V6_EXTRA or head_fault(head, offset) is not None:
        return None
    return store_timestamp_of(head)


class _Scan:
    def __init__(self, fd: int, part: LogRange, options: ScanOptions) -> None:
        self._fd = fd
        self._part = part
        self._options = options
        self._limit = min(part.start + os.fstat(fd).st_size, part.end)
        """Offset in the log at which the bytes of this part in the file end."""
        self._window = _Window(fd, part.start)
        self._requires_crc = None if options.store is None else _crc_rule(options.store)
        self._damaged: list[dict[str, Any]] = []
        names = {"brokerName": options.broker_name, "segment": Path(part.path).name}
        self._constants = {
            name: value for name, value in names.items() if name in options.schema.names
        }

    def batches(self) -> Iterator[pa.RecordBatch]:
        at, end = self._part.begin, self._part.end
        while at < end:
            if at >= self._limit:
                at = self._no_more_entries(at)
                continue
            if (wanted := self._next_wanted(at)) != at:
                at = wanted
                continue
            if len(self._damaged) >= _DAMAGED_ROWS_MAX:
                yield self._damaged_rows()
            self._window.load(at, min(FIXED_SIZE, self._limit - at))
            positions, sizes, following = self._good_run(at)
            is_checked = len(positions) > 0
            if not is_checked:
                positions, sizes, following = self._adjacent_entries(at)
            if not len(positions):
                if following == at:
                    following = self._pass_non_entry(at)
                at = following
                continue
            entries = Entries(self._window.data, positions - self._window.start, sizes)
            wrong = entries.misfits | (entries.longs(PHYSICAL_OFFSET_AT) != positions)
            if wrong.any():
                first = int(np.argmax(wrong))
                following = int(positions[first])
                entries = entries.rows(slice(0, first))
            yield from self._rows_of(entries, is_checked)
            at = following
            if wrong.any():
                at = self._pass_non_entry(following)
        if self._damaged:
            yield self._damaged_rows()

    @cached_property
    def _units(self) -> Units | None:
        if self._options.store is None:
            return None
        begin, end = self._part.begin, self._part.end
        return units_between(self._options.store, begin, end, self._options.topics)

    def _next_wanted(self, at: int) -> int:
        """Skip unwanted entries, if possible. Return an offset at or before the next wanted entry.

        Entries are skipped only if ConsumeQueues show where the entries end.
        """
        if not self._options.topics or (units := self._units) is None:
            return at
        index = units.index_of(at)
        if index is None:
            return at
        end = units.run_end(index)
        wanted = np.flatnonzero(units.wanted[index:end])
        if len(wanted):
            return int(units.positions[index + wanted[0]])
        return min(units.end_of(end - 1), self._part.end)

    def _good_run(self, at: int) -> tuple[Ints, Ints, int]:
        """From offset ``at`` on, find adjacent valid entries. Return their offsets, their sizes,
        and their end.

        The entries are complete in the loaded bytes, and are not inner batches. If the options name
        topics, no entry is returned.
        """
        start, held = self._window.start, min(self._window.end, self._limit)
        if self._options.topics or at >= held:
            return _NO_INTS, _NO_INTS, at
        found, size = good_positions(self._window.data[at - start : held - start])
        positions = np.frombuffer(found, np.int64) + at
        return positions, np.diff(positions, append=at + size), at + size

    def _adjacent_entries(self, at: int) -> tuple[Ints, Ints, int]:
        """From offset ``at`` on, find adjacent entries. Return their offsets, their sizes, and
        their end.

        The entries are complete in the loaded bytes, but are not checked.
        """
        if at >= self._limit:
            return _NO_INTS, _NO_INTS, at
        window_end = min(self._window.end, self._limit)
        units = self._units
        index = units.index_of(at) if units is not None else None
        if units is None or index is None:
            return self._walk_entries(at, window_end)
        positions = units.positions[index : units.run_end(index)]
        sizes = units.sizes[index : index + len(positions)]
        count = int(np.searchsorted(positions + sizes, window_end, "right"))
        if not count:
            return _NO_INTS, _NO_INTS, at
        following = int(positions[count - 1] + sizes[count - 1])
        positions, sizes = positions[:count], sizes[:count]
        if self._options.topics:
            wanted = units.wanted[index : index + count]
            positions, sizes = positions[wanted], sizes[wanted]
        return positions, sizes, following

    def _walk_entries(self, at: int, window_end: int) -> tuple[Ints, Ints, int]:
        start = self._window.start
        positions, sizes, end = entries_between(
            self._window.data[: window_end - start],
            at - start,
            min(window_end, self._part.end) - start,
        )
        return positions + start, sizes, end + start

    def _rows_of(self, entries: Entries, is_checked: bool) -> Iterator[pa.RecordBatch]:
        """Yield rows for the wanted entries and for all damaged entries, as record batches.

        The lengths of the entries are valid. ``is_checked`` is True if their CRCs are valid, too.
        """
        options = self._options
        if not is_checked:
            entries.status[entries.crc_mismatches()] = CRC_MISMATCH
        entries.status[entries.lacking_crcs(self._requires_crc)] = CRC_MISMATCH
        damaged = entries.status != OK
        keep: Mask = np.ones(len(entries), np.bool_)
        if options.topics:
            wanted = pc.is_in(topics(entries), pa.array(sorted(options.topics), pa.string()))
            keep &= wanted.to_numpy(zero_copy_only=False)
        if options.starting_ms is not None or options.ending_ms is not None:
            stored = entries.shifted_longs(STORE_TIMESTAMP_AT, 1)
            keep &= stored >= (options.starting_ms or 0)
            if options.ending_ms is not None:
                keep &= stored < options.ending_ms
        if not keep.all():
            entries = entries.rows(keep | damaged)
        entries = expand_batches(entries, entries.status == OK)
        yield from record_batches(entries, options.schema, self._constants)

    def _pass_non_entry(self, at: int) -> int:
        """Decide why no entry begins at an offset. Return the offset at which the scan continues.

        Damage becomes a row.
        """
        # The order of these checks decides what counts as damage.
        # 1. A blank up to the end of the segment is the normal end of a segment.
        # 2. A good head may belong to an entry that is larger than the window: load it, look again.
        # 3. A good entry that units contradict proves the units wrong: the log is the truth.
        # 4. A unit whose successor begins at its end gives the end and queue of a damaged entry.
        # 5. Else search for the next good entry. Only if none follows can this be the log's end. In
        #    a live log, a broker may be writing these bytes now, so they are no damage.
        left = self._limit - at
        if left < BLANK_SIZE_MIN:
            return self._no_more_entries(self._limit)
        self._window.load(at, BLANK_SIZE_MIN)
        size, magic = _LOOK.unpack_from(self._window.data, at - self._window.start)
        if magic == MAGIC_BLANK and at + size >= self._part.end:
            return self._part.end
        head = bytes(self._window.view(at, min(HEAD_SIZE, left)))
        is_head = len(head) == HEAD_SIZE and head_fault(head, at) is None
        if is_head and FIXED_SIZE <= size <= left and at + size > self._window.end:
            self._window.load(at, size)
            return at
        index = self._units.index_of(at) if self._units is not None else None
        if (
            index is not None
            and is_head
            and _is_good_entry(self._fd, self._part.start, at, self._limit)
        ):
            self._units = None  # they contradict a good entry, so they are wrong
            return at
        if self._units is not None and index is not None and self._units.is_sure(index):
            following = min(self._units.end_of(index), self._part.end)
            status = UNREADABLE
            if following > self._limit:
                status = TRUNCATED
            self._add_damaged_row(at, following, status, index)
            return following
        good = _next_good(self._fd, self._part.start, at + 1, self._data_end)
        if good is not None:
            self._add_damaged_row(at, good, UNREADABLE)
            return good
        if self._limit == self._part.end and not self._part.is_last:
            self._add_damaged_row(at, self._part.end, UNREADABLE)
            return self._part.end
        if self._part.is_last and self._part.is_live:
            return self._part.end
        if self._part.is_last and self._data_end > at:
            self._add_damaged_row(at, self._data_end, TRUNCATED if is_head else UNREADABLE)
        if self._part.is_last:
            return self._part.end
        return self._no_more_entries(at)

    def _no_more_entries(self, at: int) -> int:
        """End the part. If the file ends before the part does, the missing bytes are recorded as
        damage."""
        if at < self._part.end and not self._part.is_last and self._limit < self._part.end:
            self._add_damaged_row(at, self._part.end, TRUNCATED)
        return self._part.end

    @cached_property
    def _data_end(self) -> int:
        """End of the data in this part: the offset in the log after the last byte that is not
        zero."""
        begin, end = (offset - self._part.start for offset in (self._part.begin, self._limit))
        buffer = bytearray(_SEARCH_STEP)
        while end > begin:
            at = max(end - _SEARCH_STEP, begin)
            if _may_have_data(self._fd, at, end):
                view = memoryview(buffer)[: end - at]
                _read_into(self._fd, view, at)
                data = bytes(view)
                if data != _ZEROS[: len(data)]:  # many times faster than rstrip
                    return self._part.start + at + len(data.rstrip(b"\0"))
            end = at
        return self._part.begin

    def _damaged_rows(self) -> pa.RecordBatch:
        rows = self._damaged
        self._damaged = []
        return pa.RecordBatch.from_pylist(rows, schema=self._options.schema)

    def _add_damaged_row(self, begin: int, end: int, status: int, unit: int | None = None) -> None:
        row: dict[str, Any] = {
            **self._constants,
            "commitLogOffset": begin,
            "storeSize": min(end - begin, _INT_MAX),
            "status": STATUSES[status],
        }
        if unit is not None and self._units is not None:
            units = self._units
            row["topic"] = units.names[units.topics[unit]]
            row["queueId"] = int(units.queue_ids[unit])
            row["queueOffset"] = int(units.queue_offsets[unit])
        self._damaged.append({name: row.get(name) for name in self._options.schema.names})


def _crc_rule(root: str) -> Callable[[int], bool] | None:
    """Return a rule that decides by offset if an entry must have a CRC.

    The rule is True for the offsets that turbopump's broker wrote. The result is None if no such
    offset is known.
    """
    disk = ReadOnlyDisk()
    paths = StorePaths(Path(root))
    return crc_rule(disk, paths, read_run_state(disk, paths, Findings()))


class _Window:
    """Reusable buffer for one piece of a file at a time.

    Allocating a new buffer for each piece would take longer than copying the bytes.
    """

    def __init__(self, fd: int, origin: int) -> None:
        self._fd = fd
        self._origin = origin
        self._buffer = memoryview(bytearray(PIECE_SIZE))
        self.start = self.end = -1
        self.data = self._buffer[:0]

    def load(self, at: int, size: int) -> None:
        """Load ``size`` bytes of the log from an offset on. At the end of the file, load fewer."""
        if self.start <= at and at + size <= self.end:
            return
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        count = _read_into(self._fd, self._buffer, at - self._origin)
        self.start, self.end = at, at + count
        self.data = self._buffer[:count]

    def view(self, at: int, size: int) -> memoryview:
        self.load(at, size)
        return self.data[at - self.start : at - self.start + size]


@contextmanager
def _open_file(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_into(fd: int, buffer: memoryview, at: int) -> int:
    """Fill a buffer from byte ``at`` of a file on. Return the number of bytes read.

    An unreadable page becomes zeros, so that its entries are found to be damaged.
    """
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(fd, [buffer[done:]], at + done)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            count = _read_page(fd, buffer[done:], at + done)
        if not count:
            break
        done += count
    return done


def _may_have_data(fd: int, begin: int, end: int) -> bool:
    """Return False if a range of a file was certainly never written.

    The file system knows this, and such a range reads as zeros. Brokers allocate a segment in full
    size before they write to it.
    """
    if not hasattr(os, "SEEK_DATA"):
        return True
    try:
        return os.lseek(fd, begin, os.SEEK_DATA) < end
    except OSError as error:
        return error.errno != errno.ENXIO  # ENXIO: no data up to the end of the file


def _read_page(fd: int, buffer: memoryview, at: int) -> int:
    """Fill a buffer up to the end of a page of a file. Return the number of bytes.

    If the page cannot be read, the bytes become zeros.
    """
    left = min(_PAGE - at % _PAGE, len(buffer), max(os.fstat(fd).st_size - at, 0))
    try:
        return os.preadv(fd, [buffer[:left]], at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        buffer[:left] = bytes(left)
        return left


def _read_bytes(fd: int, at: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: _read_into(fd, memoryview(buffer), at)])


def _pieces(fd: int, begin: int, end: int, overlap: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file in pieces, from ``begin`` to ``end``. Pieces with only zeros are
    skipped.

    Each piece comes with its position in the file. It begins ``overlap`` bytes before the end of
    the bytes read so far.
    """
    at = begin
    buffer = bytearray(_SEARCH_STEP)
    while at < end:
        first = max(at - overlap, begin)
        view = memoryview(buffer)[: min(first + _SEARCH_STEP, end) - first]
        count = _read_into(fd, view, first)
        if first + count <= at:
            return
        data = bytes(view[:count])
        if data != _ZEROS[:count]:
            yield first, data
        at = first + count


def is_blank(path: str) -> bool:
    """Return True if a segment contains only zeros."""
    with _open_file(path) as fd:
        size = os.fstat(fd).st_size
        return not _may_have_data(fd, 0, size) or next(_pieces(fd, 0, size, 0), None) is None


def about_written(path: str, size: int) -> int:
    """Estimate the number of written bytes among the first ``size`` bytes of a segment.

    A binary search reads only some pages. It assumes that the segment has data up to some point,
    and zeros after this point.
    """
    with _open_file(path) as fd:
        pages = range(min(os.fstat(fd).st_size, size) // _PAGE)
        written = bisect_left(
            pages, True, key=lambda page: not any(_read_bytes(fd, page * _PAGE, _PAGE))
        )
    return min(written * _PAGE, size)


def _next_good(fd: int, start: int, begin: int, end: int) -> int | None:
    """Find the first valid entry that begins between ``begin`` and ``end``. Return its offset, or
    None.

    ``start`` is the offset in the log at which the file begins.
    """
    limit = os.fstat(fd).st_size
    for first, data in _pieces(fd, begin - start, min(end - start + HEAD_SIZE, limit), overlap=7):
        for found in entry_starts(data):
            offset = start + first + found
            if begin <= offset < end and _is_good_entry(fd, start, offset, start + limit):
                return offset
    return None


def _is_good_entry(fd: int, start: int, offset: int, end: int) -> bool:
    """Return True if a valid entry begins at an offset, by the rules of the store.

    ``start`` and ``end`` are the offsets in the log at which the file begins and ends.
    """
    scanner = LogScanner()
    while isinstance(found := scanner.judge_entry(offset, end, room=0), int):
        scanner.hold_bytes(offset, _read_bytes(fd, offset - start, found).ljust(found, b"\0"))
    return found.entry is not None


_NO_INTS: Final = np.zeros(0, np.int64)


@dataclass(slots=True)
class Units:
    """Entries in a range of the log, according to the ConsumeQueues of a store.

    A unit is the record of one entry in a ConsumeQueue. Here each entry has one unit, and the units
    are in the order of the log.
    """

    positions: Ints
    sizes: Ints
    wanted: Mask
    """Mask of the entries that are in a queue of a wanted topic."""
    topics: Ints
    """Index in ``names`` of the topic of each entry."""
    queue_ids: Ints
    queue_offsets: Ints
    names: list[str]
    breaks: Ints
    """Indexes of units whose entry is followed by a gap."""

    def index_of(self, position: int) -> int | None:
        index = int(np.searchsorted(self.positions, position))
        found = index < len(self.positions) and self.positions[index] == position
        return index if found else None

    def run_end(self, index: int) -> int:
        """Return the end of a run of units. The entries of a run are adjacent, from the unit
        ``index`` on."""
        at = int(np.searchsorted(self.breaks, index))
        return int(self.breaks[at]) + 1

    def end_of(self, index: int) -> int:
        return int(self.positions[index] + self.sizes[index])

    def is_sure(self, index: int) -> bool:
        """Return True if the next unit's entry begins exactly at the end of this unit's entry."""
        return self.run_end(index) > index + 1


BATCH_UNIT_SIZE: Final = 46
"""Bytes of a unit of Apache's batch queues: offset, size, tagsCode, store time, base, number of
messages, compacted offset, reserved."""
_UNIT_TYPES: Final = {
    UNIT_SIZE: np.dtype([("at", ">i8"), ("size", ">i4"), ("rest", "V8")]),
    BATCH_UNIT_SIZE: np.dtype(
        [("at", ">i8"), ("size", ">i4"), ("rest", "V16"), ("base", ">i8"), ("more", "V10")]
    ),
}


def units_between(root: str, begin: int, end: int, topics: frozenset[str]) -> Units | None:
    """Find the entries that begin between two offsets of the log. Return their units from all
    ConsumeQueues.

    The result is None if there are no such units, or if a file cannot be read.
    """
    names: list[str] = []
    found = []
    try:
        for topic, queue_id, files, width in _queue_files(root):
            for number, (start, path) in enumerate(files):
                following = files[number + 1][1] if number + 1 < len(files) else None
                units = _units_of_file(path, following, width, begin, end)
                if units is None:
                    continue
                if not names or names[-1] != topic:
                    names.append(topic)
                data, first = units
                indexes = start // width + first + np.arange(len(data))
                found.append(
                    (
                        data["at"].astype(np.int64),
                        data["size"].astype(np.int64),
                        np.full(len(data), len(names) - 1),
                        np.full(len(data), queue_id),
                        data["base"].astype(np.int64) if width == BATCH_UNIT_SIZE else indexes,
                    )
                )
    except OSError:
        return None
    if not found:
        return None
    positions, sizes, topic_at, queue_ids, offsets = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    keep = (positions >= begin) & (positions < end)
    keep &= (sizes >= FIXED_SIZE) & (sizes < NO_MESSAGE_SIZE)
    order = np.flatnonzero(keep)[np.argsort(positions[keep], kind="stable")]
    if not len(order):
        return None
    firsts = np.flatnonzero(np.diff(positions[order], prepend=-1))
    wanted = np.array([not topics or name in topics for name in names])[topic_at[order]]
    wanted = np.logical_or.reduceat(wanted, firsts)
    order = order[firsts]  # an entry may be in several queues
    positions, sizes = positions[order], sizes[order]
    joined = positions[:-1] + sizes[:-1] == positions[1:]
    breaks = np.append(np.flatnonzero(~joined), len(positions) - 1)
    return Units(
        positions, sizes, wanted, topic_at[order], queue_ids[order], offsets[order], names, breaks
    )


def dispatched_end(root: str) -> int:
    """Return the end of the last entry that is listed in a ConsumeQueue, as an offset in the log.

    Brokers list only complete entries in ConsumeQueues. The result is 0 if no entry is listed.
    """
    end = 0
    for _, _, files, width in _queue_files(root):
        for _, path in reversed(files):
            with _open_file(path) as fd:
                count = bisect_left(
                    range(os.fstat(fd).st_size // width), _END, key=_unit_keys(fd, width)
                )
                if count:
                    at, size = _UNIT_HEAD.unpack(
                        _read_bytes(fd, (count - 1) * width, _UNIT_HEAD.size)
                    )
                    if size != NO_MESSAGE_SIZE:
                        end = max(end, at + size)
                    break
    return end


def _queue_files(root: str) -> Iterator[tuple[str, int, list[tuple[int, str]], int]]:
    """For each ConsumeQueue, yield the topic, the queue id, the files, and the bytes per unit.

    Each file is a tuple: the number in its name, and its path.
    """
    paths = StorePaths(Path(root))
    for directory, width in (
        (paths.consume_queues, UNIT_SIZE),
        (paths.batch_consume_queues, BATCH_UNIT_SIZE),
    ):
        for topic in _names_in(directory):
            for queue in _names_in(directory / topic):
                if queue.isascii() and queue.isdigit():
                    rows = directory / topic / queue
                    files = [
                        (start, str(rows / name))
                        for name in _names_in(rows)
                        if (start := segment_offset(name)) is not None
                    ]
                    if files:
                        yield topic, int(queue), files, width


def _names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _units_of_file(
    path: str, following: str | None, width: int, begin: int, end: int
) -> tuple[np.ndarray[Any, Any], int] | None:
    """Read units from a file: those whose entries begin between two offsets of the log.

    The second result is the number of the first unit in the file. ``following`` is the path of the
    queue's next file. The result is None if the file has no such unit.
    """
    if following is not None:
        with _open_file(following) as fd:
            if _unit_keys(fd, width)(0) <= begin:
                return None
    with _open_file(path) as fd:
        numbers, key = range(os.fstat(fd).st_size // width), _unit_keys(fd, width)
        first, last = bisect_left(numbers, begin, key=key), bisect_left(numbers, end, key=key)
        if first >= last:
            return None
        data = _read_bytes(fd, first * width, (last - first) * width)
    return np.frombuffer(data, _UNIT_TYPES[width], len(data) // width), first


def _unit_keys(fd: int, width: int) -> Any:
    """Return a function that maps the number of a unit to the log offset of its entry.

    The function returns ``_END`` for a number after the last unit.
    """

    def key(number: int) -> int:
        data = os.pread(fd, _UNIT_HEAD.size, number * width)
        if len(data) < _UNIT_HEAD.size:
            return _END
        at, size = _UNIT_HEAD.unpack(data)
        return int(at) if size else _END

    return key
