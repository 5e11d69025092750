"""Reading a queue: which messages a pull gets, and where it goes on.

What this process wrote, and not long ago, is copied out of the map. Everything else is cold: it is
read in steps (``cold_reads.py``), and each of its messages is checked before it is given out
(``checked_entries.py``): a damaged one is passed over and reported.

Source of the rules and limits: apache/rocketmq ``DefaultMessageStore.getMessage``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from turbopump.compiled import IS_COMPILED, has_twin
from turbopump.message.entry import FIXED_SIZE, MAGIC_V2
from turbopump.message.properties import NAME_END, SysFlag, value_after
from turbopump.message.rules import LMQ_PREFIX
from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import ColdReads, Look, Steps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.queues.checked_entries import (
    PIECE_SIZE_MAX,
    REBUILDING,
    GetResult,
    GetStatus,
    MarkDamaged,
    ReadContext,
    ReadLimits,
    Unit,
    checked_entries,
    entries_fit,
    gather,
    topic_field,
    unreadable_text,
)
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable

SCAN_SIZE: Final = 16_000
"""Bytes of queue units that one filtered read looks at, at least."""

GAP_SCAN: Final = 10_000
"""Units of damaged messages that one read passes over at most."""

_UNITS_HOT: Final = 2_000_000
"""Units at the end of a queue that count as in memory, if this process wrote them."""

_NEIGHBOURS: Final = 32
"""So many messages are read as a whole however far they lie apart, if one piece of a file holds
them."""

_UNITS_AHEAD: Final = 512
"""Units that are seen together: those of 16 usual reads, 10 KB."""
_SEEN_QUEUES_MAX: Final = 256
"""Queues whose units are kept: 2.6 MB of them at most."""

TagsFilter = Callable[[int], bool] | None
"""Judges tag codes."""


class QueueReader:
    """Reads the queues of one store."""

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
        self._seen_units = _SeenUnits()

    def open_at(self, log_end: int, *, after_crash: bool) -> None:
        """What lies before ``log_end`` in the log was not written by this process; ``after_crash``:
        more may have been, and is lost."""
        self._context.opened_at, self._context.after_crash = log_end, after_crash

    def get(
        self, topic: str, queue_id: int, offset: int, count_max: int, accept: TagsFilter = None
    ) -> GetResult:
        """See ``read_messages``. Waits for the disk where messages are not in memory."""
        return self._reads.finish(self.steps(topic, queue_id, offset, count_max, accept))

    def at_once(
        self, topic: str, queue_id: int, offset: int, count_max: int, size_max: int | None = None
    ) -> GetResult | None:
        """Nearly every read of a queue that wants all messages: they are hot, or the system has
        them in memory and nobody is waiting in line. None: ``steps`` reads them, or says why
        not."""
        queue = self._queues.find(topic, queue_id)
        if not IS_COMPILED or queue is None:
            return None
        context = self._context_for(count_max, size_max)
        try:
            result = _read_hot_at_once(queue, context, offset, count_max)
        except OSError:  # of a queue file that is not mapped
            return None
        # Often a reader is at the end, and its pull will be held: there is nothing to look at.
        if result is None and queue.min_index <= offset < queue.end.value:
            result = self._reads.at_once(
                partial(_read_cold_at_once, queue, context, offset, count_max, self._seen_units)
            )
        return result

    def _context_for(self, count_max: int, size_max: int | None) -> ReadContext:
        """Java's clients ask for all the bytes that there are, but for few messages: theirs is the
        usual read."""
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
    ) -> Steps[GetResult]:
        """See ``read_messages``. ``matches`` judges properties, about a millisecond a turn.
        ``size_max``: a reader that asks for more bytes than the usual limit gets them, with as many
        messages as it asks for (``ReadContext.for_large_read``)."""
        context = self._context_for(count_max, size_max)
        if matches is None:
            queue = self._queues.find(topic, queue_id)
            return read_messages(queue, context, offset, count_max, accept)
        most = context.limits.count_hot

        def part(at: int) -> Steps[GetResult]:
            return self.steps(topic, queue_id, at, most, accept, size_max=size_max)

        return read_matching(part, offset, min(count_max, most), matches, self._monotonic)


def read_messages(
    queue: ConsumeQueue | None,
    context: ReadContext,
    offset: int,
    count_max: int,
    accept: TagsFilter = None,
) -> Steps[GetResult]:
    """Messages from queue offset ``offset`` on; ``accept`` judges tag codes. Never splits a
    message, always gives one if it can."""
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    try:
        result = yield from _read_messages(queue, context, offset, count_max, accept)
        if result.unreadable is REBUILDING:  # a short rebuild is over at once
            result = yield from _read_messages(queue, context, offset, count_max, accept)
        return result
    except OSError as error:
        return _unreadable(queue, offset, error)


def _unreadable(queue: ConsumeQueue, offset: int, error: OSError) -> GetResult:
    """The answer where a queue's file cannot be read, or opened."""
    result = GetResult(GetStatus.OFFSET_FOUND_NULL, offset, queue.min_index, queue.end.value)
    result.unreadable = unreadable_text(error, "the queue")
    return result


def _read_messages(
    queue: ConsumeQueue, context: ReadContext, offset: int, count_max: int, accept: TagsFilter
) -> Steps[GetResult]:
    limits, hot_from = context.limits, context.hot_from
    count_max = min(max(count_max, 1), max(limits.count_hot, limits.count_cold))
    scan = count_max if accept is None else max(SCAN_SIZE // UNIT_SIZE, count_max)
    outside = _outside(queue, offset, after_crash=context.after_crash)
    if outside is not None:
        return outside
    scan = min(scan, queue.end.value - offset)
    if accept is None and IS_COMPILED:
        result = _read_hot_at_once(queue, context, offset, count_max)
        if result is not None:
            return result
    if _is_hot(queue, offset, hot_from) and not queue.topic.startswith(LMQ_PREFIX):
        result = _read_hot(queue, offset, scan, context.log, count_max, limits, accept)
        if result.status is not GetStatus.MESSAGE_WAS_REMOVING:
            return result  # else its units point nowhere: they are looked into as cold ones are
    units = yield from _units(queue, offset, scan)
    # retention may have been at work meanwhile
    outside = _outside(queue, offset, after_crash=context.after_crash)
    if outside is not None:
        return outside
    if isinstance(units, OSError):
        return _unreadable(queue, offset, units)
    if not units:
        return GetResult(GetStatus.OFFSET_FOUND_NULL, offset, queue.min_index, queue.end.value)
    high = queue.end.value
    if accept is None and IS_COMPILED:
        quick = yield from _read_if_all_good(queue, context, offset, units, count_max)
        if quick is not None:
            return quick
    selected = _select(units, offset, queue, context, hot_from, count_max, accept)
    result = yield from _read_cold(selected, queue, context)
    if result.gaps and not result.count and result.unreadable is None:
        behind = yield from _behind_gaps(queue, result.next_offset, high)
        result.status = GetStatus.MESSAGE_WAS_REMOVING
        result.gaps += behind - result.next_offset
        result.next_offset = behind
    return result


def _outside(queue: ConsumeQueue, offset: int, *, after_crash: bool) -> GetResult | None:
    """The answer for an offset that the queue does not have. A reader beyond the end after a crash
    has read messages that the crash lost. Their offsets are given again: it reads on from where the
    queue ended at the start. Else what is beyond the shown end may be there, not confirmed yet: a
    slave shows a message before its master knows that it has it."""
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


def _is_hot(queue: ConsumeQueue, index: int, hot_from: int) -> bool:
    """Whether this process wrote the unit and its message, and not long ago; then it wrote all
    behind it as well."""
    if index < queue.opened_at or index < queue.max_index - _UNITS_HOT:
        return False
    unit = queue.unit(index)
    return unit is not None and unit[0] >= hot_from


def _read_hot(
    queue: ConsumeQueue,
    index: int,
    scan: int,
    log: CommitLog,
    count_max: int,
    limits: ReadLimits,
    accept: TagsFilter,
) -> GetResult:
    """Neighbours in the log in one piece. A run whose segment is gone ends the read before it, as
    does a unit that is none (the zeros of a damaged file). MESSAGE_WAS_REMOVING if that is the
    first, or if a unit points to something else than its message. Only compiled code looks for
    that: for 32 messages it takes 0.35 µs, plain 24."""
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, index, queue.min_index, queue.end.value)
    pieces: list[bytes] = []
    count_max, bytes_max = min(count_max, limits.count_hot), limits.bytes_hot
    count = taken = run_at = run_size = run_end = run_index = run_count = 0
    is_there = True
    first, units, passed = index, queue.units(index, scan), list[int]()
    for offset, size, tags in UNIT.iter_unpack(units):
        if size < FIXED_SIZE:  # none: its tags say nothing, nor do those of the one before
            index -= passed[-1:] == [index - 1]
            is_there = index > first
            break
        if accept is not None and not accept(tags):
            passed.append(index)
            index += 1
            continue
        if count and (taken + size > bytes_max or count >= count_max):
            break
        # Messages side by side in one segment are a run: one copy reads them all.
        if offset == run_at + run_size and offset < run_end:
            run_size += size
        else:
            if run_size and not (is_there := _add_run(log, run_at, run_size, pieces)):
                break
            run_at, run_size, run_end, run_index, run_count = (
                offset,
                size,
                log.segment_end(offset),
                index,
                count,
            )
        count += 1
        taken += size
        index += 1
        if count >= count_max:
            break
    if is_there and run_size:
        is_there = _add_run(log, run_at, run_size, pieces)
    # What was read before the missing run is given first. The next read begins with that run, and
    # says that it is gone.
    if not is_there and pieces:
        index, count = run_index, run_count
    result.next_offset = index
    if pieces:
        result.status, result.count = GetStatus.FOUND, count
        result.data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if IS_COMPILED and not entries_fit(
            result.data, units, passed, first, *_fields(queue.queue_id, queue.topic)
        ):
            return GetResult(
                GetStatus.MESSAGE_WAS_REMOVING, first, queue.min_index, queue.end.value
            )
    elif not is_there:
        result.status = GetStatus.MESSAGE_WAS_REMOVING
    return result


def _read_hot_at_once(
    queue: ConsumeQueue, context: ReadContext, index: int, count_max: int
) -> GetResult | None:
    """Nearly every hot read: all that lies in the segment of the first message. None if that is
    nothing, or it is not hot (see ``_is_hot``)."""
    high, limits, log = queue.end.value, context.limits, context.log
    first = max(queue.opened_at, queue.min_index, queue.max_index - _UNITS_HOT)
    if not first <= index < high:
        return None
    count = min(max(count_max, 1), limits.count_hot)
    units = queue.units(index, min(count, high - index))
    offset = int.from_bytes(units[:8])
    segment = log.files.at(offset) if units and offset >= context.hot_from else None
    if segment is None:
        return None
    data, count = gather(
        units,
        count,
        limits.bytes_hot,
        segment.buffer,
        segment.start,
        index,
        *_fields(queue.queue_id, queue.topic),
        False,
    )
    if not count:
        return None
    return GetResult(GetStatus.FOUND, index + count, queue.min_index, high, data, count)


def _add_run(log: CommitLog, at: int, size: int, pieces: list[bytes]) -> bool:
    data = log.read(at, size) if size > 0 <= at else None
    if data is None:
        return False
    pieces.append(data)
    return True


@lru_cache(4096)
def _fields(queue_id: int, topic: str) -> tuple[bytes, bytes]:
    """The fields of a queue's entries."""
    return queue_id.to_bytes(4), topic_field(topic)


def _units(queue: ConsumeQueue, index: int, count: int) -> Steps[Found]:
    piece = queue.piece(index, count)
    if piece is None:
        return b""
    (found,) = yield [piece]
    return found


@dataclass(slots=True)
class _SelectedUnits:
    """What one cold read is to give: ``units`` in order, and the ``next_index`` behind them."""

    units: list[Unit]
    next_index: int
    gaps: int = 0


def _read_cold_at_once(
    queue: ConsumeQueue,
    context: ReadContext,
    index: int,
    count_max: int,
    seen_units: _SeenUnits,
    look: Look,
) -> GetResult | None:
    """The same as ``_read_if_all_good``, of units and messages that are seen in memory."""
    limits = context.limits
    count_max = min(max(count_max, 1), max(limits.count_hot, limits.count_cold))
    units = seen_units.get(queue, index, count_max, look)
    stretch = _stretch(queue, context, index, units, count_max) if units else None
    data = look(stretch.piece) if stretch is not None else None
    if stretch is None or data is None:
        return None
    return _gathered(queue, stretch, index, units, data)


class _SeenUnits:
    """Units of cold reads at once, seen ahead: a reader of a backlog wants the next ones next.
    What has become of a unit since does no harm: its message is looked into before it is given."""

    def __init__(self) -> None:
        self._seen: dict[ConsumeQueue, tuple[int, bytes]] = {}

    def get(self, queue: ConsumeQueue, index: int, count: int, look: Look) -> bytes:
        """Up to ``count`` units from ``index`` on; none if they are not seen in memory."""
        count = min(count, queue.end.value - index)
        if count <= 0 or index < queue.min_index:
            return b""
        first, units = self._seen.get(queue, (index, b""))
        at, end = (index - first) * UNIT_SIZE, (index - first + count) * UNIT_SIZE
        if at >= 0 and end <= len(units):
            return units[at:end]
        piece = queue.piece(index, min(max(count, _UNITS_AHEAD), queue.end.value - index))
        seen = look(piece) if piece is not None else None
        if seen is None:
            return b""
        if len(self._seen) >= _SEEN_QUEUES_MAX:
            self._seen.clear()
        units = bytes(seen)
        self._seen[queue] = index, units[: _UNITS_AHEAD * UNIT_SIZE]
        return units[: count * UNIT_SIZE]


def _read_if_all_good(
    queue: ConsumeQueue, context: ReadContext, index: int, units: bytes, count_max: int
) -> Steps[GetResult | None]:
    """Nearly every cold read: the messages lie close together in one segment, and are good. None if
    one is not: then each of them is looked into."""
    stretch = _stretch(queue, context, index, units, count_max)
    if stretch is None:
        return None
    (data,) = yield [stretch.piece]
    return None if isinstance(data, OSError) else _gathered(queue, stretch, index, units, data)


class _PieceOfLog(NamedTuple):
    """One ``piece``, from offset ``start`` of the log on, that holds so many ``messages``; as many
    are given as ``size_max`` bytes hold."""

    piece: Piece
    start: int
    messages: int
    size_max: int


def _stretch(
    queue: ConsumeQueue, context: ReadContext, index: int, units: bytes, count_max: int
) -> _PieceOfLog | None:
    """Where the messages of the units lie, if it is close together in one segment."""
    log, limits = context.log, context.limits
    first, _, _ = UNIT.unpack_from(units)
    segment = log.files.at(first) if first < log.end and log.requires_crc(first) else None
    if segment is None:
        return None
    is_cold = first < log.end - limits.hot_size
    count_max = min(count_max, limits.count_cold if is_cold else limits.count_hot)
    size_max = limits.bytes_cold if is_cold else limits.bytes_hot
    count = min(count_max, len(units) // UNIT_SIZE)
    if count > _NEIGHBOURS:
        count = _within_a_piece(units, count, first)
    while True:  # it ends before the first that is hot
        last, size, _ = UNIT.unpack_from(units, (count - 1) * UNIT_SIZE)
        if count == 1 or last < context.hot_from or index + count <= queue.opened_at:
            break
        count -= 1
    span = last + size - first
    if not 0 < span <= min(PIECE_SIZE_MAX, segment.end - first):
        return None
    piece = Piece(segment.segment, first - segment.start, span)
    return _PieceOfLog(piece, first, count, size_max)


def _gathered(
    queue: ConsumeQueue, stretch: _PieceOfLog, index: int, units: bytes, found: bytes | memoryview
) -> GetResult | None:
    """The messages in what was found, if all are good that there is room for."""
    _, start, wanted, size_max = stretch
    fields = _fields(queue.queue_id, queue.topic)
    data, count = gather(units, wanted, size_max, found, start, index, *fields, True)
    if count < wanted:  # there was no room for more, or the next one is not good
        _, size, _ = UNIT.unpack_from(units, count * UNIT_SIZE)
        if size == NO_MESSAGE_SIZE or len(data) + size <= size_max or not count:
            return None
    low, high = queue.min_index, queue.end.value
    return GetResult(GetStatus.FOUND, index + count, low, high, data, count)


def _within_a_piece(units: bytes, count: int, first: int) -> int:
    """How many of the messages end within ``PIECE_SIZE_MAX`` bytes from ``first`` on, at least
    ``_NEIGHBOURS``. The units are expected to be in the order of the log, as they are written."""

    def end(number: int) -> int:
        offset, size, _ = UNIT.unpack_from(units, number * UNIT_SIZE)
        return int(offset + size)

    return bisect_right(range(count), first + PIECE_SIZE_MAX, lo=_NEIGHBOURS, key=end)


def _select(
    units: bytes,
    index: int,
    queue: ConsumeQueue,
    context: ReadContext,
    hot_from: int,
    count_max: int,
    accept: TagsFilter,
) -> _SelectedUnits:
    """Which of the units' messages one read gives; it ends before the first that is hot. What a
    unit that cannot be says of tags does not count: reading it marks it. Nor do the tags
    of the one before it count if they may end with zeros of a damaged page."""
    chosen: list[Unit] = []
    selected = _SelectedUnits(chosen, index)
    limits, log_end = context.limits, context.log.end
    taken, opened_at, in_memory_from = 0, queue.opened_at, log_end - limits.hot_size
    first = index
    for offset, size, tags in UNIT.iter_unpack(units):
        if size == NO_MESSAGE_SIZE:
            index += 1
            selected.gaps += 1
            continue
        can_be = FIXED_SIZE <= size <= ENTRY_SIZE_MAX and 0 <= offset < log_end
        if (
            can_be
            and accept is not None
            and not accept(tags)
            and (tags & 0xFF or not _zeros_follow(units, index - first))
        ):
            index += 1
            continue
        in_memory = offset >= in_memory_from
        if chosen and (
            (offset >= hot_from and index >= opened_at)
            or (can_be and taken + size > (limits.bytes_hot if in_memory else limits.bytes_cold))
            or len(chosen) >= (limits.count_hot if in_memory else limits.count_cold)
        ):
            break
        chosen.append(Unit(index, offset, size))
        taken += size if can_be else 0
        index += 1
        if len(chosen) >= count_max:
            break
    selected.next_index = index
    return selected


def _zeros_follow(units: bytes, number: int) -> bool:
    """Whether a unit is none, the one behind this number."""
    at = (number + 1) * UNIT_SIZE
    return at < len(units) and int.from_bytes(units[at + 8 : at + 12], signed=True) < FIXED_SIZE


def _read_cold(
    selected: _SelectedUnits, queue: ConsumeQueue, context: ReadContext
) -> Steps[GetResult]:
    """From the files, every message checked."""
    checked = yield from checked_entries(selected.units, queue, context)
    low, high = queue.min_index, queue.end.value
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, selected.next_index, low, high)
    result.gaps = selected.gaps + len(checked.damages)
    checked.put_into(result)
    return result


def _behind_gaps(queue: ConsumeQueue, index: int, high: int) -> Steps[int]:
    """The first unit from ``index`` on that is no gap; at most ``GAP_SCAN`` units further."""
    end = min(high, index + GAP_SCAN)
    while index < end:
        units = yield from _units(queue, index, end - index)
        if not units or isinstance(units, OSError):
            break
        for _, size, _ in UNIT.iter_unpack(units):
            if size != NO_MESSAGE_SIZE:
                return index
            index += 1
    return index


# --- Reading a queue for somebody who wants only messages with certain properties: the others are
# read, looked at and passed over.
#
# Goes through at most ``UNITS_MAX`` units; after ``TURN_S``, or ``TURN_UNITS``, others have their
# turn, so that nobody waits for a filter, however slow it is. It must not know what a filter is.
# Source of the window: apache/rocketmq ``DefaultMessageStore.getMessage``
# (``maxFilterMessageSize``).

UNITS_MAX: Final = 800
"""Queue offsets that one filtered read passes at most."""
TURN_UNITS: Final = 256
"""So many are looked at before others have their turn: about 0.4 ms with a short filter."""
TURN_S: Final = 0.001
"""A filter of many terms has so long, and one message more, before others have their turn."""
BYTES_MAX: Final = 256 * 1024
"""Bytes of messages that one filtered read gives at most, but always one message."""


class PropertyText:
    """A message's properties as they are stored; only what is asked for is decoded."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self, name: str) -> str | None:
        return value_after(self._text, name + NAME_END)


PropertyFilter = Callable[[PropertyText], bool]


def read_matching(
    read: Callable[[int], Steps[GetResult]],
    offset: int,
    count_max: int,
    wanted: PropertyFilter,
    monotonic: Callable[[], float],
) -> Steps[GetResult]:
    """Messages from queue offset ``offset`` on that are ``wanted``. ``read`` gives a piece of the
    queue from an offset on.

    A read that finds none says NO_MATCHED_MESSAGE and where it stopped; damages and gaps on the way
    are reported.
    """
    whole: GetResult | None = None
    pieces: list[bytes] = []
    count = taken = 0
    at, turn_ends, late = offset, offset + TURN_UNITS, monotonic() + TURN_S
    properties = PropertyText("")  # one for all: nobody keeps it
    while at - offset < UNITS_MAX:
        part = yield from read(at)
        if whole is None:
            whole = part
            if part.status is not GetStatus.FOUND:
                return part
        else:
            whole.gaps += part.gaps
            whole.damages += part.damages
            if part.status is not GetStatus.FOUND:
                break
        at = part.next_offset
        data = part.data
        for begin, end, properties._text in property_texts(data):
            if wanted(properties):
                if count and (count >= count_max or taken + end - begin > BYTES_MAX):
                    at = int.from_bytes(data[begin + 20 : begin + 28])  # it begins the next read
                    break
                pieces.append(data[begin:end])
                count += 1
                taken += end - begin
            if monotonic() >= late:
                yield []  # let others have their turn
                late = monotonic() + TURN_S
        else:
            if count < count_max and at < part.max_offset:
                if at >= turn_ends:
                    yield []
                    turn_ends, late = at + TURN_UNITS, monotonic() + TURN_S
                continue
        break
    assert whole is not None
    whole.data, whole.count, whole.next_offset = b"".join(pieces), count, at
    whole.status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
    return whole


@has_twin
def property_texts(data: bytes) -> list[tuple[int, int, str]]:
    """Of each of the good entries that lie back to back in what a read gave: where it begins, where
    it ends, and its property text. About 1.1 µs for each, compiled 0.1."""
    found: list[tuple[int, int, str]] = []
    at = 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + 4])
        found.append((at, end, _property_text(data[at:end])))
        at = end
    return found


def _property_text(entry: bytes) -> str:
    """The property text of a good entry."""
    at = 84
    v6 = entry[39] & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    if v6:
        at += 12 * v6.bit_count()
    at += 4 + int.from_bytes(entry[at : at + 4])
    if entry[7] == MAGIC_V2 & 0xFF:
        at += 2 + int.from_bytes(entry[at : at + 2])
    else:
        at += 1 + entry[at]
    size = int.from_bytes(entry[at : at + 2])
    return entry[at + 2 : at + 2 + size].decode(errors="replace")
