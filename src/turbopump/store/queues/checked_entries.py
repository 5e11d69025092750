"""Reading and checking the log entries to which the units of a queue point.

``gather`` copies the entries of adjacent units out of a buffer, as long as they pass a quick check.
It serves every read, from any buffer: the map of a segment, the page cache, or bytes read by a
thread. ``checked_entries`` reads any units, gathers their entries, and judges each entry that
``gather`` leaves out:

- A wrong unit is marked, to be rebuilt from the log (``queue_rebuild.py``), and the read ends
  before it.
- A damaged message is passed over and reported.
- The read ends before a message that the system cannot read now: a later read may succeed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from turbopump.compiled import IS_COMPILED, has_twin
from turbopump.disk.disk import Found, Piece
from turbopump.message.codec import entry_fault
from turbopump.message.entry import (
    BODY_AT,
    FIXED_SIZE,
    TOPIC_SIZE_MAX_V1,
    body_span,
    entry_size_at,
    queue_id_of,
    queue_offset_of,
    queue_position,
)
from turbopump.message.rules import LMQ_PREFIX
from turbopump.store.log.cold_reads import IsLost, ReadSteps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.consume_queue import ConsumeQueue, pack_unit
from turbopump.store.queues.read_result import (
    DamagedMessage,
    GetResult,
    GetStatus,
    ReadLimits,
    unreadable_text,
)

PIECE_SIZE_MAX: Final = 512 * 1024
"""Largest piece of the log read at once, in bytes."""
_GAP_READ: Final = 32 * 1024
"""Largest gap between two wanted entries that are read in one piece, in bytes. Another read costs
more than a smaller gap."""
_SLICE: Final = 16
"""Number of entries checked one by one before other work runs: about 50 µs."""
_LARGE_COUNT_MAX: Final = 4096 if IS_COMPILED else 512
_LARGE_SIZE_MAX: Final = 1 << 20
"""Largest result in bytes for a reader that asks for more than the usual limits: about 1 ms of the
loop."""


REBUILDING: Final = (
    "its unit in the consume queue is damaged and is being rebuilt from the log: ask again"
)
"""Answer to a reader that met a damaged queue unit."""

MarkDamaged = Callable[[ConsumeQueue, int], str | None]
"""Marks a damaged unit of a queue for rebuilding.

The function returns the reason why its message is not available now, or None if the log has no
message for the unit.
"""


class Unit(NamedTuple):
    """Queue unit whose message a reader wants.

    - ``queue_offset``: position of the unit in its queue.
    - ``offset``, ``size``: position and size of the message in the log, in bytes.
    """

    queue_offset: int
    offset: int
    size: int


@dataclass(slots=True)
class ReadContext:
    """Settings for all reads of a store's queues.

    - ``mark_damaged``: marks a damaged unit of a queue for rebuilding.
    - ``is_lost``: returns True if an unreadable offset of the log should be passed over.
    - ``opened_at``: log offset from which on this process has written the log.
    - ``after_crash``: True if a crash may have lost messages behind ``opened_at``.
    - ``units_ahead``: units read ahead, by queue: the first index, and the packed units.
    """

    log: CommitLog
    limits: ReadLimits
    mark_damaged: MarkDamaged
    is_lost: IsLost = field(default=lambda _directory, _offset: False)
    opened_at: int = 0
    after_crash: bool = False
    units_ahead: dict[ConsumeQueue, tuple[int, bytes]] = field(default_factory=dict)

    def for_large_read(self, count: int, size: int) -> ReadContext:
        """Return a copy of these settings with limits for a read of many messages.

        ``count`` messages and ``size`` bytes are allowed, up to fixed bounds. One read within these
        bounds lasts about 1 ms at most.
        """
        count = min(count, _LARGE_COUNT_MAX)
        size = min(size, _LARGE_SIZE_MAX)
        limits = replace(
            self.limits, count_hot=count, bytes_hot=size, count_cold=count, bytes_cold=size
        )
        return replace(self, limits=limits)

    def count_of(self, asked: int) -> int:
        """Return the largest number of messages for a reader that asks for ``asked``. The number is
        at least 1."""
        return min(max(asked, 1), max(self.limits.count_hot, self.limits.count_cold))

    @property
    def hot_from(self) -> int:
        """Start of the hot part of the log. This process wrote all of that part, and it is in
        memory."""
        return max(self.log.end - self.limits.hot_size, self.opened_at)


@dataclass(slots=True)
class CheckedEntries:
    """Result of reading log entries: the valid entries, and the faults of the others.

    - ``good``: bytes of the valid entries in order. Adjacent ones form one piece.
    - ``count``: number of valid entries.
    - ``damages``: messages that were passed over.
    - ``removed``: number of units whose messages are no longer in the log.
    - ``unread``: first unit whose entry the system cannot read now. The entries from there on
      are left out.
    - ``why_unread``: reason why the system cannot read it.
    """

    good: list[bytes] = field(default_factory=list)
    count: int = 0
    damages: list[DamagedMessage] = field(default_factory=list)
    removed: int = 0
    unread: Unit | None = None
    why_unread: str = ""

    def add(self, data: bytes, count: int = 1) -> None:
        """Add ``count`` valid entries, whose bytes are ``data``."""
        if count:
            self.good.append(data)
            self.count += count

    def stop_at(self, unit: Unit, why: str) -> None:
        """End the read before this unit, because its entry is not available now."""
        self.unread = unit
        self.why_unread = why

    def put_into(self, result: GetResult) -> None:
        """Add the entries and faults to the result of a read.

        The ``next_offset`` of the result must be behind all units.
        """
        result.damages = tuple(self.damages)
        if self.unread is not None:
            result.next_offset = self.unread.queue_offset
            if not self.good:
                result.unreadable = self.why_unread
        if self.good:
            result.status = GetStatus.FOUND
            result.count = self.count
            result.data = self.good[0] if len(self.good) == 1 else b"".join(self.good)
        elif self.removed or self.damages:
            result.status = GetStatus.MESSAGE_WAS_REMOVING


@dataclass(slots=True)
class _Span:
    """Part of a log file with the entries of some adjacent queue units.

    - ``start``, ``end``: log offsets.
    - ``units``: units whose entries lie there, close together.
    - ``fault``: reason why the entry of a single unit can be nowhere, or None.
    - ``data``: bytes of the part, or the error of reading them.
    """

    file: MappedFile | None
    start: int
    end: int
    units: list[Unit]
    fault: str | None = None
    data: Any = b""

    @property
    def piece(self) -> Piece:
        assert self.file is not None
        return Piece(self.file.segment, self.start - self.file.start, self.end - self.start)


def checked_entries(
    units: list[Unit], queue: ConsumeQueue, context: ReadContext, *, hot: bool = False
) -> ReadSteps[CheckedEntries]:
    """Read and check the log entries to which some units of a queue point.

    ``hot`` is True if this process wrote the entries recently. Then they are copied out of the map
    of the log, and only entries that fail a quick check there are read from the file.
    """
    checked = CheckedEntries()
    log = context.log
    if hot and units:
        file = log.files.at(units[0].offset)
        if file is not None:
            data, taken = gather_units(units, queue, file.buffer, file.start, with_crc=False)
            checked.add(data, taken)
            units = units[taken:]
    start = log.start
    if any(unit.offset < start for unit in units) and not queue.is_trimmed(start):
        # zeros were never a message's unit
        there = [unit for unit in units if not 0 <= unit.offset < start or unit.size <= 0]
        checked.removed = len(units) - len(there)
        units = there
    spans = yield from _fetched(_spans(units, log))
    judged = 0
    for span in spans:
        taken = 0
        if span.fault is None and not isinstance(span.data, OSError):
            data, taken = gather_units(span.units, queue, span.data, span.start, with_crc=True)
            checked.add(data, taken)
        for unit in span.units[taken:]:
            judged += 1
            if judged % _SLICE == 0:
                yield []
            _judge(span, unit, queue, context, checked)
            if checked.unread is not None:
                return checked
    return checked


def _spans(units: list[Unit], log: CommitLog) -> list[_Span]:
    """Return the parts of log files to read for these units, in the order of the units.

    Entries that lie close together share one part.
    """
    spans: list[_Span] = []
    log_end = log.end
    last: _Span | None = None
    for unit in units:
        _, offset, size = unit
        if (
            last is not None
            and last.file is not None
            and last.start <= offset <= last.end + _GAP_READ
            and FIXED_SIZE <= size <= ENTRY_SIZE_MAX
            and offset + size <= min(last.file.end, log_end, last.start + PIECE_SIZE_MAX)
        ):
            last.units.append(unit)
            last.end = max(last.end, offset + size)
            continue
        fault = _unit_fault(unit, log, log_end)
        file = log.files.at(offset) if fault is None else None
        last = _Span(file, offset, offset + size, [unit], fault)
        spans.append(last)
    return spans


def _unit_fault(unit: Unit, log: CommitLog, log_end: int) -> str | None:
    """Return the reason why the offset or size in a unit is impossible, or None.

    Nothing is read for that.
    """
    _, offset, size = unit
    if offset < log.start:
        return f"its unit in the consume queue points to {offset}, before the first message"
    if not FIXED_SIZE <= size <= ENTRY_SIZE_MAX:
        return f"its unit in the consume queue has the impossible size {size}"
    end = offset + size
    if end > log_end or end > log.segment_end(offset):
        return f"its unit in the consume queue points to {offset} to {end}, where no message can be"
    return None


def _fetched(spans: list[_Span]) -> ReadSteps[list[_Span]]:
    """Read the bytes of these parts of the log.

    A part that cannot be read is split into single units, because some of them may be readable.
    """
    wanted = [span for span in spans if span.fault is None]
    if wanted:
        found: list[Found] = yield [span.piece for span in wanted]
        for span, data in zip(wanted, found, strict=True):
            span.data = data
    fetched: list[_Span] = []
    for span in spans:
        if isinstance(span.data, OSError) and len(span.units) > 1:
            alone = [
                _Span(span.file, unit.offset, unit.offset + unit.size, [unit])
                for unit in span.units
            ]
            fetched.extend((yield from _fetched(alone)))
        else:
            fetched.append(span)
    return fetched


def gather_units(
    units: list[Unit], queue: ConsumeQueue, buffer: Any, start: int, *, with_crc: bool
) -> tuple[bytes, int]:
    """Copy the adjacent entries of these units out of a buffer, as ``gather`` does for packed
    units."""
    packed = b"".join([pack_unit(offset, size, 0) for _, offset, size in units])
    numbers = [queue_offset for queue_offset, _, _ in units]
    fields = entry_fields(queue.queue_id, queue.topic)
    return gather(packed, len(numbers), 1 << 62, buffer, start, numbers, *fields, with_crc)


def _judge(
    span: _Span, unit: Unit, queue: ConsumeQueue, context: ReadContext, checked: CheckedEntries
) -> None:
    """Check one unit and its entry, and add the result to ``checked``."""
    # There are four cases beside a good entry:
    # - The unit is impossible (it points outside of the log), or leads to an entry of another
    #   queue: the unit is damaged. It is marked, and the read ends before it.
    # - The entry there begins as the unit's message does, but is not good: the message is damaged.
    #   It is passed over, and the reader continues behind it.
    # - The system cannot read it. The read ends before it, since the disk may recover. It is passed
    #   over only if ``is_lost`` gives it up.
    # - The log has deleted it meanwhile: retention works between the steps of a read.
    log = context.log
    fault = span.fault
    is_unit_wrong = True
    if isinstance(span.data, OSError):
        error = span.data
        if unit.offset < log.start:
            checked.removed += 1
            return
        assert span.file is not None
        if not context.is_lost(span.file.segment.path.parent, unit.offset):
            what = f"the message at {unit.offset} of the commit log"
            checked.stop_at(unit, unreadable_text(error, what))
            return
        fault = f"it cannot be read ({error.strerror or error})"
        is_unit_wrong = False
    elif fault is None:
        at = unit.offset - span.start
        entry = bytes(span.data[at : at + unit.size])
        fault = entry_fault(entry, unit.offset, crc_required=log.requires_crc(unit.offset))
        if fault is not None:
            is_unit_wrong = not _head_is_of(entry, queue, unit)
        else:
            fault = _foreign_fault(entry, queue, unit)
            if fault is None:
                checked.add(entry)
                return
    elif unit.queue_offset < queue.min_index:
        checked.removed += 1  # a rebuild has found where the queue begins
        return
    if is_unit_wrong:
        context.units_ahead.pop(queue, None)  # the next read sees the rebuilt unit
        why = context.mark_damaged(queue, unit.queue_offset)
        if why is not None:
            checked.stop_at(unit, why)
            return
        if unit.queue_offset < queue.min_index:
            checked.removed += 1
            return
    checked.damages.append(DamagedMessage(unit.queue_offset, unit.offset, fault, unit.size))


def _head_is_of(entry: bytes, queue: ConsumeQueue, unit: Unit) -> bool:
    """Return True if the bytes at the unit's offset begin like the message of the unit.

    Then the unit is right, and a fault in the bytes means that the message is damaged.
    """
    if len(entry) < FIXED_SIZE:
        return False
    said = entry_size_at(entry), queue_id_of(entry), queue_offset_of(entry)
    return said == (unit.size, queue.queue_id, unit.queue_offset)


def _foreign_fault(entry: bytes, queue: ConsumeQueue, unit: Unit) -> str | None:
    """Describe the fault of a unit that points to the valid entry of another queue offset.

    Return None if the entry belongs to the unit.
    """
    if queue.topic.startswith(LMQ_PREFIX):
        return None
    topic, queue_id, queue_offset = position = queue_position(entry)
    if position == (queue.topic, queue.queue_id, unit.queue_offset):
        return None
    return (
        f"its unit in the consume queue points to the message of queue offset {queue_offset} "
        f"of {topic} queue {queue_id}"
    )


# --- The usual case: many entries at a time that pass a quick check.
#
# The rule: ``gather`` never takes one that ``codec.entry_fault`` would not call good, or that is
# not the unit's. What it does not know (no CRC over the whole entry, IPv6 hosts, anything odd) it
# leaves over.

_UNIT: Final = struct.Struct(">qi8x")
_HEAD: Final = struct.Struct(">i8x4s4xqq")
"""Unpacks size, queue id, queue offset and log offset of an entry."""


@has_twin
def gather(
    units: bytes,
    count_max: int,
    size_max: int,
    buffer: Any,
    start: int,
    queue_offsets: int | list[int],
    queue_id: bytes,
    topic: bytes,
    with_crc: bool,
) -> tuple[bytes, int]:
    """Copy adjacent valid entries out of a buffer. Packed queue units point to the entries.

    Return their bytes and their number. These are at most ``count_max`` entries, and ``size_max``
    bytes unless the first is larger. Copying stops before an entry that lies outside of ``buffer``,
    or does not begin like the message of its unit. With ``with_crc``, it also stops before an entry
    with a wrong CRC. Cost: about 1.6 µs an entry of 1 KiB, 0.1 µs when compiled.

    - ``start``: log offset of the start of ``buffer``.
    - ``queue_offsets``: queue offset of each unit, or of the first of adjacent units.
    - ``queue_id``, ``topic``: packed fields from ``entry_fields``.
    """
    taken: list[bytes] = []
    size = 0
    for at in range(0, min(len(units) // _UNIT.size, count_max) * _UNIT.size, _UNIT.size):
        offset, entry_size = _UNIT.unpack_from(units, at)
        if taken and size + entry_size > size_max:
            break
        if not (entry_size >= FIXED_SIZE and start <= offset <= start + len(buffer) - entry_size):
            break
        entry = bytes(buffer[offset - start : offset - start + entry_size])
        if isinstance(queue_offsets, list):
            number = queue_offsets[len(taken)]
        else:
            number = queue_offsets + len(taken)
        if _HEAD.unpack_from(entry) != (entry_size, queue_id, number, offset):
            break
        begin, _ = body_span(entry)
        if not _has_topic(entry, topic, begin):
            break
        if with_crc and not _has_topic(entry, topic, BODY_AT):
            break
        if with_crc and entry_fault(entry, offset, crc_required=True) is not None:
            break
        taken.append(entry)
        size += entry_size
    return b"".join(taken), len(taken)


def _has_topic(entry: bytes, topic: bytes, body_at: int) -> bool:
    """Return True if ``topic`` is the topic field of an entry whose body begins at ``body_at``."""
    at = body_at + int.from_bytes(entry[body_at - 4 : body_at])
    return at + len(topic) <= len(entry) and entry.startswith(topic, at)


@lru_cache(4096)
def entry_fields(queue_id: int, topic: str) -> tuple[bytes, bytes]:
    """Return queue id and topic of a queue, packed as in its log entries.

    The topic field is the length in 1 byte, or in 2 bytes for long names, and the name.
    """
    name = topic.encode()
    size_of_length = 1
    if len(name) > TOPIC_SIZE_MAX_V1:
        size_of_length = 2
    return queue_id.to_bytes(4), len(name).to_bytes(size_of_length) + name
