"""Replace unreadable segments, so that the store can start again. Only an operator starts the
replacement, never a broker.

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
from itertools import pairwise
from pathlib import Path
from typing import Any

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import StoreError
from turbopump.store.files import StoreFile, StorePaths
from turbopump.store.holes import STEP, data_steps
from turbopump.store.recovery.checkpoint import CHECKPOINT_SIZE, safe_offset_of
from turbopump.store.repair.lost_messages import LostMessages, list_row, lost_messages
from turbopump.store.repair.unreadable_sectors import UnreadableRange, read_with_zeros
from turbopump.store.roots import StoreLock

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class SettingApart:
    """Report on the unreadable parts of a log, and on the messages lost there.

    - ``missing``: parts of the log that are in no file. Copies do not restore them. Brokers
      refuse the store, or end its log there.
    - ``ranges``: the unreadable parts.
    - ``lost``: the lost messages.
    - ``readable_end``: end of the last readable message.
    - ``unread_queues``: queue files that are not fully readable, so that more messages than those
      in ``lost`` may be lost.
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
        """True if no message follows one of the unreadable ranges.

        The next start of a broker then ends the log before that range.
        """
        return any(self.readable_end <= found.start for found in self.ranges)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a dict for JSON output.

        Each ``end`` is one past the last byte or message.
        """
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
    """Replace each segment with unreadable sectors by a copy that has zeros in their place.

    - ``paths``: the store.
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
    """Return the durable end of the log, according to the checkpoint, or 0 without a checkpoint."""
    checkpoint = disk.read_file(paths.checkpoint) or b""
    return safe_offset_of(checkpoint) if len(checkpoint) == CHECKPOINT_SIZE else 0


def _missing(files: Sequence[StoreFile], safe_offset: int) -> Iterator[str]:
    """Describe each part of the log that is missing from the files.

    Such a part lies between two segments, or behind the last.
    """
    for file, following in pairwise(files):
        if file.end != following.start:
            yield (
                f"{file.path} has {file.size} bytes, and the next segment begins "
                f"{following.start - file.start} bytes behind its beginning: brokers "
                "refuse to start; restore the whole file from a copy"
            )
    if files[-1].end < safe_offset:
        yield (
            f"the log was on the disk up to offset {safe_offset}, and its last segment "
            f"ends at {files[-1].end}: a broker refuses to start, or ends the log there; "
            "restore the rest from a copy"
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
    """Return the segments that are not fully readable.

    Their unreadable ranges are added to ``found``.
    """
    found.log_size = sum(file.size for file in segments)
    done = 0
    bad: list[StoreFile] = []
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
    """Make a synced copy of each segment for the time of a ``with`` block.

    Copies that are not renamed by the end of the block are removed.
    """
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
    """Make a synced copy of a segment in ``directory``, with zeros in place of unreadable parts.

    Return the unreadable ranges and the copy.
    """
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
    """Return the directory for the original segments.

    It lies beside the directory of the log, or inside if that directory is a file system of its
    own.
    """
    if disk.same_file_system(directory, directory.parent):
        return directory.with_name(directory.name + ".unreadable")
    return directory / "unreadable"


def _replace(disk: Disk, path: Path, copy: Segment) -> Path:
    """Give the name of a segment to its copy, and return the new path of the original."""
    directory = copy.path.parent
    taken = set(disk.list_directory(directory))
    kept = path.name
    number = 0
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
