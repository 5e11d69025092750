"""The properties of many messages at once: the map column, and single properties picked out of it.

::

    name 0x01 value 0x02 name 0x01 value [0x02]        UTF-8; the last separator may be missing

The one rule: the same entries as Apache's ``MessageDecoder.string2messageProperties`` gives, a
repeated name taking its last value (batches of older brokers repeat UNIQ_KEY), but found by
scanning all messages' bytes together instead of message by message. It must not know about stored
entries or Spark.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MAP: Final = pa.map_(pa.string(), pa.string())
_NAME_END: Final = 1
_VALUE_END: Final = 2

Ints = np.ndarray[Any, np.dtype[np.int64]]


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
