"""Setting apart what the system cannot read of the log, so that the store starts again: an
operator's step, never a start's.

1. Every segment is read. A piece that cannot be read is read again sector by sector, each a few
   times: what answers in the end is no loss.
2. Each segment with sectors that do not is copied, beside its directory, with zeros in their place,
   and the copy is synced.
3. Which messages lay there is found out (``lost_messages.py``).
4. The original gets a second name beside the directory, and then its own name goes to the copy in
   one step: a kill leaves one or the other.

The rule: nothing is lost by this that could be read before. Originals stay, and until every copy is
whole nothing in the store has changed. Sectors are zeroed, not messages: which entries are good any
more is judged by the next start. It must not know what an entry looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turbopump.errors import StoreError
from turbopump.store.disk import Disk, Segment
from turbopump.store.files import StorePaths
from turbopump.store.inspection.store_files import StoreFile
from turbopump.store.lost_messages import LostMessages, lost_messages, row_files
from turbopump.store.mapped_file import STEP, data_steps
from turbopump.store.roots import StoreLock
from turbopump.store.unreadable import Unreadable, read_round

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class SettingApart:
    """What was found, and done. ``readable_end``: where the last message ends that can be read.
    ``unread_queues``: files of queues that cannot be read whole: more may be lost than ``lost``
    says. ``kept``: where the original of each replaced segment is."""

    log_size: int = 0
    ranges: list[Unreadable] = field(default_factory=list)
    lost: list[LostMessages] = field(default_factory=list)
    readable_end: int = 0
    unread_queues: list[Path] = field(default_factory=list)
    kept: dict[Path, Path] = field(default_factory=dict)

    @property
    def at_the_end(self) -> bool:
        """Whether no message follows something that cannot be read: the next start ends the log
        before it."""
        return any(self.readable_end <= found.start for found in self.ranges)

    def as_json(self) -> dict[str, Any]:
        """For ``json.dumps``; ``end`` is one past the last byte or message."""
        return {
            "log_size": self.log_size,
            "unreadable": [
                {"file": str(one.path), "offset": one.start, "end": one.end, "cause": one.cause}
                for one in self.ranges
            ],
            "lost": [
                {
                    "topic": one.topic,
                    "queue": one.queue_id,
                    "queue_offset": one.first,
                    "end": one.end,
                }
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
    on_progress: Progress = lambda _done, _size: None,
) -> SettingApart:
    """Replace each segment of the store at ``paths`` that cannot be read whole by a copy with
    zeros. ``dry_run``: only say what is lost. ``on_progress`` hears bytes of segments read, of how
    many, a segment at a time.

    Raises StoreLockedError if a broker has the store, StoreError for a directory without segments
    or without room for the copies, OSError if a copy cannot be written. Nothing has changed then,
    or, if names could not be changed or synced, each segment is either what it was or its copy: run
    it again.
    """
    directories = (*paths.commit_logs, *paths.read_only_commit_logs)
    if not row_files(disk, directories):
        raise StoreError(
            f"{paths.root} has no segments in {', '.join(map(str, directories))}: "
            "is it a store directory?"
        )
    with _held(paths, disk):
        found = SettingApart()
        segments = row_files(disk, directories)
        bad = _scan(disk, segments, found, on_progress)
        if dry_run or not bad:
            _tell_lost(disk, paths, segments, found)
            return found
        found.ranges.clear()  # what counts is what the copies lack
        with _copies(disk, bad, found.ranges) as copies:
            _tell_lost(disk, paths, segments, found)
            for path, copy in copies:
                if any(one.path == path for one in found.ranges):  # else it could be read after all
                    found.kept[path] = _replace(disk, path, copy)
    return found


@contextmanager
def _held(paths: StorePaths, disk: Disk) -> Iterator[None]:
    lock = StoreLock(disk, paths)
    try:
        lock.lock_directories(paths)
        yield
    finally:
        lock.release()


def _tell_lost(
    disk: Disk, paths: StorePaths, segments: Sequence[StoreFile], found: SettingApart
) -> None:
    if found.ranges:
        found.lost, found.readable_end, found.unread_queues = lost_messages(
            disk, paths, segments, found.ranges
        )


def _scan(
    disk: Disk, segments: Sequence[StoreFile], found: SettingApart, on_progress: Progress
) -> list[StoreFile]:
    """The segments that cannot be read whole; what of them cannot is added to ``found``."""
    found.log_size, done, bad = sum(file.size for file in segments), 0, []
    for file in segments:
        on_progress(done, found.log_size)
        before = len(found.ranges)
        segment = disk.open_segment(file.path)
        try:
            for at in data_steps(segment, 0):
                read_round(segment, at, min(STEP, segment.size - at), file.start, found.ranges)
        finally:
            segment.close()
        if len(found.ranges) > before:
            bad.append(file)
        done += file.size
    on_progress(done, found.log_size)
    return bad


@contextmanager
def _copies(
    disk: Disk, segments: Iterable[StoreFile], found: list[Unreadable]
) -> Iterator[list[tuple[Path, Segment]]]:
    """Each segment with a synced copy of it; those that have not got its name at the end of the
    block are removed."""
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
        # by the name that they were made with: one that was renamed is the segment now
        for path in made:
            disk.remove(path)


def _copied(
    disk: Disk, start: int, path: Path, directory: Path
) -> tuple[list[Unreadable], Segment]:
    """What of a segment cannot be read, and a synced copy of it in ``directory`` with zeros
    there."""
    disk.make_directory(directory)
    target = directory / f"{path.name}.copy"
    disk.remove(target)  # of an attempt that was killed
    found: list[Unreadable] = []
    segment = disk.open_segment(path)
    try:
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
                copy.buffer[at : at + size] = read_round(segment, at, size, start, found)
            copy.sync()
        except BaseException:
            copy.close()
            disk.remove(target)
            raise
    finally:
        segment.close()
    return found, copy


def _beside(disk: Disk, directory: Path) -> Path:
    """Where originals are kept: beside the directory of the log, or in it if that is a file system
    of its own."""
    if disk.same_file_system(directory, directory.parent):
        return directory.with_name(directory.name + ".unreadable")
    return directory / "unreadable"


def _replace(disk: Disk, path: Path, copy: Segment) -> Path:
    """Give a segment's name to its copy; where the original is now."""
    directory = copy.path.parent
    taken, kept, number = set(disk.list_directory(directory)), path.name, 0
    while kept in taken:  # the disk went on to fail, or an attempt was killed
        number += 1
        kept = f"{path.name}.{number}"
    disk.link(path, directory / kept)
    disk.sync_directory(directory)
    disk.sync_directory(directory.parent)
    disk.rename_segment(copy, path)
    disk.sync_directory(path.parent)
    disk.sync_directory(directory)
    return directory / kept
