"""Reading a queue: which messages a pull gets, and where it goes on.

Source of the rules and limits: apache/rocketmq ``DefaultMessageStore.getMessage``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE, ConsumeQueue

SCAN_SIZE: Final = 16_000
"""Bytes of queue units that one filtered read looks at, at least."""

GAP_SCAN: Final = 10_000
"""Units of damaged messages that one read passes over at most."""

_UNIT = struct.Struct(">qiq")


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
    """Queue offsets passed over because their messages were damaged in the log."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one read may give: messages and bytes, while data is hot and when it is cold (more than ``hot_size`` bytes back)."""

    count_hot: int = 32
    bytes_hot: int = 256 * 1024
    count_cold: int = 8
    bytes_cold: int = 64 * 1024
    hot_size: int = 1 << 32


def read_queue(
    queue: ConsumeQueue | None,
    log: CommitLog,
    offset: int,
    count_max: int,
    limits: ReadLimits,
    accept: Callable[[int], bool] | None = None,
) -> GetResult:
    """Messages from queue offset ``offset`` on; ``accept`` judges tag codes. Never splits a message, always gives one if it can."""
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    low, high = queue.min_index, queue.end.value
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset >= high:
        status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
        return GetResult(status, high, low, high)
    count_max = min(max(count_max, 1), max(limits.count_hot, limits.count_cold))
    scan = count_max if accept is None else max(SCAN_SIZE // UNIT_SIZE, count_max)
    units = queue.units(offset, min(scan, high - offset))
    if not units:
        return GetResult(GetStatus.OFFSET_FOUND_NULL, offset, low, high)
    status, index, data, count, gaps = _collect(units, offset, log, count_max, limits, accept)
    if gaps and not count and status is GetStatus.NO_MATCHED_MESSAGE:
        behind = _behind_gaps(queue, index, high)
        status, gaps, index = GetStatus.MESSAGE_WAS_REMOVING, gaps + behind - index, behind
    return GetResult(status, index, low, high, data, count, gaps)


def _collect(
    units: bytes,
    index: int,
    log: CommitLog,
    count_max: int,
    limits: ReadLimits,
    accept: Callable[[int], bool] | None,
) -> tuple[GetStatus, int, bytes, int, int]:
    """Walk the units; (status, next index, bytes, how many, gaps passed). Neighbours in the log are read in one piece."""
    status = GetStatus.NO_MATCHED_MESSAGE
    pieces: list[bytes] = []
    count = taken = gaps = 0
    run_at, run_size, run_index, run_count = -1, 0, index, 0
    hot_from = log.end - limits.hot_size
    for physical, size, tags in _UNIT.iter_unpack(units):
        if size == NO_MESSAGE_SIZE:
            index += 1
            gaps += 1
            continue
        if accept is not None and not accept(tags):
            index += 1
            continue
        hot = physical >= hot_from
        if count and (
            taken + size > (limits.bytes_hot if hot else limits.bytes_cold)
            or count >= (limits.count_hot if hot else limits.count_cold)
        ):
            break
        if physical == run_at + run_size and log.same_segment(run_at, physical):
            run_size += size
        else:
            if run_size and not _add_run(log, run_at, run_size, pieces):
                return *_before_run(run_index, index, pieces, run_count), gaps
            run_at, run_size, run_index, run_count = physical, size, index, count
        count += 1
        taken += size
        index += 1
        if count >= count_max:
            break
    if run_size:
        if not _add_run(log, run_at, run_size, pieces):
            return *_before_run(run_index, index, pieces, run_count), gaps
        status = GetStatus.FOUND
    return status, index, pieces[0] if len(pieces) == 1 else b"".join(pieces), count, gaps


def _behind_gaps(queue: ConsumeQueue, index: int, high: int) -> int:
    """The first unit from ``index`` on that is no gap; at most ``GAP_SCAN`` units further."""
    end = min(high, index + GAP_SCAN)
    while index < end:
        units = queue.units(index, end - index)
        if not units:
            break
        for _, size, _ in _UNIT.iter_unpack(units):
            if size != NO_MESSAGE_SIZE:
                return index
            index += 1
    return index


def _before_run(run_index: int, index: int, pieces: list[bytes], count: int) -> tuple[GetStatus, int, bytes, int]:
    """What a read gives when a run is not there: the messages before it, or, if there are none, the place behind it."""
    if pieces:
        return GetStatus.FOUND, run_index, b"".join(pieces), count
    return GetStatus.MESSAGE_WAS_REMOVING, index, b"", 0


def _add_run(log: CommitLog, at: int, size: int, pieces: list[bytes]) -> bool:
    data = log.read(at, size)
    if data is None:
        return False
    pieces.append(data)
    return True
