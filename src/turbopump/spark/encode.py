"""Encoder of rows into bytes for brokers, the reverse of ``decode.py``.

No Python object is made per row, except for rows that cannot be part of a batch. The property texts
of all rows are joined in vectors, and so are the items of batches (the byte ruler is in
``turbopump.message.batch``). All items are adjacent in one buffer, and a batch is a slice of it.
Every row is checked here; an error names the first row that cannot be sent, with its content.
Sockets and Spark are unknown here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turbopump.errors import MessageError
from turbopump.message import properties as names
from turbopump.message.ids import UniqueIds
from turbopump.message.java import java_hash
from turbopump.message.message import BODY_SIZE_MAX, MessageQueue
from turbopump.message.rules import NOT_SENDABLE_TOPICS, RETRY_PREFIX, topic_fault
from turbopump.message.user_properties import LEFT_BEHIND, RESERVED
from turbopump.spark.arrow_arrays import Ints, Mask
from turbopump.spark.write_options import Layout

MARK: Final = "SPARK_WRITE"
KEY: Final = "SPARK_KEY"
"""Names of the properties of rows written with an idempotency key. One has the key of the row, and
the other the write that sent the row."""

_EARLIEST_MS: Final = 10**11
_LATEST_MS: Final = 2**62
_SHOWN: Final = 60
_TAKEN_MAX: Final = 1 << 15
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)

QueuesOfTopic = Callable[[str], Sequence[MessageQueue]]
"""Function that returns the writable queues of a topic."""
NewIds = Callable[[int], pa.StringArray]
"""Function that returns the given number of new message ids."""


def unique_ids(source: UniqueIds, count: int) -> pa.StringArray:
    """Return ``count`` new message ids. Equivalent to calling ``source.next`` ``count`` times.

    One id takes about 0.02 µs.
    """
    parts = [
        _ids_from(*source.take(size), size)
        for size in (min(_TAKEN_MAX, count - at) for at in range(0, count, _TAKEN_MAX))
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def _ids_from(begin: str, first: int, count: int) -> pa.StringArray:
    size = len(begin) + 4
    text = np.empty((count, size), np.uint8)
    text[:, :-4] = np.frombuffer(begin.encode(), np.uint8)
    numbers = np.arange(first, first + count)
    for at, shift in enumerate((12, 8, 4, 0), len(begin)):
        text[:, at] = _DIGITS[numbers >> shift & 15]
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


class RowError(MessageError):
    """Raised for a row that cannot be sent.

    ``row`` is the number of the row in the record batch.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of one topic, packed for one request.

    - ``queue``: the destination, or None for any queue. Rows for a queue must be stored in their
      order.
    - ``rows``: the numbers of the rows in the record batch.
    - ``ends``: the end of each row's item in ``items``.
    - ``keys``: the idempotency keys of the rows.
    - ``single``: property text, body and flag of a row that cannot be part of a batch.
    """

    topic: str
    queue: MessageQueue | None
    rows: Ints
    items: memoryview
    ends: Ints
    keys: pa.StringArray | None = None
    single: tuple[str, bytes, int] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, begin: int, end: int) -> PackedRows:
        """Return some of the rows: those at the indexes from ``begin`` to ``end`` (exclusive)."""
        first = int(self.ends[begin - 1]) if begin else 0
        last = int(self.ends[end - 1])
        return PackedRows(
            self.topic,
            self.queue,
            self.rows[begin:end],
            self.items[first:last],
            self.ends[begin:end] - first,
            None if self.keys is None else self.keys.slice(begin, end - begin),
        )

    def without(self, present: Counter[str]) -> PackedRows | None:
        """Remove the rows whose keys are in ``present``. Return the other rows, or None if no row
        is left.

        If ``present`` counts a key twice, two rows with the key are removed.
        """
        if self.keys is None or self.single is not None:
            gone = self.keys is not None and present[self.keys[0].as_py()] > 0
            return None if gone else self
        left = [
            self.part(at, at + 1)
            for at, there in enumerate(take_present(self.keys, present))
            if not there
        ]
        if len(left) == len(self) or not left:
            return self if left else None
        items = b"".join([bytes(one.items[: int(one.ends[-1])]) for one in left])
        rows = np.concatenate([one.rows for one in left])
        ends = np.cumsum([int(one.ends[-1]) for one in left])
        keys = pa.concat_arrays([one.keys for one in left])
        return PackedRows(self.topic, self.queue, rows, memoryview(items), ends, keys)


def take_present(keys: pa.StringArray, present: Counter[str]) -> Mask:
    """Take keys out of the counts ``present``. Return a mask of the keys that were taken.

    If ``present`` counts a key twice, the first two rows with the key are marked.
    """
    found = np.zeros(len(keys), np.bool_)
    if present:
        hits = pc.is_in(keys, pa.array(list(present), pa.string()))
        for at in pc.indices_nonzero(hits).to_pylist():
            key = keys[at].as_py()
            if present[key] > 0:
                present[key] -= 1
                found[at] = True
    return found


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded rows of a record batch, not yet divided into requests.

    ``pack_rows`` divides them. ``queue_of`` has for each row an index into the queues of the row's
    topic, or -1 for any queue. ``alone`` marks rows that cannot be part of a batch.
    """

    topics: list[str]
    topic_of: Ints
    queue_of: Ints
    alone: Mask
    items: pa.BinaryArray
    texts: pa.StringArray
    bodies: pa.BinaryArray
    flags: Ints
    keys: pa.StringArray | None

    def __len__(self) -> int:
        return len(self.items)


def encode(
    batch: pa.RecordBatch,
    layout: Layout,
    queues: QueuesOfTopic,
    new_ids: NewIds,
    mark: str | None = None,
) -> Encoded:
    """Encode the rows of a record batch as messages.

    ``mark`` is the property that identifies the write, on rows with an idempotency key. Raises
    RowError for the first row that cannot be sent, and RouteNotFoundError for a missing topic.
    """
    rows = _Rows(batch, layout)
    bodies = rows.bodies()
    topics, topic_of = rows.topics()
    keys = rows.idempotency_keys()
    texts, alone = rows.texts(new_ids, mark, keys)
    flags = rows.ints("flag", 0)
    for number, topic in enumerate(topics):
        if topic.startswith(RETRY_PREFIX):  # brokers refuse batches for these topics
            alone |= topic_of == number
    queue_of = rows.queues(topics, topic_of, queues)
    items = _items(texts, bodies, flags)
    return Encoded(topics, topic_of, queue_of, alone, items, texts, bodies, flags, keys)


def _items(texts: pa.StringArray, bodies: pa.BinaryArray, flags: Ints) -> pa.BinaryArray:
    """Encode each row in the form that a message has inside a batch body."""
    count = len(bodies)
    body_sizes, text_sizes = _sizes(bodies), _sizes(texts)
    heads = np.zeros((count, 5), ">i4")
    heads[:, 0] = 22 + body_sizes + text_sizes
    heads[:, 3] = flags
    heads[:, 4] = body_sizes
    return pc.binary_join_element_wise(
        _fixed_size(heads, 20),
        bodies,
        _fixed_size(text_sizes.astype(">u2"), 2),
        texts.cast(pa.binary()),
        b"",
    )


def _fixed_size(values: np.ndarray[Any, Any], width: int) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())


def _sizes(array: pa.Array) -> Ints:
    return cast(Ints, pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64))


class _Rows:
    """Columns of a record batch. Each column is checked when it is read."""

    def __init__(self, batch: pa.RecordBatch, layout: Layout) -> None:
        self._batch = batch
        self._layout = layout
        self._map_values: dict[str, pa.StringArray] = {}

    def _has_column(self, name: str) -> bool:
        return name in self._layout.columns

    def _column(self, name: str, kind: pa.DataType) -> pa.Array:
        return self._batch.column(self._layout.columns[name]).cast(kind)

    def _refuse(self, faulty: Any, why: str) -> None:
        """Raise RowError for the first row that the mask ``faulty`` marks."""
        found = np.asarray(faulty)
        if found.any():
            row = int(np.argmax(found))
            raise RowError(row, f"{self.row_text(row)}: {why}")

    def row_text(self, row: int) -> str:
        """Describe a row, for the text of an error."""
        shown = []
        for name in ("topic", "msgId", "keys", "body"):
            if self._has_column(name):
                value = self._batch.column(self._layout.columns[name])[row].as_py()
                text = repr(value)
                shown.append(f"{name}={text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}")
        return f"({', '.join(shown)})"

    def bodies(self) -> pa.BinaryArray:
        bodies = self._column("body", pa.binary())
        self._refuse(_mask(pc.is_null(bodies)), "its body is null; a message needs one")
        sizes = _sizes(bodies)
        self._refuse(sizes == 0, "its body is empty, and brokers refuse that")
        too_large = sizes > BODY_SIZE_MAX
        self._refuse(too_large, f"its body is larger than {BODY_SIZE_MAX} bytes")
        return bodies

    def topics(self) -> tuple[list[str], Ints]:
        """Return the distinct topics. Also return, for each row, the index of its topic."""
        if self._layout.topic is not None:
            return [self._layout.topic], np.zeros(self._batch.num_rows, np.int64)
        column = self._column("topic", pa.string())
        self._refuse(_mask(pc.is_null(column)), "its topic is null; give it, or the option topic")
        found = column.dictionary_encode()
        numbers = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        topics = found.dictionary.to_pylist()
        for number, topic in enumerate(topics):
            fault = topic_fault(topic)
            if fault is None and topic in NOT_SENDABLE_TOPICS:
                fault = f"the topic {topic} belongs to the broker itself"
            if fault is not None:
                self._refuse(numbers == number, fault)
        return topics, numbers

    def ints(self, name: str, default: int) -> Ints:
        if not self._has_column(name):
            return np.full(self._batch.num_rows, default, np.int64)
        column = self._column(name, pa.int64()).fill_null(default)
        return cast(Ints, column.to_numpy(zero_copy_only=False))

    # --- properties

    def texts(
        self, new_ids: NewIds, mark: str | None, keys: pa.StringArray | None
    ) -> tuple[pa.StringArray, Mask]:
        """For each row, return the property text. Also return a mask of the rows with delayed
        delivery."""
        parts: list[Any] = []
        if self._has_column("properties"):
            parts.append(self._map_texts())
        for column, name in _OWN_COLUMNS.items():
            if self._has_column(column):
                parts.append(self._encode_property(name, self._text_column(column)))
        parts += self._delay_properties()
        alone = np.zeros(self._batch.num_rows, np.bool_)
        for part in parts[len(parts) - 2 :] if self._has_delays() else ():
            alone |= _sizes(part) > 0
        parts.append(self._id_properties(new_ids))
        if keys is not None:
            parts.append(pc.binary_join_element_wise(f"{KEY}\x01", keys, "\x02", ""))
            parts.append(pa.array([f"{MARK}\x01{mark}\x02"]).take(_zeros(self._batch.num_rows)))
        texts = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")
        self._refuse(
            _sizes(texts) > names.PROPERTIES_SIZE_MAX,
            f"its properties take more than {names.PROPERTIES_SIZE_MAX} bytes",
        )
        return texts, alone

    def _text_column(self, column: str) -> pa.StringArray:
        found = self._batch.column(self._layout.columns[column])
        if pa.types.is_list(found.type):
            inner = pc.any(pc.is_null(found.flatten())).as_py()
            if inner:
                self._refuse(
                    [None in (value or ()) for value in found.to_pylist()],
                    f"its {column} contain null",
                )
            found = pc.binary_join(found.cast(pa.list_(pa.string())), names.KEY_SEPARATOR)
        return found.cast(pa.string())

    def _encode_property(self, name: str, values: pa.StringArray) -> pa.StringArray:
        """For each row, encode one property. A row without a value gets an empty text."""
        self._check_marks(values)
        text = pc.binary_join_element_wise(f"{name}\x01", values, "\x02", "").fill_null("")
        return pc.if_else(pc.equal(pc.binary_length(values).fill_null(0), 0), "", text)

    def _map_texts(self) -> pa.StringArray:
        """For each row, encode the properties in the column ``properties``."""
        found = self._batch.column(self._layout.columns["properties"])
        offsets = np.asarray(found.offsets.to_numpy(zero_copy_only=False))
        begin, end = int(offsets[0]), int(offsets[-1])
        own_names = found.keys.slice(begin, end - begin).cast(pa.string())
        values = found.items.slice(begin, end - begin).cast(pa.string())
        offsets = offsets - begin
        self._check_map(offsets, own_names, values)
        for name in (names.UNIQ_KEY, names.SHARDING_KEY):
            if name not in self._replaced_names and pc.any(pc.equal(own_names, name)).as_py():
                self._map_values[name] = pc.map_lookup(found, pa.scalar(name), "last").cast(
                    pa.string()
                )
        pairs = pc.binary_join_element_wise(own_names, "\x01", values, "\x02", "")
        dropped = pc.is_in(own_names, pa.array(sorted(self._dropped_names)))
        if pc.any(dropped).as_py():
            pairs = pc.if_else(dropped, "", pairs)
        lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pairs)
        return pc.binary_join(lists, "")

    @property
    def _replaced_names(self) -> set[str]:
        """Names of properties with a column of their own. This column replaces the entry in
        ``properties``."""
        own = {name for column, name in _OWN_COLUMNS.items() if self._has_column(column)}
        return own | ({names.UNIQ_KEY} if self._has_column("msgId") else set())

    @property
    def _dropped_names(self) -> set[str]:
        return {*LEFT_BEHIND, *self._replaced_names, names.UNIQ_KEY, MARK, KEY}

    def _check_map(self, offsets: Ints, own_names: pa.StringArray, values: pa.StringArray) -> None:
        row_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

        def first(faulty: Any, why: str) -> None:
            entries = np.flatnonzero(_mask(faulty))
            if len(entries):
                at = int(entries[0])
                row, name = int(row_of[at]), own_names[at].as_py()
                raise RowError(row, f"{self.row_text(row)}: its property {name!r:.80} {why}")

        blank = pc.equal(pc.binary_length(values).fill_null(0), 0)
        first(blank, "has no value, and would be lost; leave it out")
        first(pc.equal(pc.binary_length(own_names), 0), "has no name")
        self._check_marks(own_names, row_of, "[\x01\x02]")
        self._check_marks(values, row_of)
        if not self._layout.received:
            reserved = pc.is_in(own_names, pa.array(sorted(RESERVED - self._replaced_names)))
            if pc.any(reserved).as_py():
                known = np.isin(row_of, self._rows_of_brokers(own_names, row_of))
                first(
                    _mask(reserved) & ~known,
                    "is RocketMQ's own; use the column for it (keys, tags, delayLevel, deliverAt, "
                    "shardingKey), or another name",
                )

    def _rows_of_brokers(self, own_names: pa.StringArray, row_of: Ints) -> Ints:
        """Find the rows that are received messages, read from a broker before.

        Such a row has both of the properties that a broker adds to each message.
        """
        region = row_of[_mask(pc.equal(own_names, names.MSG_REGION))]
        trace = row_of[_mask(pc.equal(own_names, names.TRACE_SWITCH))]
        return cast(Ints, np.intersect1d(region, trace))

    def _check_marks(
        self, values: pa.StringArray, row_of: Ints | None = None, marks: str | None = None
    ) -> None:
        """Raise RowError if a text contains a separator of properties.

        The value of a received message may contain U+0001, which is written unchanged. The check is
        one pass over the bytes. Single rows are checked only if a separator is found.
        """
        data = values.buffers()[2]
        if data is None or not (np.frombuffer(data, np.uint8) - 1 < 2).any():
            return
        marks = marks or ("\x02" if self._layout.received else "[\x01\x02]")
        faulty = _mask(pc.match_substring_regex(values, marks))
        if row_of is not None:
            faulty = np.isin(np.arange(self._batch.num_rows), row_of[faulty])
        self._refuse(
            faulty,
            "a property holds the character U+0001 or U+0002, which separate properties; remove it",
        )

    def _has_delays(self) -> bool:
        return self._has_column("delayLevel") or self._has_column("deliverAt")

    def _delay_properties(self) -> list[pa.StringArray]:
        if not self._has_delays():
            return []
        levels = self.ints("delayLevel", 0)
        self._refuse(
            (levels < 0) | (levels > 999),
            "its delayLevel is out of range: use 1 to 18, or 0 for none",
        )
        times = pa.nulls(len(levels), pa.int64())
        if self._has_column("deliverAt"):
            instants = self._batch.column(self._layout.columns["deliverAt"])
            micros = instants.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            # round up to whole milliseconds
            times = pc.divide(pc.add(micros, 999), 1000)
            odd = pc.or_(pc.less(times, _EARLIEST_MS), pc.greater_equal(times, _LATEST_MS))
            self._refuse(_mask(odd.fill_null(False)), "its deliverAt is before 1973")
        both = (levels > 0) & _mask(pc.is_valid(times))
        self._refuse(both, "it has a delayLevel and a deliverAt; a message has one time")
        level_texts = pc.if_else(pa.array(levels > 0), pa.array(levels).cast(pa.string()), "")
        return [
            self._encode_property(names.DELAY_TIME_LEVEL, level_texts),
            self._encode_property(names.TIMER_DELIVER_MS, times.cast(pa.string())),
        ]

    def _id_properties(self, new_ids: NewIds) -> pa.StringArray:
        """For each row, encode the property UNIQ_KEY. A row without an id gets a new id."""
        count = self._batch.num_rows
        own = (
            self._text_column("msgId")
            if self._has_column("msgId")
            else self._map_values.get(names.UNIQ_KEY)
        )
        if own is None:
            return pc.binary_join_element_wise(f"{names.UNIQ_KEY}\x01", new_ids(count), "\x02", "")
        self._check_marks(own)
        absent = _mask(pc.equal(pc.binary_length(own).fill_null(0), 0))
        if absent.any():
            own = pc.replace_with_mask(own, pa.array(absent), new_ids(int(absent.sum())))
        return pc.binary_join_element_wise(f"{names.UNIQ_KEY}\x01", own, "\x02", "")

    # --- destination and type of the message

    def idempotency_keys(self) -> pa.StringArray | None:
        layout = self._layout
        if layout.key is None and not layout.origin:
            return None
        if layout.key is not None:
            keys = _text_of(self._batch.column(layout.key))
            self._refuse(_mask(pc.is_null(keys)), "its idempotency key is null")
            self._check_marks(keys)
            self._refuse(_sizes(keys) == 0, "its idempotency key is empty")
            return keys
        parts = [_text_of(self._batch.column(at)) for at in layout.origin]
        keys = pc.binary_join_element_wise(*parts, ":")
        self._refuse(
            _mask(pc.is_null(keys)), "an origin column is null, so the row has no idempotency key"
        )
        return keys

    def queues(self, topics: Sequence[str], topic_of: Ints, queues: QueuesOfTopic) -> Ints:
        """Return the queue number that each row asks for. -1 means any queue of the topic."""
        count = self._batch.num_rows
        found = np.full(count, -1, np.int64)
        order = self._order_keys()
        wanted = self.ints("queueId", -1) if self._has_column("queueId") else None
        if wanted is not None:
            self._refuse(wanted < -1, "its queueId is negative")
        if order is None and wanted is None:
            return found
        hashes, keyed = _hashes(order) if order is not None else (None, None)
        for number, topic in enumerate(topics):
            choice = queues(topic)
            mine = topic_of == number
            if hashes is not None:
                chosen = mine & keyed
                found[chosen] = hashes[chosen] % len(choice)
            if wanted is not None:
                ids = {queue.queue_id: at for at, queue in reversed(list(enumerate(choice)))}
                given = mine & (wanted >= 0)
                for queue_id in np.unique(wanted[given]).tolist():
                    chosen = given & (wanted == queue_id)
                    if queue_id not in ids:
                        self._refuse(
                            chosen,
                            f"its queueId is {queue_id}, but {topic!r} has only the "
                            f"queues {', '.join(map(str, sorted(ids)))}: drop the column "
                            "queueId",
                        )
                    found[chosen] = ids[queue_id]
        return found

    def _order_keys(self) -> pa.StringArray | None:
        if self._layout.ordering is not None:
            return _text_of(self._batch.column(self._layout.ordering))
        if self._has_column("shardingKey"):
            return self._text_column("shardingKey")
        return self._map_values.get(names.SHARDING_KEY)


_OWN_COLUMNS: Final = {"keys": names.KEYS, "tags": names.TAGS, "shardingKey": names.SHARDING_KEY}
"""Columns whose values become properties."""


def _hashes(keys: pa.StringArray) -> tuple[Ints, Mask]:
    """Hash each key, for the choice of a queue. Also return a mask of the rows with a key."""
    found = keys.dictionary_encode()
    each = np.array([abs(java_hash(key)) for key in found.dictionary.to_pylist()] or [0], np.int64)
    numbers = found.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return each[numbers], _mask(pc.is_valid(keys))


def _text_of(column: pa.Array) -> pa.StringArray:
    """Convert a column to text. Bytes become hexadecimal digits."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.array(
            [None if value is None else value.hex() for value in column.to_pylist()], pa.string()
        )
    return column.cast(pa.string())


def _mask(values: Any) -> Mask:
    if isinstance(values, np.ndarray):
        return values
    return cast(Mask, values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_))


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int64))


# Packing of rows into requests.


def pack_rows(
    encoded: Encoded,
    queues: QueuesOfTopic,
    *,
    rows_max: int,
    size_max: int,
    keep: Mask | None = None,
) -> list[PackedRows]:
    """Divide encoded rows into requests. A request has up to ``rows_max`` rows and ``size_max``
    bytes.

    Rows for one queue stay in their order. ``keep`` is a mask of the wanted rows, or None for all
    rows.
    """
    wanted = np.arange(len(encoded)) if keep is None else np.flatnonzero(keep)
    if not len(wanted):
        return []
    codes = (encoded.topic_of * (1 << 32) + encoded.queue_of + 1)[wanted]
    # usual case: all rows are for one topic and any queue
    alike = codes[:1] if (codes == codes[0]).all() else np.unique(codes)
    found: list[PackedRows] = []
    for code in alike.tolist():
        group = wanted if len(alike) == 1 else wanted[codes == code]
        topic = encoded.topics[code >> 32]
        at = (code & 0xFFFFFFFF) - 1
        queue = queues(topic)[at] if at >= 0 else None
        found += _pack_group(encoded, group, topic, queue, rows_max, size_max)
    return found


def _pack_group(
    encoded: Encoded,
    rows: Ints,
    topic: str,
    queue: MessageQueue | None,
    rows_max: int,
    size_max: int,
) -> list[PackedRows]:
    found: list[PackedRows] = []
    alone = encoded.alone[rows]
    together = rows[~alone]
    if len(together):
        if len(together) == len(encoded):
            items = encoded.items
        else:
            items = encoded.items.take(pa.array(together))
        ends = np.cumsum(_sizes(items))
        first = items.offset and int(np.frombuffer(items.buffers()[1], np.int32)[items.offset])
        data = memoryview(items.buffers()[2])[first:]
        keys = None if encoded.keys is None else encoded.keys.take(pa.array(together))
        whole = PackedRows(topic, queue, together, data, ends, keys)
        begin = 0
        while begin < len(together):
            start = int(ends[begin - 1]) if begin else 0
            fits = int(np.searchsorted(ends, start + size_max, "right"))
            end = max(begin + 1, min(fits, begin + rows_max, len(together)))
            found.append(whole.part(begin, end))
            begin = end
    for row in rows[alone].tolist():
        single = (encoded.texts[row].as_py(), encoded.bodies[row].as_py(), int(encoded.flags[row]))
        numbers = np.array([row], np.int64)
        keys = None if encoded.keys is None else encoded.keys.slice(row, 1)
        found.append(PackedRows(topic, queue, numbers, memoryview(b""), numbers, keys, single))
    return found
