"""One queue of a topic with ``queue.type=BatchCQ`` against the log, as ``queue_check.py`` does it
for others.

Its units stand for entries of one or several messages, and lie one behind the other. A number
counts units, an index messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbopump.store.batch_consume_queue import BATCH_UNIT_SIZE, BatchUnit, batch_units
from turbopump.store.inspection.queue_check import IndexRuns, QueueUnits
from turbopump.store.inspection.store_files import QueueFiles
from turbopump.store.read_only_disk import ReadOnlyDisk


class BatchQueueCheck:
    """A queue under check. ``end`` is its max index when the check began: what comes later is not
    judged."""

    __slots__ = ("_next", "begins_at", "end", "matched", "queue_id", "runs", "topic", "units")

    def __init__(self, disk: ReadOnlyDisk, files: QueueFiles, window_units: int) -> None:
        self.topic = files.topic
        self.queue_id = files.queue_id
        self.units = QueueUnits(disk, files, window_units, BATCH_UNIT_SIZE)
        self.matched = 0
        self.begins_at: int | None = None
        """Where its first unit points, once somebody has asked (``next_start.first_unit_at``)."""
        self.runs = IndexRuns()
        self._next = self.units.min_index
        last = self.unit_at(self.units.max_index - 1)
        self.end = last.end if last is not None else 0

    def unit_at(self, number: int) -> BatchUnit | None:
        """The unit with this number; None where no file holds it."""
        raw = self.units.read(number) if number >= self.units.min_index else b""
        return batch_units(raw)[0] if raw else None

    def begin(self, log_start: int) -> int:
        """The smallest index whose message the log still has."""
        first = self.unit_at(self.units.first_at(log_start))
        return first.base if first is not None and first.size else self.end

    def claim(self, wanted: BatchUnit) -> str | None:
        """An entry of the log says that this is its unit: what is wrong with the one there, or
        None. Empty text: there is no unit."""
        number = self._next
        unit = self.unit_at(number)
        if unit is None or unit.base != wanted.base:
            number = self._number_of(wanted.base)
            unit = self.unit_at(number)
        if unit is None or unit.base != wanted.base or not unit.size:
            return ""
        self.runs.add(number)
        self._next = number + 1
        if unit == wanted:
            self.matched += 1
            return None
        if (unit.offset, unit.size) != (wanted.offset, wanted.size):
            return (
                f"it holds offset {unit.offset} size {unit.size}; the message is at offset "
                f"{wanted.offset} size {wanted.size}"
            )
        return (
            f"it says {unit.messages} messages, tagsCode {unit.tags_code}, {unit.stored_ms} "
            f"ms; the entry has {wanted[2:]}"
        )

    def unclaimed(self) -> Iterator[range]:
        """The numbers of the units that no entry of the log claimed."""
        return self.runs.gaps(self.units.min_index, self.units.max_index)

    def _number_of(self, index: int) -> int:
        low, high = self.units.min_index, self.units.max_index
        while low < high:
            middle = (low + high) // 2
            unit = self.unit_at(middle)
            if unit is not None and unit.base <= index:
                low = middle + 1
            else:
                high = middle
        return low - 1
