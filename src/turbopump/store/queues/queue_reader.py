"""Reads of a queue: the messages for a pull, and the next offset.

Every read has the same four steps:

1. Select units: adjacent ones in the queue (``_neighbours``), or those that a filter accepts
   (``_select``).
2. Fetch the pieces of the log to which they point. Recent writes of this process are in the map.
   All others are in the page cache, or a thread reads them (``cold_reads.py``).
3. Gather the entries, and check them (``gather``). The CRC is checked unless they are from the map.
4. Judge the remaining entries one by one: they may be damaged (``checked_entries.py``).

Source of the rules and limits: apache/rocketmq ``DefaultMessageStore.getMessage``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from turbopump.disk.disk import Found, Piece
from turbopump.message.entry import FIXED_SIZE
from turbopump.store.log.cold_reads import ColdReads, ReadSteps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.queues.checked_entries import (
    PIECE_SIZE_MAX,
    REBUILDING,
    MarkDamaged,
    ReadContext,
    Unit,
    checked_entries,
    entry_fields,
    gather,
)
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.matching import PropertyFilter, read_matching
from turbopump.store.queues.read_result import GetResult, GetStatus, ReadLimits, unreadable_text

SCAN_SIZE: Final = 16_000
"""Smallest number of bytes of queue units that a read with a tag filter examines."""

GAP_SCAN: Final = 10_000
"""Largest number of units of damaged messages that one read passes over."""

_UNITS_HOT: Final = 2_000_000
"""Number of units at the end of a queue that count as in memory, if this process wrote them."""

_NEIGHBOURS: Final = 32
"""Number of messages that one read fetches if one piece of a file holds them, whatever the gaps
between them."""

_UNITS_AHEAD: Final = 512
"""Number of units read together, 10 KB. They serve 16 usual reads."""
_QUEUES_AHEAD_MAX: Final = 256
"""Largest number of queues whose units are read ahead: at most 2.6 MB."""

TagsFilter = Callable[[int], bool] | None
"""Returns True if a tag code is accepted. None accepts all."""


class QueueReader:
    """Reads the messages of all queues of a store."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        limits: ReadLimits,
        reads: ColdReads,
        mark_damaged: MarkDamaged,
        monotonic: Callable[[], float],
    ) -> None:
        self._context = ReadContext(log, limits, mark_damaged, reads.is_lost)
        self._queues = queues
        self._reads = reads
        self._monotonic = monotonic

    def open_at(self, log_end: int, *, after_crash: bool) -> None:
        """Record that this process writes the log from ``log_end`` on.

        ``after_crash`` is True if a crash may have lost messages behind that offset.
        """
        self._context.opened_at = log_end
        self._context.after_crash = after_crash

    def get(
        self, topic: str, queue_id: int, offset: int, count_max: int, accept: TagsFilter = None
    ) -> GetResult:
        """Return messages of a queue, and wait for the disk if they are not in memory.

        ``read_messages`` describes arguments and result.
        """
        return self._reads.finish(self.steps(topic, queue_id, offset, count_max, accept))

    def at_once(
        self, topic: str, queue_id: int, offset: int, count_max: int, size_max: int | None = None
    ) -> GetResult | None:
        """Return messages of a queue without waiting for the disk. Return None if that is not
        possible.

        The messages are in the map of the log, or they are in memory and no other read waits.
        Nearly every read without a filter ends here. After None, use ``steps``.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        context = self._context_for(count_max, size_max)
        try:
            result = _read_hot(queue, context, offset, count_max)
        except OSError:  # from a queue file that is not mapped
            return None
        # A reader is often at the end, and its pull will be held: there is nothing to read.
        if result is not None or not queue.min_index <= offset < queue.end.value:
            return result
        return self._reads.at_once(_read_neighbours(queue, context, offset, count_max))

    def _context_for(self, count_max: int, size_max: int | None) -> ReadContext:
        """Return the settings for a read of this many messages and bytes.

        Java's clients ask for all bytes, but for few messages, so they get the usual limits.
        """
        context = self._context
        limits = context.limits
        if size_max is None or size_max <= limits.bytes_hot or count_max <= limits.count_hot:
            return context
        return context.for_large_read(count_max, size_max)

    def steps(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        accept: TagsFilter = None,
        matches: PropertyFilter | None = None,
        size_max: int | None = None,
    ) -> ReadSteps[GetResult]:
        """Return a read in steps. ``read_messages`` describes its arguments and its result.

        - ``matches``: filter of properties. After about 1 ms of filtering other reads run.
        - ``size_max``: number of bytes wanted. A read for more than the usual limits gets the
          limits of ``ReadContext.for_large_read``.
        """
        context = self._context_for(count_max, size_max)
        if matches is None:
            queue = self._queues.find(topic, queue_id)
            return read_messages(queue, context, offset, count_max, accept)
        most = context.limits.count_hot

        def part(at: int) -> ReadSteps[GetResult]:
            return self.steps(topic, queue_id, at, most, accept, size_max=size_max)

        return read_matching(part, offset, min(count_max, most), matches, self._monotonic)


def read_messages(
    queue: ConsumeQueue | None,
    context: ReadContext,
    offset: int,
    count_max: int,
    accept: TagsFilter = None,
) -> ReadSteps[GetResult]:
    """Return messages of a queue, beginning at ``offset``. ``accept`` selects messages by their
    tags codes.

    The read never splits a message, and returns at least one if possible.
    """
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    try:
        result = yield from _read(queue, context, offset, count_max, accept)
        if result.unreadable is REBUILDING:  # a short rebuild is over at once
            result = yield from _read(queue, context, offset, count_max, accept)
        return result
    except OSError as error:
        return _unreadable(queue, offset, error)


def _unreadable(queue: ConsumeQueue, offset: int, error: OSError) -> GetResult:
    """Return the result for a queue file that cannot be opened or read."""
    result = GetResult(GetStatus.OFFSET_FOUND_NULL, offset, queue.min_index, queue.end.value)
    result.unreadable = unreadable_text(error, "the queue")
    return result


def _read(
    queue: ConsumeQueue, context: ReadContext, offset: int, count_max: int, accept: TagsFilter
) -> ReadSteps[GetResult]:
    outside = _outside(queue, offset, after_crash=context.after_crash)
    if outside is not None:
        return outside
    if accept is None:
        result = _read_hot(queue, context, offset, count_max)
        if result is None:
            result = yield from _read_neighbours(queue, context, offset, count_max)
        if result is not None:
            return result
    return (yield from _read_selected(queue, context, offset, count_max, accept))


def _outside(queue: ConsumeQueue, offset: int, *, after_crash: bool) -> GetResult | None:
    """Return the result of a read at an offset outside of the queue. Return None for an offset
    inside.

    A reader beyond the end after a crash has read messages that the crash lost. New messages reuse
    their offsets, so the reader restarts at the queue's end when the store was opened. Without a
    crash, the messages beyond the visible end may be unconfirmed: a slave shows a message before
    its master learns that the slave has it.
    """
    low, high = queue.min_index, queue.end.value
    if high < offset <= queue.max_index and not after_crash:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, high, low, high)
    if offset > high:
        end = max(min(queue.opened_at, high), low) if after_crash else high
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, end, low, high)
    return None


# --- Adjacent units, whose messages nearly always lie close together in one segment.


class _Stretch(NamedTuple):
    """Range of the log with the messages of adjacent queue units.

    - ``piece``: range in the file.
    - ``start``: log offset of the range.
    - ``wanted``, ``size_max``: largest numbers of messages and bytes to return.
    """

    piece: Piece
    start: int
    wanted: int
    size_max: int


def _read_hot(
    queue: ConsumeQueue, context: ReadContext, index: int, count_max: int
) -> GetResult | None:
    """Return recent messages of a queue from the map of the log, or None if that is not possible.

    This process must have written the messages. The result ends with the segment of the first
    message. Nearly every read of recent messages ends here.
    """
    high = queue.end.value
    limits = context.limits
    if not max(_hot_index(queue), queue.min_index) <= index < high:
        return None
    count = min(max(count_max, 1), limits.count_hot)
    units = queue.units(index, min(count, high - index))
    offset = int.from_bytes(units[:8])
    segment = context.log.files.at(offset) if units and offset >= context.hot_from else None
    if segment is None:
        return None
    data, count = gather(
        units,
        count,
        limits.bytes_hot,
        segment.buffer,
        segment.start,
        index,
        *entry_fields(queue.queue_id, queue.topic),
        False,
    )
    if not count:
        return None
    return GetResult(GetStatus.FOUND, index + count, queue.min_index, high, data, count)


def _read_neighbours(
    queue: ConsumeQueue, context: ReadContext, index: int, count_max: int
) -> ReadSteps[GetResult | None]:
    """Read messages that lie close together in the log, with one read of a file.

    Return None if they lie apart, or if one is not valid. Nearly every read of a backlog ends here.
    """
    count_max = context.count_of(count_max)
    units = yield from _units(queue, context, index, count_max)
    if isinstance(units, OSError):
        return None
    stretch = _neighbours(queue, context, index, units, count_max)
    if stretch is None:
        return None
    (found,) = yield [stretch.piece]
    if isinstance(found, OSError):
        return None
    _, start, wanted, size_max = stretch
    fields = entry_fields(queue.queue_id, queue.topic)
    data, count = gather(units, wanted, size_max, found, start, index, *fields, True)
    if count < wanted:  # either no more fit, or the next one is not good
        _, size, _ = UNIT.unpack_from(units, count * UNIT_SIZE)
        if size == NO_MESSAGE_SIZE or len(data) + size <= size_max or not count:
            return None
    low, high = queue.min_index, queue.end.value
    return GetResult(GetStatus.FOUND, index + count, low, high, data, count)


def _neighbours(
    queue: ConsumeQueue, context: ReadContext, index: int, units: bytes, count_max: int
) -> _Stretch | None:
    """Return the range of the log with the messages of these units.

    Return None if they do not lie close together in one segment.
    """
    log = context.log
    if not units or index < queue.min_index:  # retention may have been at work meanwhile
        return None
    first, _, _ = UNIT.unpack_from(units)
    file = log.files.at(first) if first < log.end and log.requires_crc(first) else None
    if file is None:
        return None
    limits = context.limits
    if first >= log.end - limits.hot_size:
        count, size_max = limits.count_hot, limits.bytes_hot
    else:
        count, size_max = limits.count_cold, limits.bytes_cold
    count = min(count_max, count, len(units) // UNIT_SIZE)
    if count > _NEIGHBOURS:
        count = _within_a_piece(units, count, first)
    # The read ends before the first hot message, because the next read gets that from the map. If
    # the first message is hot itself, ``_read_hot`` has not returned it, because its bytes in the
    # map did not fit its unit. Then it is read here, alone.
    hot_index = _hot_index(queue)
    while True:
        last, size, _ = UNIT.unpack_from(units, (count - 1) * UNIT_SIZE)
        if count == 1 or last < context.hot_from or index + count <= hot_index:
            break
        count -= 1
    span = last + size - first
    if not 0 < span <= min(PIECE_SIZE_MAX, file.end - first):
        return None
    return _Stretch(Piece(file.segment, first - file.start, span), first, count, size_max)


def _within_a_piece(units: bytes, count: int, first: int) -> int:
    """Return the number of messages that end within ``PIECE_SIZE_MAX`` bytes from ``first`` on.

    It is at least ``_NEIGHBOURS``. The units must be in log order, as they are written.
    """

    def end(number: int) -> int:
        offset, size, _ = UNIT.unpack_from(units, number * UNIT_SIZE)
        return int(offset + size)

    return bisect_right(range(count), first + PIECE_SIZE_MAX, lo=_NEIGHBOURS, key=end)


# --- Any units: a filter leaves some out, or they lie apart, are gaps, or are damaged.


class _SelectedUnits(NamedTuple):
    """Queue units selected for one read.

    - ``units``: selected units in order.
    - ``next_index``: index behind the last examined unit.
    - ``gaps``: number of units without a message that were passed over.
    """

    units: list[Unit]
    next_index: int
    gaps: int


def _read_selected(
    queue: ConsumeQueue, context: ReadContext, offset: int, count_max: int, accept: TagsFilter
) -> ReadSteps[GetResult]:
    """Return the messages that ``accept`` selects. They may lie anywhere in the log.

    The read also reports damaged messages, and marks damaged units.
    """
    count_max = context.count_of(count_max)
    scan = count_max
    if accept is not None:
        scan = max(SCAN_SIZE // UNIT_SIZE, count_max)
    scan = min(scan, queue.end.value - offset)
    hot = _is_hot(queue, offset, context.hot_from)
    if hot:
        units = queue.units(offset, scan)
    else:
        found = yield from _units(queue, context, offset, scan)
        # retention may have been at work meanwhile
        outside = _outside(queue, offset, after_crash=context.after_crash)
        if outside is not None:
            return outside
        if isinstance(found, OSError):
            return _unreadable(queue, offset, found)
        units = found
    high = queue.end.value
    if not units:
        return GetResult(GetStatus.OFFSET_FOUND_NULL, offset, queue.min_index, high)
    selected = _select(units, offset, queue, context, count_max, accept, hot=hot)
    checked = yield from checked_entries(selected.units, queue, context, hot=hot)
    result = GetResult(
        GetStatus.NO_MATCHED_MESSAGE, selected.next_index, queue.min_index, queue.end.value
    )
    result.gaps = selected.gaps + len(checked.damages)
    checked.put_into(result)
    if result.gaps and not result.count and result.unreadable is None:
        behind = yield from _behind_gaps(queue, result.next_offset, high)
        result.status = GetStatus.MESSAGE_WAS_REMOVING
        result.gaps += behind - result.next_offset
        result.next_offset = behind
    return result


def _is_hot(queue: ConsumeQueue, index: int, hot_from: int) -> bool:
    """Return True if this process wrote the message at this index recently.

    Then it also wrote all later messages of the queue.
    """
    if index < _hot_index(queue):
        return False
    unit = queue.unit(index)
    return unit is not None and unit[0] >= hot_from


def _hot_index(queue: ConsumeQueue) -> int:
    """Return the index of the first hot unit. This process wrote the hot units, and they count as
    in memory."""
    return max(queue.opened_at, queue.max_index - _UNITS_HOT)


def _units(queue: ConsumeQueue, context: ReadContext, index: int, count: int) -> ReadSteps[Found]:
    """Return packed units of a queue from ``index`` on, ``count`` at most.

    More units are read at once, and kept for the next reads of a backlog.
    """
    # A unit may have changed since it was read ahead. If it was good, its message is checked like
    # any other. If it was damaged, ``checked_entries`` drops the units read ahead with it.
    count = min(count, queue.end.value - index)
    first, units = context.units_ahead.get(queue, (index, b""))
    at = (index - first) * UNIT_SIZE
    end = at + count * UNIT_SIZE
    if at >= 0 and end <= len(units):
        return units[at:end]
    found = yield from _read_units(queue, index, max(count, _UNITS_AHEAD))
    if isinstance(found, OSError):
        return found
    if len(context.units_ahead) >= _QUEUES_AHEAD_MAX:
        context.units_ahead.clear()
    units = bytes(found)  # from a view, in ``ColdReads.at_once``
    context.units_ahead[queue] = index, units[: _UNITS_AHEAD * UNIT_SIZE]
    return units[: count * UNIT_SIZE]


def _read_units(queue: ConsumeQueue, index: int, count: int) -> ReadSteps[Found]:
    piece = queue.piece(index, min(count, queue.end.value - index))
    if piece is None:
        return b""
    (found,) = yield [piece]
    return found


def _select(
    units: bytes,
    index: int,
    queue: ConsumeQueue,
    context: ReadContext,
    count_max: int,
    accept: TagsFilter,
    *,
    hot: bool,
) -> _SelectedUnits:
    """Select the queue units for one read. The read returns their messages.

    A read that is not ``hot`` ends before the first recent message of this process. The filter is
    not applied to an impossible unit, nor to a unit before one if its tags may end with zeros of a
    damaged page. Their messages are read and checked.
    """
    chosen: list[Unit] = []
    limits = context.limits
    log_end = context.log.end
    in_memory_from = log_end - limits.hot_size
    hot_from = context.hot_from
    hot_index = _hot_index(queue)
    # a local is faster
    size_min = FIXED_SIZE
    entry_size_max = ENTRY_SIZE_MAX
    first = index
    taken = 0
    gaps = 0
    for offset, size, tags in UNIT.iter_unpack(units):
        if accept is not None and not accept(tags) and size >= size_min:
            can_be = hot or (size <= entry_size_max and 0 <= offset < log_end)
            if can_be and (tags & 0xFF or not _zeros_follow(units, index - first)):
                index += 1
                continue
        can_be = size_min <= size <= entry_size_max and 0 <= offset < log_end
        if size == NO_MESSAGE_SIZE:
            index += 1
            gaps += 1
            continue
        if offset >= in_memory_from:
            count, size_max = limits.count_hot, limits.bytes_hot
        else:
            count, size_max = limits.count_cold, limits.bytes_cold
        if chosen and (
            (not hot and offset >= hot_from and index >= hot_index)
            or (can_be and taken + size > size_max)
            or len(chosen) >= count
        ):
            break
        chosen.append(Unit(index, offset, size))
        taken += size if can_be else 0
        index += 1
        if len(chosen) >= count_max:
            break
    return _SelectedUnits(chosen, index, gaps)


def _zeros_follow(units: bytes, number: int) -> bool:
    """Return True if the unit after this one is blank, or too small for a message."""
    at = (number + 1) * UNIT_SIZE
    return at < len(units) and int.from_bytes(units[at + 8 : at + 12], signed=True) < FIXED_SIZE


def _behind_gaps(queue: ConsumeQueue, index: int, high: int) -> ReadSteps[int]:
    """Return the first index, at or after ``index``, whose unit is not a gap.

    At most ``GAP_SCAN`` units are passed over.
    """
    end = min(high, index + GAP_SCAN)
    while index < end:
        units = yield from _read_units(queue, index, end - index)
        if not units or isinstance(units, OSError):
            break
        for _, size, _ in UNIT.iter_unpack(units):
            if size != NO_MESSAGE_SIZE:
                return index
            index += 1
    return index
