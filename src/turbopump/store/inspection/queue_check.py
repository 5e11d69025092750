"""One queue against the log: the units its files hold, and which of them the log's entries claimed.

The walk over the log says of every entry which unit it should have; ``claim`` compares. What no
entry claimed in the end is judged by itself (``unclaimed``). Both directions need one pass over the
log. Memory: one window of units, and the runs of indexes judged so far (one run for a queue without
faults). It must not know how entries are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.store.files import StoreFile
from turbopump.store.inspection.store_files import QueueFiles
from turbopump.store.queues.consume_queue import EXTENDED_TAGS_MAX, NO_MESSAGE_SIZE, UNIT, UNIT_SIZE
from turbopump.store.read_only_disk import ReadOnlyDisk, ReadOnlyFile

_SCAN_SIZE: Final = 1 << 20
_pack = UNIT.pack


class QueueUnits:
    """The units of a queue, read window by window. ``max_index`` is one past the last unit that is
    not zero."""

    def __init__(self, disk: ReadOnlyDisk, queue: QueueFiles, window_units: int = 4096) -> None:
        self._disk = disk
        self._files = queue.files
        self._window_size = window_units * UNIT_SIZE
        self.window = b""
        """Whole units from the index ``first`` on."""
        self.first = self._end = 0
        self.unreadable: OSError | None = None
        """Why units could not be read: they count as missing."""
        self.min_index = queue.files[0].start // UNIT_SIZE if queue.files else 0
        self.max_index = self._find_end()

    def read(self, index: int) -> bytes:
        """The bytes of a unit; empty where no file holds it, or where it cannot be read."""
        if not self.first <= index < self._end:
            self._move_window(index)
        at = (index - self.first) * UNIT_SIZE
        return self.window[at : at + UNIT_SIZE]

    def target(self, index: int) -> tuple[int, int]:
        """Offset and size of the entry that a unit points to; zeros where there is none."""
        offset, size, _ = UNIT.unpack_from(self.read(index) or bytes(UNIT.size))
        return offset, size

    def first_at(self, log_start: int) -> int:
        """The index of the first unit whose message is at or after ``log_start``: the queue's
        smallest offset (binary search)."""
        low, high = self.min_index, self.max_index
        while low < high:
            middle = (low + high) // 2
            unit = self.read(middle)
            offset, size, _ = UNIT.unpack_from(unit) if unit else (0, NO_MESSAGE_SIZE, 0)
            if offset < log_start or (offset, size) == (0, NO_MESSAGE_SIZE):
                low = middle + 1
            else:
                high = middle
        return low

    def _move_window(self, index: int) -> None:
        position = index * UNIT_SIZE
        self.first, self._end, self.window = index, index, b""
        for file in self._files:
            if file.start <= position < file.end:
                with self._disk.open_file(file.path) as opened:
                    data = self._try(
                        opened, position - file.start, min(self._window_size, file.end - position)
                    )
                count = len(data) // UNIT_SIZE
                self.window, self._end = data[: count * UNIT_SIZE], index + count
                return

    def _find_end(self) -> int:
        for file in reversed(self._files):
            used = self._bytes_used(file)
            if used:
                return (file.start + used + UNIT_SIZE - 1) // UNIT_SIZE
        return self.min_index

    def _bytes_used(self, file: StoreFile) -> int:
        """Bytes up to the last one that is not zero. Holes are not read."""
        used = 0
        with self._disk.open_file(file.path) as opened:
            at = opened.data_from(0)
            while at is not None and at < file.size:
                piece = self._try(opened, at, _SCAN_SIZE).rstrip(b"\0")
                if piece:
                    used = at + len(piece)
                at = opened.data_from(at + _SCAN_SIZE)
        return used

    def _try(self, file: ReadOnlyFile, at: int, size: int) -> bytes:
        try:
            return file.read(at, size)
        except OSError as error:
            self.unreadable = self.unreadable or error
            return b""


class IndexRuns:
    """A set of indexes, small as long as they come in order."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []
        self.start = self.next = -1
        self.first: int | None = None
        """The smallest index in the set."""

    def add(self, index: int) -> None:
        if index == self.next:
            self.next += 1
            return
        if self.start >= 0:
            self._runs.append((self.start, self.next))
        self.start, self.next = index, index + 1
        self.first = index if self.first is None else min(self.first, index)

    def gaps(self, low: int, high: int) -> Iterator[range]:
        """The ranges of ``low`` … ``high`` that are not in the set."""
        for start, end in sorted([*self._runs, (self.start, self.next)] if self.start >= 0 else []):
            if start > low:
                yield range(low, min(start, high))
            low = max(low, end)
            if low >= high:
                return
        if low < high:
            yield range(low, high)


class QueueCheck:
    """A queue under check. ``end`` is its max index when the check began: what comes later is not
    judged."""

    __slots__ = ("_begins_at", "_delayed", "end", "matched", "queue_id", "runs", "topic", "units")

    def __init__(self, disk: ReadOnlyDisk, files: QueueFiles, window_units: int) -> None:
        self.topic = files.topic
        self.queue_id = files.queue_id
        self.units = QueueUnits(disk, files, window_units)
        self.end = self.units.max_index
        self._delayed = self.topic == SCHEDULE_TOPIC
        self.matched = 0
        self._begins_at: int | None = None
        self.runs = IndexRuns()

    def begin(self, log_start: int) -> int:
        """The smallest index whose message the log still has."""
        return self.units.first_at(log_start)

    @property
    def begins_at(self) -> int:
        """Where the unit with the index 0 points; 0 if there is none."""
        if self._begins_at is None:
            offset, size = self.units.target(0) if not self.units.min_index else (0, 0)
            self._begins_at = offset if 0 < size < NO_MESSAGE_SIZE else 0
        return self._begins_at

    def oldest_at(self) -> int | None:
        """Where the oldest unit points; None if there is none."""
        for index in range(self.units.min_index, self.units.max_index):
            offset, size = self.units.target(index)
            if (offset, size) != (0, NO_MESSAGE_SIZE):  # a leading unit
                return offset if size > 0 else None
        return None

    def newest_at(self, log_end: int) -> int | None:
        """The log offset in the last unit that recovery will not cut. −1: there is no such unit;
        None: the files show no unit at all."""
        if not self.units.max_index:
            return None
        for index in range(self.units.max_index - 1, self.units.min_index - 1, -1):
            offset, size = self.units.target(index)
            if 0 <= offset < log_end and size > 0:
                return offset
        return -1

    def claim(
        self, index: int, offset: int, size: int, tags: int, stored_ms: int = 0
    ) -> str | None:
        """Compare unit ``index`` with the entry of the log that belongs to it. Return what is wrong
        with the unit, or None; an empty text: there is no such unit.

        A unit of the schedule topic holds the time of delivery: some delay after ``stored_ms``, and
        every delay is a number of seconds.
        """
        units, runs = self.units, self.runs
        at = (index - units.first) * UNIT_SIZE
        unit = units.window[at : at + UNIT_SIZE] if at >= 0 else b""
        # not in the window (or nowhere): nearly never, and a call saved every other time
        if not unit:
            unit = units.read(index)
        if index == runs.next:
            runs.next += 1
        else:
            runs.add(index)
        if unit == _pack(offset, size, tags):
            self.matched += 1
            return None
        if not unit or not any(unit):
            return ""
        found_offset, found_size, found_tags = UNIT.unpack(unit)
        if (found_offset, found_size) == (offset, size):
            if found_tags <= EXTENDED_TAGS_MAX or (
                self._delayed and found_tags >= stored_ms and (found_tags - stored_ms) % 1000 == 0
            ):
                self.matched += 1
                return None
            if self._delayed:
                return (
                    f"its time of delivery is {found_tags}, which is no delay level after "
                    f"{stored_ms}, when the message was stored"
                )
            return f"its tagsCode is {found_tags}, the message's {tags}"
        return (
            f"it holds offset {found_offset} size {found_size}; the message is at offset "
            f"{offset} size {size}"
        )

    def unclaimed(self) -> Iterator[range]:
        """The units from before the check that no entry of the log claimed, by their numbers."""
        return self.runs.gaps(self.units.min_index, self.units.max_index)
