"""Table of the stored entries in a buffer. A field is read for all entries at once.

No Python object is made per message. A walk over the sizes (or a ConsumeQueue) gives the positions
of entries. Every fixed field is then one gather through an array view that has a number at *every*
byte. Bodies, topics and properties are gathered from one array whose offsets are the cuts between
them. The byte ruler is that of ``turbopump.message.entry``. Arrow schemas, files and sockets are
unknown here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from turbopump.compiled import has_twin
from turbopump.errors import StoredMessageError
from turbopump.message.compression import decompress
from turbopump.message.entry import (
    BODY_AT,
    BODY_CRC_AT,
    CRC_NAME,
    CRC_SUFFIX_SIZE,
    FIXED_SIZE,
    FLAG_AT,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    V6_EXTRA,
)
from turbopump.message.properties import SysFlag
from turbopump.spark.arrow_arrays import Ints, Mask, number_array
from turbopump.spark.property_columns import PropertyColumns

_CRC_NAME: Final = int.from_bytes(CRC_NAME[:8])

OK, CRC_MISMATCH, TRUNCATED, UNREADABLE = range(4)
STATUSES: Final = ("ok", "crcMismatch", "truncated", "unreadable")
"""Possible statuses of an entry in a file. A pull returns only entries that are ``ok``."""

Int32s = np.ndarray[Any, np.dtype[np.int32]]


class Entries:
    """Table of the stored entries in a buffer. Each field is an array with one value per entry.

    The caller may give the ``positions`` and ``sizes`` of the entries. Each entry must then be
    inside ``raw`` and have at least the 91 bytes of the smallest entry. Without them, a walk over
    all of ``raw`` finds the entries, or raises StoredMessageError.

    ``misfits`` marks entries that contradict themselves. Their fields are meaningless, but are
    never read from outside the entries.
    """

    _PER_ROW: Final = (
        "positions", "sizes", "sys_flags", "shift", "cuts", "status", "flags_at",
        "is_item", "number", "batch_of", "faults",
    )  # fmt: skip

    def __init__(
        self,
        raw: bytes | bytearray | memoryview,
        positions: Ints | None = None,
        sizes: Ints | None = None,
    ) -> None:
        self.raw = memoryview(raw)
        self.byte_view = np.frombuffer(self.raw, np.uint8)
        self.int_view = _at_every_byte(self.raw, ">i4")
        self.long_view = _at_every_byte(self.raw, ">i8")
        if positions is None or sizes is None:
            positions, sizes = self._walk()
        self.positions = positions
        self.sizes = sizes
        self.status = np.zeros(len(positions), np.int8)
        self.faults: np.ndarray[Any, np.dtype[np.object_]] | None = None
        """Reason why each body cannot be read, or None for a body that is readable or unchecked."""
        # Set by ``inner_batches.expand_batches``, for rows that are messages of a batch:
        self.flags_at = positions + FLAG_AT
        self.is_item: Mask | None = None
        self.number: Ints | None = None
        self.batch_of: Ints | None = None
        self.batches: Entries | None = None
        magic = self.ints(MAGIC_AT)
        is_v2 = magic == MAGIC_V2 - (1 << 32)
        self._wrong = list[tuple[Mask, str]]()
        self._note_misfit((magic != MAGIC_V1 - (1 << 32)) & ~is_v2, "its magic")
        self._note_misfit(self.ints(0) != self.sizes, "its size")
        self._find_cuts(is_v2)

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, which: Any) -> Entries:
        """Return a table of some of the rows. ``which`` is a mask or a slice."""
        part = copy(self)
        part.__dict__.pop("properties", None)  # it was made for all rows
        for name in self._PER_ROW:
            value = getattr(self, name)
            setattr(part, name, None if value is None else value[which])
        part._wrong = [(mask[which], what) for mask, what in self._wrong]
        return part

    @property
    def misfits(self) -> Mask:
        """Mask of the entries with an invalid magic or invalid lengths."""
        found = np.zeros(len(self), np.bool_)
        for mask, _ in self._wrong:
            found |= mask
        return found

    def refuse_misfits(self) -> None:
        """Raise StoredMessageError for the first invalid entry, if there is one."""
        for mask, what in self._wrong:
            at = int(self.positions[mask][0])
            if what == "its magic":
                magic = int(self.int_view[at + MAGIC_AT]) & 0xFFFFFFFF
                raise StoredMessageError(f"no stored message at byte {at}: magic {magic:#010x}")
            raise StoredMessageError(
                f"the lengths of the stored message at byte {at} do not add up: {what}"
            )

    def _walk(self) -> tuple[Ints, Ints]:
        positions, sizes, at = entries_between(self.raw, 0, len(self.raw))
        end = len(self.raw)
        if at + FIXED_SIZE <= end:
            (size,) = _SIZE_AT(self.raw, at)
            if size < FIXED_SIZE:
                raise StoredMessageError(f"no stored message at byte {at}: size {size}")
            at += size
        if at != end:
            raise StoredMessageError(f"the last stored message ends at byte {at} of {end}")
        return positions, sizes

    def _note_misfit(self, mask: Mask, what: str) -> bool:
        if mask.any():
            self._wrong.append((mask, what))
            return True
        return False

    def _find_cuts(self, is_v2: Mask) -> None:
        """For each entry, find the begin and the end of the body, the topic and the properties.

        After an invalid length, the other positions are chosen so that they stay inside the entry.
        """
        # Each length is checked before it becomes a position. A position from a wrong length is
        # replaced by one inside the entry, because gathers read all entries, good or not, and must
        # not read outside of ``raw``.
        self.sys_flags = self.ints(SYS_FLAG_AT)
        # A v6 host is longer, which shifts the fields behind it.
        born_v6 = (self.sys_flags & SysFlag.BORN_HOST_V6) != 0
        store_v6 = (self.sys_flags & SysFlag.STORE_HOST_V6) != 0
        ends = self.positions + self.sizes
        wrong = self.sizes < FIXED_SIZE + V6_EXTRA * (born_v6.astype(np.int64) + store_v6)
        if self._note_misfit(wrong, "its fixed fields"):
            born_v6 &= ~wrong
            store_v6 &= ~wrong
            self.sys_flags = np.where(wrong, 0, self.sys_flags)
        born_shift = V6_EXTRA * born_v6.astype(np.int64)
        self.shift = np.stack((born_shift, born_shift + V6_EXTRA * store_v6), axis=1)
        body = self.positions + BODY_AT + self.shift[:, 1]
        body_end = body + self.int_view[body - 4]
        wrong = (body_end < body) | (body_end + 3 > ends)
        if self._note_misfit(wrong, "its body"):
            body_end = np.where(wrong, body, body_end)
        v2 = is_v2.astype(np.int64)
        topic = body_end + 1 + v2
        topic_size = self.byte_view[body_end].astype(np.int64)
        topic_size = np.where(is_v2, topic_size << 8 | self.byte_view[body_end + 1], topic_size)
        topic_end = topic + topic_size
        wrong = topic_end + 2 > ends
        if self._note_misfit(wrong, "its topic"):
            topic = np.where(wrong, body_end + 1, topic)
            topic_end = np.where(wrong, topic, topic_end)
        properties_size = (
            self.byte_view[topic_end].astype(np.int64) << 8 | self.byte_view[topic_end + 1]
        )
        wrong = topic_end + 2 + properties_size != ends
        if self._note_misfit(wrong, "its properties"):
            properties_size = np.where(wrong, 0, properties_size)
        properties = topic_end + 2
        properties_end = properties + properties_size
        self.cuts = np.stack(
            (
                body,
                body_end,
                topic,
                topic_end,
                properties,
                self.ends_without_crc(properties, properties_end),
            ),
            axis=1,
        ).astype(np.int32)

    def ends_without_crc(self, begins: Ints, ends: Ints) -> Ints:
        """For each entry, return the end of the properties.

        If the last property is the CRC that a broker may add, the end is before it.
        """
        large = ends - begins >= CRC_SUFFIX_SIZE
        has_crc = large & (self.long_view[np.where(large, ends - CRC_SUFFIX_SIZE, 0)] == _CRC_NAME)
        found: Ints = ends - CRC_SUFFIX_SIZE * has_crc
        return found

    def note_fault(self, row: int, fault: str) -> None:
        if self.faults is None:
            self.faults = np.full(len(self), None, object)
        self.faults[row] = fault
        self.status[row] = self.status[row] or UNREADABLE

    def decompressed_body(self, row: int) -> bytes | None:
        """Decompress the body of a row. Return None if this fails.

        After a failure, ``faults`` has the reason.
        """
        stored = bytes(self.raw[int(self.cuts[row, 0]) : int(self.cuts[row, 1])])
        try:
            return decompress(stored, int(self.sys_flags[row]))
        except StoredMessageError as error:
            self.note_fault(row, str(error))
            return None

    def lacking_crcs(self, requires_crc: Callable[[int], bool] | None) -> Mask:
        """Return a mask of the entries that lack a required CRC.

        ``requires_crc`` takes an offset of the log. It returns True if an entry there must have a
        CRC. If ``requires_crc`` is None, no entry needs a CRC.
        """
        lacking = ~self._have_crcs()
        if requires_crc is None or not lacking.any():
            return np.zeros(len(self), np.bool_)
        offsets = self.long_view[self.positions[lacking] + PHYSICAL_OFFSET_AT].tolist()
        lacking[lacking] = np.fromiter(map(requires_crc, offsets), np.bool_, len(offsets))
        return lacking

    def _have_crcs(self) -> Mask:
        suffixes = self.positions + self.sizes - CRC_SUFFIX_SIZE
        found: Mask = (self.long_view[suffixes] == _CRC_NAME) & (self.byte_view[suffixes + 8] == 1)
        return found

    def crc_mismatches(self) -> Mask:
        """Return a mask of the entries whose stored CRC is wrong.

        If an entry has a CRC of the whole entry, this CRC is checked. Otherwise the CRC of the body
        is checked. A check takes about 0.3 µs per entry, plus the CRC itself.
        """
        ends = self.positions + self.sizes
        suffixes = ends - CRC_SUFFIX_SIZE
        has_crc = self._have_crcs()
        begins = np.where(has_crc, self.positions, self.cuts[:, 0])
        crc_ends = np.where(has_crc, suffixes, self.cuts[:, 1])
        pieces = map(slice, begins.tolist(), crc_ends.tolist())
        found = np.fromiter(map(crc32, map(self.raw.__getitem__, pieces)), np.int64, len(self))
        found &= 0x7FFFFFFF
        told = self.ints(BODY_CRC_AT).astype(np.int64)
        if has_crc.any():
            digits = self.byte_view[suffixes[:, None] + np.arange(9, 19)].astype(np.int64) - 48
            number = digits @ (10 ** np.arange(10))
            number[((digits < 0) | (digits > 9)).any(axis=1) | (self.byte_view[ends - 1] != 2)] = -1
            told = np.where(has_crc, number, told)
        mismatches: Mask = (found != told) & (crc_ends > begins)
        return mismatches

    def ints(self, at: int) -> Int32s:
        return self.int_view[self.positions + at].astype(np.int32)

    def longs(self, at: int) -> Ints:
        return self.long_view[self.positions + at].astype(np.int64)

    def queue_offsets(self) -> Ints:
        """Return the queue offset of each row.

        The messages of an inner batch count from the offset of the batch.
        """
        offsets = self.longs(QUEUE_OFFSET_AT)
        if self.number is not None:
            offsets += self.number
        return offsets

    def shifted_ints(self, at: int) -> Int32s:
        """For each row, return a field of 4 bytes. The field is stored behind both hosts.

        ``at`` is the position of the field if both hosts are IPv4.
        """
        found: Int32s = self.int_view[self.positions + self.shift[:, 1] + at].astype(np.int32)
        return found

    def shifted_longs(self, at: int, hosts: int) -> Ints:
        """For each row, return a field of 8 bytes. The field is stored behind one or both hosts.

        ``hosts`` is the number of hosts before the field. ``at`` is the position of the field if
        these hosts are IPv4.
        """
        found: Ints = self.long_view[self.positions + self.shift[:, hosts - 1] + at].astype(
            np.int64
        )
        return found

    def pieces(self, which: int) -> pa.BinaryArray:
        """For each entry, copy the body, the topic or the properties out of the buffer.

        ``which`` is 0 for bodies, 2 for topics and 4 for properties.
        """
        # One array over all of raw: its elements are alternately pieces and the gaps between them.
        # Every second element is returned.
        offsets = np.ascontiguousarray(self.cuts[:, which : which + 2]).ravel()
        whole = pa.BinaryArray.from_buffers(
            pa.binary(),
            max(len(offsets) - 1, 0),
            [None, pa.py_buffer(offsets), pa.py_buffer(self.raw)],
        )
        return whole.take(number_array(np.arange(0, len(offsets), 2)))

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.pieces(4))


def entries_between(data: memoryview, begin: int, limit: int) -> tuple[Ints, Ints, int]:
    """Find adjacent entries with ``walk_entries``. Return them as arrays.

    The arrays are the positions and the sizes of the entries. The third result is the end of the
    last entry.
    """
    found, end = walk_entries(data, begin, limit)
    positions: Ints = np.frombuffer(found, np.int64)
    return positions, np.diff(positions, append=end), end


@has_twin
def walk_entries(data: memoryview, begin: int, limit: int) -> tuple[bytes, int]:
    """Find adjacent entries from byte ``begin`` on. The size at the start of an entry leads to the
    next.

    Returns the positions of the entries that begin before ``limit``, as packed native 64-bit
    numbers. Also returns the end of the last entry. The walk stops at an entry that is too small or
    incomplete. An entry takes about 0.15 µs, or 0.01 µs when compiled.
    """
    found = array("q")
    at = begin
    end = len(data)
    while at < limit and at + FIXED_SIZE <= end:
        (size,) = _SIZE_AT(data, at)
        if size < FIXED_SIZE or at + size > end:
            break
        found.append(at)
        at += size
    return found.tobytes(), at


def _at_every_byte(raw: memoryview, type_: str) -> np.ndarray[Any, Any]:
    """View a buffer as overlapping numbers: one number begins at each byte."""
    width = np.dtype(type_).itemsize
    return np.ndarray((max(len(raw) - width + 1, 0),), type_, raw, 0, (1,))


_SIZE_AT: Final = struct.Struct(">i").unpack_from
