"""Arrow arrays from NumPy and Python values.

``pa.array`` is not used, because it imports pandas to check the type of its argument. This import
takes 0.4 s of CPU in each new worker of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def number_array(values: np.ndarray[Any, Any], there: Mask | None = None) -> pa.Array:
    """Return the values of a NumPy array as an Arrow array.

    Values are null where the mask ``there`` is false. If the values are adjacent in memory, both
    arrays share this memory.
    """
    buffers = [_validity_bitmap(there), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def text_array(
    values: Iterable[str | bytes | None], type_: pa.DataType | None = None
) -> pa.StringArray | pa.BinaryArray:
    """Return an Arrow array of texts, with null for each None."""
    found = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(found) + 1, np.int32)
    np.cumsum([len(value or b"") for value in found], out=offsets[1:], dtype=np.int32)
    there = np.array([value is not None for value in found], np.bool_)
    data = b"".join(value for value in found if value is not None)
    buffers = [_validity_bitmap(there), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_ or pa.string(), len(found), buffers)


def repeated_text(value: str | None, rows: int, type_: pa.DataType) -> pa.StringArray:
    """Return an Arrow array with the same text in each row.

    If ``value`` is None, each row is null.
    """
    if value is None:
        return pa.nulls(rows, type_)
    data = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(type_, rows, [None, *map(pa.py_buffer, (offsets, data * rows))])


def _validity_bitmap(there: Mask | None) -> pa.Buffer | None:
    return None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
