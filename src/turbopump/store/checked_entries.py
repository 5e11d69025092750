"""Entries of a queue, read from the files and each checked before anyone gets it.

Good is what ``codec.entry_fault`` calls good at its place in the log and what belongs to the unit that points to it: a unit may be wrong
too. One that is not is passed over and told of; one that the system cannot read is another thing: it may be there tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from turbopump.message.codec import CRC_NAME, CRC_SUFFIX_SIZE, FIXED_SIZE, MAGIC_V2, TOPIC_SIZE_MAX_V1, entry_fault
from turbopump.message.sysflag import SysFlag
from turbopump.store.cold_reads import Steps
from turbopump.store.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.disk import Found, Piece
from turbopump.store.mapped_file import MappedFile

IsLost = Callable[[Path, int], bool]
"""Whether to pass over what cannot be read at an offset of the files in a directory."""

LMQ_PREFIX: Final = "%LMQ%"
"""Begins the names of Apache's light queues, whose units point to messages of other topics."""

_GAP_READ: Final = 32 * 1024
"""Bytes between two wanted entries up to which both are read in one piece: another read costs more."""
_SLICE: Final = 16
"""Entries checked in one turn: some 50 µs."""
_PIECE_SIZE_MAX: Final = 512 * 1024


class Unit(NamedTuple):
    """A unit of a queue whose message is wanted: its queue offset, and where in the log it says that the message is."""

    queue_offset: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A message that is not given out: its place in the queue, where its unit says that it is in the log, and what is wrong."""

    queue_offset: int
    offset: int
    fault: str


@dataclass(slots=True)
class Checked:
    """``good`` entries in order, and what was passed over. ``unread`` is the first unit whose entry the system cannot read now:
    nothing from there on is in here. ``removed`` counts units whose messages the log no longer has."""

    good: list[bytes] = field(default_factory=list)
    damages: list[DamagedMessage] = field(default_factory=list)
    removed: int = 0
    unread: Unit | None = None
    why_unread: str = ""


def checked_entries(units: list[Unit], queue: ConsumeQueue, log: CommitLog, is_lost: IsLost) -> Steps[Checked]:
    """The entries to which units of ``queue`` point. ``is_lost`` says of what cannot be read whether to pass it over."""
    checked = Checked()
    start, end = log.start, log.end
    judged = [(unit, _unit_fault(unit, log, end)) for unit in units if unit.offset >= start]
    checked.removed = len(units) - len(judged)
    found = iter((yield from _read([unit for unit, fault in judged if fault is None], log)))
    belongs = _belonging_to(queue)
    for number, (unit, fault) in enumerate(judged):
        if number % _SLICE == _SLICE - 1:
            yield []
        if fault is None:
            entry = next(found)
            if isinstance(entry, bytes):
                fault = entry_fault(entry, unit.offset)
                if fault is None and entry[-CRC_SUFFIX_SIZE : -CRC_SUFFIX_SIZE + 9] != CRC_NAME:
                    fault = entry_fault(entry, unit.offset, crc_required=log.requires_crc(unit.offset))
                if fault is None and not belongs(entry, unit.queue_offset):
                    fault = _stranger(entry, queue, unit)
                if fault is None:
                    checked.good.append(entry)
                    continue
            elif unit.offset < log.start:  # its file was deleted meanwhile
                checked.removed += 1
                continue
            elif is_lost(_directory(log, unit.offset), unit.offset):
                fault = f"it cannot be read ({entry.strerror or entry})"
            else:
                checked.unread = unit
                checked.why_unread = unreadable_text(entry, f"the message at {unit.offset} of the commit log")
                break
        checked.damages.append(DamagedMessage(unit.queue_offset, unit.offset, fault))
    return checked


def _directory(log: CommitLog, offset: int) -> Path:
    file = log.files.at(offset)
    assert file is not None, "it is not deleted"
    return file.segment.path.parent


def unreadable_text(error: OSError, what: str) -> str:
    """What to answer to whoever asked for something that cannot be read."""
    return f"{what} cannot be read now ({error.strerror or error}): check the disk"


def _read(units: list[Unit], log: CommitLog) -> Steps[list[Found]]:
    """The bytes where each unit's message should be; what lies close together is read in one piece."""
    if not units:
        return []
    spans: list[tuple[MappedFile, int, int, list[Unit]]] = []
    for unit in units:
        if spans:
            file, start, end, inside = spans[-1]
            near = start <= unit.offset <= end + _GAP_READ and unit.offset + unit.size - start <= _PIECE_SIZE_MAX
            if near and unit.offset < file.end:
                inside.append(unit)
                spans[-1] = (file, start, max(end, unit.offset + unit.size), inside)
                continue
        found_file = log.files.at(unit.offset)
        assert found_file is not None, "checked in the same turn"
        spans.append((found_file, unit.offset, unit.offset + unit.size, [unit]))
    found: list[Found] = yield [Piece(file.segment, start - file.start, end - start) for file, start, end, _ in spans]
    entries: list[Found] = []
    for (file, start, _, inside), data in zip(spans, found, strict=True):
        if isinstance(data, bytes):
            entries.extend(data[unit.offset - start : unit.offset - start + unit.size] for unit in inside)
        else:  # some of it cannot be read: now each by itself
            entries.extend((yield [Piece(file.segment, unit.offset - file.start, unit.size) for unit in inside]))
    return entries


def _unit_fault(unit: Unit, log: CommitLog, log_end: int) -> str | None:
    """What is wrong with where a unit points, before anything is read there."""
    _, offset, size = unit
    if not FIXED_SIZE <= size <= ENTRY_SIZE_MAX:
        return f"its unit in the consume queue says that it has {size} bytes"
    end = offset + size
    if end > log_end or not log.same_segment(offset, end - 1):
        return f"its unit in the consume queue points to {offset} to {end}, where no message can be"
    return None


def _belonging_to(queue: ConsumeQueue) -> Callable[[bytes, int], bool]:
    """Quickly: whether a good entry is the one of a queue offset. False is no proof that it is not (its hosts may be v6)."""
    topic, queue_id = queue.topic.encode(), queue.queue_id.to_bytes(4)
    field = len(topic).to_bytes(2 if len(topic) > TOPIC_SIZE_MAX_V1 else 1) + topic

    def belongs(entry: bytes, queue_offset: int) -> bool:
        at = 88 + int.from_bytes(entry[84:88])
        return entry[12:16] == queue_id and entry[20:28] == queue_offset.to_bytes(8) and entry.startswith(field, at)

    return belongs


def _stranger(entry: bytes, queue: ConsumeQueue, unit: Unit) -> str | None:
    """What is wrong with a good entry that belongs elsewhere, so that the unit is wrong."""
    if queue.topic.startswith(LMQ_PREFIX):
        return None
    topic, queue_id, queue_offset = place = entry_place(entry)
    if place == (queue.topic, queue.queue_id, unit.queue_offset):
        return None
    return f"its unit in the consume queue points to the message of queue offset {queue_offset} of {topic} queue {queue_id}"


def entry_place(entry: bytes) -> tuple[str, int, int]:
    """Topic, queue and queue offset of a good entry."""
    sys_flag = entry[39]
    at = 84 + (12 if sys_flag & SysFlag.BORN_HOST_V6 else 0) + (12 if sys_flag & SysFlag.STORE_HOST_V6 else 0)
    at += 4 + int.from_bytes(entry[at : at + 4])
    topic_at = at + (2 if entry[7] == MAGIC_V2 & 0xFF else 1)
    topic = entry[topic_at : topic_at + int.from_bytes(entry[at:topic_at])]
    return topic.decode(errors="replace"), int.from_bytes(entry[12:16]), int.from_bytes(entry[20:28])
