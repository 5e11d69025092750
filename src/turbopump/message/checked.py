"""The messages of a pull's answer, each checked before anyone reads it: what a disk or a network
has changed is not handed on.

The rule: a damaged entry costs itself alone. Behind it the next good one is looked for, wherever it
begins: its own length may be wrong. It must not know who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from turbopump.message.codec import FIXED_SIZE, entry_fault

_MAGIC_START = b"\xda\xa3\x20"
_MAGIC_AT = 4


class DamagedEntry(NamedTuple):
    """Bytes ``begin`` to ``end`` of an answer hold no good entry. ``queue_offset`` is what stands
    where the first one's should."""

    begin: int
    end: int
    queue_offset: int
    fault: str


def good_entries(data: bytes, on_damage: Callable[[DamagedEntry], None]) -> Iterator[bytes]:
    """Every good entry of stored messages back to back (see ``codec.entry_fault``), whole. Cost:
    about 1 µs and its CRC for each."""
    at, end = 0, len(data)
    while at < end:
        entry, fault = _entry_at(data, at)
        if fault is None:
            yield entry
            at += len(entry)
            continue
        following = _behind(data, at, len(entry))
        on_damage(
            DamagedEntry(at, following, int.from_bytes(data[at + 20 : at + 28], signed=True), fault)
        )
        at = following


def _entry_at(data: bytes, at: int) -> tuple[bytes, str | None]:
    size = int.from_bytes(data[at : at + 4])
    if not FIXED_SIZE <= size <= len(data) - at:
        return b"", f"totalSize {size} cannot be where {len(data) - at} bytes are left"
    entry = data[at : at + size]
    return entry, entry_fault(entry)


def _behind(data: bytes, at: int, size: int) -> int:
    """Where the next good entry begins, or the end."""
    if size and (at + size == len(data) or _entry_at(data, at + size)[1] is None):
        return at + size
    found = data.find(_MAGIC_START, at + 1 + _MAGIC_AT)
    while found >= 0:
        if _entry_at(data, found - _MAGIC_AT)[1] is None:
            return found - _MAGIC_AT
        found = data.find(_MAGIC_START, found + 1)
    return len(data)
