"""Key index of a store: a row of index files with every key of every message.

Each message is indexed under ``topic#uniqueId`` and ``topic#key`` for each of its keys, except
rolled-back ones. Derived data: missing and damaged files are filled again from the log. Source:
apache/rocketmq ``IndexService``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from turbopump.clock import Clock
from turbopump.disk.disk import Disk, Piece, Segment
from turbopump.message.properties import KEYS, NAME_END, TRANSACTION_MASK, UNIQ_KEY, value_after
from turbopump.store.disk_space import NO_ROOM, SpaceWatch
from turbopump.store.index.index_file import (
    GROWTH,
    OFFSET_MAX,
    SLOT_SIZE,
    IndexFile,
    index_file_size,
    index_hash,
    key_hash,
)
from turbopump.store.log.cold_reads import ReadSteps, read_piece
from turbopump.store.log.parsed_entry import ParsedEntry
from turbopump.store.provenance import Provenance

WAITING_MAX: Final = 64
"""Largest number of keys that wait to be written to the files. After a crash they are read again
from the log."""


UNWRITTEN_MAX: Final = 100_000
"""Largest number of entries that wait for space on the disk. Beyond it, indexing stops until the
next start."""


class KeyIndex:
    """Index that finds the messages of a store by key or by unique id.

    - ``directory``: directory of the index files.
    - ``slots``, ``entries``: Apache's ``maxHashSlotNum`` and ``maxIndexNum``.
    - ``provenance``: records the names of the files. If a recorded file is missing at a start,
      the index is filled again.
    - ``space``: refuses messages while a file finds no space.
    - ``log_error``: gets a line for each failure.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: Path,
        slots: int,
        entries: int,
        provenance: Provenance,
        space: SpaceWatch,
        log_error: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._size = index_file_size(slots, entries)
        self._provenance = provenance
        self._space = space
        self._log_error = log_error
        self._noting = False
        self.failed = False
        """True if a file could not be made. Then nothing more is indexed, and the next start fills
        the index again."""
        self.files: list[IndexFile] = []
        self._waiting: list[tuple[int, int, int]] = []
        self._unwritten: list[tuple[int, int, int]] = []

    def load(self) -> bool:
        """Open the existing files. Return False if files are known to be missing.

        A file of another size does not fit the settings. It is removed, and filled again later.
        """
        for name in self._disk.list_directory(self._directory):
            path = self._directory / name
            if not (len(name) == 17 and name.isdigit()):
                continue
            if self._disk.file_size(path) != self._size:
                self._disk.remove(path)
                continue
            segment = self._disk.open_sparse(path, self._size)
            self.files.append(IndexFile(segment, self._slots, self._entries))
        expected = self._provenance.index_names
        there = set(expected) <= set(self.names) if expected is not None else bool(self.files)
        return there and not self._provenance.index_incomplete

    def begin_noting(self) -> None:
        """Start to record the name of each new file. Call this after recovery."""
        self._noting = True
        if self.failed:
            self._provenance.note_indexes(None)

    def note_names(self) -> None:
        """Record the names of the present files on the disk.

        The call blocks the thread. Raises OSError.
        """
        self._provenance.note_indexes(None if self.failed else self.names)

    def check_headers(self) -> None:
        """Check the headers of all files, and stop searching files with impossible headers.

        A few bytes of each file are read. ``index_rebuild.py`` fills such files again.
        """
        for file in self.files:
            fault = None if file.damaged else _header_fault(file)
            if fault is not None:
                self.set_apart(file, fault)

    def set_apart(self, file: IndexFile, fault: str) -> None:
        """Stop searching a damaged file.

        The file stays in the index until ``replace`` puts another in its place.
        """
        file.set_apart()
        self._log_error(
            f"index file {file.segment.path} is damaged ({fault}): its messages are not found by "
            "key until the scrub has filled it again "
            "from the log (scrubBytesPerSecond); a start without the file does that too"
        )

    @property
    def incomplete(self) -> bool:
        """True if a damaged file must still be filled again."""
        return any(file.damaged for file in self.files)

    def begin_file(self) -> None:
        """Start a new file for the next entries. Raises OSError."""
        self.write_waiting()
        self._new_file()

    def make_spare(self) -> IndexFile:
        """Make a blank file beside the directory of the index.

        Apache's broker knows no other names in that directory. The call blocks the thread. Raises
        OSError.
        """
        path = self._directory.with_name(self._directory.name + ".new")
        self._disk.remove(path)
        return self._create(path)

    def replace(self, damaged: IndexFile, fresh: IndexFile) -> None:
        """Replace a damaged file by a new file. The new file already has the name of the damaged
        file."""
        self.files[self.files.index(damaged)] = fresh
        damaged.segment.close()

    @property
    def lacking(self) -> bool:
        """True if entries wait for disk space. Each ``write_waiting`` tries to write them again."""
        return bool(self._unwritten)

    def give_up(self) -> bool:
        """Drop the entries that wait for disk space. Return True if entries were dropped."""
        lacking = self.lacking
        self._unwritten = []
        return lacking

    @property
    def end_offset(self) -> int:
        """Log offset of the newest indexed message, or −1 if no message is indexed."""
        self.write_waiting()
        return self._there

    @property
    def _there(self) -> int:
        last = next((file for file in reversed(self.files) if not file.damaged), None)
        return last.end_offset if last is not None and last.count > 1 else -1

    def add_message(
        self,
        topic: str,
        unique: str | None,
        keys: str | None,
        sys_flag: int,
        offset: int,
        stored_ms: int,
    ) -> None:
        """Index one message under its unique id and under each of its keys. Spaces separate the
        keys.

        The entries are written later. The call never fails: see ``failed``.
        """
        if sys_flag & TRANSACTION_MASK == TRANSACTION_MASK or self.failed:  # rolled back
            return
        waiting = self._waiting
        if unique:
            waiting.append((key_hash(topic, unique), offset, stored_ms))
        if keys:
            waiting.extend(
                [(key_hash(topic, key), offset, stored_ms) for key in keys.split(" ") if key]
            )
        if len(waiting) >= WAITING_MAX:
            self.write_waiting()

    def add_many(self, entries: list[tuple[int, int, int]], sys_flag: int) -> None:
        """Index the messages of a batch. The entries are written later.

        ``entries`` has the hash, log offset and store time of each key. ``sys_flag`` is that of all
        messages.
        """
        if sys_flag & TRANSACTION_MASK == TRANSACTION_MASK or self.failed:
            return
        self._waiting.extend(entries)
        if len(self._waiting) >= WAITING_MAX:
            self.write_waiting()

    def write_waiting(self) -> None:
        """Write the waiting entries to the index files.

        Every reader and every sync of the files calls this first. Writing many entries at a time
        costs half as much as single writes.
        """
        # ``self._waiting`` is emptied first: on an error its entries are in ``_unwritten`` or
        # dropped, and never written twice. Entries that found no space come before newer ones,
        # because the offsets in a file must not go back (``IndexFile.rewind``).
        waiting = self._waiting
        self._waiting = []
        there = self._there
        entries = self._unwritten
        # Entries come in log order, and some may come twice.
        if waiting and waiting[0][1] <= there:
            waiting = [entry for entry in waiting if entry[1] > there]
        entries.extend(waiting)
        try:
            while entries:
                file = self.files[-1] if self.files else None
                if file is None or file.full:
                    file = self._new_file()
                del entries[: file.append_entries(entries)]
        except OSError as error:
            # The index is derived data, so its failure is no reason to refuse messages, which are
            # in the log.
            if error.errno in NO_ROOM and len(entries) <= UNWRITTEN_MAX:
                grows = self.files and not self.files[-1].full
                size = GROWTH if grows else self._slots * SLOT_SIZE + GROWTH
                self._space.no_room(error, self._directory, min(size, self._size))
                return
            self._unwritten = []
            self.failed = True
            self._log_error(
                f"an index file cannot be made ({error.strerror or error}); messages are not "
                "indexed until the next start"
            )
            # if that fails too, the clean stop records it
            self._disk.start(lambda: self._provenance.note_indexes(None), lambda _error: None)

    @property
    def end_timestamp(self) -> int:
        """Store time in ms of the newest indexed message, or 0 if no message is indexed."""
        return self.files[-1].end_timestamp if self.end_offset >= 0 else 0

    @property
    def full_timestamp(self) -> int:
        """Store time in ms of the newest message in the complete files, or 0 without a complete
        file."""
        return next(
            (file.end_timestamp for file in reversed(self.files[:-1]) if not file.damaged), 0
        )

    def walk(self, topic: str, key: str, begin_ms: int, end_ms: int, behind: int = 0) -> KeyWalk:
        """Return a walk over the index entries of a key or unique id.

        With ``behind``, only files are searched that reach this log offset.
        """
        self.write_waiting()
        return KeyWalk(self, index_hash(f"{topic}#{key}"), begin_ms, end_ms, behind)

    def rewind(self, before: int, *, after_crash: bool = True) -> int:
        """Remove the entries of messages that lie at or behind the log offset ``before``.

        Without ``after_crash`` the files are as they were written, and only what is removed costs
        time.

        Return the log offset from which the dispatcher must index again. That is ``before``, or
        less if the newest file is damaged: then its damaged part is indexed again.
        """
        self.write_waiting()
        while self.files:
            last = self.files[-1]
            if last.count > 1 and last.begin_offset < before:
                trusted = last.rewind(before) if after_crash else last.cut(before)
                if trusted == before:
                    break
                before = trusted
                continue
            empty = last.count <= 1
            self._drop(self.files.pop())
            if empty:  # or its header is lost
                before = min(before, max(self.end_offset, 0))
        return before

    def end_at(self, stored_ms: int) -> None:
        """Set the store time of the newest indexed message. Entries have it only in seconds."""
        self.files[-1].end_timestamp = stored_ms
        self.files[-1].write_header()

    def warm(self) -> None:
        """Start to load the slots of the newest file into memory.

        Page faults there would delay sends by seconds in total.
        """
        if self.files:
            self._disk.start_read([self.files[-1].slots_piece()], lambda _found: None)

    @property
    def names(self) -> list[str]:
        """Names of the present files, oldest first."""
        return [file.name for file in self.files]

    def take_before(self, start: int) -> list[IndexFile]:
        """Take the oldest files out of the index. All their messages lie before the log offset
        ``start``.

        The newest file always stays. The caller closes and deletes the returned files.
        """
        count = 0
        while count + 1 < len(self.files) and self.files[count].end_offset < start:
            count += 1
        taken = self.files[:count]
        self.files[:count] = []
        return taken

    def dirty_segments(self) -> list[Segment]:
        self.write_waiting()
        segments: list[Segment] = []
        for file in self.files:
            if file.dirty:
                file.dirty = False
                segments.append(file.segment)
        return segments

    def close(self) -> None:
        self.write_waiting()
        for file in self.files:
            file.segment.close()
        self.files.clear()

    def remove_all(self) -> None:
        self._waiting.clear()
        self._unwritten.clear()
        while self.files:
            self._drop(self.files.pop())

    def _new_file(self) -> IndexFile:
        self._disk.make_directory(self._directory)
        name = _file_name(self._clock.now_ms())
        # The next start reads the files in order of their names. This keeps the order even if the
        # clock, or local time, went back.
        if self.files and name <= self.files[-1].name:
            name = _name_behind(self.files[-1].name)
        while self._disk.file_size(self._directory / name) is not None:
            name = _name_behind(name)
        fresh = self._create(self._directory / name)
        before = [file for file in self.files if not file.damaged]
        if before:
            fresh.inherit(before[-1].end_offset, before[-1].end_timestamp)
        self.files.append(fresh)
        if self._noting:
            self._disk.start(self.note_names, lambda _error: None)
        return fresh

    def _create(self, path: Path) -> IndexFile:
        """Make a blank index file with disk space for its first entries. Raises OSError."""
        fresh = IndexFile(self._disk.create_sparse(path, self._size), self._slots, self._entries)
        try:
            fresh.make_room(1)
        except OSError:
            self._drop(fresh)
            raise
        return fresh

    def _drop(self, file: IndexFile) -> None:
        file.segment.close()
        self._disk.remove(file.segment.path)


def index_entries_of(parsed: ParsedEntry) -> list[tuple[int, int, int]]:
    """For each key of a log entry, return an index entry. ``KeyIndex.add_message`` makes equal
    entries.

    An entry is (key hash, commit-log offset, store time in ms).
    """
    if parsed.sys_flag & TRANSACTION_MASK == TRANSACTION_MASK:  # rolled back
        return []
    unique = value_after(parsed.properties, UNIQ_KEY + NAME_END)
    keys = value_after(parsed.properties, KEYS + NAME_END)
    texts = [key for key in (keys or "").split(" ") if key]
    if unique:
        texts.insert(0, unique)
    return [(key_hash(parsed.topic, text), parsed.offset, parsed.store_timestamp) for text in texts]


def _header_fault(file: IndexFile) -> str | None:
    try:
        return file.header_fault()
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _name_behind(name: str) -> str:
    return f"{int(name) + 1:017}"


def _file_name(now_ms: int) -> str:
    """Return the name of a new index file: the local time, to the millisecond, as in RocketMQ."""
    moment = datetime.fromtimestamp(now_ms / 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


PAUSE_EVERY: Final = 100
"""Number of entries examined before other reads run: about 0.3 ms."""


class KeyWalk:
    """Walk over the index entries of one key hash, newest first.

    A file with an impossible entry is no longer searched afterwards. ``errors`` has the failed
    reads.
    """

    def __init__(
        self, index: KeyIndex, key_hash: int, begin_ms: int, end_ms: int, behind: int = 0
    ) -> None:
        self._index = index
        self._key_hash = key_hash
        self._times = begin_ms, end_ms
        self._left = [file for file in index.files if not behind or file.end_offset >= behind]
        self._number = 0
        """Number of the next entry of the chain. 0 if the slot of the file is read next."""
        self._newer = OFFSET_MAX
        """Log offset in the entry before, which is newer."""
        self._walked = 0
        self.errors: list[OSError] = []

    def next_offset(self) -> ReadSteps[int | None]:
        """Return the log offset of the next message whose key may match, or None at the end.

        Newer messages come first. Hashes collide and times are rough, so the caller must check the
        message itself.
        """
        while self._left:
            file = self._left[-1]
            if not self._number:
                self._newer = OFFSET_MAX
                slot = yield from self._read(file, file.slot_piece(self._key_hash))
                self._number = file.newest(slot) if slot else 0
                if not self._number:
                    self._left.pop()
                continue
            self._walked += 1
            if self._walked % PAUSE_EVERY == 0:
                yield []
            number = self._number
            self._number = 0
            entry = yield from self._read(file, file.entries_piece(number, 1))
            offset = None
            if entry:
                # This search follows a damaged chain as far as it leads. Later ones skip the file.
                fault = file.chain_fault(number, entry, self._key_hash, self._newer)
                if fault is not None and not file.damaged:
                    self._index.set_apart(file, fault)
                self._newer, fits, self._number = file.match_entry(
                    number, entry, self._key_hash, *self._times
                )
                offset = self._newer if fits else None
            if not self._number:
                self._left.pop()
            if offset is not None:
                return offset
        return None

    def _read(self, file: IndexFile, piece: Piece) -> ReadSteps[bytes]:
        """Read a piece of an index file.

        The result is empty if it cannot be read, or if the file was removed while other reads ran.
        """
        if file not in self._index.files:
            return b""
        found = yield from read_piece(piece)
        if file not in self._index.files:
            return b""
        if isinstance(found, OSError):
            self.errors.append(found)
            return b""
        return found
