"""Decoder of stored messages, from a pull's answer or a segment of the CommitLog, into Arrow record
batches.

No Python object is made per message, except if a body must be decompressed. The walk over the sizes
(or a ConsumeQueue) gives the positions of entries. Every fixed field is then one gather through an
array view that has a number at *every* byte. Bodies, topics and properties are gathered from one
array whose offsets are the cuts between them. An inner batch is first expanded into the positions
of its messages, and then gathered like the rest.

Only bytes of the requested columns are read. The byte ruler is that of ``turbopump.message.codec``.
tests/spark/plain_twin.py decodes the same bytes one by one and must agree. Sockets, files and Spark
are unknown here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from turbopump.compiled import has_twin
from turbopump.errors import ProtocolError, StoredMessageError
from turbopump.message.batch import inner_count, walk_batch
from turbopump.message.compression import decompress
from turbopump.message.entry import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    CRC_SUFFIX_SIZE,
    FIXED_SIZE,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_AT,
    SYS_FLAG_AT,
    TOPIC_SIZE_MAX_V1,
    V6_EXTRA,
)
from turbopump.message.properties import COMPRESSION_MASK, SysFlag
from turbopump.spark.options import BODY_FAULT, COLUMN_NAMES, READ_SCHEMA, arrow_schema

BATCH_BODY_SIZE_MAX: Final = 64 << 20
"""Approximate maximum bytes of decompressed bodies in one batch; at this size the next batch
begins."""
INFLATED_SIZE_MAX: Final = 1 << 30
"""Maximum decompressed bytes of inner batches that are read together; some MiB as stored."""

_MAGIC_V1: Final = MAGIC_V1 - (1 << 32)
_MAGIC_V2: Final = MAGIC_V2 - (1 << 32)
_CRC_NAME: Final = int.from_bytes(b"__CRC32#")
_COMPRESSION: Final = int(SysFlag.COMPRESSED | COMPRESSION_MASK)
_WRAPPED: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)

OK, CRC_MISMATCH, TRUNCATED, UNREADABLE = range(4)
STATUSES: Final = ("ok", "crcMismatch", "truncated", "unreadable")
"""Possible statuses of an entry in a file. A pull returns only good entries."""

Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def decode(
    raw: bytes | bytearray | memoryview,
    broker_name: str,
    columns: Sequence[str] = COLUMN_NAMES,
    *,
    queue_offsets: range | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode the messages in ``raw`` into record batches with exactly these columns in this order.

    ``queue_offsets`` keeps only rows whose queueOffset is in this range. There is one batch, more
    if decompressed bodies exceed ``BATCH_BODY_SIZE_MAX``, and none if no row is left.

    CRCs are not checked here: ``reading.read_range`` has done it. A body that cannot be read does
    not stop the others (``record_batches``). Raises StoredMessageError, with the position, if the
    lengths of an entry contradict each other. Cost: 0.5–3 µs per row, depending on the columns.
    """
    entries = Entries(raw)
    entries.refuse_misfits()
    entries = entries.taken_apart()
    if queue_offsets is not None:
        offsets = entries.queue_offsets()
        entries = entries.rows((offsets >= queue_offsets.start) & (offsets < queue_offsets.stop))
    yield from record_batches(entries, arrow_schema(columns), {"brokerName": broker_name})


def record_batches(
    entries: Entries, schema: pa.Schema, constants: Mapping[str, str | None]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of ``schema`` for these entries. Inner batches are already expanded.
    ``constants`` are columns with one value.

    A body that cannot be decompressed is returned as stored. ``bodyFault`` then has the reason, and
    the status ``ok`` becomes ``unreadable``.
    """
    bodies_wanted = "body" in schema.names or BODY_FAULT in schema.names
    for part, bodies in _parts(entries, bodies_wanted):
        arrays = []
        for field in schema:
            if field.name in constants:
                arrays.append(_repeated(constants[field.name], len(part), field.type))
            elif field.name == "body":
                arrays.append(part.bodies(bodies))
            else:
                arrays.append(_COLUMNS[field.name](part))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(entries: Entries, bodies_wanted: bool) -> Iterator[tuple[Entries, dict[int, bytes]]]:
    """Split the entries into parts with limited bytes of decompressed bodies. Yield each part with
    its decompressed bodies by row."""
    begin, size, bodies = 0, 0, dict[int, bytes]()
    if bodies_wanted:
        for row in np.flatnonzero(entries.sys_flags & SysFlag.COMPRESSED).tolist():
            body = entries.decompressed_body(row)
            if body is None:
                continue
            if size + len(body) > BATCH_BODY_SIZE_MAX and row > begin:
                yield entries.rows(slice(begin, row)), bodies
                begin, size, bodies = row, 0, {}
            bodies[row - begin] = body
            size += len(body)
    if begin < len(entries):
        yield (entries.rows(slice(begin, None)) if begin else entries), bodies


class Entries:
    """Positions of stored entries in ``raw``, and gathers over them.

    ``positions`` and ``sizes`` may be given. Each entry must then be inside ``raw`` and have at
    least the 91 bytes of the smallest entry. Without them, a walk over all of ``raw`` finds the
    entries, or raises StoredMessageError. ``misfits`` are entries that contradict themselves.
    Gathers never read outside of these entries, but return meaningless values.
    """

    _PER_ROW: Final = (
        "positions", "sizes", "sys_flags", "shift", "cuts", "status", "flags_at",
        "is_item", "number", "whole_at", "faults",
    )  # fmt: skip

    def __init__(
        self,
        raw: bytes | bytearray | memoryview,
        positions: Ints | None = None,
        sizes: Ints | None = None,
    ) -> None:
        self.raw = memoryview(raw)
        self._bytes = np.frombuffer(self.raw, np.uint8)
        self._ints = _at_every_byte(self.raw, ">i4")
        self._longs = _at_every_byte(self.raw, ">i8")
        if positions is None or sizes is None:
            positions, sizes = self._walk()
        self.positions, self.sizes = positions, sizes
        self.status = np.zeros(len(positions), np.int8)
        self.faults: np.ndarray[Any, np.dtype[np.object_]] | None = None
        """Reason why each body cannot be read; None for a good or unchecked body."""
        # For messages of inner batches, once these are expanded:
        self.flags_at = positions + 16
        self.is_item: Mask | None = None
        self.number: Ints | None = None
        self.whole_at: Ints | None = None
        self._whole: Entries | None = None
        magic = self.ints(4)
        is_v2 = magic == _MAGIC_V2
        self._wrong = list[tuple[Mask, str]]()
        self._note((magic != _MAGIC_V1) & ~is_v2, "its magic")
        self._note(self.ints(0) != self.sizes, "its size")
        self._find_cuts(is_v2)

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, which: Any) -> Entries:
        """Return only these rows (a mask or slice)."""
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
                magic = int(self._ints[at + 4]) & 0xFFFFFFFF
                raise StoredMessageError(f"no stored message at byte {at}: magic {magic:#010x}")
            raise StoredMessageError(
                f"the stored message at byte {at} does not end where {what} say(s)"
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

    def _note(self, mask: Mask, what: str) -> bool:
        if mask.any():
            self._wrong.append((mask, what))
            return True
        return False

    def _find_cuts(self, is_v2: Mask) -> None:
        """Find the begin and end of body, topic and properties: six positions per entry. After an
        invalid length, the other positions are chosen so that they stay inside the entry."""
        self.sys_flags = self.ints(SYS_FLAG_AT)
        # A v6 host is 12 bytes longer, which shifts the fields behind it.
        born_v6 = (self.sys_flags & SysFlag.BORN_HOST_V6) != 0
        store_v6 = (self.sys_flags & SysFlag.STORE_HOST_V6) != 0
        ends = self.positions + self.sizes
        wrong = self.sizes < FIXED_SIZE + V6_EXTRA * (born_v6.astype(np.int64) + store_v6)
        if self._note(wrong, "its fixed fields"):
            born_v6, store_v6 = born_v6 & ~wrong, store_v6 & ~wrong
            self.sys_flags = np.where(wrong, 0, self.sys_flags)
        extra = V6_EXTRA * born_v6
        self.shift = np.stack((extra, extra + V6_EXTRA * store_v6), axis=1).astype(np.int64)
        body = self.positions + BODY_AT + self.shift[:, 1]
        body_end = body + self._ints[body - 4]
        wrong = (body_end < body) | (body_end + 3 > ends)
        if self._note(wrong, "its body"):
            body_end = np.where(wrong, body, body_end)
        v2 = is_v2.astype(np.int64)
        topic = body_end + 1 + v2
        topic_size = self._bytes[body_end].astype(np.int64)
        topic_size = np.where(is_v2, topic_size << 8 | self._bytes[body_end + 1], topic_size)
        topic_end = topic + topic_size
        wrong = topic_end + 2 > ends
        if self._note(wrong, "its topic"):
            topic = np.where(wrong, body_end + 1, topic)
            topic_end = np.where(wrong, topic, topic_end)
        properties_size = self._bytes[topic_end].astype(np.int64) << 8 | self._bytes[topic_end + 1]
        wrong = topic_end + 2 + properties_size != ends
        if self._note(wrong, "its properties"):
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
                self._without_crc(properties, properties_end),
            ),
            axis=1,
        ).astype(np.int32)

    def _without_crc(self, begins: Ints, ends: Ints) -> Ints:
        """Return the ends of the properties without the stored CRC, which is the last property if
        present."""
        large = ends - begins >= CRC_SUFFIX_SIZE
        has_crc = large & (self._longs[np.where(large, ends - CRC_SUFFIX_SIZE, 0)] == _CRC_NAME)
        found: Ints = ends - CRC_SUFFIX_SIZE * has_crc
        return found

    def taken_apart(self, which: Mask | None = None) -> Entries:
        """Return these entries with each inner batch expanded into one row per message; ``which``
        limits this to some entries.

        Fields that a message lacks are the batch's. Its queue offset is the batch's plus its index.
        The plain twin is ``turbopump.message.batch.inner_entries``.

        A batch that cannot be expanded is ``unreadable``. It has a row for each of its offsets, so
        that no reader misses one. The first row has its body and properties, the others have none.
        """
        wrapped = (self.sys_flags & _WRAPPED) == _WRAPPED
        if which is not None:
            wrapped &= which
        if not wrapped.any():
            return self
        if (self.sys_flags[wrapped] & SysFlag.COMPRESSED).any():
            return self._with_batches_decompressed(wrapped).taken_apart(which)
        counts, found = np.ones(len(self), np.int64), list[int]()
        for row in np.flatnonzero(wrapped).tolist():
            begin, end = int(self.cuts[row, 0]), int(self.cuts[row, 1])
            known = None if self.faults is None else self.faults[row]
            items = None if known else self._items(begin, end)
            counted = self._messages_counted(row)
            if items and counted in (None, len(items)):
                counts[row] = len(items)
                found += items
                continue
            fault = known or _batch_fault(self.raw[begin:end], counted)
            self._note_fault(row, f"the inner batch cannot be taken apart: {fault}")
            wrapped[row], counts[row] = False, counted or 1
        apart = self.rows(np.repeat(np.arange(len(self)), counts))
        apart._whole = self
        apart._place_items(np.repeat(wrapped, counts), np.array(found, np.int64), counts)
        return apart

    def _messages_counted(self, row: int) -> int | None:
        begin, end = int(self.cuts[row, 4]), int(self.cuts[row, 5])
        return inner_count(bytes(self.raw[begin:end]).decode(errors="replace"))

    def _note_fault(self, row: int, fault: str) -> None:
        if self.faults is None:
            self.faults = np.full(len(self), None, object)
        self.faults[row] = fault
        self.status[row] = self.status[row] or UNREADABLE

    def _items(self, begin: int, end: int) -> list[int] | None:
        """Return the starts of a batch's messages; None if their lengths do not add up. About 0.1
        µs per message."""
        found, at, size_at, raw = [], begin, _SIZE_AT, self.raw
        while at + 22 <= end:
            (size,) = size_at(raw, at)
            if size < 22:
                return None
            found.append(at)
            at += size
        if at != end:
            return None
        if not found:
            return found
        items = np.array(found, np.int64)
        item_ends = np.append(items[1:], end)
        properties = items + 22 + self._ints[items + 16]
        if ((properties < items + 22) | (properties > item_ends)).any():
            return None
        sizes = self._bytes[properties - 2].astype(np.int64) << 8 | self._bytes[properties - 1]
        return None if (properties + sizes > item_ends).any() else found

    def _place_items(self, is_item: Mask, items: Ints, counts: Ints) -> None:
        """Set the positions and fields of the rows that are messages of batches."""
        begins = np.repeat(np.cumsum(counts) - counts, counts)
        self.number = np.arange(len(self)) - begins
        self.whole_at = np.repeat(np.arange(len(counts)), counts)
        self._wrong = []
        self.flags_at[is_item] = items + 12
        self.sys_flags[is_item] &= ~_COMPRESSION
        body_end = items + 20 + self._ints[items + 16]
        properties = body_end + 2
        properties_end = (
            properties + (self._bytes[body_end].astype(np.int64) << 8) + self._bytes[body_end + 1]
        )
        topic_size = self.cuts[is_item, 3] - self.cuts[is_item, 2]
        self.sizes[is_item] = (
            FIXED_SIZE
            + self.shift[is_item, 1]
            + (body_end - items - 20)
            + topic_size
            + (topic_size > TOPIC_SIZE_MAX_V1)
            + (properties_end - properties)
        )
        self.cuts[is_item, 0], self.cuts[is_item, 1] = items + 20, body_end
        self.cuts[is_item, 4] = properties
        self.cuts[is_item, 5] = self._without_crc(properties, properties_end)
        # Only the first row of a batch that cannot be expanded has body and properties.
        again = ~is_item & (self.number > 0)
        self.cuts[again, 0], self.cuts[again, 4] = self.cuts[again, 1], self.cuts[again, 5]
        self.is_item = is_item

    def _with_batches_decompressed(self, wrapped: Mask) -> Entries:
        """Return a copy of the entries with decompressed bodies of batches. A body that cannot be
        decompressed stays as it is, without its compression flags."""
        parts, sizes, inflated = [], [], 0
        for row, (at, size) in enumerate(
            zip(self.positions.tolist(), self.sizes.tolist(), strict=True)
        ):
            entry = self.raw[at : at + size]
            if wrapped[row] and self.sys_flags[row] & SysFlag.COMPRESSED:
                if inflated > INFLATED_SIZE_MAX:
                    offset = self._longs[at + QUEUE_OFFSET_AT]
                    raise StoredMessageError(
                        f"the compressed batches before queue offset {offset} of queue "
                        f"{self._ints[at + QUEUE_ID_AT]} have more than {INFLATED_SIZE_MAX} bytes "
                        "together: set the option pullBatchSize lower"
                    )
                begin, end = int(self.cuts[row, 0]) - at, int(self.cuts[row, 1]) - at
                body = self.decompressed_body(row)
                inflated += len(body or b"")
                body = bytes(entry[begin:end]) if body is None else body
                flags = int(self.sys_flags[row]) & ~_COMPRESSION
                size += len(body) - (end - begin)
                entry = memoryview(
                    b"".join(
                        (
                            size.to_bytes(4),
                            entry[MAGIC_AT:SYS_FLAG_AT],
                            flags.to_bytes(4),
                            entry[BORN_TIMESTAMP_AT : begin - 4],
                            len(body).to_bytes(4),
                            body,
                            entry[end:],
                        )
                    )
                )
            parts.append(entry)
            sizes.append(size)
        ends = np.cumsum(np.array(sizes, np.int64))
        copied = Entries(b"".join(parts), ends - sizes, np.array(sizes, np.int64))
        copied.status, copied.faults = self.status, self.faults
        return copied

    def decompressed_body(self, row: int) -> bytes | None:
        """Return the decompressed body of a row. Return None if decompression fails, and store the
        reason in ``faults``."""
        stored = bytes(self.raw[int(self.cuts[row, 0]) : int(self.cuts[row, 1])])
        try:
            return decompress(stored, int(self.sys_flags[row]))
        except StoredMessageError as error:
            self._note_fault(row, str(error))
            return None

    def lacking_crcs(self, requires_crc: Callable[[int], bool] | None) -> Mask:
        """Return a mask of the entries that must have a CRC but have none. ``requires_crc`` tells
        this for an offset of the log; None: unknown."""
        lacking = ~self._have_crcs()
        if requires_crc is None or not lacking.any():
            return np.zeros(len(self), np.bool_)
        offsets = self._longs[self.positions[lacking] + PHYSICAL_OFFSET_AT].tolist()
        lacking[lacking] = np.fromiter(map(requires_crc, offsets), np.bool_, len(offsets))
        return lacking

    def _have_crcs(self) -> Mask:
        suffixes = self.positions + self.sizes - CRC_SUFFIX_SIZE
        found: Mask = (self._longs[suffixes] == _CRC_NAME) & (self._bytes[suffixes + 8] == 1)
        return found

    def crc_mismatches(self) -> Mask:
        """Return a mask of the entries whose CRC is wrong: the CRC of the whole entry if it has
        one, else of the body. About 0.3 µs per entry, plus the CRC itself."""
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
            digits = self._bytes[suffixes[:, None] + np.arange(9, 19)].astype(np.int64) - 48
            number = digits @ (10 ** np.arange(10))
            number[((digits < 0) | (digits > 9)).any(axis=1) | (self._bytes[ends - 1] != 2)] = -1
            told = np.where(has_crc, number, told)
        mismatches: Mask = (found != told) & (crc_ends > begins)
        return mismatches

    def ints(self, at: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._ints[self.positions + at].astype(np.int32)

    def longs(self, at: int) -> Ints:
        return self._longs[self.positions + at].astype(np.int64)

    def flags(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the application's flag of each message."""
        return self._ints[self.flags_at].astype(np.int32)

    def queue_offsets(self) -> Ints:
        offsets = self.longs(QUEUE_OFFSET_AT)
        if self.number is not None:
            offsets += self.number
        return offsets

    def body_crcs(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        crcs = self.ints(BODY_CRC_AT)
        if self.is_item is not None:
            cuts = self.cuts[self.is_item, :2].tolist()
            crcs[self.is_item] = [crc32(self.raw[begin:end]) & 0x7FFFFFFF for begin, end in cuts]
        return crcs

    def shifted_ints(self, at: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return an int field that is stored after both hosts."""
        found: np.ndarray[Any, np.dtype[np.int32]] = self._ints[
            self.positions + self.shift[:, 1] + at
        ].astype(np.int32)
        return found

    def shifted_longs(self, at: int, hosts: int) -> Ints:
        """Return a long field that is stored after one or both hosts."""
        found: Ints = self._longs[self.positions + self.shift[:, hosts - 1] + at].astype(np.int64)
        return found

    def pieces(self, which: int) -> pa.BinaryArray:
        """Copy bodies (0), topics (2) or properties (4) out of ``raw``."""
        # One array over all of raw: its elements are alternately pieces and the gaps between them.
        # Every second element is returned.
        offsets = np.ascontiguousarray(self.cuts[:, which : which + 2]).ravel()
        whole = pa.BinaryArray.from_buffers(
            pa.binary(),
            max(len(offsets) - 1, 0),
            [None, pa.py_buffer(offsets), pa.py_buffer(self.raw)],
        )
        return whole.take(number_array(np.arange(0, len(offsets), 2)))

    def bodies(self, decompressed: dict[int, bytes]) -> pa.BinaryArray:
        """Return all bodies. Decompressed bodies replace the stored ones."""
        stored = self.pieces(0)
        if not decompressed:
            return stored
        source = np.arange(len(self))
        source[list(decompressed)] = len(self) + np.arange(len(decompressed))
        return pa.concat_arrays([stored, text_array(decompressed.values(), pa.binary())]).take(
            number_array(source)
        )

    def body_faults(self) -> pa.StringArray:
        if self.faults is None:
            return pa.nulls(len(self), pa.string())
        return text_array(self.faults.tolist())

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.pieces(4))

    def topics(self) -> pa.StringArray:
        if self._whole is not None and self.whole_at is not None:
            return self._whole.topics().take(number_array(self.whole_at))
        topics = self.pieces(2)
        try:
            return topics.cast(pa.string())
        except pa.ArrowInvalid:
            return text_array(topic.decode(errors="replace") for topic in topics.to_pylist())

    def hosts(self, at: Ints, is_v6: Mask) -> pa.StringArray:
        """Format hosts as ``1.2.3.4:5`` or ``[::1]:5``; each distinct host only once."""
        if is_v6.any():
            table = np.zeros((len(at), 21), np.uint8)
            table[:, :20] = self._bytes[at[:, None] + np.arange(20)]
            table[:, 20] = is_v6
            table[~is_v6, 8:20] = 0
            hosts = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(21), len(at), [None, pa.py_buffer(table)]
            )
            encoded = hosts.dictionary_encode()
            packed = encoded.dictionary.to_pylist()
        else:
            encoded = number_array(self._longs[at].astype(np.int64)).dictionary_encode()
            packed = [
                each.to_bytes(9, signed=True)[1:] + b"\0" for each in encoded.dictionary.to_pylist()
            ]
        return text_array(map(_host_text, packed)).take(encoded.indices)

    def born_hosts(self) -> pa.StringArray:
        return self.hosts(
            self.positions + BORN_HOST_AT, (self.sys_flags & SysFlag.BORN_HOST_V6) != 0
        )

    def store_hosts(self) -> pa.StringArray:
        return self.hosts(
            self.positions + self.shift[:, 0] + STORE_HOST_AT,
            (self.sys_flags & SysFlag.STORE_HOST_V6) != 0,
        )

    def offset_msg_ids(self) -> pa.StringArray:
        """Return the offsetMsgIds: store host (address and port as int) and CommitLog offset, in
        upper-case hex. They have 32 characters, 56 with a v6 host."""
        host_at = self.positions + self.shift[:, 0] + STORE_HOST_AT
        if not (self.sys_flags & SysFlag.STORE_HOST_V6).any():
            pairs = np.empty((len(self), 2), ">i8")
            pairs[:, 0] = self._longs[host_at]
            pairs[:, 1] = self._longs[self.positions + PHYSICAL_OFFSET_AT]
            text = _HEX.take(pairs.view(np.uint8))
            return pa.StringArray.from_buffers(
                len(self),
                pa.py_buffer(np.arange(len(self) + 1, dtype=np.int32) * np.int32(32)),
                pa.py_buffer(text),
            )
        # in units of four bytes, including the two of the CommitLog offset
        words = np.where((self.sys_flags & SysFlag.STORE_HOST_V6) != 0, 7, 4)
        begins = np.append(0, np.cumsum(words))
        where = np.repeat(host_at - 4 * begins[:-1], words) + 4 * np.arange(begins[-1])
        where[begins[1:] - 2] = self.positions + PHYSICAL_OFFSET_AT
        where[begins[1:] - 1] = self.positions + PHYSICAL_OFFSET_AT + 4
        text = _HEX.take(self._ints[where].view(np.uint8))
        return pa.StringArray.from_buffers(
            len(self), pa.py_buffer((8 * begins).astype(np.int32)), pa.py_buffer(text)
        )


# Arrow arrays from NumPy and Python values. ``pa.array`` is not used, because it imports pandas to
# check the type of its argument: 0.4 s of CPU in each new worker of Spark.
def number_array(values: np.ndarray[Any, Any], there: Mask | None = None) -> pa.Array:
    """Return an Arrow array. Values are null where ``there`` is false. Adjacent values are not
    copied."""
    buffers = [_bitmap(there), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def text_array(
    values: Iterable[str | bytes | None], type_: pa.DataType | None = None
) -> pa.StringArray | pa.BinaryArray:
    found = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(found) + 1, np.int32)
    np.cumsum([len(value or b"") for value in found], out=offsets[1:], dtype=np.int32)
    there = np.array([value is not None for value in found], np.bool_)
    data = b"".join(value for value in found if value is not None)
    buffers = [_bitmap(there), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_ or pa.string(), len(found), buffers)


def _repeated(value: str | None, rows: int, type_: pa.DataType) -> pa.StringArray:
    if value is None:
        return pa.nulls(rows, type_)
    data = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(type_, rows, [None, *map(pa.py_buffer, (offsets, data * rows))])


def _bitmap(there: Mask | None) -> pa.Buffer | None:
    return None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))


def entries_between(data: memoryview, begin: int, limit: int) -> tuple[Ints, Ints, int]:
    """Return the positions, the sizes and the end of the entries that ``walk_entries`` finds."""
    found, end = walk_entries(data, begin, limit)
    positions: Ints = np.frombuffer(found, np.int64)
    return positions, np.diff(positions, append=end), end


@has_twin
def walk_entries(data: memoryview, begin: int, limit: int) -> tuple[bytes, int]:
    """Walk over adjacent entries by their sizes, from byte ``begin``, as long as they begin before
    ``limit``. Return their positions (native 64-bit numbers, packed) and the end of the last one.

    The walk stops at an entry that is too small or incomplete. About 0.15 µs per entry, compiled
    0.01.
    """
    found, at, end, size_at = array("q"), begin, len(data), _SIZE_AT
    while at < limit and at + FIXED_SIZE <= end:
        (size,) = size_at(data, at)
        if size < FIXED_SIZE or at + size > end:
            break
        found.append(at)
        at += size
    return found.tobytes(), at


def _at_every_byte(raw: memoryview, type_: str) -> np.ndarray[Any, Any]:
    """Return a view of ``raw`` with a (mostly unaligned) number starting at each byte."""
    width = np.dtype(type_).itemsize
    return np.ndarray((max(len(raw) - width + 1, 0),), type_, raw, 0, (1,))


_SIZE_AT: Final = struct.Struct(">i").unpack_from
_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)
"""Two hexadecimal digits of each byte."""


def _batch_fault(body: memoryview, counted: int | None) -> str:
    try:
        found = len(walk_batch(bytes(body)))
    except ProtocolError as error:
        return str(error)
    assert found != counted, "the plain walk over a batch accepts what the quick one refuses"
    return f"it has {found} messages, but the broker has counted {counted or 'none'}"


def _host_text(packed: bytes) -> str:
    port_at = len(packed) - 5 if packed[-1] else 4
    (port,) = struct.unpack_from(">i", packed, port_at)
    if packed[-1]:
        return f"[{IPv6Address(packed[:16])}]:{port}"
    return f"{IPv4Address(packed[:4])}:{port}"


_INSTANT: Final = READ_SCHEMA.field("storeTimestamp").type
_INSTANT_END: Final = 253_402_300_800_000
"""First time (ms) that becomes null: the year 10000. Spark and Python cannot show later times;
damaged entries may contain them."""


def _instants(milliseconds: Ints) -> pa.Array:
    sensible = (milliseconds >= 0) & (milliseconds < _INSTANT_END)
    if sensible.all():
        return number_array(milliseconds * 1000).view(_INSTANT)
    return number_array(np.where(sensible, milliseconds, 0) * 1000, sensible).view(_INSTANT)


_COLUMNS: Final[dict[str, Callable[[Entries], pa.Array]]] = {
    "topic": Entries.topics,
    "queueId": lambda e: number_array(e.ints(12)),
    "queueOffset": lambda e: number_array(e.queue_offsets()),
    "commitLogOffset": lambda e: number_array(e.longs(28)),
    "msgId": lambda e: e.properties.column("UNIQ_KEY"),
    "offsetMsgId": Entries.offset_msg_ids,
    "keys": lambda e: e.properties.column("KEYS"),
    "tags": lambda e: e.properties.column("TAGS"),
    "properties": lambda e: e.properties.map_column(),
    "flag": lambda e: number_array(e.flags()),
    "sysFlag": lambda e: number_array(e.sys_flags),
    "bodyCrc": lambda e: number_array(e.body_crcs()),
    "bornTimestamp": lambda e: _instants(e.longs(40)),
    "storeTimestamp": lambda e: _instants(e.shifted_longs(56, 1)),
    "bornHost": Entries.born_hosts,
    "storeHost": Entries.store_hosts,
    "reconsumeTimes": lambda e: number_array(e.shifted_ints(72)),
    "preparedTransactionOffset": lambda e: number_array(e.shifted_longs(76, 2)),
    "storeSize": lambda e: number_array(e.sizes.astype(np.int32)),
    BODY_FAULT: Entries.body_faults,
    "status": lambda e: text_array(STATUSES).take(number_array(e.status)),
}


# The properties of many messages at once: the map column, and columns of single properties.
#
#     name 0x01 value 0x02 name 0x01 value [0x02]        UTF-8; the last separator may be missing
#
# The rule: the result is that of Apache's ``MessageDecoder.string2messageProperties``. A repeated
# name has its last value (batches of older brokers repeat UNIQ_KEY). The bytes of all messages are
# scanned together, not message by message.
_MAP: Final = pa.map_(pa.string(), pa.string())
_NAME_END: Final = 1
_VALUE_END: Final = 2


class PropertyColumns:
    """Parsed properties of ``texts``, a BinaryArray with one element per message.

    Bytes that are not UTF-8 are decoded with replacement characters, as in Java.
    """

    def __init__(self, texts: pa.BinaryArray) -> None:
        self._rows = len(texts)
        offsets, self._data = _contiguous(_valid_text(texts))
        counts, ids, values, names, repeated = split_properties(self._data, offsets)
        self._names = [name.decode() for name in names]
        self._counts: Ints = np.frombuffer(counts, np.int32).astype(np.int64)
        self._ids: Ints = np.frombuffer(ids, np.int32).astype(np.int64)
        self._values = np.frombuffer(values, np.int32).reshape(-1, 2)
        if repeated:
            keep = _last_of_each(self._ids, self._counts, len(names))
            rows = np.repeat(np.arange(self._rows), self._counts)[keep]
            self._counts = np.bincount(rows, minlength=self._rows)
            self._ids, self._values = self._ids[keep], self._values[keep]

    def map_column(self) -> pa.MapArray:
        """Return all properties of each message; an empty map if there are none."""
        offsets = np.zeros(self._rows + 1, np.int32)
        np.cumsum(self._counts, out=offsets[1:])
        names = text_array(self._names).take(number_array(self._ids))
        return pa.MapArray.from_arrays(
            number_array(offsets), names, self._texts(self._values), type=_MAP
        )

    def column(self, name: str) -> pa.StringArray:
        """Return the value of one property for each message; null if absent."""
        if name not in self._names:
            return pa.nulls(self._rows, pa.string())
        found = np.flatnonzero(self._ids == self._names.index(name))
        there = self._texts(self._values[found])
        if len(found) == self._rows:
            return there
        source = np.full(self._rows, -1)
        source[np.repeat(np.arange(self._rows), self._counts)[found]] = np.arange(len(found))
        return there.take(number_array(source, source >= 0))

    def _texts(self, cuts: np.ndarray[Any, np.dtype[np.int32]]) -> pa.StringArray:
        """Return the texts between the cuts, which are in ascending order."""
        pieces = np.ascontiguousarray(cuts).ravel()
        whole = pa.StringArray.from_buffers(
            max(len(pieces) - 1, 0), pa.py_buffer(pieces), pa.py_buffer(self._data)
        )
        return whole.take(number_array(np.arange(0, len(pieces), 2)))


def _valid_text(texts: pa.BinaryArray) -> pa.BinaryArray:
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return text_array(
            [text.decode(errors="replace").encode() for text in texts.to_pylist()], pa.binary()
        )
    return texts


def _contiguous(
    texts: pa.BinaryArray,
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the start of each text and the end of the last one, and the bytes of all texts."""
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    )
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


@has_twin
def split_properties(
    data: np.ndarray[Any, np.dtype[np.uint8]], offsets: np.ndarray[Any, np.dtype[np.int32]]
) -> tuple[bytes, bytes, bytes, list[bytes], bool]:
    """Split the property texts of many messages. Text ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    - First result: the number of properties of each message.
    - Second: for each property, the index of its name.
    - Third: for each property, the begin and end of its value.
    - Fourth: the distinct names.
    - Fifth: True if a message has a name more than once.

    The first three are packed 32-bit numbers of this machine. About 0.16 µs per message, compiled
    0.03.
    """
    value_ends = np.flatnonzero(data == _VALUE_END)
    row_ends = offsets[1:][offsets[1:] > offsets[:-1]].astype(np.int64)
    unended = row_ends[data[row_ends - 1] != _VALUE_END]
    # Twice the position of each value's end, plus 1 if a separator follows, after which the next
    # name begins. If the last separator of a message is missing, the next message's name begins
    # right at that end (and may itself be a stray separator).
    doubled = 2 * value_ends + 1
    if len(unended):
        doubled = np.sort(np.concatenate((doubled, 2 * unended)))
    ends = doubled >> 1
    begins = np.zeros_like(ends)
    begins[1:] = ends[:-1] + (doubled[:-1] & 1)
    name_ends = _first_after(begins, np.flatnonzero(data == _NAME_END), len(data))
    # RocketMQ: an entry without name or value is not an entry
    good = (name_ends > begins) & (name_ends < ends - 1)
    if not good.all():
        begins, name_ends, ends = begins[good], name_ends[good], ends[good]
    cuts = np.stack((begins, name_ends), axis=1).astype(np.int32)
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), max(2 * len(cuts) - 1, 0), [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    )
    names = whole.take(number_array(np.arange(0, 2 * len(cuts), 2))).dictionary_encode()
    ids = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.diff(np.searchsorted(ends, offsets, side="right"))
    return (
        counts.astype(np.int32).tobytes(),
        ids.astype(np.int32).tobytes(),
        np.stack((name_ends + 1, ends), axis=1).astype(np.int32).tobytes(),
        names.dictionary.to_pylist(),
        _last_of_each(ids, counts, len(names.dictionary)) is not None,
    )


def _first_after(begins: Ints, separators: Ints, none: int) -> Ints:
    """Return the first separator at or after each begin; ``none`` if there is none."""
    if (
        len(separators) == len(begins)
        and (separators >= begins).all()
        and (separators[:-1] < begins[1:]).all()
    ):
        return separators
    at = np.searchsorted(separators, begins)
    return np.append(separators, none)[at]


def _last_of_each(ids: Ints, counts: Ints, distinct: int) -> Ints | None:
    """Return the indexes of the last entry of each name in each message; None if no name is
    repeated."""
    width = int(counts[0]) if len(counts) else 0
    if width and (counts == width).all():
        table = ids.reshape(-1, width)
        # usual case: all messages have the same properties in the same order
        if (table == table[0]).all() and len(np.unique(table[0])) == width:
            return None
    entries = np.repeat(np.arange(len(counts)), counts) * distinct + ids
    _, last = np.unique(entries[::-1], return_index=True)
    return None if len(last) == len(ids) else np.sort(len(ids) - 1 - last)
