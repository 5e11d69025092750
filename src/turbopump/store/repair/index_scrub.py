"""Check of index files on the disk, and refilling of damaged ones from the log.

Four things are checked:
- the header,
- the link of every entry to the one before it in its slot,
- the link of every slot to its newest entry,
- a sample of entries against their messages.

A file with a fault is set apart, and a new file is filled from the same part of the log. That part
reaches from the last message of the file before to the first message of the file behind. The new
file is built beside the directory. When it is complete and on the disk, it gets the name of the
damaged one. So a crash meanwhile leaves the old file.

The steps are driven by ``scrub.py``, and block no other work.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from turbopump.disk.disk import Disk, Piece
from turbopump.message.codec import entry_fault
from turbopump.message.entry import FIXED_SIZE, HEAD_SIZE, MAGIC_V1, MAGIC_V2, entry_size_at
from turbopump.store.index.index_file import ENTRY, HEADER_SIZE, SLOT_SIZE, IndexFile
from turbopump.store.index.key_index import KeyIndex, index_entries_of
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import parse_entry
from turbopump.store.log.stepped_walk import SteppedWalk

ENTRIES_AT_ONCE: Final = 1000
"""Number of index entries checked in one step: about 0.4 ms."""
SAMPLE: Final = 1000
"""Number of entries of which one is compared with its message."""

LOG_AT_ONCE: Final = 1 << 20
"""Number of bytes of the log whose keys are put into a new file at a time."""

_SLOTS_AT_ONCE: Final = 16_384
_MAGICS: Final = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))


@dataclass(slots=True, eq=False)
class IndexScrub:
    """Check of the files of ``index``.

    - ``log_error``: gets a line for each rewritten header, and for each file that cannot be
      refilled now.
    - ``log_info``: gets a line for each refilled file.
    """

    disk: Disk
    log: CommitLog
    index: KeyIndex
    log_error: Callable[[str], None]
    log_info: Callable[[str], None]
    passes: int = 0
    damaged: int = 0
    """Number of files found damaged."""

    def check(self) -> ReadSteps[None]:
        """Check every file, and set the damaged ones apart."""
        self.passes += 1
        for file in list(self.index.files):
            if file.damaged or file not in self.index.files:
                continue
            fault = yield from self._fault(file)
            if fault is not None and file in self.index.files:
                self.index.set_apart(file, fault)
                self.damaged += 1

    def fill(self) -> ReadSteps[None]:
        """Refill every file that was set apart."""
        index = self.index
        for file in [one for one in index.files if one.damaged]:
            if index.failed:
                return
            if file is index.files[-1]:
                try:
                    index.begin_file()
                except OSError as error:
                    self._not_filled(file, error.strerror or str(error))
                    return
            yield from self._fill(file)

    def _fault(self, file: IndexFile) -> ReadSteps[str | None]:
        """Return the fault of a file, or None. A growing file is checked up to its present end."""
        known = file.header
        (header,) = yield [Piece(file.segment, 0, HEADER_SIZE)]
        if isinstance(header, bytes) and header != known == file.header and file.count > 1:
            try:
                file.make_room(0)
            except OSError as error:
                return f"its head is damaged, and cannot be written: {error.strerror or error}"
            file.write_header()
            self.damaged += 1
            self.log_error(
                f"the head of index file {file.segment.path} was damaged, it is written again"
            )
        count, used = file.count, file.slots_used
        # unlike an array, it needs no time before its first use
        heads = memoryview(bytearray(file.slots * SLOT_SIZE)).cast("i")
        number, last, there = 1, 0, 0
        while number < count:
            (found,) = yield [file.entries_piece(number, min(ENTRIES_AT_ONCE, count - number))]
            if isinstance(found, OSError):
                return f"it cannot be read: {found.strerror or found}"
            for key_hash, offset, seconds, previous in ENTRY.iter_unpack(found):
                slot = key_hash % file.slots
                if key_hash < 0 or seconds < 0 or previous != heads[slot] or offset < last:
                    return (
                        f"entry {number} has hash {key_hash}, offset {offset} after {last}, "
                        f"and follows {previous}, not {heads[slot]}"
                    )
                there += heads[slot] == 0
                heads[slot], last = number, offset
                if number % SAMPLE == self.passes % SAMPLE:
                    fault = yield from self._entry_fault(file, number, key_hash, offset, seconds)
                    if fault is not None:
                        return fault
                number += 1
            yield []
        fault = yield from self._slots_fault(file, heads, count)
        if fault is None and file.count == count and used != there:
            fault = f"its head says that {used} slots are used; there are {there}"
        return fault

    def _entry_fault(
        self, file: IndexFile, number: int, key_hash: int, offset: int, seconds: int
    ) -> ReadSteps[str | None]:
        """Return the fault of an entry that contradicts its message, or None. An entry whose
        message is gone or damaged is not judged."""
        log = self.log
        segment = log.files.at(offset)
        if segment is None or segment.end - offset < FIXED_SIZE:
            return (
                None
                if offset < log.start
                else (f"entry {number} points to {offset}, where no message can be")
            )
        (head,) = yield [Piece(segment.segment, offset - segment.start, HEAD_SIZE)]
        if isinstance(head, OSError):
            return None
        if head[4:8] not in _MAGICS:
            return f"entry {number} points to {offset}, where no message begins"
        size = min(entry_size_at(head), segment.end - offset, ENTRY_SIZE_MAX)
        (entry,) = yield [Piece(segment.segment, offset - segment.start, size)]
        if isinstance(entry, OSError) or entry_fault(entry, offset) is not None:
            return None
        parsed = parse_entry(entry, offset)
        if parsed is None:
            return None
        if key_hash not in {known for known, _, _ in index_entries_of(parsed)}:
            return f"entry {number} has a key hash that the message at {offset} has not"
        if number > 1 and seconds != file.seconds_of(parsed.store_timestamp):
            return f"entry {number} has another time than the message at {offset}"
        return None

    def _slots_fault(
        self, file: IndexFile, heads: memoryview[int], count: int
    ) -> ReadSteps[str | None]:
        for first in range(0, file.slots, _SLOTS_AT_ONCE):
            size = min(_SLOTS_AT_ONCE, file.slots - first) * SLOT_SIZE
            (found,) = yield [Piece(file.segment, HEADER_SIZE + first * SLOT_SIZE, size)]
            if isinstance(found, OSError):
                return f"it cannot be read: {found.strerror or found}"
            stored = array("i", found)
            if sys.byteorder == "little":
                stored.byteswap()
            expected = heads[first : first + len(stored)]
            if stored.tobytes() != expected.tobytes():
                for slot, (there, wanted) in enumerate(zip(stored, expected, strict=True), first):
                    # Beyond the count: an entry added meanwhile. In a slot without entries, every
                    # value that counts as empty is right.
                    if there != wanted and not there >= count and not (wanted == 0 and there <= 0):
                        return f"slot {slot} leads to entry {there}; its newest is {wanted}"
            yield []
        return None

    def _fill(self, damaged: IndexFile) -> ReadSteps[None]:
        """Fill a new file from the log, and replace the damaged one by it."""
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
            self._not_filled(damaged, fault)
            return
        made[0].dirty = False
        self.index.replace(damaged, made[0])
        self.log_info(
            f"index file {damaged.segment.path} is filled again from the log: "
            f"{made[0].count - 1} entries"
        )

    def _not_filled(self, file: IndexFile, fault: str) -> None:
        self.log_error(f"index file {file.segment.path} cannot be filled again now ({fault})")

    def _part_of_log(self, damaged: IndexFile) -> ReadSteps[tuple[int, int, int]]:
        """Return the damaged file's part of the log: its start and its end, according to the intact
        files on both sides. Also return the number of keys of the first message that the file
        before already has."""
        index, log = self.index, self.log
        at = index.files.index(damaged)
        before = next(
            (file for file in reversed(index.files[:at]) if not file.damaged and file.count > 1),
            None,
        )
        behind = next(
            (file for file in index.files[at + 1 :] if not file.damaged and file.count > 1), None
        )
        start = max(before.end_offset, log.start) if before is not None else log.start
        # new entries go into another file
        end = behind.begin_offset + 1 if behind is not None else log.end
        if before is None or before.end_offset != start:
            return start, end, 0
        return start, end, (yield from self._keys_of_last(before))

    def _fill_from_log(
        self, fresh: IndexFile, start: int, end: int, skip: int
    ) -> ReadSteps[str | None]:
        """Index the messages between two log offsets until the file is full, but skip ``skip`` keys
        of the first message. Return the fault, or None."""
        waiting: list[tuple[int, int, int]] = []

        def take(entry: bytes, offset: int) -> None:
            nonlocal skip
            parsed = parse_entry(entry, offset)
            keys = index_entries_of(parsed) if parsed is not None else []
            waiting.extend(keys[skip:])
            skip = 0

        walk = SteppedWalk(self.log, take)
        while start < end and not fresh.full:
            start = yield from walk.entries(start, min(start + LOG_AT_ONCE, end))
            # The first write to a page of a new file may wait for the file system, so it must not
            # happen in the owner's thread.
            fault = yield from self._in_thread(partial(_make_ready, fresh, len(waiting)))
            if fault is not None:
                return fault
            while waiting:
                fresh.put(waiting[:ENTRIES_AT_ONCE])
                del waiting[:ENTRIES_AT_ONCE]
                yield []
        return None

    def _keys_of_last(self, file: IndexFile) -> ReadSteps[int]:
        """Return the number of keys of its last message in a file. The keys of a message may be
        divided between two files."""
        number = file.count
        while number > 1:
            (entry,) = yield [file.entries_piece(number - 1, 1)]
            if not isinstance(entry, bytes) or ENTRY.unpack(entry)[1] != file.end_offset:
                break
            number -= 1
        return file.count - number

    def _in_thread(self, operation: Callable[[], None]) -> ReadSteps[str | None]:
        """Run an operation in a thread. Return the fault, or None."""
        outcome: list[OSError | None] = []
        self.disk.start(operation, outcome.append)
        while not outcome:
            yield []
        return (outcome[0].strerror or str(outcome[0])) if outcome[0] is not None else None


def _make_ready(file: IndexFile, count: int) -> None:
    """Make ``count`` entries writable without waiting for the disk. Raises OSError."""
    file.make_room(count)
    _populate(file.entries_piece(file.count, count))


def _populate(piece: Piece) -> None:
    piece.segment.populate(piece.at, piece.size)
