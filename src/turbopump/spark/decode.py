"""Decoder of stored messages into Arrow record batches.

The messages are bytes of a pull's answer or of a segment of the CommitLog. ``entries.py`` finds the
positions and cuts of all entries, and ``inner_batches.py`` expands inner batches. Here each column
is one gather over them. Only bytes of the requested columns are read, and no Python object is made
per message, except if a body must be decompressed.

tests/spark/plain_twin.py decodes the same bytes one by one and must agree. Sockets, files and Spark
are unknown here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from turbopump.message.entry import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    PHYSICAL_OFFSET_AT,
    PREPARED_TRANSACTION_OFFSET_AT,
    QUEUE_ID_AT,
    RECONSUME_TIMES_AT,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
)
from turbopump.message.properties import KEYS, TAGS, UNIQ_KEY, SysFlag
from turbopump.spark.arrow_arrays import Ints, Mask, number_array, repeated_text, text_array
from turbopump.spark.entries import STATUSES, Entries
from turbopump.spark.inner_batches import expand_batches
from turbopump.spark.options import BODY_FAULT, COLUMN_NAMES, READ_SCHEMA, arrow_schema

BATCH_BODY_SIZE_MAX: Final = 64 << 20
"""Approximate maximum bytes of decompressed bodies in one batch. The next batch begins at this
size."""


def decode(
    raw: bytes | bytearray | memoryview,
    broker_name: str,
    columns: Sequence[str] = COLUMN_NAMES,
    *,
    queue_offsets: range | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode stored messages into record batches with exactly these columns in this order.

    ``queue_offsets`` keeps only rows whose queueOffset is in this range. There is one batch, more
    if decompressed bodies exceed ``BATCH_BODY_SIZE_MAX``, and none if no row is left.

    CRCs are not checked here, because ``reading.read_range`` checks them before. A body that cannot
    be read does not stop the others (``record_batches``). Raises StoredMessageError, with the
    position, if the lengths of an entry contradict each other. A row takes 0.5–3 µs, depending on
    the columns.
    """
    entries = Entries(raw)
    entries.refuse_misfits()
    entries = expand_batches(entries)
    if queue_offsets is not None:
        offsets = entries.queue_offsets()
        entries = entries.rows((offsets >= queue_offsets.start) & (offsets < queue_offsets.stop))
    yield from record_batches(entries, arrow_schema(columns), {"brokerName": broker_name})


def record_batches(
    entries: Entries, schema: pa.Schema, constants: Mapping[str, str | None]
) -> Iterator[pa.RecordBatch]:
    """Yield record batches with the columns of ``schema`` and one row for each entry.

    The caller has already expanded inner batches. ``constants`` has the columns with the same value
    in each row.

    A body that cannot be decompressed is returned as stored. ``bodyFault`` then has the reason, and
    the status ``ok`` becomes ``unreadable``.
    """
    bodies_wanted = "body" in schema.names or BODY_FAULT in schema.names
    for part, decompressed in _parts(entries, bodies_wanted):
        arrays = []
        for field in schema:
            if field.name in constants:
                arrays.append(repeated_text(constants[field.name], len(part), field.type))
            elif field.name == "body":
                arrays.append(_bodies(part, decompressed))
            else:
                arrays.append(_COLUMNS[field.name](part))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(entries: Entries, bodies_wanted: bool) -> Iterator[tuple[Entries, dict[int, bytes]]]:
    """Split the entries into parts. The decompressed bodies of a part have a limited total size.

    Yields each part with its decompressed bodies, by row.
    """
    begin = size = 0
    bodies: dict[int, bytes] = {}
    if bodies_wanted:
        for row in np.flatnonzero(entries.sys_flags & SysFlag.COMPRESSED).tolist():
            body = entries.decompressed_body(row)
            if body is None:
                continue
            if size + len(body) > BATCH_BODY_SIZE_MAX and row > begin:
                yield entries.rows(slice(begin, row)), bodies
                begin = row
                size = 0
                bodies = {}
            bodies[row - begin] = body
            size += len(body)
    if begin < len(entries):
        if begin:
            entries = entries.rows(slice(begin, None))
        yield entries, bodies


# The columns.
def topics(entries: Entries) -> pa.StringArray:
    """Return the topic of each entry.

    The messages of an inner batch have the topic of the batch.
    """
    if entries.batches is not None and entries.batch_of is not None:
        return topics(entries.batches).take(number_array(entries.batch_of))
    found = entries.pieces(2)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return text_array(topic.decode(errors="replace") for topic in found.to_pylist())


def _bodies(entries: Entries, decompressed: dict[int, bytes]) -> pa.BinaryArray:
    """Return the body of each entry. A body in ``decompressed`` replaces the stored one."""
    stored = entries.pieces(0)
    if not decompressed:
        return stored
    source = np.arange(len(entries))
    source[list(decompressed)] = len(entries) + np.arange(len(decompressed))
    return pa.concat_arrays([stored, text_array(decompressed.values(), pa.binary())]).take(
        number_array(source)
    )


def _body_faults(entries: Entries) -> pa.StringArray:
    if entries.faults is None:
        return pa.nulls(len(entries), pa.string())
    return text_array(entries.faults.tolist())


def _flags(entries: Entries) -> pa.Array:
    """Return the flag of each message, which the sending application has set."""
    return number_array(entries.int_view[entries.flags_at].astype(np.int32))


def _body_crcs(entries: Entries) -> pa.Array:
    crcs = entries.ints(BODY_CRC_AT)
    if entries.is_item is not None:
        cuts = entries.cuts[entries.is_item, :2].tolist()
        found = [crc32(entries.raw[begin:end]) & 0x7FFFFFFF for begin, end in cuts]
        crcs[entries.is_item] = found
    return number_array(crcs)


_INSTANT: Final = READ_SCHEMA.field("storeTimestamp").type
_INSTANT_END: Final = 253_402_300_800_000
"""First time (ms) that becomes null, at the start of the year 10000. Spark and Python cannot show
later times, which damaged entries may contain."""


def _instants(milliseconds: Ints) -> pa.Array:
    sensible = (milliseconds >= 0) & (milliseconds < _INSTANT_END)
    if sensible.all():
        return number_array(milliseconds * 1000).view(_INSTANT)
    return number_array(np.where(sensible, milliseconds, 0) * 1000, sensible).view(_INSTANT)


def _born_hosts(entries: Entries) -> pa.StringArray:
    is_v6 = (entries.sys_flags & SysFlag.BORN_HOST_V6) != 0
    return _hosts(entries, entries.positions + BORN_HOST_AT, is_v6)


def _store_hosts(entries: Entries) -> pa.StringArray:
    is_v6 = (entries.sys_flags & SysFlag.STORE_HOST_V6) != 0
    return _hosts(entries, _store_hosts_at(entries), is_v6)


def _store_hosts_at(entries: Entries) -> Ints:
    found: Ints = entries.positions + entries.shift[:, 0] + STORE_HOST_AT
    return found


def _hosts(entries: Entries, at: Ints, is_v6: Mask) -> pa.StringArray:
    """For each host, return its text, such as ``1.2.3.4:5`` or ``[::1]:5``."""
    if is_v6.any():
        table = np.zeros((len(at), 21), np.uint8)
        table[:, :20] = entries.byte_view[at[:, None] + np.arange(20)]
        table[:, 20] = is_v6
        table[~is_v6, 8:20] = 0
        hosts = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(21), len(at), [None, pa.py_buffer(table)]
        )
        encoded = hosts.dictionary_encode()
        packed = encoded.dictionary.to_pylist()
    else:
        encoded = number_array(entries.long_view[at].astype(np.int64)).dictionary_encode()
        packed = [
            each.to_bytes(9, signed=True)[1:] + b"\0" for each in encoded.dictionary.to_pylist()
        ]
    return text_array(map(_host_text, packed)).take(encoded.indices)


def _host_text(packed: bytes) -> str:
    """Return the text of one host, such as ``1.2.3.4:5`` or ``[::1]:5``.

    ``packed`` has 8 bytes, or 20 bytes for IPv6, and then a byte that is 1 for IPv6.
    """
    is_v6 = packed[-1]
    port_at = len(packed) - 5 if is_v6 else 4
    (port,) = struct.unpack_from(">i", packed, port_at)
    if is_v6:
        return f"[{IPv6Address(packed[:16])}]:{port}"
    return f"{IPv4Address(packed[:4])}:{port}"


_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)
"""Two hexadecimal digits of each byte."""


def _offset_msg_ids(entries: Entries) -> pa.StringArray:
    """Return the offsetMsgId of each message.

    The id has the store host (address, and port as int) and the CommitLog offset, as upper-case
    hexadecimal digits. The id has 32 characters, or 56 with an IPv6 host.
    """
    hosts_at = _store_hosts_at(entries)
    offsets_at = entries.positions + PHYSICAL_OFFSET_AT
    is_v6 = (entries.sys_flags & SysFlag.STORE_HOST_V6) != 0
    if not is_v6.any():
        pairs = np.empty((len(entries), 2), ">i8")
        pairs[:, 0] = entries.long_view[hosts_at]
        pairs[:, 1] = entries.long_view[offsets_at]
        text = _HEX.take(pairs.view(np.uint8))
        ends = np.arange(len(entries) + 1, dtype=np.int32) * np.int32(32)
        return pa.StringArray.from_buffers(len(entries), pa.py_buffer(ends), pa.py_buffer(text))
    # in units of four bytes, including the two of the CommitLog offset
    words = np.where(is_v6, 7, 4)
    begins = np.append(0, np.cumsum(words))
    where = np.repeat(hosts_at - 4 * begins[:-1], words) + 4 * np.arange(begins[-1])
    where[begins[1:] - 2] = offsets_at
    where[begins[1:] - 1] = offsets_at + 4
    text = _HEX.take(entries.int_view[where].view(np.uint8))
    return pa.StringArray.from_buffers(
        len(entries), pa.py_buffer((8 * begins).astype(np.int32)), pa.py_buffer(text)
    )


_COLUMNS: Final[dict[str, Callable[[Entries], pa.Array]]] = {
    "topic": topics,
    "queueId": lambda e: number_array(e.ints(QUEUE_ID_AT)),
    "queueOffset": lambda e: number_array(e.queue_offsets()),
    "commitLogOffset": lambda e: number_array(e.longs(PHYSICAL_OFFSET_AT)),
    "msgId": lambda e: e.properties.column(UNIQ_KEY),
    "offsetMsgId": _offset_msg_ids,
    "keys": lambda e: e.properties.column(KEYS),
    "tags": lambda e: e.properties.column(TAGS),
    "properties": lambda e: e.properties.map_column(),
    "flag": _flags,
    "sysFlag": lambda e: number_array(e.sys_flags),
    "bodyCrc": _body_crcs,
    "bornTimestamp": lambda e: _instants(e.longs(BORN_TIMESTAMP_AT)),
    "storeTimestamp": lambda e: _instants(e.shifted_longs(STORE_TIMESTAMP_AT, 1)),
    "bornHost": _born_hosts,
    "storeHost": _store_hosts,
    "reconsumeTimes": lambda e: number_array(e.shifted_ints(RECONSUME_TIMES_AT)),
    "preparedTransactionOffset": lambda e: number_array(
        e.shifted_longs(PREPARED_TRANSACTION_OFFSET_AT, 2)
    ),
    "storeSize": lambda e: number_array(e.sizes.astype(np.int32)),
    BODY_FAULT: _body_faults,
    "status": lambda e: text_array(STATUSES).take(number_array(e.status)),
}
"""Function that makes each column, except ``body`` and constants."""
