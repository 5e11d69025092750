"""Slow and endless check of the whole log. It finds damage while a copy of the lost data may still
exist.

Every entry gets the check of recovery and cold reads. Its unit in the consume queue is compared
with it, and rewritten if it is wrong. The log is not changed. The check blocks no other work:
``Scrub.step`` checks a slice of the bytes in memory, or starts a read in a thread. It returns the
time until its next call. Pages that were not in memory before are released again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.disk.disk import Disk, Found, Piece
from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.message.entry import queue_position, sys_flag_of
from turbopump.message.properties import SysFlag
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.cold_reads import ReadSteps, cached
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.stepped_walk import SLICE, SteppedWalk, WalkNumbers
from turbopump.store.queues.consume_queue import (
    EXTENDED_TAGS_MAX,
    NO_MESSAGE_SIZE,
    UNIT,
    UNIT_SIZE,
    unpack_unit,
)
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.repair.index_rebuild import IndexRebuild
from turbopump.store.repair.queue_rebuild import QueueRebuild

REST_S: Final = 24 * 3600.0
"""Shortest time between the starts of two passes, in seconds."""
REPORTED_MAX: Final = 1000
"""Largest number of findings that are reported and counted. ``turbopump store verify`` finds all of
them."""
FIRST_REST_S: Final = 60.0
"""Time from the start of the broker to the first pass, in seconds."""

_LOOK_AGAIN_S: Final = 60.0
_UNITS_AT_ONCE: Final = 200
_QUEUES_MAX: Final = 1000
_TAGS: Final = b"TAGS\x01"


@dataclass(slots=True)
class ScrubNumbers(WalkNumbers):
    """Numbers of one broker's scrub since its start: checked data, whole passes, and findings.

    - ``damaged_bytes``: size of the damaged ranges, each counted once.
    - ``wrong_units``: number of wrong queue units, which are repaired if they can be read.
    """

    passes: int = 0
    damaged_ranges: int = 0
    damaged_bytes: int = 0
    wrong_units: int = 0


class Scrub:
    """Endless check of a log and its queue units at a limited speed.

    - ``durable``: returns the offset before which the log no longer changes.
    - ``bytes_per_second``: the speed, which must be more than 0.
    - ``log_error``: gets a line for each finding, once.
    - ``on_damage``: gets each damaged range of the log, in each pass.
    """

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueueTable,
        durable: Callable[[], int],
        bytes_per_second: int,
        log_error: Callable[[str], None],
        rebuild: QueueRebuild,
        index: KeyIndex | None = None,
        log_info: Callable[[str], None] | None = None,
        on_damage: Callable[[int, int], object] = lambda _start, _end: None,
    ) -> None:
        assert bytes_per_second > 0
        self._on_damage = on_damage
        self._disk = disk
        self._log = log
        self._queues = queues
        self._durable = durable
        self._interval = SLICE / bytes_per_second
        self._log_error = log_error
        self._rebuild = rebuild
        self._reported: set[tuple[str, int, int]] = set()
        self._work: ReadSteps[None] | None = None
        self._found: list[Found] | None = []
        self._next_pass: float | None = None
        self._units: dict[tuple[str, int], tuple[int, bytes]] = {}
        self.numbers = ScrubNumbers()
        self._walk = SteppedWalk(
            log, self._check_unit, on_bad=self._report_range, numbers=self.numbers
        )
        self._indexes: IndexRebuild | None = None
        if index is not None:
            self._indexes = IndexRebuild(disk, log, index, log_error, log_info or log_error)

    def step(self, now: float) -> float:
        """Check the next slice of the log, and return the seconds until the next call.

        ``now`` is the monotonic time in seconds. A slice that is not in memory is read in a thread.
        """
        if self._work is None:
            if self._next_pass is None:
                self._next_pass = now + FIRST_REST_S
                return FIRST_REST_S
            if now >= self._next_pass:
                self._next_pass = now + REST_S
                self._work = self._whole_pass(self._durable())
            elif self._indexes is not None and self._indexes.is_due:
                self._work = self._indexes.fill_damaged()
            else:
                return min(self._next_pass - now, _LOOK_AGAIN_S)
            self._found = []
        if self._found is None:  # a thread is reading
            return self._interval
        found, self._found = self._found, []
        try:
            wanted = next(self._work) if not found else self._work.send(found)
            while wanted and (in_memory := cached(wanted)) is not None:
                wanted = self._work.send(in_memory)
        except StopIteration:
            self._work = None
            return self._interval
        if wanted:
            self._start_read(wanted)
        return self._interval

    def _start_read(self, pieces: list[Piece]) -> None:
        self._found = None

        def done(found: list[Found]) -> None:
            self._found = found
            for piece in pieces:
                # these pages were not in memory before
                piece.segment.evict(piece.at, piece.size)

        self._disk.start_read(pieces, done)

    def _whole_pass(self, end: int) -> ReadSteps[None]:
        indexes, position = self._indexes, self._log.start
        if indexes is not None:
            indexes.retry_failed()
        while True:
            # A pass over a large log takes hours. Damaged index files are not to wait for its end.
            if indexes is not None:
                yield from indexes.fill_damaged()
            if position >= end:
                break
            part_end = min(position + self._log.segment_size, end)
            position = yield from self._walk.entries(position, part_end)
        self.numbers.position = end
        self.numbers.passes += 1
        self._units.clear()

    def check_range(self, start: int, end: int) -> ReadSteps[None]:
        """Check only one range of the log, together with the queue units of its messages."""
        yield from self._walk.entries(start, end)

    def _check_unit(self, entry: bytes, position: int) -> ReadSteps[None]:
        """Check that the queue unit of an entry points to the entry, and repair a wrong unit."""
        # A unit is rewritten only if nothing explains its difference: the entry is in no queue, its
        # topic was deleted and made anew, the unit was trimmed, or it points to another good entry
        # of this very queue offset. The read may have taken a while. So the unit is compared again
        # with what was judged, in the turn in which it is overwritten.
        sys_flag = sys_flag_of(entry)
        if sys_flag & SysFlag.TRANSACTION_PREPARED:
            return  # prepared or rolled back: such an entry is in no queue
        topic, queue_id, index = queue_position(entry)
        queue = self._queues.find(topic, queue_id)
        if queue is not None and position < queue.deleted_until:
            return  # of a topic that was deleted, and made anew
        if queue is not None and index < queue.min_index:
            queue.lower_min(index)  # it pointed before the log's start: damage
        piece = queue.piece(index, _UNITS_AT_ONCE) if queue is not None else None
        if queue is None or piece is None:  # trimmed, or the topic was deleted
            return
        # The next entries of this queue need the units behind this one: one read of many units
        # serves them all.
        key = (topic, queue_id)
        first, units = self._units.get(key, (0, b""))
        at = (index - first) * UNIT_SIZE
        if not 0 <= at < len(units):
            (found,) = yield [piece]
            if isinstance(found, OSError) and index < queue.min_index:
                return  # trimmed meanwhile
            if isinstance(found, OSError):
                self._report_unit(
                    topic, queue_id, index, f"cannot be read ({found.strerror or found})", position
                )
                return
            if len(self._units) >= _QUEUES_MAX:
                self._units.clear()
            self._units[key] = (index, found)
            units = found
            at = 0
        offset, size, tags = unit = UNIT.unpack_from(units, at)
        if (offset, size) == (position, len(entry)):
            if (
                (tags == 0 and _TAGS not in entry)
                or tags <= EXTENDED_TAGS_MAX
                or topic == SCHEDULE_TOPIC
            ):
                return
        elif (offset, size) != (position, NO_MESSAGE_SIZE) and (  # a gap, mended since
            yield from self._rebuild.good_unit(queue, index)
        ) is not None:
            return  # the topic was deleted and made again
        packed = self._rebuild.unit_of(entry, position)
        queue = self._queues.find(topic, queue_id)
        if packed is None or queue is None or queue.unit(index) != unit:
            return  # changed since it was read
        right = unpack_unit(packed)
        if right == unit:
            return
        self._rebuild.write_unit(queue, index, packed)
        self.numbers.wrong_units += 1
        if self._is_new(topic, queue_id, index):
            if (offset, size) != right[:2]:
                what = f"points to {offset}, {size} bytes; its message is at {position}"
            else:
                what = f"has the tags code {tags}, and its message has {right[2]}"
            name = _unit_name(topic, queue_id, index)
            self._log_error(f"the scrub repaired {name}: it {what}")

    def _report_range(self, start: int, end: int, fault: str) -> None:
        self._on_damage(start, end)
        if self._is_new("", 0, start):
            self.numbers.damaged_ranges += 1
            self.numbers.damaged_bytes += end - start
            self._log_error(
                f"the scrub found bytes {start} to {end} of the commit log damaged: {fault}"
            )

    def _report_unit(self, topic: str, queue_id: int, index: int, what: str, position: int) -> None:
        if self._is_new(topic, queue_id, index):
            self.numbers.wrong_units += 1
            self._log_error(
                f"the scrub found that {_unit_name(topic, queue_id, index)} {what}; its "
                f"message is at {position} and is not delivered: stop the broker and "
                "remove the directory of that queue, and the next start writes it again"
            )

    def _is_new(self, topic: str, queue_id: int, at: int) -> bool:
        """Return True for a finding that was not reported before, and mark the finding as
        reported."""
        if (topic, queue_id, at) in self._reported or len(self._reported) >= REPORTED_MAX:
            return False
        self._reported.add((topic, queue_id, at))
        return True


def _unit_name(topic: str, queue_id: int, index: int) -> str:
    return f"unit {index} of the consume queue of {topic} queue {queue_id}"
