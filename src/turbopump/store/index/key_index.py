"""The row of index files of a store: every key of every message, and which messages have a key.

Each message is indexed under ``topic#uniqueId`` and ``topic#key`` for each of its keys, except
rolled-back ones. Derived data: files that are gone or damaged are filled again from the log.
Source: apache/rocketmq ``IndexService``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from turbopump.clock import Clock
from turbopump.message.properties import KEYS, NAME_END, TRANSACTION_MASK, UNIQ_KEY, value_after
from turbopump.store.disk import Disk, Found, Segment
from turbopump.store.disk_space import NO_ROOM, SpaceWatch
from turbopump.store.index.index_file import (
    GROWTH,
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
"""Keys that wait to be written to the files: they are in the log, and a crash brings them back from
there."""


UNWRITTEN_MAX: Final = 100_000
"""Entries that may wait for room on the disk; beyond, the index is given up until the next
start."""


class KeyIndex:
    """The index files in ``directory``; ``slots`` and ``entries`` as Apache's ``maxHashSlotNum``
    and ``maxIndexNum``.

    Which files there are is noted in ``provenance``: one that is noted and missing at a start has
    the index filled again. ``log_error`` gets a line for what goes wrong. Where a file finds no
    room, ``space`` sees to it that no message is added until there is.
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
        """Whether a file could not be made: nothing is indexed from then on, and the next start
        fills the index again."""
        self.files: list[IndexFile] = []
        self._waiting: list[tuple[int, int, int]] = []
        self._unwritten: list[tuple[int, int, int]] = []

    def load(self) -> bool:
        """Open the files that are there; False if some are known to be missing. One of another size
        cannot be read with these settings: it is removed, and filled again."""
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
        """The store is recovered: from now on each new file is noted."""
        self._noting = True
        if self.failed:
            self._provenance.note_indexes(None)

    def note_names(self) -> None:
        """Note which files there are. Blocks; raises OSError."""
        self._provenance.note_indexes(None if self.failed else self.names)

    def check_headers(self) -> None:
        """Set files apart whose headers cannot be right: a few bytes of each are read. They are
        filled again by ``index_scrub.py``."""
        for file in self.files:
            fault = None if file.damaged else _header_fault(file)
            if fault is not None:
                self.set_apart(file, fault)

    def set_apart(self, file: IndexFile, fault: str) -> None:
        """Ask a file no more; it stays in the row until another replaces it (``replace``)."""
        file.set_apart()
        self._log_error(
            f"index file {file.segment.path} is damaged ({fault}): its messages are not found by "
            "key until the scrub has filled it again "
            "from the log (scrubBytesPerSecond); a start without the file does that too"
        )

    @property
    def incomplete(self) -> bool:
        """Whether a damaged file has still to be filled again."""
        return any(file.damaged for file in self.files)

    def begin_file(self) -> None:
        """Let what is added from now on go into a new file. Raises OSError."""
        self.write_waiting()
        self._new_file()

    def make_spare(self) -> IndexFile:
        """A blank file beside the directory (Apache's broker knows no other names within). Blocks;
        raises OSError."""
        path = self._directory.with_name(self._directory.name + ".new")
        self._disk.remove(path)
        return self._create(path)

    def replace(self, damaged: IndexFile, fresh: IndexFile) -> None:
        """Ask ``fresh``, which has taken the name of ``damaged``, instead of it."""
        self.files[self.files.index(damaged)] = fresh
        damaged.segment.close()

    @property
    def lacking(self) -> bool:
        """Whether entries wait for a file that has found no room; each ``write_waiting`` tries
        again."""
        return bool(self._unwritten)

    def give_up(self) -> bool:
        """Forget the entries that wait for room; whether there were any."""
        lacking, self._unwritten = self.lacking, []
        return lacking

    @property
    def end_offset(self) -> int:
        """The commit-log offset of the newest message that is indexed; −1 if there is none."""
        self.write_waiting()
        return self._there

    @property
    def _there(self) -> int:
        last = next((file for file in reversed(self.files) if not file.damaged), None)
        return last.end_offset if last is not None and last.count > 1 else -1

    def add(
        self,
        topic: str,
        unique: str | None,
        keys: str | None,
        sys_flag: int,
        offset: int,
        stored_ms: int,
    ) -> None:
        """Index one message by its unique id and its keys (separated by spaces), soon. Never fails:
        see ``failed``."""
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
        """Index messages of one kind by (``key_hash``, offset, store time) of each of their keys,
        soon."""
        if sys_flag & TRANSACTION_MASK == TRANSACTION_MASK or self.failed:
            return
        self._waiting.extend(entries)
        if len(self._waiting) >= WAITING_MAX:
            self.write_waiting()

    def write_waiting(self) -> None:
        """Write to the files what was added and waits: together it costs half. Whoever reads or
        syncs the files settles first."""
        waiting, self._waiting = self._waiting, []
        there, entries = self._there, self._unwritten
        # they come in the order of the log, some of them perhaps again
        if waiting and waiting[0][1] <= there:
            waiting = [entry for entry in waiting if entry[1] > there]
        entries.extend(waiting)
        try:
            while entries:
                file = self.files[-1] if self.files else None
                if file is None or file.full:
                    file = self._new_file()
                del entries[: file.put(entries)]
        except OSError as error:
            # derived data: no reason to refuse the messages, which are in the log
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
            # should that fail too, the clean stop notes it
            self._disk.start(lambda: self._provenance.note_indexes(None), lambda _error: None)

    @property
    def end_timestamp(self) -> int:
        """The store time (ms) of the newest message that is indexed; 0 if there is none."""
        return self.files[-1].end_timestamp if self.end_offset >= 0 else 0

    @property
    def full_timestamp(self) -> int:
        """The store time (ms) of the newest message of the files that nothing is added to any more;
        0 if there is none."""
        return next(
            (file.end_timestamp for file in reversed(self.files[:-1]) if not file.damaged), 0
        )

    def walk(self, topic: str, key: str, begin_ms: int, end_ms: int, behind: int = 0) -> KeyWalk:
        """The way through every entry of this key or unique id in the files that reach the offset
        ``behind`` of the log."""
        self.write_waiting()
        return KeyWalk(self.files, index_hash(f"{topic}#{key}"), begin_ms, end_ms, behind)

    def rewind(self, before: int) -> int:
        """Forget what was indexed of messages at or after ``before``; the offset from which the
        dispatcher must bring them back.

        That is ``before``, or less if the newest file is not as it was written: then that part is
        indexed again.
        """
        self.write_waiting()
        while self.files:
            last = self.files[-1]
            if last.count > 1 and last.begin_offset < before:
                trusted = last.rewind(before)
                if trusted == before:
                    break
                before = trusted
                continue
            empty = last.count <= 1
            self._drop(self.files.pop())
            if empty:  # or its header is lost
                before = min(before, max(self.end_offset, 0))
        return before

    def warm(self) -> None:
        """Begin to bring into memory what the next entries touch anywhere: page faults there would
        hold up sends for seconds in all."""
        if self.files:
            self._disk.start_read([self.files[-1].slots_piece()], lambda _found: None)

    @property
    def names(self) -> list[str]:
        """The files there are, oldest first."""
        return [file.name for file in self.files]

    def take_before(self, start: int) -> list[IndexFile]:
        """Take out the files whose messages all lie before ``start``, never the newest; the caller
        removes and closes them."""
        count = 0
        while count + 1 < len(self.files) and self.files[count].end_offset < start:
            count += 1
        taken, self.files[:count] = self.files[:count], []
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
        # The next start reads them in order of their names: where the clock, or local time, went
        # back, that is kept.
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
        """A blank file with room for its first entries. Raises OSError."""
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
    """What ``KeyIndex.add`` makes of an entry: (key hash, commit-log offset, store time) for each
    of its keys."""
    if parsed.sys_flag & TRANSACTION_MASK == TRANSACTION_MASK:  # rolled back
        return []
    unique, keys = (
        value_after(parsed.properties, UNIQ_KEY + NAME_END),
        value_after(parsed.properties, KEYS + NAME_END),
    )
    texts = [*([unique] if unique else []), *(key for key in (keys or "").split(" ") if key)]
    return [(key_hash(parsed.topic, text), parsed.offset, parsed.store_timestamp) for text in texts]


def _header_fault(file: IndexFile) -> str | None:
    try:
        return file.header_fault()
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _name_behind(name: str) -> str:
    return f"{int(name) + 1:017}"


def _file_name(now_ms: int) -> str:
    """RocketMQ names an index by local time, to the millisecond."""
    moment = datetime.fromtimestamp(now_ms / 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


PAUSE_EVERY: Final = 100
"""Entries that are walked in one go, some 0.3 ms."""


class KeyWalk:
    """Finds entries of ``key_hash`` in ``files`` (oldest first, the list that the index keeps).
    ``errors`` says what could not be read."""

    def __init__(
        self, files: list[IndexFile], key_hash: int, begin_ms: int, end_ms: int, behind: int = 0
    ) -> None:
        self._files = files
        self._wanted = key_hash, begin_ms, end_ms
        self._left = [file for file in files if not behind or file.end_offset >= behind]
        self._number = self._walked = 0
        self.errors: list[OSError] = []

    def next(self) -> ReadSteps[int | None]:
        """The commit-log offset of the next message that may be meant, newest first; None: that was
        all.

        Hashes collide and times are rough: look at the message itself.
        """
        while self._left:
            file, number, self._number = self._left[-1], self._number, 0
            if number:
                self._walked += 1
                if self._walked % PAUSE_EVERY == 0:
                    yield []
            found: Found = b""
            if file in self._files:  # else it was removed while others had their turn
                piece = (
                    file.entries_piece(number, 1) if number else file.slot_piece(self._wanted[0])
                )
                found = yield from read_piece(piece)
            if isinstance(found, OSError) and file in self._files:
                self.errors.append(found)
            offset = None
            if isinstance(found, bytes) and found and number:
                offset, self._number = file.judge(number, found, *self._wanted)
            elif isinstance(found, bytes) and found:
                self._number = file.newest(found)
            if not self._number:
                self._left.pop()
            if offset is not None:
                return offset
        return None
