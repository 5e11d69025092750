"""Entries of a queue, read from the files and each checked before anyone gets it.

An entry is good if ``codec.entry_fault`` finds nothing at its offset of the log, and if it belongs
to the unit that points to it. A unit may be wrong, too: then it is marked, to be rebuilt from the
log, and ends the read before it. A message that is not good is passed over and reported. One that
the system cannot read now ends the read as well: the same read may work later.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from turbopump.compiled import IS_COMPILED, has_twin
from turbopump.message.codec import entry_fault
from turbopump.message.entry import (
    CRC_NAME,
    CRC_SUFFIX_SIZE,
    FIXED_SIZE,
    TOPIC_SIZE_MAX_V1,
    queue_position,
)
from turbopump.message.properties import SysFlag
from turbopump.message.rules import LMQ_PREFIX
from turbopump.store.disk import Found, Piece
from turbopump.store.disk_space import descriptor_advice
from turbopump.store.log.cold_reads import IsLost, Steps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.consume_queue import ConsumeQueue

_GAP_READ: Final = 32 * 1024
"""Bytes between two wanted entries up to which both are read in one piece: another read costs
more."""
_SLICE: Final = 16
"""Entries looked into one by one in one turn: some 50 µs."""
_QUICK_SLICE: Final = 64 if IS_COMPILED else 16
"""Entries checked in one call."""
PIECE_SIZE_MAX: Final = 512 * 1024
REBUILDING: Final = (
    "its unit in the consume queue is damaged and is being rebuilt from the log: ask again"
)
"""The answer to a reader that met a damaged unit."""

MarkDamaged = Callable[[ConsumeQueue, int], str | None]
"""Marks a damaged unit of a queue. Returns why its message cannot be given now; None if the log has
no such message."""


class Unit(NamedTuple):
    """A unit of a queue whose message is wanted: its queue offset, and where in the log it says
    that the message is."""

    queue_offset: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A message that is not given out: its queue offset, the offset and size in the log that its
    unit holds, and what is wrong."""

    queue_offset: int
    offset: int
    fault: str
    size: int = 0


@dataclass(slots=True)
class CheckedEntries:
    """``count`` good entries in order, neighbours in one piece, and what was passed over.
    ``unread`` is the first unit whose entry the system cannot read now: nothing from there on is in
    here. ``removed`` counts units whose messages the log no longer has."""

    good: list[bytes] = field(default_factory=list)
    count: int = 0
    damages: list[DamagedMessage] = field(default_factory=list)
    removed: int = 0
    unread: Unit | None = None
    why_unread: str = ""

    def add(self, entry: bytes) -> None:
        """One more good entry."""
        self.good.append(entry)
        self.count += 1

    def put_into(self, result: GetResult) -> None:
        """Say in the result of a read what was found. Its ``next_offset`` is behind all units."""
        result.damages = tuple(self.damages)
        if self.unread is not None:
            result.next_offset = self.unread.queue_offset
            if not self.good:
                result.unreadable = self.why_unread
        if self.good:
            result.status, result.count = GetStatus.FOUND, self.count
            result.data = self.good[0] if len(self.good) == 1 else b"".join(self.good)
        elif self.removed or self.damages:
            result.status = GetStatus.MESSAGE_WAS_REMOVING


@dataclass(frozen=True, slots=True)
class _Span:
    """The bytes of the log from ``start`` on, or why they cannot be read, and the units whose
    entries should be in them."""

    start: int
    data: Found
    units: list[Unit]


def checked_entries(
    units: list[Unit], queue: ConsumeQueue, context: ReadContext
) -> Steps[CheckedEntries]:
    """The entries to which units of ``queue`` point."""
    # Nearly always all units and entries are good: they are read in few pieces and checked in one
    # compiled loop, without a Python object for each. If one of them is not, each is judged by
    # itself, and there are four cases:
    # - The unit cannot be right (it points outside of the log), or leads to an entry of another
    #   queue: the unit is damaged. It is marked, and the read ends before it.
    # - The entry there begins as the unit's message does, but is not good: the message is damaged.
    #   It is passed over, and the reader goes on behind it.
    # - The system cannot read it. The read ends before it, since the disk may recover; only what
    #   ``is_lost`` gives up is passed over.
    # - The log has deleted it meanwhile: retention works between the steps of a read.
    checked, log, is_lost = CheckedEntries(), context.log, context.is_lost
    start, end, count = log.start, log.end, len(units)
    if any(unit.offset < start for unit in units) and not queue.is_trimmed(start):
        # zeros were never a message's unit
        units = [unit for unit in units if not 0 <= unit.offset < start or unit.size <= 0]
    checked.removed = count - len(units)
    faults = _unit_faults(units, log, end)
    spans = yield from _read(
        [unit for unit in units if unit not in faults] if faults else units, log
    )
    topic, queue_id = topic_field(queue.topic), queue.queue_id.to_bytes(4)
    if not faults and (yield from _all_good(spans, queue_id, topic)):
        checked.count = len(units)
        for span in spans:
            checked.good.extend(_contiguous_runs(span))
        return checked
    found = iter([entry for span in spans for entry in _entries(span)])
    for number, unit in enumerate(units):
        if number % _SLICE == _SLICE - 1:
            yield []
        fault = faults.get(unit)
        if fault is not None and unit.queue_offset < queue.min_index:
            checked.removed += 1  # a rebuild has found where the queue begins
            continue
        there: bytes | None = b""
        foreign = False
        if fault is None:
            entry = next(found)
            if isinstance(entry, bytes):
                fault = entry_fault(entry, unit.offset)
                if fault is None and entry[-CRC_SUFFIX_SIZE : -CRC_SUFFIX_SIZE + 9] != CRC_NAME:
                    fault = entry_fault(
                        entry, unit.offset, crc_required=log.requires_crc(unit.offset)
                    )
                if fault is None and not entry_belongs(entry, unit.queue_offset, queue_id, topic):
                    fault = _foreign_fault(entry, queue, unit)
                    foreign = fault is not None
                if fault is None:
                    checked.add(entry)
                    continue
                there = entry
            elif unit.offset < log.start:  # its file was deleted meanwhile
                checked.removed += 1
                continue
            elif is_lost(_directory(log, unit.offset), unit.offset):
                fault, there = f"it cannot be read ({entry.strerror or entry})", None
            else:
                checked.unread = unit
                checked.why_unread = unreadable_text(
                    entry, f"the message at {unit.offset} of the commit log"
                )
                break
        if there is not None and (foreign or not _head_is_of(there, queue, unit)):
            why = context.mark_damaged(queue, unit.queue_offset)
            if why is not None:
                checked.unread, checked.why_unread = unit, why
                break
            if unit.queue_offset < queue.min_index:
                checked.removed += 1
                continue
        checked.damages.append(DamagedMessage(*unit[:2], fault, unit.size))
    return checked


def _directory(log: CommitLog, offset: int) -> Path:
    file = log.files.at(offset)
    assert file is not None, "it is not deleted"
    return file.segment.path.parent


def unreadable_text(error: OSError, what: str) -> str:
    """The answer to a reader where something cannot be read."""
    advice = descriptor_advice(error) or "check the disk"
    return f"{what} cannot be read now ({error.strerror or error}): {advice}"


def _read(units: list[Unit], log: CommitLog) -> Steps[list[_Span]]:
    """The bytes where each unit's message should be; what lies close together is read in one
    piece."""
    if not units:
        return []
    groups: list[tuple[MappedFile, int, list[Unit]]] = []
    pieces: list[Piece] = []
    file: MappedFile | None = None
    inside: list[Unit] = []
    start = end = file_end = -1
    for unit in units:
        _, offset, size = unit
        if (
            start <= offset <= end + _GAP_READ
            and offset < file_end
            and offset + size - start <= PIECE_SIZE_MAX
        ):
            inside.append(unit)
            if offset + size > end:
                end = offset + size
            continue
        if file is not None:
            pieces.append(Piece(file.segment, start - file.start, end - start))
        file, inside = log.files.at(offset), [unit]
        assert file is not None, "checked in the same turn"
        groups.append((file, offset, inside))
        start, end, file_end = offset, offset + size, file.end
    assert file is not None
    pieces.append(Piece(file.segment, start - file.start, end - start))
    found: list[Found] = yield pieces
    read: list[_Span] = []
    for (file, start, inside), data in zip(groups, found, strict=True):
        if isinstance(data, bytes):
            read.append(_Span(start, data, inside))
        else:  # some of it cannot be read: now each by itself
            each = yield [
                Piece(file.segment, unit.offset - file.start, unit.size) for unit in inside
            ]
            read.extend(
                _Span(unit.offset, one, [unit]) for unit, one in zip(inside, each, strict=True)
            )
    return read


def _all_good(spans: list[_Span], queue_id: bytes, topic: bytes) -> Steps[bool]:
    """Whether all of them are good at first sight."""
    checked = 0
    for span in spans:
        start, data, units = span.start, span.data, span.units
        if not isinstance(data, bytes):
            return False
        at, count = 0, len(units)
        while at < count:
            if checked >= _QUICK_SLICE:
                checked = 0
                yield []
            end = min(count, at + _QUICK_SLICE - checked)
            if good_entries(data, start, units, at, end, queue_id, topic) != end:
                return False
            checked += end - at
            at = end
    return True


def _entries(span: _Span) -> Iterator[Found]:
    """What was found for each unit."""
    start, data = span.start, span.data
    if not isinstance(data, bytes):
        return iter([data] * len(span.units))
    return iter([data[offset - start : offset - start + size] for _, offset, size in span.units])


def _contiguous_runs(span: _Span) -> list[bytes]:
    """The entries of a span, those that lie side by side in one piece."""
    start, data = span.start, span.data
    assert isinstance(data, bytes)
    runs: list[bytes] = []
    begun = at = 0
    for _, offset, size in span.units:
        if offset - start != at:
            if at > begun:
                runs.append(data[begun:at])
            begun = offset - start
        at = offset - start + size
    runs.append(data[begun:at])
    return runs


def _unit_faults(units: list[Unit], log: CommitLog, log_end: int) -> dict[Unit, str]:
    """What is wrong with where units point, of those with which something is."""
    start, segment_size = log.start, log.segment_size
    faults = {}
    for unit in units:
        _, offset, size = unit
        end = offset + size
        if (
            FIXED_SIZE <= size <= ENTRY_SIZE_MAX
            and start <= offset
            and end <= log_end
            and (offset - start) // segment_size == (end - 1 - start) // segment_size
        ):
            continue
        fault = _unit_fault(unit, log, log_end)
        if fault is not None:
            faults[unit] = fault
    return faults


def _unit_fault(unit: Unit, log: CommitLog, log_end: int) -> str | None:
    """What is wrong with where a unit points, before anything is read there."""
    _, offset, size = unit
    if offset < log.start:
        return f"its unit in the consume queue points to {offset}, before the first message"
    if not FIXED_SIZE <= size <= ENTRY_SIZE_MAX:
        return f"its unit in the consume queue says that it has {size} bytes"
    end = offset + size
    if end > log_end or end > log.segment_end(offset):
        return f"its unit in the consume queue points to {offset} to {end}, where no message can be"
    return None


def _head_is_of(entry: bytes, queue: ConsumeQueue, unit: Unit) -> bool:
    """Whether what begins where the unit points says that it is the unit's message: then the unit
    is right, the message is damaged."""
    return len(entry) >= FIXED_SIZE and (
        int.from_bytes(entry[:4]),
        int.from_bytes(entry[12:16]),
        int.from_bytes(entry[20:28]),
    ) == (unit.size, queue.queue_id, unit.queue_offset)


def _foreign_fault(entry: bytes, queue: ConsumeQueue, unit: Unit) -> str | None:
    """What is wrong with a unit that points to a good entry of another position; None if it is the
    right one."""
    if queue.topic.startswith(LMQ_PREFIX):
        return None
    topic, queue_id, queue_offset = position = queue_position(entry)
    if position == (queue.topic, queue.queue_id, unit.queue_offset):
        return None
    return (
        f"its unit in the consume queue points to the message of queue offset {queue_offset} "
        f"of {topic} queue {queue_id}"
    )


# --- Whether what was read from the log are the messages that a queue's units stand for: many at a
# time, for the usual case.
#
# The rule: ``good_entries`` never counts one that ``codec.entry_fault`` would not call good, or
# that is not the unit's; what it does not know (no CRC over the whole entry, IPv6 hosts, anything
# odd) it leaves to ``checked_entries``. It must not know of files.

_UNIT: Final = struct.Struct(">qi8x")
_HEAD: Final = struct.Struct(">i8x4s4xqqi")
"""Size, queue id, queue offset, offset in the log and system flags of an entry."""


@has_twin
def good_entries(
    data: bytes,
    start: int,
    units: Sequence[tuple[int, int, int]],
    first: int,
    end: int,
    queue_id: bytes,
    topic: bytes,
) -> int:
    """The number of the first of ``units[first:end]`` whose entry is not good in ``data``, or
    ``end``. A unit here is a queue offset, an offset in the log and a size.

    ``data`` begins at offset ``start`` of the log. ``queue_id`` and ``topic`` are the entry's
    fields. Some 1.7 µs an entry, compiled 0.11.
    """
    for number in range(first, end):
        queue_offset, offset, size = units[number]
        entry = data[offset - start : offset - start + size] if offset >= start else b""
        if len(entry) != size or entry_fault(entry, offset, crc_required=True) is not None:
            return number
        if not entry_belongs(entry, queue_offset, queue_id, topic):
            return number
    return end


@has_twin
def gather(
    units: bytes,
    count_max: int,
    size_max: int,
    segment: Any,
    start: int,
    queue_offset: int,
    queue_id: bytes,
    topic: bytes,
    with_crc: bool,
) -> tuple[bytes, int]:
    """The entries that packed ``units`` point to, side by side, and how many: at most
    ``count_max``, and ``size_max`` bytes but for the first. It ends before the first that does not
    lie in ``segment``, a buffer that begins at offset ``start`` of the log, or that does not begin
    as the message of its unit does (see ``entries_fit``), or, ``with_crc``, is not good at first
    sight (see ``good_entries``); the first unit is that of ``queue_offset``. Some 1 µs an entry,
    compiled 0.1 with 1 KiB of it.
    """
    taken: list[bytes] = []
    size = 0
    for at in range(0, min(len(units) // _UNIT.size, count_max) * _UNIT.size, _UNIT.size):
        offset, entry_size = _UNIT.unpack_from(units, at)
        if taken and size + entry_size > size_max:
            break
        if not (entry_size >= FIXED_SIZE and start <= offset <= start + len(segment) - entry_size):
            break
        entry = segment[offset - start : offset - start + entry_size]
        unit = units[at : at + _UNIT.size]
        number = queue_offset + len(taken)
        if not entries_fit(entry, unit, [], number, queue_id, topic):
            break
        if with_crc and not good_entries(
            entry, offset, [Unit(number, offset, entry_size)], 0, 1, queue_id, topic
        ):
            break
        taken.append(entry)
        size += entry_size
    return b"".join(taken), len(taken)


@has_twin
def entries_fit(
    data: bytes, units: bytes, passed: list[int], queue_offset: int, queue_id: bytes, topic: bytes
) -> bool:
    """Whether ``data`` is entries side by side that begin as messages of the queue do, each where
    one of the packed ``units`` says, in their order. The first unit is that of ``queue_offset``;
    those of ``passed`` (ascending) are passed over. CRCs are not looked at.

    ``queue_id`` and ``topic`` are the entry's fields. Some 0.75 µs an entry, compiled 0.01.
    """
    at, size, skips = 0, len(data), 0
    for index, (offset, unit_size) in enumerate(
        _UNIT.iter_unpack(units[: len(units) - len(units) % _UNIT.size]), queue_offset
    ):
        if at == size:
            break
        if skips < len(passed) and passed[skips] == index:
            skips += 1
            continue
        if not FIXED_SIZE <= unit_size <= size - at:
            return False
        head_size, *position, sys_flag = _HEAD.unpack_from(data, at)
        if (head_size, *position) != (unit_size, queue_id, index, offset):
            return False
        body = (
            at
            + 84
            + (12 if sys_flag & SysFlag.BORN_HOST_V6 else 0)
            + (12 if sys_flag & SysFlag.STORE_HOST_V6 else 0)
        )
        topic_at = body + 4 + int.from_bytes(data[body : body + 4])
        if topic_at + len(topic) > at + head_size or not data.startswith(topic, topic_at):
            return False
        at += head_size
    return at == size


def topic_field(topic: str) -> bytes:
    """The bytes of an entry that say its topic: its length, in 1 byte or (v2) 2, and itself."""
    data = topic.encode()
    return len(data).to_bytes(2 if len(data) > TOPIC_SIZE_MAX_V1 else 1) + data


def entry_belongs(entry: bytes, queue_offset: int, queue_id: bytes, topic: bytes) -> bool:
    """Quickly: whether a good entry is the one of a queue offset. False is no proof that it is not
    (its hosts may be v6)."""
    at = 88 + int.from_bytes(entry[84:88])
    return (
        entry[12:16] == queue_id
        and entry[20:28] == queue_offset.to_bytes(8)
        and entry.startswith(topic, at)
    )


# --- What reading a queue gives.


class GetStatus(Enum):
    """Apache's names; they are the remarks of answers."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    """Messages back to back in ``data`` (``count`` of them), and queue offsets."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    count: int = 0
    gaps: int = 0
    """Queue offsets passed over because their messages are damaged in the log; ``damages`` says
    what is wrong with those found now."""
    damages: tuple[DamagedMessage, ...] = ()
    unreadable: str | None = None
    """Why nothing could be read at the offset although something is there; the same read may work
    later."""


# --- How much one read of a queue may give.
LARGE_COUNT_MAX: Final = 4096
LARGE_SIZE_MAX: Final = 1 << 20
"""What a reader gets that asks for more than the usual limits: about a millisecond of the loop."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one read may give: messages and bytes, while data is hot and when it is cold (more
    than ``hot_size`` bytes back)."""

    count_hot: int = 32
    bytes_hot: int = 256 * 1024
    count_cold: int = 8
    bytes_cold: int = 64 * 1024
    hot_size: int = 1 << 32


@dataclass(slots=True)
class ReadContext:
    """What every read of a store's queues goes by. ``is_lost`` says of an offset of the log that
    the system cannot read whether to pass it over. What lies before ``opened_at`` in the log was
    not written by this process; ``after_crash``: more may have been, and is lost."""

    log: CommitLog
    limits: ReadLimits
    mark_damaged: MarkDamaged
    is_lost: IsLost = field(default=lambda _directory, _offset: False)
    opened_at: int = 0
    after_crash: bool = False

    def for_large_read(self, count: int, size: int) -> ReadContext:
        """The same for a reader that asks for this many messages and bytes, within bounds of its
        own: it does not hold up others for more than about a millisecond."""
        limits = replace(
            self.limits,
            count_hot=min(count, LARGE_COUNT_MAX),
            bytes_hot=min(size, LARGE_SIZE_MAX),
            count_cold=min(count, LARGE_COUNT_MAX),
            bytes_cold=min(size, LARGE_SIZE_MAX),
        )
        return replace(self, limits=limits)

    @property
    def hot_from(self) -> int:
        """What lies there in the log or behind is in memory, and was written by this process."""
        return max(self.log.end - self.limits.hot_size, self.opened_at)
