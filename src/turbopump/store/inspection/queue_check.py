"""Check of one queue against the log: each unit must belong to a log entry, and each entry to a
unit.

The walk over the log calls ``claim_unit`` with the expected unit of each entry. Units that no entry
has claimed are reported afterwards (``unclaimed``). Both need one pass over the log. Memory: one
window of units, and the runs of checked indexes (one run for a queue without faults). The search
for entries is unknown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turbopump.disk.read_only_disk import ReadOnlyDisk, ReadOnlyFile
from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.store.files import StoreFile
from turbopump.store.inspection.store_files import QueueFiles
from turbopump.store.queues.consume_queue import EXTENDED_TAGS_MAX, NO_MESSAGE_SIZE, UNIT, UNIT_SIZE

_SCAN_SIZE: Final = 1 << 20
_pack = UNIT.pack


class QueueUnits:
    """Units of a consume queue, read from its files window by window.

    ``max_index`` is one past the last unit that is not zero.
    """

    def __init__(self, disk: ReadOnlyDisk, queue: QueueFiles, window_units: int = 4096) -> None:
        self._disk = disk
        self._files = queue.files
        self._window_size = window_units * UNIT_SIZE
        self.window = b""
        """Units from the index ``first`` on."""
        self.first = self._end = 0
        self.unreadable: OSError | None = None
        """First error of a read, or None. Units that cannot be read count as missing."""
        self.min_index = queue.files[0].start // UNIT_SIZE if queue.files else 0
        self.max_index = self._find_end()

    def read(self, index: int) -> bytes:
        """Return the bytes of one unit of the queue.

        The bytes are empty if no file contains the unit, or if it cannot be read.
        """
        if not self.first <= index < self._end:
            self._move_window(index)
        at = (index - self.first) * UNIT_SIZE
        return self.window[at : at + UNIT_SIZE]

    def target(self, index: int) -> tuple[int, int]:
        """Return the log offset and the size of the message to which a unit points.

        Both are 0 if there is no unit.
        """
        offset, size, _ = UNIT.unpack_from(self.read(index) or bytes(UNIT.size))
        return offset, size

    def first_at(self, log_start: int) -> int:
        """Return the index of the first unit whose message is at or after a log offset.

        For the start of the log, this is the smallest offset that consumers can read. The search is
        binary.
        """
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
        self.first = self._end = index
        self.window = b""
        for file in self._files:
            if file.start <= position < file.end:
                with self._disk.open_file(file.path) as opened:
                    data = self._read_or_note(
                        opened, position - file.start, min(self._window_size, file.end - position)
                    )
                count = len(data) // UNIT_SIZE
                self.window = data[: count * UNIT_SIZE]
                self._end = index + count
                return

    def _find_end(self) -> int:
        for file in reversed(self._files):
            used = self._bytes_used(file)
            if used:
                return (file.start + used + UNIT_SIZE - 1) // UNIT_SIZE
        return self.min_index

    def _bytes_used(self, file: StoreFile) -> int:
        """Return the position after the last byte of a file that is not zero.

        Holes are not read.
        """
        used = 0
        with self._disk.open_file(file.path) as opened:
            at = opened.data_from(0)
            while at is not None and at < file.size:
                piece = self._read_or_note(opened, at, _SCAN_SIZE).rstrip(b"\0")
                if piece:
                    used = at + len(piece)
                at = opened.data_from(at + _SCAN_SIZE)
        return used

    def _read_or_note(self, file: ReadOnlyFile, at: int, size: int) -> bytes:
        try:
            return file.read(at, size)
        except OSError as error:
            self.unreadable = self.unreadable or error
            return b""


class IndexRuns:
    """Set of unit indexes. It needs little memory if indexes are added in order."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []
        self.start = self.next = -1
        self.first: int | None = None
        """Smallest index in the set."""

    def add(self, index: int) -> None:
        if index == self.next:
            self.next += 1
            return
        if self.start >= 0:
            self._runs.append((self.start, self.next))
        self.start = index
        self.next = index + 1
        self.first = index if self.first is None else min(self.first, index)

    def gaps(self, low: int, high: int) -> Iterator[range]:
        """Yield the ranges of indexes missing from the set, from ``low`` to before ``high``."""
        runs = list(self._runs)
        if self.start >= 0:
            runs.append((self.start, self.next))
        for start, end in sorted(runs):
            if start > low:
                yield range(low, min(start, high))
            low = max(low, end)
            if low >= high:
                return
        if low < high:
            yield range(low, high)


class QueueCheck:
    """Consume queue whose units are compared with the log.

    ``end`` is the queue's max index at the start of the check. Later units are not checked.
    """

    __slots__ = ("_delayed", "end", "matched", "queue_id", "runs", "topic", "units")

    def __init__(self, disk: ReadOnlyDisk, files: QueueFiles, window_units: int) -> None:
        self.topic = files.topic
        self.queue_id = files.queue_id
        self.units = QueueUnits(disk, files, window_units)
        self.end = self.units.max_index
        self._delayed = self.topic == SCHEDULE_TOPIC
        self.matched = 0
        self.runs = IndexRuns()

    def first_index(self, log_start: int) -> int:
        """Return the smallest index in the queue whose message is still in the log."""
        return self.units.first_at(log_start)

    def claim_unit(
        self, index: int, offset: int, size: int, tags: int, stored_ms: int = 0
    ) -> str | None:
        """Compare a unit of the queue with its message in the log.

        Return the fault of the unit, an empty text if the unit is missing, or None if it is
        correct. A unit of the schedule topic has the time of delivery in place of the tags: some
        delay after ``stored_ms``. Every delay is a whole number of seconds.
        """
        units, runs = self.units, self.runs
        at = (index - units.first) * UNIT_SIZE
        unit = units.window[at : at + UNIT_SIZE] if at >= 0 else b""
        # outside of the window (or nowhere): rare, and the check saves a call in all other cases
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
                    f"its delivery time {found_tags} is no delay level after its store "
                    f"time {stored_ms}"
                )
            return f"its tagsCode is {found_tags}, the message's {tags}"
        return (
            f"it holds offset {found_offset} size {found_size}; the message is at offset "
            f"{offset} size {size}"
        )

    def unclaimed(self) -> Iterator[range]:
        """Yield the index ranges of units that no message in the log has claimed.

        Only units that existed before the check are included.
        """
        return self.runs.gaps(self.units.min_index, self.units.max_index)
