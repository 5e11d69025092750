"""Search for the messages that lay in unreadable ranges of the log.

A queue has every offset. If its messages skip some offsets across an unreadable range, the skipped
messages were in the range. Units show the lost messages of queues without a later message. Nothing
is guessed: a lost message without a unit, and without a later message in its queue, is not
reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from turbopump.disk.disk import Disk, Segment
from turbopump.message.properties import SysFlag
from turbopump.store.files import StoreFile, StorePaths, segment_offset
from turbopump.store.holes import STEP
from turbopump.store.log.parsed_entry import ParsedEntry, inner_count, parse_entry
from turbopump.store.log.scanner import NO_DIRECTORY, OpenSegment, SegmentWalk
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE, unpack_unit
from turbopump.store.repair.unreadable_sectors import UnreadableRange, read_with_zeros


class LostMessages(NamedTuple):
    """Range of lost messages in one queue.

    The queue offsets are ``first`` to before ``end``.
    """

    topic: str
    queue_id: int
    first: int
    end: int


def lost_messages(
    disk: Disk, paths: StorePaths, segments: Sequence[StoreFile], ranges: Sequence[UnreadableRange]
) -> tuple[list[LostMessages], int, list[Path]]:
    """Find the messages that were in the unreadable ranges of a log.

    Return the lost messages queue by queue, the end of the last valid message in the log, and the
    queue files that are not fully readable. The whole log is read, which takes 7 to 9 µs for each
    message. Raises OSError.
    """
    walk = _Walk(disk, segments, ranges)
    between = list(_between(walk, segments[0].start, ranges))
    unread: list[Path] = []
    return _merged(chain(between, _by_units(disk, paths, ranges, unread))), walk.end, unread


def list_row(disk: Disk, directories: Iterable[Path], *, empty: bool = False) -> list[StoreFile]:
    """Return the files of these directories, in order, if their names are offsets.

    Empty files are left out unless ``empty`` is set.
    """
    found = []
    for directory in directories:
        for name in disk.list_directory(directory):
            start, size = segment_offset(name), disk.file_size(directory / name)
            if start is not None and (size or (empty and size is not None)):
                found.append(StoreFile(start, size, directory / name))
    return sorted(found)


def _between(
    walk: _Walk, log_start: int, ranges: Sequence[UnreadableRange]
) -> Iterator[LostMessages]:
    """Yield lost messages, found by gaps in the queue offsets of readable messages.

    If the messages before and behind an unreadable range skip some offsets of a queue, these
    messages were in the range.
    """
    # by queue: its next offset, and the end of its last message in the log
    known: dict[tuple[str, int], tuple[int, int]] = {}
    for parsed in walk.entries():
        if parsed.sys_flag & SysFlag.TRANSACTION_PREPARED:  # in no queue
            continue
        queue, first = (parsed.topic, parsed.queue_id), parsed.queue_offset
        # A log that begins at 0 has all messages of its queues from the first on. A log that lost
        # its front may lack some.
        following, before = known.get(queue, (first if log_start else 0, log_start))
        if following < first and any(
            one.start < parsed.offset and before < one.end for one in ranges
        ):
            yield LostMessages(*queue, following, first)
        known[queue] = first + inner_count(parsed), parsed.offset + parsed.size


def _by_units(
    disk: Disk, paths: StorePaths, ranges: Sequence[UnreadableRange], unread: list[Path]
) -> Iterator[LostMessages]:
    """Yield the lost messages whose queue units point into an unreadable range."""
    low, high = ranges[0].start, ranges[-1].end
    for lost, offset, size in _units(disk, paths, unread):
        if (
            offset < high
            and low < offset + size
            and any(offset < one.end and one.start < offset + size for one in ranges)
        ):
            yield lost


def _units(
    disk: Disk, paths: StorePaths, unread: list[Path]
) -> Iterator[tuple[LostMessages, int, int]]:
    """For each unit of each queue, yield a range of one message, the log offset and the size."""
    root = paths.consume_queues
    for topic in disk.list_directory(root):
        for name in disk.list_directory(root / topic):
            if not (name.isascii() and name.isdigit()):
                continue
            for file in list_row(disk, [root / topic / name]):
                raw = _whole(disk, file.path, unread)
                for at in range(0, len(raw) - UNIT_SIZE + 1, UNIT_SIZE):
                    offset, size, _ = unpack_unit(raw, at)
                    if size > 0 and size != NO_MESSAGE_SIZE:
                        index = (file.start + at) // UNIT_SIZE
                        yield LostMessages(topic, int(name), index, index + 1), offset, size


def _whole(disk: Disk, path: Path, unread: list[Path]) -> bytes:
    """Return the content of a queue file, with zeros in place of unreadable parts."""
    bad: list[UnreadableRange] = []
    with closing(disk.open_segment(path)) as segment:
        steps = range(0, segment.size, STEP)
        parts = [read_with_zeros(segment, at, min(STEP, segment.size - at), 0, bad) for at in steps]
    if bad:
        unread.append(path)
    return b"".join(parts)


def _merged(lost: Iterable[LostMessages]) -> list[LostMessages]:
    found: list[LostMessages] = []
    for one in sorted(lost):
        last = found[-1] if found else None
        if last is not None and last[:2] == one[:2] and one.first <= last.end:
            found[-1] = last._replace(end=max(last.end, one.end))
        else:
            found.append(one)
    return found


class _Walk(SegmentWalk[ParsedEntry]):
    """Walk over a log in which known unreadable sectors count as zeros.

    These sectors are not read again.
    """

    def __init__(
        self, disk: Disk, segments: Sequence[StoreFile], ranges: Sequence[UnreadableRange]
    ) -> None:
        super().__init__(segments)
        self._disk = disk
        self._ranges = ranges

    def _open_segment(self, segment: StoreFile) -> OpenSegment:
        ranges = [one for one in self._ranges if one.path == segment.path]
        return _ZeroedFile(self._disk.open_segment(segment.path), segment.start, ranges)

    def _item_of(self, offset: int, entry: bytes) -> ParsedEntry | str:
        return parse_entry(entry, offset) or NO_DIRECTORY


class _ZeroedFile:
    """Segment whose unreadable parts appear as zeros."""

    def __init__(self, segment: Segment, start: int, ranges: Sequence[UnreadableRange]) -> None:
        self._segment = segment
        self._start = start
        self._ranges = ranges
        self.size = segment.size
        self.data_from = segment.data_from
        self.close = segment.close

    def read(self, at: int, size: int) -> bytes:
        parts, end = [], min(at + size, self.size)
        for one in self._ranges:
            start, behind = one.start - self._start, min(one.end - self._start, end)
            if at < behind and start < end:
                if at < start:
                    parts.append(self._segment.read_cold(at, start - at))
                parts.append(bytes(behind - max(at, start)))
                at = behind
        if at < end:
            parts.append(self._segment.read_cold(at, end - at))
        return b"".join(parts)
