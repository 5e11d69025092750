"""Directories of a store: creating, checking and recording them.

A log with a missing root is refused, not cut to the remaining part. A root may be missing because a
disk is not mounted, or the configuration changed. File names show a missing segment between others.
For the first and the last segments, ``turbopump.json`` names the newest segment of each root when
it was written. That segment must exist in some root, or its root must have others (another broker
deletes old segments too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from turbopump.disk.disk import Disk
from turbopump.errors import StoreDamagedError, StoreError
from turbopump.store.files import StorePaths, segment_name, segment_offset
from turbopump.store.mapped_file import MappedFile
from turbopump.store.mapped_file_queue import MappedFileQueue
from turbopump.store.provenance import Provenance


class StoreLock:
    """Locks that keep other brokers out of a store.

    The lock file keeps out Apache's brokers. Locks on each directory keep out our other brokers,
    even if these have another root or the lock file was removed.
    """

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        """Create the directory of the store if it is missing, and lock it.

        Raises StoreLockedError if another broker has locked it, and StoreError if it is unusable.
        """
        self._disk = disk
        self._release: Callable[[], None] = lambda: None
        try:
            disk.make_directory(paths.root)
            self._file = disk.lock(paths.lock)
        except OSError as error:
            why = error.strerror or str(error)
            raise StoreError(
                f"{paths.root} cannot be a store directory ({why}): give one that can be made "
                "and written"
            ) from None

    @property
    def found_mark(self) -> bytes:
        """Content of the lock file before this process locked it. The content identifies the last
        broker."""
        return self._file.found

    def mark(self, data: bytes) -> None:
        """Overwrite the content of the lock file."""
        self._file.mark(data)

    def lock_directories(self, paths: StorePaths) -> None:
        """Lock the existing directories that contain messages.

        Raises StoreLockedError if another broker has locked one of them.
        """
        logs = (*paths.commit_logs, *paths.read_only_commit_logs)
        there = filter(self._disk.is_directory, (paths.root, *logs, paths.consume_queues))
        self._release = self._disk.lock_directories(there)

    def release(self) -> None:
        self._release()
        self._file.release()


def make_directories(disk: Disk, paths: StorePaths) -> None:
    """Create the missing directories of a store.

    Raises StoreError for a directory that is unusable, or that should exist already. Raises
    StoreDamagedError if a directory that had segments is missing.
    """
    _refuse_left_behind(disk, paths)
    known = Provenance(disk, paths.provenance).read_roots()
    for root in paths.read_only_commit_logs:
        if not disk.is_directory(root):
            raise StoreError(
                f"{root} in readOnlyCommitLogStorePaths is no directory: mount its disk, "
                "or leave it out"
            )
    for root in paths.commit_logs:
        if str(root) in known and not disk.is_directory(root):
            raise StoreDamagedError(
                f"{root} is not there, but the log has segments in it: is its disk mounted?"
            )
        _make(disk, root, "storePathCommitLog")
    _make(disk, paths.config, "storePathRootDir")
    _make(disk, paths.consume_queues, "storePathConsumeQueue")
    _make(disk, paths.checkpoint.parent, "storeCheckpoint")
    _make(disk, paths.abort.parent, "abortFile")


def _make(disk: Disk, directory: Path, key: str) -> None:
    try:
        disk.make_directory(directory)
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be made ({error.strerror or error}): see {key}"
        ) from None
    if not disk.is_writable(directory):
        raise StoreError(
            f"{directory} is not writable for this user, or lies on a read-only file "
            f"system: see {key}"
        )


def _refuse_left_behind(disk: Disk, paths: StorePaths) -> None:
    """Raise StoreError if a setting names a new directory, but files remain in the usual one.

    Apache's default directory is the usual one. Its files still belong to the store.
    """
    usual = StorePaths(paths.root)
    for key, given, before in (
        ("storePathConsumeQueue", paths.consume_queues, usual.consume_queues),
        ("storePathIndex", paths.index, usual.index),
        ("storeCheckpoint", paths.checkpoint, usual.checkpoint),
        ("abortFile", paths.abort, usual.abort),
    ):
        if given != before and not _is_there(disk, given) and _is_there(disk, before):
            raise StoreError(
                f"{key} names {given}, but the store has {before}: move it there, "
                f"or leave {key} out"
            )
    there = {
        name
        for root in (*paths.commit_logs, *paths.read_only_commit_logs)
        for name in disk.list_directory(root)
    }
    if any(
        segment_offset(name) is not None and name not in there
        for name in disk.list_directory(usual.commit_log)
    ):
        raise StoreError(
            f"{usual.commit_log} has segments, but storePathCommitLog leaves it out: name it "
            "there too, or move them"
        )


def _is_there(disk: Disk, path: Path) -> bool:
    if disk.is_directory(path):
        return bool(disk.list_directory(path))
    return disk.file_size(path) is not None


@dataclass(slots=True, eq=False)
class LogRoots:
    """Checks and records the directories in which segments of the log lie."""

    _disk: Disk
    _files: MappedFileQueue
    _provenance: Provenance

    def check(self) -> None:
        """Raise StoreDamagedError if a recorded part of the log is missing."""
        there = self._segments()
        for root, start in self._provenance.roots.items():
            if root not in there and all(file.start != start for file in self._files):
                raise StoreDamagedError(
                    f"segment {segment_name(start)} of the log was in {root}, and is missing in "
                    f"{', '.join(map(str, self._files.roots))}: is its disk mounted? Mount it, or "
                    "complete storePathCommitLog; if the segment was removed on purpose, remove "
                    f"{self._provenance.path}"
                )

    def segment_begun(self) -> None:
        """Start to record the new segment in a thread, if it is the first in its directory."""
        parents = [file.segment.path.parent for file in self._files]
        if parents.count(parents[-1]) == 1:
            self._disk.start(self.note_segments, lambda _error: None)

    def note_segments(self, without: MappedFile | None = None) -> None:
        """For each directory of the log, record the newest segment.

        The call blocks the thread. Raises OSError if the record cannot be saved.
        """
        there = self._segments(without)
        if there != self._provenance.roots:
            if self._provenance.log_start is None:  # the first segment of all
                self._provenance.log_start = self._files.start
            for root in self._files.roots:
                # A segment named in the file must exist after a power cut, too.
                self._disk.sync_directory(root)
            self._provenance.note_roots(there)

    def refuse_lost_front(self) -> None:
        """Raise StoreDamagedError if the log begins later than retention has left it.

        Other replicas have the missing messages. A replica without them must not start, because it
        could be elected.
        """
        noted = self._provenance.log_start
        start = self._files.start
        if noted is None or start <= noted:
            return
        raise StoreDamagedError(
            f"segment {segment_name(noted)} of the log, or a later one before "
            f"{segment_name(start)}, is missing in {', '.join(map(str, self._files.roots))}: "
            f"the log began at {noted}, and begins at {start}. Restore the files from a copy, or "
            "empty the store, so that it is copied again from the master"
        )

    def before_deleting(self, file: MappedFile) -> None:
        """If a recorded segment is about to be deleted, record another segment of its directory.

        This is for any segment. For the first one, record the new start of the log too
        (``note_start``). The call blocks the thread. Raises OSError if the record cannot be saved.
        """
        if file.start in self._provenance.roots.values():
            self.note_segments(without=file)

    def note_start(self, start: int) -> None:
        """Record the start of the log, before the segments in front of it are deleted.

        The call blocks the thread. Raises OSError if the record cannot be saved.
        """
        self._provenance.note_start(start)

    def _segments(self, without: MappedFile | None = None) -> dict[str, int]:
        """For each directory with segments, return the start of the newest segment."""
        return {
            str(file.segment.path.parent): file.start
            for file in list(self._files.files)
            if file is not without
        }
