"""Rebuild of damaged parts of consume queues from the log, while the store is in use.

Units are derived data: a damaged unit must not hide a valid message. A reader that meets an
impossible unit marks it, and must ask again later. Then one walk over the log writes the units of
all marked queues again:

1. The damaged part of a queue lies between the nearest valid units on both sides of the marked
   one. The search doubles its distance each time: a damaged sector has 204 adjacent units, a
   damaged file all of its units.
2. The messages of a queue lie in the log in the order of the queue. So the log is walked between
   the messages of these two units, and each unit is written from its entry.
3. A unit without an entry in the log stays as it is: its message is damaged too. Readers pass over
   it. There is one exception: if the log has lost its front, and no valid unit lies before, the
   queue begins with the first message found.

The walk runs in small parts like cold reads (``cold_reads.py``), so that it blocks no other work.
It has a share of time of its own, so that readers of a backlog do not delay the rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import ne
from typing import Final

from turbopump.disk.disk import Piece
from turbopump.message.codec import entry_fault
from turbopump.message.entry import FIXED_SIZE, queue_position
from turbopump.message.properties import SysFlag
from turbopump.message.rules import LMQ_PREFIX
from turbopump.store.copied_log import pack_run
from turbopump.store.log.cold_reads import ColdReads, ReadState, ReadSteps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry, parse_entry
from turbopump.store.log.stepped_walk import SteppedWalk
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.checked_entries import REBUILDING
from turbopump.store.queues.consume_queue import (
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    pack_unit,
    unpack_unit,
)
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable

READ_SIZE: Final = 256 * 1024
"""Number of bytes of the log walked at a time, which takes about 0.2 ms for messages of 1 KiB."""
REBUILD_SHARE_PERCENT: Final = 16
"""Share of the broker's time for the walk while messages are sent. Sends then lose less than 20 %
of their rate."""
WITHOUT_MESSAGE_MAX: Final = 10_000
"""Largest number of remembered units without a message in the log."""


@dataclass(slots=True)
class DamagedPart:
    """Part of a consume queue between two valid units, with damaged units inside.

    - ``marked``: index of the unit that a reader found damaged.
    - ``first``, ``end``: indexes of the first unit, and of the unit after the last.
    - ``start``, ``stop``: log offsets between which the messages of these units lie.
    - ``found``: one byte for each unit, which is 1 after the walk has found the unit's message.
    """

    queue: ConsumeQueue
    marked: int
    first: int
    end: int
    start: int
    stop: int
    at_front: bool
    """True if no valid unit lies before the part."""
    found: bytearray
    rewritten: int = 0

    def put_units(self, index: int, units: bytes) -> None:
        """Write correct units into the damaged part. Only units that differ are overwritten.

        ``units`` are packed, and the first has the number ``index``. Units outside of the part are
        ignored. Raises OSError.
        """
        # One walk serves the parts of all queues, so it passes entries on both sides of this part:
        # messages of a deleted topic of the same name before it, and units behind its good end.
        # Neither may be written. Good units are compared first: an unchanged page is not made
        # dirty, and ``rewritten`` counts real damage.
        if unpack_unit(units, len(units) - UNIT_SIZE)[0] < self.start:
            return  # of a topic that was deleted, and made anew
        while units and (index < self.first or unpack_unit(units)[0] < self.start):
            index += 1
            units = units[UNIT_SIZE:]
        units = units[: max(self.end - index, 0) * UNIT_SIZE]
        while units and unpack_unit(units, len(units) - UNIT_SIZE)[0] >= self.stop:
            units = units[:-UNIT_SIZE]
        while units:
            there = self.queue.units(index, len(units) // UNIT_SIZE)
            if not there:
                return  # deleted meanwhile
            here = units[: len(there)]
            units = units[len(there) :]
            if there != here:
                self.queue.overwrite(index, here)
                self.rewritten += _differing(there, here)
            count = len(here) // UNIT_SIZE
            self.found[index - self.first : index - self.first + count] = b"\1" * count
            index += count

    def without_message(self) -> Iterator[int]:
        """Yield the indexes of units whose messages the walk has not found in the log.

        The marked unit and those behind it come first.
        """
        middle = self.marked - self.first
        for begin, end in ((middle, len(self.found)), (0, middle)):
            at = self.found.find(0, begin, end)
            while at >= 0:
                yield self.first + at
                at = self.found.find(0, at + 1, end)


def _differing(units: bytes, others: bytes) -> int:
    return sum(map(ne, UNIT.iter_unpack(units), UNIT.iter_unpack(others)))


@dataclass(slots=True, eq=False)
class QueueRebuild:
    """Rebuild of the damaged parts of consume queues from the log.

    - ``reads``: runs the walk over the log, and nothing else.
    - ``tags_of``: returns the tags code for the unit of a message.
    - ``log_error``: gets a line for each queue with rewritten units.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    reads: ColdReads
    tags_of: Callable[[ParsedEntry], int]
    log_error: Callable[[str], None]
    without_message: set[tuple[ConsumeQueue, int]] = field(default_factory=set)
    """Units whose messages a walk has not found in the log."""
    _marked: dict[ConsumeQueue, int] = field(default_factory=dict)
    """One damaged unit of each queue that waits for the next walk."""
    _parts: dict[tuple[str, int], DamagedPart] = field(default_factory=dict)
    """Parts that the present walk rebuilds."""
    _walking: bool = False
    _waiting: dict[Callable[[], object], None] = field(default_factory=dict)
    """Functions to call at the end of the present walk, in order."""
    _topics: dict[bytes, str] = field(default_factory=dict)
    """Names of all topics, by their bytes in entries."""
    _unread: OSError | None = None
    """Error that kept the present walk from reading everything, or None."""
    _error: OSError | None = None
    """Error that kept the last walk from reading everything, or None."""

    def mark_unit(self, queue: ConsumeQueue, index: int) -> str | None:
        """Mark a unit of a queue as damaged, so that it is rebuilt from the log.

        Return the reason why the message of the unit is not available now, or None if the log has
        no message for it.
        """
        if (queue, index) in self.without_message or queue.topic.startswith(LMQ_PREFIX):
            return None
        if (queue.topic, queue.queue_id) not in self._parts:
            self._marked.setdefault(queue, index)
        if not self._walking:
            self._begin_walk()
        if (queue, index) in self.without_message:
            return None
        if self._error is not None:
            why = self._error.strerror or self._error
            return f"the log cannot be read to rebuild the consume queue ({why}): check the disk"
        return REBUILDING

    def when_over(self, then: Callable[[], object]) -> bool:
        """Call a function at the end of the present walk over the log.

        Return False, without calling it, if there is no walk.
        """
        if self._walking:
            self._waiting[then] = None
        return self._walking

    def stop_waiting(self, then: Callable[[], object]) -> None:
        """Cancel the call of a function that was passed to ``when_over``."""
        self._waiting.pop(then, None)

    def write_unit(self, queue: ConsumeQueue, index: int, unit: bytes) -> None:
        """Overwrite one unit of a queue with a correct unit.

        Raises OSError.
        """
        queue.overwrite(index, unit)
        self.without_message.discard((queue, index))

    def unit_of(self, entry: bytes, offset: int) -> bytes | None:
        """Return the packed unit of a valid entry at a log offset, or None for an entry without a
        unit."""
        parsed = parse_entry(entry, offset)
        if parsed is None or parsed.sys_flag & SysFlag.TRANSACTION_PREPARED:
            return None
        return pack_unit(offset, parsed.size, self.tags_of(parsed))

    def _begin_walk(self) -> None:
        self._walking = True
        if (
            self.reads.run(self._rebuild_marked(), self._end_walk, failed=self._report_failure)
            is not ReadState.PENDING
        ):
            self._end_walk(None)  # the walk is over, or too many reads wait

    def _end_walk(self, _outcome: None) -> None:
        self._walking = False
        self._parts.clear()
        waiting, self._waiting = self._waiting, {}
        for then in waiting:
            then()

    def _report_failure(self, error: Exception) -> None:
        self.log_error(f"consume queues cannot be rebuilt now: {error!r}")
        self._end_walk(None)

    def _rebuild_marked(self) -> ReadSteps[None]:
        """Rebuild all marked queues, including queues marked during the rebuild."""
        # A queue that is marked during a walk waits for the next one: this walk may have passed its
        # messages already. A queue of this walk is not marked again, because its part reaches from
        # good unit to good unit. So the loop ends, although readers meet the same damage meanwhile.
        while self._marked:
            marked, self._marked = self._marked, {}
            for queue, index in marked.items():
                key = queue.topic, queue.queue_id
                self._parts[key] = yield from self._damaged_part(queue, index)
            walk = SteppedWalk(
                self.log,
                self._put_entry,
                on_run=self._put_run,
                on_unread=self._note_unread,
                read_size=READ_SIZE,
            )
            self._topics = {queue.topic.encode(): queue.topic for queue in self.queues}
            self._unread = None
            log_start = self.log.start
            start = min(part.start for part in self._parts.values())
            try:
                yield from walk.entries(start, max(part.stop for part in self._parts.values()))
            except OSError as error:  # from a queue's file
                self._unread = error
            self._error = self._unread
            for part in self._parts.values():
                self._finish_part(part, log_start)
            self._parts.clear()

    def _put_run(self, data: bytes, at: int, stop: int, position: int) -> int:
        run = pack_run(data, at, stop, position, self._topics)
        for topic, queue_id, index, units in run.queues:
            part = self._parts.get((topic, queue_id))
            if part is not None:
                part.put_units(index, units)
        return run.size

    def _put_entry(self, entry: bytes, offset: int) -> None:
        topic, queue_id, index = queue_position(entry)
        part = self._parts.get((topic, queue_id))
        if part is None:
            return
        unit = self.unit_of(entry, offset)
        if unit is not None:
            part.put_units(index, unit)

    def _note_unread(self, file: MappedFile, offset: int, error: OSError) -> None:
        if not self.reads.is_lost(file.segment.path.parent, offset):
            self._unread = error

    def _finish_part(self, part: DamagedPart, log_start: int) -> None:
        """Log the result for a rebuilt part, and remember its units without a message."""
        # A unit without an entry counts as "no message" for ever, and readers pass over it. This
        # needs proof: every byte between the two good units was read, and retention has not moved
        # the start of the log since the walk began.
        queue = part.queue
        if part.rewritten:
            self.log_error(
                f"damaged units of the consume queue of {queue.topic} queue {queue.queue_id} "
                f"were rebuilt from the log units={part.rewritten} round={part.marked}"
            )
        if self._error is not None or self.log.start != log_start:
            return  # another walk may find the missing entries
        if part.at_front and log_start > 0:
            first = part.found.find(1)
            begin = part.first + first if first >= 0 else part.end
            queue.min_index = max(queue.min_index, begin)
        if len(self.without_message) >= WITHOUT_MESSAGE_MAX:
            self.without_message.clear()
        for index in part.without_message():
            if len(self.without_message) >= WITHOUT_MESSAGE_MAX:
                break
            self.without_message.add((queue, index))

    def _damaged_part(self, queue: ConsumeQueue, index: int) -> ReadSteps[DamagedPart]:
        """Return the part of a queue around a damaged unit, up to a valid unit on each side.

        Each valid unit is about the nearest. The one before is included, because zeros behind it
        may have overwritten the end of its tags.
        """
        log = self.log
        before = yield from self._good_neighbour(queue, index, -1)
        behind = yield from self._good_neighbour(queue, index, 1)
        first, start = before or (queue.min_index, max(log.start, queue.deleted_until))
        end, stop = behind or (queue.max_index, log.end)
        found = bytearray(max(end - first, 0))
        return DamagedPart(queue, index, first, end, start, stop, before is None, found)

    def _good_neighbour(
        self, queue: ConsumeQueue, index: int, direction: int
    ) -> ReadSteps[tuple[int, int] | None]:
        """Return the index and the log offset of a valid unit near a damaged unit, or None.

        ``direction`` is −1 to search before the damaged unit, and 1 to search behind it.
        """
        distance = 1
        while True:
            border = queue.min_index if direction < 0 else queue.max_index - 1
            number = index + direction * distance
            if (number - border) * direction > 0:
                number = border
            if number != index:
                offset = yield from self.good_unit(queue, number)
                if offset is not None:
                    return number, offset
            if number == border:
                return None
            distance *= 2

    def good_unit(self, queue: ConsumeQueue, index: int) -> ReadSteps[int | None]:
        """Return the log offset in a unit of a queue, or None if the unit is not valid.

        A unit whose message is damaged is not valid.
        """
        log, piece = self.log, queue.piece(index, 1)
        if piece is None:
            return None
        (unit,) = yield [piece]
        if not isinstance(unit, bytes):
            return None
        offset, size, _ = unpack_unit(unit)
        file = log.files.at(offset) if 0 <= offset < log.end else None
        if file is None or not FIXED_SIZE <= size <= min(ENTRY_SIZE_MAX, file.end - offset):
            return None
        (entry,) = yield [Piece(file.segment, offset - file.start, size)]
        if not isinstance(entry, bytes):
            return None
        if entry_fault(entry, offset, crc_required=log.requires_crc(offset)) is not None:
            return None
        wanted = queue.topic, queue.queue_id, index
        return offset if queue_position(entry) == wanted else None
