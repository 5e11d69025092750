"""Stored messages, back to back as a pull answers them, into Arrow record batches.

The one rule: no Python object per message, except where a body must be decompressed or an inner
batch taken apart. The walk over the sizes gives positions; every fixed field is then one gather
through an array view that has a number at *every* byte; bodies, topics and properties are gathered
from one array whose offsets are the cuts between them. Only what the asked columns need is touched.
The byte ruler is that of ``turbopump.message.codec``; tests/spark/plain_twin.py reads the same
bytes one by one and must agree. It must not know about sockets or Spark: it could as well read a
CommitLog file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turbopump.errors import StoredMessageError
from turbopump.message.batch import unwrapped
from turbopump.message.codec import CRC_SUFFIX_SIZE
from turbopump.message.compression import decompress
from turbopump.message.properties import SysFlag
from turbopump.spark.options import COLUMN_NAMES, READ_SCHEMA, arrow_schema

BATCH_BODY_SIZE_MAX: Final = 64 << 20
"""Decompressed bodies fill a batch up to about this many bytes; then the next batch begins."""

_MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
_MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
_ENTRY_SIZE_MIN: Final = 91
_CRC_NAME: Final = int.from_bytes(b"__CRC32#")

Ints = np.ndarray[Any, np.dtype[np.int64]]


def decode(
    raw: bytes | bytearray | memoryview,
    broker_name: str,
    columns: Sequence[str] = COLUMN_NAMES,
    *,
    queue_offsets: range | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages in ``raw`` as record batches with exactly these columns in this order.

    ``queue_offsets`` keeps only rows whose queueOffset lies in it. There is one batch, unless
    decompressed bodies make it larger than ``BATCH_BODY_SIZE_MAX``; none where no row is left. CRCs
    are not compared here: ``reading.read_range`` has done it. Raises StoredMessageError, naming the
    byte, if the bytes contradict themselves. Cost: 0.5–3 µs per row, by columns.
    """
    entries = _Entries(raw)
    if (entries.sys_flags & SysFlag.INNER_BATCH).any():
        entries = _Entries(_taken_apart(entries))
    if queue_offsets is not None:
        offsets = entries.longs(20)
        entries = entries.rows((offsets >= queue_offsets.start) & (offsets < queue_offsets.stop))
    schema = arrow_schema(columns)
    for part, bodies in _parts(entries, "body" in columns):
        arrays = [_COLUMNS[name](part) for name in columns if name not in ("body", "brokerName")]
        for at, name in enumerate(columns):
            if name == "brokerName":
                arrays.insert(at, pa.repeat(pa.scalar(broker_name), len(part)))
            elif name == "body":
                arrays.insert(at, part.bodies(bodies))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _taken_apart(entries: _Entries) -> bytes:
    """The same messages with an entry for each, those of inner batches too: the one place where a
    row costs a Python object."""
    entries_at = zip(entries.positions.tolist(), entries.sizes.tolist(), strict=True)
    return b"".join(
        [one for at, size in entries_at for one in unwrapped(bytes(entries.raw[at : at + size]))]
    )


def _parts(entries: _Entries, bodies_wanted: bool) -> Iterator[tuple[_Entries, dict[int, bytes]]]:
    """The entries in parts whose decompressed bodies stay within bounds, each with those bodies by
    row."""
    begin, size, bodies = 0, 0, dict[int, bytes]()
    if bodies_wanted:
        for row in np.flatnonzero(entries.sys_flags & SysFlag.COMPRESSED).tolist():
            body = decompress(bytes(entries.stored_body(row)), int(entries.sys_flags[row]))
            if size + len(body) > BATCH_BODY_SIZE_MAX and row > begin:
                yield entries.rows(slice(begin, row)), bodies
                begin, size, bodies = row, 0, {}
            bodies[row - begin] = body
            size += len(body)
    if begin < len(entries):
        yield (entries.rows(slice(begin, None)) if begin else entries), bodies


class _Entries:
    """Where the stored entries lie in ``raw``, and gathers over them. Checked once: all later reads
    stay inside their entry."""

    def __init__(self, raw: bytes | bytearray | memoryview) -> None:
        self.raw = memoryview(raw)
        self._bytes = np.frombuffer(self.raw, np.uint8)
        self._ints = _at_every_byte(self.raw, ">i4")
        self._longs = _at_every_byte(self.raw, ">i8")
        self.positions, self.sizes = self._walk()
        magic = self.ints(4)
        known = np.isin(magic, (_MAGIC_V1, _MAGIC_V2))
        if not known.all():
            at = int(self.positions[~known][0])
            raise StoredMessageError(
                f"no stored message at byte {at}: magic "
                f"{int(self._ints[at + 4]) & 0xFFFFFFFF:#010x}"
            )
        self._find_cuts(magic == _MAGIC_V2)

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, which: Any) -> _Entries:
        """Only these rows (a mask or slice)."""
        part = copy(self)
        part.__dict__.pop("properties", None)  # of all rows
        for name in ("positions", "sizes", "sys_flags", "shift", "cuts"):
            setattr(part, name, getattr(self, name)[which])
        return part

    def _walk(self) -> tuple[Ints, Ints]:
        positions, at, end = [], 0, len(self.raw)
        size_at = struct.Struct(">i").unpack_from
        raw = self.raw
        while at + _ENTRY_SIZE_MIN <= end:
            (size,) = size_at(raw, at)
            if size < _ENTRY_SIZE_MIN:
                raise StoredMessageError(f"no stored message at byte {at}: size {size}")
            positions.append(at)
            at += size
        if at != end:
            raise StoredMessageError(f"the last stored message ends at byte {at} of {end}")
        found = np.array([*positions, end], np.int64)
        return found[:-1], np.diff(found)

    def _find_cuts(self, is_v2: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Begin and end of body, topic and properties, as one row of six positions per entry."""
        self.sys_flags = self.ints(36)
        # A v6 host is 12 bytes longer: what follows it moves.
        born_v6 = (self.sys_flags & SysFlag.BORN_HOST_V6) != 0
        store_v6 = (self.sys_flags & SysFlag.STORE_HOST_V6) != 0
        self.shift = np.stack((12 * born_v6, 12 * born_v6 + 12 * store_v6), axis=1).astype(np.int64)
        ends = self.positions + self.sizes
        body = self.positions + 88 + self.shift[:, 1]
        self._refuse(body + 3 > ends, "its fixed fields")
        body_end = body + self._ints[body - 4]
        self._refuse((body_end < body) | (body_end + 3 > ends), "its body")
        v2 = is_v2.astype(np.int64)
        topic = body_end + 1 + v2
        topic_size = self._bytes[body_end].astype(np.int64)
        topic_size = np.where(is_v2, topic_size << 8 | self._bytes[body_end + 1], topic_size)
        topic_end = topic + topic_size
        self._refuse(topic_end + 2 > ends, "its topic")
        properties_size = self._bytes[topic_end].astype(np.int64) << 8 | self._bytes[topic_end + 1]
        self._refuse(topic_end + 2 + properties_size != ends, "its properties")
        # The stored bytes' own CRC, if there is one, is the last property, and none of the user's.
        has_crc = (properties_size >= CRC_SUFFIX_SIZE) & (
            self._longs[ends - CRC_SUFFIX_SIZE] == _CRC_NAME
        )
        properties_end = ends - CRC_SUFFIX_SIZE * has_crc
        self.cuts = np.stack(
            (body, body_end, topic, topic_end, topic_end + 2, properties_end), axis=1
        ).astype(np.int32)

    def _refuse(self, bad: np.ndarray[Any, np.dtype[np.bool_]], what: str) -> None:
        if bad.any():
            at = int(self.positions[bad][0])
            raise StoredMessageError(
                f"the stored message at byte {at} does not end where {what} say(s)"
            )

    def ints(self, at: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._ints[self.positions + at].astype(np.int32)

    def longs(self, at: int) -> Ints:
        return self._longs[self.positions + at].astype(np.int64)

    def shifted_ints(self, at: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """A field behind both hosts."""
        found: np.ndarray[Any, np.dtype[np.int32]] = self._ints[
            self.positions + self.shift[:, 1] + at
        ].astype(np.int32)
        return found

    def shifted_longs(self, at: int, hosts: int) -> Ints:
        """A field behind one or both hosts."""
        found: Ints = self._longs[self.positions + self.shift[:, hosts - 1] + at].astype(np.int64)
        return found

    def pieces(self, which: int) -> pa.BinaryArray:
        """Bodies (0), topics (2) or properties (4), copied out of ``raw``."""
        # One array over all of raw whose elements are the pieces and the gaps between them; every
        # second one is taken.
        offsets = np.ascontiguousarray(self.cuts[:, which : which + 2]).ravel()
        whole = pa.BinaryArray.from_buffers(
            pa.binary(),
            max(len(offsets) - 1, 0),
            [None, pa.py_buffer(offsets), pa.py_buffer(self.raw)],
        )
        return whole.take(pa.array(np.arange(0, len(offsets), 2)))

    def stored_body(self, row: int) -> memoryview:
        return self.raw[int(self.cuts[row, 0]) : int(self.cuts[row, 1])]

    def bodies(self, decompressed: dict[int, bytes]) -> pa.BinaryArray:
        """All bodies, the given ones in place of what is stored."""
        stored = self.pieces(0)
        if not decompressed:
            return stored
        source = np.arange(len(self))
        source[list(decompressed)] = len(self) + np.arange(len(decompressed))
        return pa.concat_arrays([stored, pa.array(decompressed.values(), pa.binary())]).take(
            pa.array(source)
        )

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.pieces(4))

    def topics(self) -> pa.StringArray:
        topics = self.pieces(2)
        try:
            return topics.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array(
                [topic.decode(errors="replace") for topic in topics.to_pylist()], pa.string()
            )

    def hosts(self, at: Ints, is_v6: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.StringArray:
        """``1.2.3.4:5`` or ``[::1]:5``; each distinct host is formatted once."""
        width = 20 if is_v6.any() else 8
        table = np.zeros((len(at), width + 1), np.uint8)
        table[:, :width] = self._bytes[at[:, None] + np.arange(width)]
        table[:, width] = is_v6
        if width == 20:
            table[~is_v6, 8:20] = 0
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width + 1), len(at), [None, pa.py_buffer(table)]
        )
        encoded = fixed.dictionary_encode()
        return pa.array(map(_host_text, encoded.dictionary.to_pylist()), pa.string()).take(
            encoded.indices
        )

    def born_hosts(self) -> pa.StringArray:
        return self.hosts(self.positions + 48, (self.sys_flags & SysFlag.BORN_HOST_V6) != 0)

    def store_hosts(self) -> pa.StringArray:
        return self.hosts(
            self.positions + self.shift[:, 0] + 64, (self.sys_flags & SysFlag.STORE_HOST_V6) != 0
        )

    def offset_msg_ids(self) -> pa.StringArray:
        """Store host (address and port as int) and CommitLog offset, in upper-case hex: 32
        characters, 56 with a v6 host."""
        host_at = self.positions + self.shift[:, 0] + 64
        # of four bytes, with the CommitLog offset's two
        words = np.where((self.sys_flags & SysFlag.STORE_HOST_V6) != 0, 7, 4)
        begins = np.append(0, np.cumsum(words))
        where = np.repeat(host_at - 4 * begins[:-1], words) + 4 * np.arange(begins[-1])
        where[begins[1:] - 2], where[begins[1:] - 1] = self.positions + 28, self.positions + 32
        text = _HEX.take(self._ints[where].view(np.uint8))
        return pa.StringArray.from_buffers(
            len(self), pa.py_buffer((8 * begins).astype(np.int32)), pa.py_buffer(text)
        )


def _at_every_byte(raw: memoryview, type_: str) -> np.ndarray[Any, Any]:
    """A view of ``raw`` with a (mostly unaligned) number starting at each byte."""
    width = np.dtype(type_).itemsize
    return np.ndarray((max(len(raw) - width + 1, 0),), type_, raw, 0, (1,))


_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)
"""The two digits of each byte."""


def _host_text(packed: bytes) -> str:
    port_at = len(packed) - 5 if packed[-1] else 4
    (port,) = struct.unpack_from(">i", packed, port_at)
    if packed[-1]:
        return f"[{IPv6Address(packed[:16])}]:{port}"
    return f"{IPv4Address(packed[:4])}:{port}"


def _instants(milliseconds: Ints) -> pa.Array:
    return pa.array(milliseconds * 1000).view(READ_SCHEMA.field("storeTimestamp").type)


_COLUMNS: Final[dict[str, Callable[[_Entries], pa.Array]]] = {
    "topic": _Entries.topics,
    "queueId": lambda e: pa.array(e.ints(12)),
    "queueOffset": lambda e: pa.array(e.longs(20)),
    "commitLogOffset": lambda e: pa.array(e.longs(28)),
    "msgId": lambda e: e.properties.column("UNIQ_KEY"),
    "offsetMsgId": _Entries.offset_msg_ids,
    "keys": lambda e: e.properties.column("KEYS"),
    "tags": lambda e: e.properties.column("TAGS"),
    "properties": lambda e: e.properties.map_column(),
    "flag": lambda e: pa.array(e.ints(16)),
    "sysFlag": lambda e: pa.array(e.sys_flags),
    "bodyCrc": lambda e: pa.array(e.ints(8)),
    "bornTimestamp": lambda e: _instants(e.longs(40)),
    "storeTimestamp": lambda e: _instants(e.shifted_longs(56, 1)),
    "bornHost": _Entries.born_hosts,
    "storeHost": _Entries.store_hosts,
    "reconsumeTimes": lambda e: pa.array(e.shifted_ints(72)),
    "preparedTransactionOffset": lambda e: pa.array(e.shifted_longs(76, 2)),
    "storeSize": lambda e: pa.array(e.sizes.astype(np.int32)),
}


# The properties of many messages at once: the map column, and single properties picked out of
# it.
#
#     name 0x01 value 0x02 name 0x01 value [0x02]        UTF-8; the last separator may be missing
#
# The one rule: the same entries as Apache's ``MessageDecoder.string2messageProperties`` gives, a
# repeated name taking its last value (batches of older brokers repeat UNIQ_KEY), but found by
# scanning all messages' bytes together instead of message by message.
_MAP: Final = pa.map_(pa.string(), pa.string())
_NAME_END: Final = 1
_VALUE_END: Final = 2


class PropertyColumns:
    """The parsed properties of ``texts``, a BinaryArray with one element per message.

    Bytes that are not UTF-8 are read with replacement characters, as Java reads them.
    """

    def __init__(self, texts: pa.BinaryArray) -> None:
        self._rows = len(texts)
        offsets, data = _contiguous(_valid_text(texts))
        names, values, counts = _cut(offsets, data)
        encoded = names.dictionary_encode()
        ids = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        keep = _last_of_each(ids, counts, len(encoded.dictionary))
        if keep is not None:
            values, ids = values.take(pa.array(keep)), ids[keep]
            rows = np.repeat(np.arange(self._rows), counts)[keep]
            counts = np.bincount(rows, minlength=self._rows)
        self._names, self._ids, self._values, self._counts = encoded.dictionary, ids, values, counts

    def map_column(self) -> pa.MapArray:
        """All properties of each message; an empty map where there are none."""
        offsets = np.zeros(self._rows + 1, np.int32)
        np.cumsum(self._counts, out=offsets[1:])
        return pa.MapArray.from_arrays(
            pa.array(offsets), self._names.take(pa.array(self._ids)), self._values
        ).cast(_MAP)

    def column(self, name: str) -> pa.StringArray:
        """The value of one property in each message, null where it is absent."""
        at = pc.index(self._names, name).as_py() if len(self._names) else -1
        if at < 0:
            return pa.nulls(self._rows, pa.string())
        found = np.flatnonzero(self._ids == at)
        rows = np.repeat(np.arange(self._rows), self._counts)[found]
        source = np.full(self._rows, -1)
        source[rows] = found
        return self._values.take(pa.array(source, mask=source < 0))


def _valid_text(texts: pa.BinaryArray) -> pa.BinaryArray:
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [text.decode(errors="replace").encode() for text in texts.to_pylist()], pa.binary()
        )
    return texts


def _contiguous(texts: pa.BinaryArray) -> tuple[Ints, np.ndarray[Any, np.dtype[np.uint8]]]:
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[
        texts.offset : texts.offset + len(texts) + 1
    ].astype(np.int64)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    )
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def _cut(
    offsets: Ints, data: np.ndarray[Any, np.dtype[np.uint8]]
) -> tuple[pa.StringArray, pa.StringArray, Ints]:
    """All names, all values, and how many of them each message has."""
    value_ends = np.flatnonzero(data == _VALUE_END)
    row_ends = offsets[1:][offsets[1:] > offsets[:-1]]
    unended = row_ends[data[row_ends - 1] != _VALUE_END]
    # Twice the position, plus one where a separator stands there: the next name begins after it.
    # Where the last separator of a message is missing, the next message's name begins right at that
    # end (and may itself be a stray separator).
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
    cuts = np.empty((len(ends), 4), np.int32)
    cuts[:, 0], cuts[:, 1], cuts[:, 2], cuts[:, 3] = begins, name_ends, name_ends + 1, ends
    pieces = np.append(cuts.ravel(), np.int32(len(data)))
    texts = pa.StringArray.from_buffers(
        len(pieces) - 1, pa.py_buffer(pieces), pa.py_buffer(np.ascontiguousarray(data))
    )
    every_fourth = np.arange(0, len(pieces) - 1, 4)
    counts = np.diff(np.searchsorted(ends, offsets, side="right"))
    return texts.take(pa.array(every_fourth)), texts.take(pa.array(every_fourth + 2)), counts


def _first_after(begins: Ints, separators: Ints, none: int) -> Ints:
    """For each begin the first separator at or after it (``none`` where there is none)."""
    if (
        len(separators) == len(begins)
        and (separators >= begins).all()
        and (separators[:-1] < begins[1:]).all()
    ):
        return separators
    at = np.searchsorted(separators, begins)
    return np.append(separators, none)[at]


def _last_of_each(ids: Ints, counts: Ints, distinct: int) -> Ints | None:
    """The entries to keep so that each message has each name once, its last; None if that is all of
    them."""
    width = int(counts[0]) if len(counts) else 0
    if width and (counts == width).all():
        table = ids.reshape(-1, width)
        # producers repeat themselves: one layout for all
        if (table == table[0]).all() and len(np.unique(table[0])) == width:
            return None
    entries = np.repeat(np.arange(len(counts)), counts) * distinct + ids
    _, last = np.unique(entries[::-1], return_index=True)
    return None if len(last) == len(ids) else np.sort(len(ids) - 1 - last)
