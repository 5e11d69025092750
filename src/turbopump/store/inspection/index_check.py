"""Check of index entries against the log.

Index entries have the order of the log, so one pass over the log meets them in order.
``IndexCheck.expect_entries`` gets each message's key hashes and compares. Memory: one piece of an
index file. Keys are unknown here, only hashes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from turbopump.disk.read_only_disk import ReadOnlyDisk, ReadOnlyFile
from turbopump.store.index.index_file import ENTRY, ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE
from turbopump.store.index.key_index import WAITING_MAX
from turbopump.store.inspection.report import Finding, Findings

_LOOK_AHEAD: Final = 4
_pack_found = struct.Struct(">iqi").pack


class IndexEntry(NamedTuple):
    """One entry of an index file, with its position."""

    key_hash: int
    offset: int
    seconds: int
    number: int
    header: IndexHeader


class IndexCheck:
    """Check of all index files against the messages in the log.

    Messages must be passed in the order of the log. ``expect_entries`` compares bytes. It examines
    single entries only if the bytes differ.
    """

    def __init__(
        self,
        disk: ReadOnlyDisk,
        headers: Sequence[IndexHeader],
        log_start: int,
        findings: Findings,
        name: Callable[[Path], str],
        *,
        growing: bool = False,
        unfinished: bool = False,
    ) -> None:
        """Prepare the check of the files with these headers.

        - ``log_start``: start of the log. Entries of earlier messages count as valid: the segments
          of these messages were deleted, but the index file was not yet.
        - ``name``: returns the name of a file in reports.
        - ``growing``: a broker is running, so headers may be half written.
        - ``unfinished``: the last broker has not stopped cleanly, so the last messages may be
          missing in the index.
        """
        self._growing = growing
        self._unindexed: list[tuple[Finding, int]] | None = [] if unfinished else None
        self._log_start = log_start
        self._findings = findings
        self._name = name
        self._cursor = _Cursor(
            disk, [header for header in headers if header.slots], self._report_unreadable
        )
        self._message = 0
        self.matched = 0

    def expect_entries(self, offset: int, hashes: list[int], stored_ms: int, topic: str) -> None:
        """Check that the index has an entry for each key of the message at this log offset.

        ``hashes`` are the hashes of the message's keys.
        """
        self._message += 1
        cursor = self._cursor
        at = cursor.at
        seconds = (stored_ms - cursor.begin_ms) // 1000
        plain_end = cursor.plain_end if 0 <= seconds <= 0x7FFFFFFF else 0
        for key_hash in hashes:
            if at >= plain_end or cursor.data[at : at + 16] != _pack_found(
                key_hash, offset, seconds
            ):
                break
            at += ENTRY_SIZE
        else:
            cursor.at = at
            self.matched += len(hashes)
            return
        self._expect_slowly(offset, hashes, stored_ms, topic)

    def report_rest(self, end: int) -> None:
        """Report the index entries that are left after the last message of the log.

        ``end`` is the end of the log.
        """
        while (entry := self._cursor.peek()) is not None:
            if 0 <= entry.offset < self._log_start:
                self._cursor.advance()
                continue
            beyond = (
                "beyond the end of the log"
                if entry.offset >= end
                else "where no message with keys begins"
            )
            self._report_wrong(entry, f"it points to offset {entry.offset}, {beyond}")
            self._cursor.advance()

    def _expect_slowly(self, offset: int, hashes: list[int], stored_ms: int, topic: str) -> None:
        """Check the index entries of one message one by one.

        Some crashes of Apache's broker leave entries out of order, twice, or mixed with wrong ones.
        """
        # Both sides are in log order, so this is a merge: entries before ``offset`` are wrong,
        # those at it are compared, and those behind it belong to later messages. One entry out of
        # order must not make all later messages look unindexed. So an entry that points too far is
        # taken for a wrong one if any of the next few points back.
        wanted = set(hashes)
        there = set()
        while (entry := self._cursor.peek()) is not None:
            if entry.offset == offset and entry.key_hash in wanted:
                there.add(entry.key_hash)
                self.matched += 1
                self._judge_time(entry, stored_ms)
            elif entry.offset == offset:
                self._report_wrong(
                    entry, f"the message at offset {offset} has no key of hash {entry.key_hash}"
                )
            elif entry.offset < offset:
                if not 0 <= entry.offset < self._log_start:
                    self._report_wrong(
                        entry,
                        f"it points to offset {entry.offset}, where no message with keys begins",
                    )
            elif any(offset <= later.offset < entry.offset for later in self._cursor.next_ones()):
                self._report_wrong(
                    entry, f"it points to offset {entry.offset}, those after it to smaller ones"
                )
            else:
                break
            self._cursor.advance()
        missing = len(wanted - there)
        if missing:
            what = f"{missing if there else 'all'} of its {len(hashes)} keys are in no index file"
            self._report_missing(Finding("index_missing", what, topic=topic, offset=offset))

    def _report_missing(self, finding: Finding) -> None:
        """Report a missing index entry, unless it belongs to one of the last few messages.

        A broker that runs, or was killed, may not have indexed those messages yet.
        """
        unindexed = self._unindexed
        if unindexed is None or self._cursor.peek() is not None:
            self._findings.add_finding(finding, self._message)
            return
        unindexed.append((finding, self._message))
        if len(unindexed) > WAITING_MAX:
            self._unindexed = None
            for each, number in unindexed:
                self._findings.add_finding(each, number)

    def _judge_time(self, entry: IndexEntry, stored_ms: int) -> None:
        header = entry.header
        if entry.number == 1:  # RocketMQ: its seconds count from the begin time of the file before
            if header.begin_ms != stored_ms or header.begin_offset != entry.offset:
                self._report_header(
                    header,
                    f"begins at offset {header.begin_offset}, {header.begin_ms} ms",
                    entry,
                    stored_ms,
                )
        elif entry.seconds != min(max((stored_ms - header.begin_ms) // 1000, 0), 0x7FFFFFFF):
            self._report_wrong(
                entry,
                f"its time is {entry.seconds} s after the file's begin, which is not the "
                f"store time of the message at offset {entry.offset}",
            )
        if self._growing or entry.number < header.count - 1:
            return
        if header.end_ms != stored_ms or header.end_offset != entry.offset:
            self._report_header(
                header, f"ends at offset {header.end_offset}, {header.end_ms} ms", entry, stored_ms
            )

    def _report_header(
        self, header: IndexHeader, claim: str, entry: IndexEntry, stored_ms: int
    ) -> None:
        text = (
            f"the header says that the file {claim}; that is offset {entry.offset}, {stored_ms} ms"
        )
        self._findings.add("index_header", text, self._name(header.path))

    def _report_unreadable(self, header: IndexHeader, error: OSError) -> None:
        self._findings.add("unreadable", error.strerror or str(error), self._name(header.path))

    def _report_wrong(self, entry: IndexEntry, what: str) -> None:
        file, number = self._name(entry.header.path), entry.number
        self._findings.add("index_wrong", what, file, index=number, run=number)


class _Cursor:
    """Position in the entries of all index files, which are read piece by piece.

    - ``data``: the bytes of the piece.
    - ``at``: position of the next entry in the piece.
    - ``plain_end``: end of the entries that are neither the first nor the last of a file. A file's
      first and last entry are also compared with its header.
    """

    def __init__(
        self,
        disk: ReadOnlyDisk,
        headers: Sequence[IndexHeader],
        on_unreadable: Callable[[IndexHeader, OSError], None],
    ) -> None:
        self._disk = disk
        self._on_unreadable = on_unreadable
        self._headers = headers
        self._file = -1
        self._number = self._last = 0
        self.data = b""
        self.at = self.plain_end = 0
        self.begin_ms = 0
        self._fill()

    def peek(self, ahead: int = 0) -> IndexEntry | None:
        """Return the next index entry without moving on, or None if there is none.

        ``ahead`` skips this many entries. They must be in the same piece.
        """
        at = self.at + ahead * ENTRY_SIZE
        if at >= len(self.data):
            return None
        key_hash, offset, seconds, _ = ENTRY.unpack_from(self.data, at)
        return IndexEntry(
            key_hash, offset, seconds, self._number + at // ENTRY_SIZE, self._headers[self._file]
        )

    def next_ones(self) -> Iterator[IndexEntry]:
        """Yield a few index entries, beginning behind the entry that ``peek`` returns."""
        for ahead in range(1, 1 + _LOOK_AHEAD):
            entry = self.peek(ahead)
            if entry is not None:
                yield entry

    def advance(self) -> None:
        self.at += ENTRY_SIZE
        if self.at >= len(self.data):
            self._fill()
        else:
            self._set_plain_end()

    def _fill(self) -> None:
        number = self._number + len(self.data) // ENTRY_SIZE
        self.data = b""
        self.at = 0
        while not self.data:
            if self._file < 0 or number >= self._last:
                if self._file + 1 >= len(self._headers):
                    self.plain_end = 0
                    return
                self._file += 1
                header = self._headers[self._file]
                number = 1
                self._last = min(header.count, header.entries)
                self.begin_ms = header.begin_ms
                continue
            header = self._headers[self._file]
            with self._disk.open_file(header.path) as file:
                try:
                    self.data = file.read(
                        header.entry_at(number), min(PIECE_SIZE, (self._last - number) * ENTRY_SIZE)
                    )
                except OSError as error:
                    self._on_unreadable(header, error)
            self.data = self.data[: len(self.data) - len(self.data) % ENTRY_SIZE]
            self._number = number
            if not self.data:
                number = self._last
        self._set_plain_end()

    def _set_plain_end(self) -> None:
        first_of_file = self._number == 1 and self.at == 0
        # One entry of the piece is always left to ``advance``, which reads the next piece. The
        # file's last entry is never plain.
        self.plain_end = len(self.data) - ENTRY_SIZE
        if first_of_file:
            self.plain_end = 0


# --- Index files one by one, each by its own content. The number of slots is the one that makes the
# newest entry the head of its own slot's chain. Memory: one slot table.

PIECE_SIZE: Final = 65536 * ENTRY_SIZE
"""Number of bytes of entries read at a time."""

_USUAL_ENTRIES_PER_SLOT: Final = 4
_SEARCH_SIZE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Header of an index file, with the file's size and number of slots.

    - ``count``: number of the next entry. Numbers begin with 1.
    - ``slots``: 0 if unknown.
    """

    path: Path
    size: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    count: int
    slots: int = 0

    @property
    def entries(self) -> int:
        """Number of entries that fit into the file, including the unused first entry."""
        return (self.size - self._entries_at) // ENTRY_SIZE

    @property
    def _entries_at(self) -> int:
        return HEADER_SIZE + self.slots * SLOT_SIZE

    def entry_at(self, number: int) -> int:
        """Return the position in the file of the entry with this number."""
        return self._entries_at + number * ENTRY_SIZE


def read_headers(disk: ReadOnlyDisk, paths: Sequence[Path]) -> list[IndexHeader]:
    """Return the headers of index files, with the number of slots in each file.

    The number of slots is derived from the content. Files shorter than a header are left out.
    """
    headers = []
    for path in paths:
        with disk.open_file(path) as file:
            head = file.read(0, HEADER_SIZE)
            if len(head) == HEADER_SIZE:
                headers.append((IndexHeader(path, file.size, *HEADER.unpack(head)), file.size))
    known: dict[int, int] = {}
    for header, size in headers:
        if size not in known and (slots := slot_count(disk, header)):
            known[size] = slots
    return [
        replace(header, slots=known.get(size) or _usual_slots(size)) for header, size in headers
    ]


def slot_count(disk: ReadOnlyDisk, header: IndexHeader) -> int:
    """Find the number of slots in an index file from its content, or return 0.

    With the right number, the newest entry is the head of its slot's chain.
    """
    newest = header.count - 1
    if newest < 1:
        return 0
    with disk.open_file(header.path) as file:
        usual = _usual_slots(header.size)
        if usual and _fits(file, header, usual):
            return usual
        pattern = struct.pack(">q", header.end_offset)
        for at in _occurrences(file, pattern):
            room = at - 4 - newest * ENTRY_SIZE - HEADER_SIZE
            if room > 0 and room % SLOT_SIZE == 0 and _fits(file, header, room // SLOT_SIZE):
                return room // SLOT_SIZE
    return 0


def _usual_slots(size: int) -> int:
    per_slot = SLOT_SIZE + _USUAL_ENTRIES_PER_SLOT * ENTRY_SIZE
    slots, rest = divmod(size - HEADER_SIZE, per_slot)
    return slots if slots > 0 and rest == 0 else 0


def _fits(file: ReadOnlyFile, header: IndexHeader, slots: int) -> bool:
    newest = header.count - 1
    entry = file.read(HEADER_SIZE + slots * SLOT_SIZE + newest * ENTRY_SIZE, ENTRY_SIZE)
    if len(entry) < ENTRY_SIZE:
        return False
    key_hash, offset, _, previous = ENTRY.unpack(entry)
    if key_hash < 0 or offset != header.end_offset or not 0 <= previous < newest:
        return False
    slot = file.read(HEADER_SIZE + key_hash % slots * SLOT_SIZE, SLOT_SIZE)
    return int.from_bytes(slot) == newest


def _occurrences(file: ReadOnlyFile, pattern: bytes) -> Iterator[int]:
    at = 0
    while at < file.size:
        piece = file.read(at, _SEARCH_SIZE + len(pattern) - 1)
        found = piece.find(pattern)
        while found >= 0:
            yield at + found
            found = piece.find(pattern, found + 1)
        at += _SEARCH_SIZE


def check_chains(
    disk: ReadOnlyDisk, header: IndexHeader, findings: Findings, file: str, *, growing: bool = False
) -> None:
    """Check the links of an index file: each entry must be in the chain of its slot.

    - ``file``: name of the file in reports.
    - ``growing``: entries may have been added since the header was read, so the slots are not
      checked.

    Takes about 0.3 µs for each entry.
    """

    def head_wrong(what: str) -> None:
        findings.add("index_header", what, file, run=-1)

    def chain_wrong(number: int, what: str) -> None:
        findings.add("index_chain", what, file, index=number or None, run=number or -1)

    if not 1 <= header.count <= header.entries:
        room = header.entries - 1
        head_wrong(f"the header says {header.count - 1} entries, and the file has room for {room}")
        return
    heads = array("i", bytes(header.slots * SLOT_SIZE))
    used = 0
    number = 1
    slots = header.slots
    with disk.open_file(header.path) as opened:
        while number < header.count:
            data = opened.read(
                header.entry_at(number), min(PIECE_SIZE, (header.count - number) * ENTRY_SIZE)
            )
            if not data:
                return  # the file became shorter since its header was read
            for key_hash, _, _, previous in ENTRY.iter_unpack(data):
                slot = key_hash % slots
                head = heads[slot]
                if previous != head:
                    chain_wrong(number, f"its previous entry is {previous}; it should be {head}")
                used += head == 0
                heads[slot] = number
                number += 1
        if growing:
            return
        if header.slots_used != used:
            head_wrong(f"the header says {header.slots_used} used slots, and the file has {used}")
        stored = array("i", opened.read(HEADER_SIZE, slots * SLOT_SIZE))
    if sys.byteorder == "little":
        stored.byteswap()
    if stored != heads:
        for slot, (is_now, should_be) in enumerate(zip(stored, heads, strict=True)):
            if is_now != should_be and not (should_be == 0 and not 0 < is_now < header.count):
                what = f"slot {slot} begins with entry {is_now}; it should be {should_be}"
                chain_wrong(should_be, what)
