"""Index files one by one: their heads, how many slots they have, and whether every entry can be
reached from its slot.

The rule: a file is judged by its own content; what its entries mean is ``index_check.py``'s. Sizes
come from the files: the number of slots is the one that makes the newest entry the head of its own
slot's chain. Memory: one slot table. Format: ``store/index_file.py``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from turbopump.store.index_file import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
from turbopump.store.read_only_disk import ReadOnlyDisk, ReadOnlyFile

ENTRY: Final = struct.Struct(">iqii")
"""keyHash, phyOffset, seconds after the file's begin, previous entry of the slot."""

PIECE_SIZE: Final = 65536 * ENTRY_SIZE
"""Bytes of entries read at a time."""

_HEADER: Final = struct.Struct(">qqqqii")
_USUAL_ENTRIES_PER_SLOT: Final = 4
_SEARCH_SIZE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """An index file and its head. ``slots`` 0: unknown. ``count`` is the number of the next entry
    (begins with 1)."""

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
        """Entries there is room for, the unused first one among them."""
        return (self.size - self._entries_at) // ENTRY_SIZE

    @property
    def _entries_at(self) -> int:
        return HEADER_SIZE + self.slots * SLOT_SIZE

    def entry_at(self, number: int) -> int:
        """Where an entry lies in the file."""
        return self._entries_at + number * ENTRY_SIZE


def read_headers(disk: ReadOnlyDisk, paths: Sequence[Path]) -> list[IndexHeader]:
    """The heads of index files, with their slots told from their content. Files too short to have a
    head are left out."""
    headers = []
    for path in paths:
        with disk.open_file(path) as file:
            head = file.read(0, HEADER_SIZE)
            if len(head) == HEADER_SIZE:
                headers.append((IndexHeader(path, file.size, *_HEADER.unpack(head)), file.size))
    known: dict[int, int] = {}
    for header, size in headers:
        if size not in known and (slots := slots_of(disk, header)):
            known[size] = slots
    return [
        replace(header, slots=known.get(size) or _usual_slots(size)) for header, size in headers
    ]


def slots_of(disk: ReadOnlyDisk, header: IndexHeader) -> int:
    """How many slots a file has: as many as make its newest entry the head of its own slot's chain.
    0: cannot be told."""
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
    return (
        (size - HEADER_SIZE) // per_slot
        if size > HEADER_SIZE and (size - HEADER_SIZE) % per_slot == 0
        else 0
    )


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
    disk: ReadOnlyDisk, header: IndexHeader, *, growing: bool = False
) -> Iterator[tuple[str, int | None, str]]:
    """Faults of one file in itself: (kind, entry number, what). ``growing``: entries may have been
    added since the head was read, so the slots are not judged. About 0.3 µs an entry."""
    if not 1 <= header.count <= header.entries:
        yield (
            "index_header",
            None,
            (f"its head says {header.count - 1} entries; there is room for {header.entries - 1}"),
        )
        return
    heads = array("i", bytes(header.slots * SLOT_SIZE))
    used, number, slots = 0, 1, header.slots
    with disk.open_file(header.path) as file:
        while number < header.count:
            data = file.read(
                header.entry_at(number), min(PIECE_SIZE, (header.count - number) * ENTRY_SIZE)
            )
            if not data:
                return  # it became shorter since its head was read
            for key_hash, _, _, previous in ENTRY.iter_unpack(data):
                slot = key_hash % slots
                head = heads[slot]
                if previous != head:
                    yield (
                        "index_chain",
                        number,
                        (f"its previous entry is {previous}; it should be {head}"),
                    )
                used += head == 0
                heads[slot] = number
                number += 1
        if growing:
            return
        if header.slots_used != used:
            yield (
                "index_header",
                None,
                (f"its head says {header.slots_used} slots in use; there are {used}"),
            )
        stored = array("i", file.read(HEADER_SIZE, slots * SLOT_SIZE))
    if sys.byteorder == "little":
        stored.byteswap()
    if stored != heads:
        for slot, (is_now, should_be) in enumerate(zip(stored, heads, strict=True)):
            if is_now != should_be and not (should_be == 0 and not 0 < is_now < header.count):
                yield (
                    "index_chain",
                    should_be or None,
                    (f"slot {slot} begins with entry {is_now}; it should be {should_be}"),
                )
