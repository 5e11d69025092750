"""Replacement of unreadable segments, so that the store starts again. An operator starts it, never
a broker.

1. Every segment is read. An unreadable piece is read again sector by sector, each a few times: a
   sector that answers in the end is no loss.
2. Each segment with unreadable sectors is copied, beside its directory, with zeros for these
   sectors, and the copy is synced.
3. The lost messages are found (``lost_messages``).
4. The original gets a second name beside the directory. Then its own name goes to the copy in one
   step: a kill leaves one or the other.

No readable data is lost by this. Originals stay, and nothing in the store is changed before every
copy is complete. Sectors are zeroed, not messages: the next start decides which entries are still
good. The form of an entry is unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import StoreError
from turbopump.message.properties import SysFlag
from turbopump.store.files import StoreFile, StorePaths, segment_offset
from turbopump.store.log.parsed_entry import ParsedEntry, inner_count, parse_entry
from turbopump.store.log.scanner import NO_DIRECTORY, OpenSegment, SegmentWalk
from turbopump.store.mapped_file import STEP, data_steps
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE, unpack_unit
from turbopump.store.recovery.checkpoint import CHECKPOINT_SIZE, safe_offset_of
from turbopump.store.roots import StoreLock

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class SettingApart:
    """Findings and results.

    - ``missing``: parts of the log that are in no file. Copies do not restore them; brokers
      refuse the store, or end its log there.
    - ``readable_end``: end of the last readable message.
    - ``unread_queues``: queue files that are not fully readable, so that more than ``lost``
      may be lost.
    - ``kept``: path of the original of each replaced segment.
    """

    log_size: int = 0
    missing: list[str] = field(default_factory=list)
    ranges: list[UnreadableRange] = field(default_factory=list)
    lost: list[LostMessages] = field(default_factory=list)
    readable_end: int = 0
    unread_queues: list[Path] = field(default_factory=list)
    kept: dict[Path, Path] = field(default_factory=dict)

    @property
    def at_the_end(self) -> bool:
        """True if no message follows an unreadable range. The next start then ends the log before
        it."""
        return any(self.readable_end <= found.start for found in self.ranges)

    def as_json(self) -> dict[str, Any]:
        """Return values for ``json.dumps``; ``end`` is one past the last byte or message."""
        return {
            "log_size": self.log_size,
            "missing": self.missing,
            "unreadable": [
                {"file": str(one.path), "offset": one.start, "end": one.end, "cause": one.cause}
                for one in self.ranges
            ],
            "lost": [
                dict(zip(("topic", "queue", "queue_offset", "end"), one, strict=True))
                for one in self.lost
            ],
            "readable_end": self.readable_end,
            "at_the_end": self.at_the_end,
            "unread_queues": [str(path) for path in self.unread_queues],
            "kept": [
                {"file": str(path), "original": str(original)}
                for path, original in self.kept.items()
            ],
        }


def set_apart(
    paths: StorePaths,
    disk: Disk,
    *,
    dry_run: bool = False,
    on_progress: OnProgress = lambda _done, _size: None,
) -> SettingApart:
    """Replace each segment of the store at ``paths`` that is not fully readable by a copy with
    zeros.

    - ``dry_run``: only report the loss.
    - ``on_progress``: gets the bytes of segments read and their total, after each segment.

    Raises StoreLockedError if a broker has the store open, StoreError for a directory without
    segments or without space for the copies, and OSError if a copy cannot be written. In these
    cases nothing has changed. If names could not be changed or synced, each segment is either the
    original or its copy: run the command again.
    """
    directories = (*paths.commit_logs, *paths.read_only_commit_logs)
    if not list_row(disk, directories):
        raise StoreError(
            f"{paths.root} has no segments in {', '.join(map(str, directories))}: "
            "is it a store directory?"
        )
    with _locked(paths, disk):
        files = list_row(disk, directories, empty=True)
        segments = [file for file in files if file.size]
        found = SettingApart(missing=list(_missing(files, _safe_offset(disk, paths))))
        bad = _scan(disk, segments, found, on_progress)
        if dry_run or not bad:
            _find_lost(disk, paths, segments, found)
            return found
        found.ranges.clear()  # the copies decide which bytes are lost
        with _copies(disk, bad, found.ranges) as copies:
            _find_lost(disk, paths, segments, found)
            for path, copy in copies:
                if any(one.path == path for one in found.ranges):  # else it was readable now
                    found.kept[path] = _replace(disk, path, copy)
    return found


@contextmanager
def _locked(paths: StorePaths, disk: Disk) -> Iterator[None]:
    lock = StoreLock(disk, paths)
    try:
        lock.lock_directories(paths)
        yield
    finally:
        lock.release()


def _safe_offset(disk: Disk, paths: StorePaths) -> int:
    """Return the offset up to which the log was on the disk; 0 if unknown."""
    checkpoint = disk.read_file(paths.checkpoint) or b""
    return safe_offset_of(checkpoint) if len(checkpoint) == CHECKPOINT_SIZE else 0


def _missing(files: Sequence[StoreFile], safe_offset: int) -> Iterator[str]:
    """Yield descriptions of the parts of the log that are in no file, between the segments or
    behind the last."""
    for file, following in pairwise(files):
        if file.end != following.start:
            yield (
                f"{file.path} has {file.size} bytes, and the next segment begins "
                f"{following.start - file.start} bytes behind its beginning: brokers refuse to "
                "start; bring the whole file back from a copy"
            )
    if files[-1].end < safe_offset:
        yield (
            f"the log was on the disk up to offset {safe_offset}, and its last segment ends at "
            f"{files[-1].end}: a broker refuses to start, or ends the log before what is missing; "
            "bring it back from a copy"
        )


def _find_lost(
    disk: Disk, paths: StorePaths, segments: Sequence[StoreFile], found: SettingApart
) -> None:
    if found.ranges:
        found.lost, found.readable_end, found.unread_queues = lost_messages(
            disk, paths, segments, found.ranges
        )


def _scan(
    disk: Disk, segments: Sequence[StoreFile], found: SettingApart, on_progress: OnProgress
) -> list[StoreFile]:
    """Return the segments that are not fully readable. Their unreadable ranges are added to
    ``found``."""
    found.log_size, done, bad = sum(file.size for file in segments), 0, []
    for file in segments:
        on_progress(done, found.log_size)
        before = len(found.ranges)
        with closing(disk.open_segment(file.path)) as segment:
            for at in data_steps(segment, 0):
                read_with_zeros(segment, at, min(STEP, segment.size - at), file.start, found.ranges)
        if len(found.ranges) > before:
            bad.append(file)
        done += file.size
    on_progress(done, found.log_size)
    return bad


@contextmanager
def _copies(
    disk: Disk, segments: Iterable[StoreFile], found: list[UnreadableRange]
) -> Iterator[list[tuple[Path, Segment]]]:
    """Make a synced copy of each segment. Copies that have not got their segment's name at the end
    of the block are removed."""
    copies: list[tuple[Path, Segment]] = []
    made: list[Path] = []
    try:
        for file in segments:
            ranges, copy = _copied(disk, file.start, file.path, _beside(disk, file.path.parent))
            found += ranges
            copies.append((file.path, copy))
            made.append(copy.path)
        yield copies
    finally:
        for _, copy in copies:
            copy.close()
        # The name is that of the copy's creation: a renamed copy is the segment now.
        for path in made:
            disk.remove(path)


def _copied(
    disk: Disk, start: int, path: Path, directory: Path
) -> tuple[list[UnreadableRange], Segment]:
    """Return the unreadable ranges of a segment, and a synced copy of it in ``directory`` with
    zeros there."""
    disk.make_directory(directory)
    target = directory / f"{path.name}.copy"
    disk.remove(target)  # left by an attempt that was killed
    found: list[UnreadableRange] = []
    with closing(disk.open_segment(path)) as segment:
        try:
            copy = disk.create_segment(target, segment.size)
        except OSError as error:
            text = f"{target} cannot be made ({error.strerror or error})"
            raise StoreError(
                f"{text}: a copy of {path} takes {segment.size} bytes there; nothing was changed"
            ) from None
        try:
            for at in data_steps(segment, 0):
                size = min(STEP, segment.size - at)
                copy.buffer[at : at + size] = read_with_zeros(segment, at, size, start, found)
            copy.sync()
        except BaseException:
            copy.close()
            disk.remove(target)
            raise
    return found, copy


def _beside(disk: Disk, directory: Path) -> Path:
    """Return the directory for originals: beside the directory of the log, or the log's own if that
    is a file system of its own."""
    if disk.same_file_system(directory, directory.parent):
        return directory.with_name(directory.name + ".unreadable")
    return directory / "unreadable"


def _replace(disk: Disk, path: Path, copy: Segment) -> Path:
    """Give a segment's name to its copy; return the new path of the original."""
    directory = copy.path.parent
    taken, kept, number = set(disk.list_directory(directory)), path.name, 0
    while kept in taken:  # the disk has failed further, or an attempt was killed
        number += 1
        kept = f"{path.name}.{number}"
    disk.link(path, directory / kept)
    disk.sync_directory(directory)
    disk.sync_directory(directory.parent)
    disk.rename_segment(copy, path)
    disk.sync_directory(path.parent)
    disk.sync_directory(directory)
    return directory / kept


# A queue has every offset. If its messages skip some offsets across an unreadable range, the
# skipped messages were in the range. Units show the lost messages of queues without a later
# message. Nothing is guessed: a lost message without a unit, and without a later message in its
# queue, is not reported.


class LostMessages(NamedTuple):
    """Lost messages ``first`` to before ``end`` of a queue."""

    topic: str
    queue_id: int
    first: int
    end: int


def lost_messages(
    disk: Disk, paths: StorePaths, segments: Sequence[StoreFile], ranges: Sequence[UnreadableRange]
) -> tuple[list[LostMessages], int, list[Path]]:
    """Find the messages that were in ``ranges``. Walks over all of the log, 7 to 9 µs a message.
    Raises OSError.

    Return the messages queue by queue, the end of the last good message of the log, and the queue
    files that are not fully readable.
    """
    walk = _Walk(disk, segments, ranges)
    between = list(_between(walk, segments[0].start, ranges))
    unread: list[Path] = []
    return _merged(chain(between, _by_units(disk, paths, ranges, unread))), walk.end, unread


def list_row(disk: Disk, directories: Iterable[Path], *, empty: bool = False) -> list[StoreFile]:
    """Return every non-empty file of a row, in order. ``empty``: include empty ones."""
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
    """Yield the lost messages according to the queue offsets before and behind an unreadable
    range."""
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
    """Yield the lost messages according to the units that point into an unreadable range."""
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
    """Yield (messages, log offset, size) of each unit of each queue."""
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
    """Return a queue's file, with zeros for unreadable parts."""
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
    """Walk in which known unreadable sectors count as zeros and are not read again."""

    def __init__(
        self, disk: Disk, segments: Sequence[StoreFile], ranges: Sequence[UnreadableRange]
    ) -> None:
        super().__init__(segments)
        self._disk = disk
        self._ranges = ranges

    def _open(self, segment: StoreFile) -> OpenSegment:
        ranges = [one for one in self._ranges if one.path == segment.path]
        return _ZeroedFile(self._disk.open_segment(segment.path), segment.start, ranges)

    def _item(self, offset: int, entry: bytes) -> ParsedEntry | str:
        return parse_entry(entry, offset) or NO_DIRECTORY


class _ZeroedFile:
    """Segment that is read except for its unreadable parts."""

    def __init__(self, segment: Segment, start: int, ranges: Sequence[UnreadableRange]) -> None:
        self._segment = segment
        self._start = start
        self._ranges = ranges
        self.size, self.data_from, self.close = segment.size, segment.data_from, segment.close

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


# A sector is given up only after several failed reads. It then counts as zeros, and is reported.

SECTOR: Final = 4096
"""Number of bytes given up at a time."""
_TRIES: Final = 3


class UnreadableRange(NamedTuple):
    """Unreadable bytes ``start`` to ``end`` of a row of files, in the file ``path``; ``cause`` is
    the error."""

    start: int
    end: int
    path: Path
    cause: str


def read_with_zeros(
    segment: Segment, at: int, size: int, start: int, found: list[UnreadableRange]
) -> bytes:
    """Return bytes of a segment, with zeros for unreadable parts. These are added to ``found``, and
    adjacent ones are merged. ``start`` is the offset of the segment's first byte."""
    try:
        return segment.read_cold(at, size)
    except OSError:
        pass
    parts, end = [], at + size
    while at < end:
        sector_end = min(at - at % SECTOR + SECTOR, end)
        read = _sector(segment, at, sector_end - at)
        if isinstance(read, OSError):
            parts.append(bytes(sector_end - at))
            joined = found and (found[-1].end, found[-1].path) == (start + at, segment.path)
            before = found.pop() if joined else None
            begin, cause = (
                (before.start, before.cause) if before else (start + at, read.strerror or str(read))
            )
            found.append(UnreadableRange(begin, start + sector_end, segment.path, cause))
        else:
            parts.append(read)
        at = sector_end
    return b"".join(parts)


def _sector(segment: Segment, at: int, size: int) -> bytes | OSError:
    for _ in range(_TRIES):
        try:
            return segment.read_cold(at, size)
        except OSError as error:
            failure = error
    return failure
