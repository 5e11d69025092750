"""Rebuild of damaged index files from the log, while the store is in use.

A file is marked as damaged by a start that finds an impossible header, and by a search that meets
an impossible entry. It is no longer searched, and a new file is filled from the same part of the
log. That part reaches from the last message of the file before to the first message of the file
behind. The new file is built beside the directory. When it is complete and on the disk, it gets the
name of the damaged one. A crash during the rebuild leaves the old file.

Damage that no search meets, like a slot of zeros, is not noticed here: ``turbopump store verify``
finds it. ``scrub.py`` runs the rebuild in small parts, which block no other work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from turbopump.disk.disk import Disk, Piece
from turbopump.store.index.index_file import ENTRY, IndexFile
from turbopump.store.index.key_index import KeyIndex, index_entries_of
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.parsed_entry import parse_entry
from turbopump.store.log.stepped_walk import SteppedWalk

ENTRIES_AT_ONCE: Final = 1000
"""Number of entries written to a new file at a time, which takes about 0.4 ms."""
LOG_AT_ONCE: Final = 1 << 20
"""Number of bytes of the log whose keys are put into a new file at a time."""


@dataclass(slots=True, eq=False)
class IndexRebuild:
    """Rebuild of the damaged files of a key index from the log.

    - ``log_error``: gets a line for each file that cannot be rebuilt now.
    - ``log_info``: gets a line for each rebuilt file.
    """

    disk: Disk
    log: CommitLog
    index: KeyIndex
    log_error: Callable[[str], None]
    log_info: Callable[[str], None]
    _failed: set[IndexFile] = field(default_factory=set)
    """Files whose rebuild has failed since ``retry_failed`` was called."""

    @property
    def is_due(self) -> bool:
        """True if there is a damaged index file whose rebuild was not tried yet."""
        return not self.index.failed and any(
            file.damaged and file not in self._failed for file in self.index.files
        )

    def retry_failed(self) -> None:
        """Let the next ``fill_damaged`` retry the files whose rebuild has failed."""
        self._failed.clear()

    def fill_damaged(self) -> ReadSteps[None]:
        """Rebuild every damaged index file from the log, oldest first."""
        index = self.index
        while self.is_due:
            file = next(one for one in index.files if one.damaged and one not in self._failed)
            if file is index.files[-1]:
                # The damaged file stays in the row, and new messages need another one behind it.
                try:
                    index.begin_file()
                except OSError as error:
                    self._note_failure(file, error.strerror or str(error))
                    continue
            yield from self._fill_file(file)

    def _fill_file(self, damaged: IndexFile) -> ReadSteps[None]:
        """Fill a new index file from the log, and replace the damaged file by it."""
        # New messages never go into this file: the index has begun another one behind it. So its
        # part of the log is fixed, and filling may take minutes. The new file lies beside the
        # directory, because a broker reads every file in there as an index. It is synced before it
        # gets the name: a crash leaves either the damaged file or a whole one.
        made: list[IndexFile] = []

        def make() -> None:
            made.append(self.index.make_spare())
            _populate(made[0].slots_piece())

        def install() -> None:
            made[0].segment.sync()
            self.disk.rename_segment(made[0].segment, damaged.segment.path)
            self.disk.sync_directory(damaged.segment.path.parent)

        start, end, skip = yield from self._part_of_log(damaged)
        fault = yield from self._in_thread(make)
        if fault is None:
            fault = yield from self._fill_from_log(made[0], start, end, skip)
            if fault is None:
                fault = yield from self._in_thread(install)
            if fault is not None:
                made[0].segment.close()
        if fault is not None:
            self._note_failure(damaged, fault)
            return
        made[0].dirty = False
        self.index.replace(damaged, made[0])
        self.log_info(
            f"index file {damaged.segment.path} is filled again from the log: "
            f"{made[0].count - 1} entries"
        )

    def _note_failure(self, file: IndexFile, fault: str) -> None:
        self._failed.add(file)
        self.log_error(f"index file {file.segment.path} cannot be filled again now ({fault})")

    def _part_of_log(self, damaged: IndexFile) -> ReadSteps[tuple[int, int, int]]:
        """Return the range of the log that a damaged index file covers, as start and end.

        The intact files on both sides show the range. A third value counts the keys of the first
        message that the previous file already has.
        """
        index = self.index
        log = self.log
        at = index.files.index(damaged)
        before = next(
            (file for file in reversed(index.files[:at]) if not file.damaged and file.count > 1),
            None,
        )
        behind = next(
            (file for file in index.files[at + 1 :] if not file.damaged and file.count > 1), None
        )
        start = log.start
        if before is not None:
            start = max(before.end_offset, start)
        end = log.end  # newer entries go into another file
        if behind is not None:
            end = behind.begin_offset + 1
        if before is None or before.end_offset != start:
            return start, end, 0
        return start, end, (yield from self._keys_of_last(before))

    def _fill_from_log(
        self, fresh: IndexFile, start: int, end: int, skip: int
    ) -> ReadSteps[str | None]:
        """Add the keys of the messages between two log offsets to a new index file.

        The first ``skip`` keys are left out, because another file has them. Filling stops when the
        file is full. Return the fault, or None.
        """
        waiting: list[tuple[int, int, int]] = []

        def index_entry(entry: bytes, offset: int) -> None:
            nonlocal skip
            parsed = parse_entry(entry, offset)
            keys = index_entries_of(parsed) if parsed is not None else []
            waiting.extend(keys[skip:])
            skip = 0

        walk = SteppedWalk(self.log, index_entry)
        while start < end and not fresh.full:
            start = yield from walk.entries(start, min(start + LOG_AT_ONCE, end))
            # The first write to a page of a new file may wait for the file system, so it must not
            # happen in the owner's thread.
            fault = yield from self._in_thread(partial(_make_ready, fresh, len(waiting)))
            if fault is not None:
                return fault
            while waiting:
                fresh.append_entries(waiting[:ENTRIES_AT_ONCE])
                del waiting[:ENTRIES_AT_ONCE]
                yield []
        return None

    def _keys_of_last(self, file: IndexFile) -> ReadSteps[int]:
        """Count the keys of the last message in an index file.

        The keys of a message may be divided between two files.
        """
        number = file.count
        while number > 1:
            (entry,) = yield [file.entries_piece(number - 1, 1)]
            if not isinstance(entry, bytes) or ENTRY.unpack(entry)[1] != file.end_offset:
                break
            number -= 1
        return file.count - number

    def _in_thread(self, operation: Callable[[], None]) -> ReadSteps[str | None]:
        """Run an operation in a thread, and return the fault or None."""
        outcome: list[OSError | None] = []
        self.disk.start(operation, outcome.append)
        while not outcome:
            yield []
        error = outcome[0]
        if error is None:
            return None
        return error.strerror or str(error)


def _make_ready(file: IndexFile, count: int) -> None:
    """Prepare an index file for ``count`` more entries, so that writing them never waits for the
    disk.

    Raises OSError.
    """
    file.make_room(count)
    _populate(file.entries_piece(file.count, count))


def _populate(piece: Piece) -> None:
    piece.segment.populate(piece.at, piece.size)
