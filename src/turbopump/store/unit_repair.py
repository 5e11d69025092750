"""Putting right the units of a queue that do not point to its messages, from the log, which has
them.

Units are derived data: a damaged one must not hide a message that is good. The messages of a queue
lie in the log in the order of the queue, so a message lies between those of the nearest good units
on either side of its own:

1. These are looked for at distances that double: a damaged sector has 204 units side by side, a
   damaged file all of them.
2. The log between is searched for heads that name the queue. Each entry that is whole and belongs
   there gets its unit written again.
3. If the one that was asked for is not among them, then it is the message that is damaged, and its
   unit stays as it is. But where the log lost its front, and all that is left of the queue comes
   behind it, then it was trimmed: the queue begins behind it.

The rule: it is done in steps (``cold_reads.py``), for there may be much between; once for each
queue at a time, and once for each message that is not found. What it did is reported, a line for
each search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from turbopump.message.sysflag import SysFlag
from turbopump.store.batch_consume_queue import BatchConsumeQueue
from turbopump.store.batch_unit import BatchUnit
from turbopump.store.batch_unit_repair import BatchSearch, unit_of_mark
from turbopump.store.cold_reads import IsLost, Steps
from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.disk import Found
from turbopump.store.entry_mark import EntryMark, read_mark
from turbopump.store.log_search import LogSearch
from turbopump.store.mapped_file import MappedFile
from turbopump.store.question import answer

LMQ_PREFIX: Final = "%LMQ%"
"""Begins the names of Apache's light queues, whose units point to messages of other topics."""
SEARCHED_MAX: Final = 10_000
"""Messages remembered as not to be found."""


class Unit(NamedTuple):
    """A unit of a queue whose message is wanted: its queue offset, and where in the log it says
    that the message is."""

    queue_offset: int
    offset: int
    size: int


class Repaired(NamedTuple):
    """What a search came to: the ``entry`` that was looked for, and where it lies; None if it was
    not found, because of ``error`` if that is not None."""

    entry: bytes | None
    offset: int = -1
    error: OSError | None = None


class UnitRepair:
    """Repairs queues over ``log``. ``tags_of`` is the tagsCode of an entry's unit. ``report`` gets
    a line for each search that found units to be wrong."""

    def __init__(
        self, log: CommitLog, tags_of: Callable[[EntryMark], int], report: Callable[[str], None]
    ) -> None:
        self._log = log
        self._tags_of = tags_of
        self._report = report
        self._under_way: set[tuple[str, int]] = set()
        self._not_found: set[tuple[str, int, int]] = set()

    def unit_of(self, entry: bytes, offset: int) -> tuple[int, int, int] | None:
        """What the unit of a good entry at this offset of the log holds; None if it has none."""
        mark = read_mark(entry, offset) if not entry[39] & SysFlag.TRANSACTION_PREPARED else None
        return (offset, len(entry), self._tags_of(mark)) if mark is not None else None

    def message_of(
        self, queue: ConsumeQueue, unit: Unit, is_lost: IsLost = lambda _directory, _offset: True
    ) -> Steps[Repaired]:
        """The message to which ``unit`` of the queue should point and does not. The unit, and what
        else is wrong round it, is repaired. ``is_lost`` says of what cannot be read whether to do
        without it."""
        place, key = (queue.topic, queue.queue_id), (queue.topic, queue.queue_id, unit.queue_offset)
        if key in self._not_found or queue.topic.startswith(LMQ_PREFIX):
            return Repaired(None)
        if place in self._under_way:
            return Repaired(
                None,
                error=OSError(0, "its unit in the consume queue is damaged and is being repaired"),
            )
        self._under_way.add(place)
        try:
            search: _Search | BatchSearch
            if isinstance(queue, BatchConsumeQueue):
                search = BatchSearch(self._log, queue, unit.queue_offset, self._tags_of, is_lost)
            else:
                search = _Search(self._log, queue, unit.queue_offset, self.unit_of, is_lost)
            yield from search.run()
        finally:
            self._under_way.discard(place)
        if search.repaired:
            self._report(_told(queue, unit, search))
        if search.wanted is None and search.error is None:
            self._remember(key)
        return Repaired(search.wanted, search.wanted_offset, search.error)

    def mend(
        self,
        queue: BatchConsumeQueue,
        is_lost: IsLost = lambda _directory, _offset: True,
        number: int | None = None,
    ) -> Steps[int]:
        """Repair the units of a batch queue round ``number``, or every one that does not follow the
        one before it; how many there were."""
        if (queue.topic, queue.queue_id) in self._under_way:
            return 0
        search = BatchSearch(self._log, queue, -1, self._tags_of, is_lost)
        yield from self._alone(
            search, search.mend() if number is None else search.repair_round(number)
        )
        if number is None:
            self._report_mended(search, queue)
        return search.repaired

    def put_right(
        self, queue: BatchConsumeQueue, index: int, number: int, is_lost: IsLost
    ) -> Steps[OSError | None]:
        """Repair the units of a batch queue round ``number``, of which the message ``index`` is
        wanted, and every one that does not follow the one before it; why that cannot be done now.
        What could not be repaired once is not tried again for the same message."""
        key = (queue.topic, queue.queue_id, index)
        if key[:2] in self._under_way:
            return OSError(0, "its units in the consume queue are damaged and are being repaired")
        if key in self._not_found and not queue.suspect:
            return None
        search = BatchSearch(self._log, queue, -1, self._tags_of, is_lost)

        def both() -> Steps[None]:
            if not queue.suspect:
                yield from search.repair_round(number)
            yield from search.mend()

        yield from self._alone(search, both())
        self._report_mended(search, queue)
        if not search.repaired and search.error is None:
            self._remember(key)
        return search.error

    def settle_fronts(self, queues: Iterable[ConsumeQueue]) -> None:
        """See, at a start, that each batch queue begins with the first of its messages that the log
        has. Waits for the disk; it costs two looks a queue where nothing is damaged."""
        batches = [queue for queue in queues if isinstance(queue, BatchConsumeQueue)]
        first = self._log.entry_at(self._log.start) if batches else None
        for queue in batches:
            search = BatchSearch(
                self._log, queue, -1, self._tags_of, lambda _directory, _offset: True
            )
            answer(search.settle_front(first.store_timestamp if first is not None else 1 << 62))
            self._report_mended(search, queue)

    def _alone(self, search: BatchSearch, steps: Steps[Any]) -> Steps[None]:
        """Do it while nobody else repairs the same queue."""
        self._under_way.add(search.place)
        try:
            yield from steps
        finally:
            self._under_way.discard(search.place)

    def _report_mended(self, search: BatchSearch, queue: BatchConsumeQueue) -> None:
        if search.repaired:
            name = f"the consume queue of {queue.topic} queue {queue.queue_id}"
            self._report(
                f"{search.repaired} units of {name} were damaged; they are repaired from the log"
            )

    def _remember(self, key: tuple[str, int, int]) -> None:
        if len(self._not_found) >= SEARCHED_MAX:
            self._not_found.clear()
        self._not_found.add(key)

    def good_unit(
        self, queue: BatchConsumeQueue, number: int, is_lost: IsLost
    ) -> Steps[BatchUnit | None]:
        """The unit of this number, if the log has its entry where it says."""
        return (yield from BatchSearch(self._log, queue, -1, self._tags_of, is_lost).good(number))

    def batch_unit_of(self, entry: bytes, offset: int) -> BatchUnit | None:
        """What the unit of a good entry at this offset of the log holds in a batch queue; None if
        it has none."""
        mark = read_mark(entry, offset) if not entry[39] & SysFlag.TRANSACTION_PREPARED else None
        return unit_of_mark(mark, self._tags_of(mark)) if mark is not None else None


def _told(queue: ConsumeQueue, unit: Unit, search: LogSearch) -> str:
    name = f"the consume queue of {queue.topic} queue {queue.queue_id}"
    if search.wanted is not None and search.repaired == 1:
        return (
            f"unit {unit.queue_offset} of {name} was damaged: it pointed to {unit.offset}, "
            f"{unit.size} bytes; it is repaired, "
            f"its message is at {search.wanted_offset}"
        )
    return (
        f"{search.repaired} units of {name} round unit {unit.queue_offset} were damaged; they "
        "are repaired from the log"
    )


class _Search(LogSearch):
    """One search for the message of ``index``, and for those of the units round it that may be
    damaged too."""

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        index: int,
        unit_of: Callable[[bytes, int], tuple[int, int, int] | None],
        is_lost: IsLost,
    ) -> None:
        super().__init__(log, queue, index, is_lost)
        self._unit_of = unit_of
        self._first = queue.max_index
        """The first message that was found."""
        self._all_read = True

    def run(self) -> Steps[None]:
        log, queue = self._log, self._queue
        before = yield from self._neighbour(-1)
        after = yield from self._neighbour(1)
        low, start = (
            (before.queue_offset, before.offset + before.size)
            if before is not None
            else (-1, log.start)
        )
        high, end = (
            (after.queue_offset, after.offset) if after is not None else (queue.max_index, log.end)
        )
        log_start = log.start
        yield from self.walk(low, high, start, end)
        if before is None and self.wanted is None and self._all_read and 0 < log_start == log.start:
            self._begin_behind(after)

    def _failed(self, error: OSError, file: MappedFile, position: int) -> None:
        self._all_read = False
        super()._failed(error, file, position)

    def _begin_behind(self, after: Unit | None) -> None:
        """Nothing of the queue lies before the first message found in a log that lost its front:
        there the queue begins, if that is behind the message that was looked for, which then is one
        of those that are gone."""
        first = min(self._first, after.queue_offset if after is not None else self._queue.max_index)
        if self._index < first:
            self._queue.min_index = max(self._queue.min_index, first)

    def _take(
        self, file: MappedFile, offset: int, size: int, index: int, entry: Found
    ) -> Steps[None]:
        """Let the unit point to the entry, if it is whole and the queue's."""
        queue = self._queue
        whole = yield from self._whole(file, offset, size, index, entry)
        if whole is None or not queue.min_index <= index < queue.max_index:
            return
        unit, there = self._unit_of(whole, offset), queue.unit(index)
        if unit is None or there is None:  # the queue was deleted meanwhile
            return
        self._first = min(self._first, index)
        if there != unit:
            queue.rewrite(index, *unit)
            self.repaired += 1
        if index == self._index:
            self.wanted, self.wanted_offset = whole, offset

    def _neighbour(self, direction: int) -> Steps[Unit | None]:
        """The nearest unit before or behind that is known to be good, or about the nearest; None if
        there is none."""
        queue, distance = self._queue, 1
        while True:
            border = queue.min_index if direction < 0 else queue.max_index - 1
            index = self._index + direction * distance
            if (index - border) * direction > 0:
                index = border
            if index == self._index:
                return None
            unit = yield from self._good_unit(index)
            if unit is not None or index == border:
                return unit
            distance *= 2

    def _good_unit(self, index: int) -> Steps[Unit | None]:
        unit = yield from self._read(self._queue.piece(index, 1))
        if len(unit) != UNIT_SIZE:
            return None
        offset, size = (
            int.from_bytes(unit[:8], signed=True),
            int.from_bytes(unit[8:12], signed=True),
        )
        return (
            Unit(index, offset, size) if (yield from self._entry_of(offset, size, index)) else None
        )
