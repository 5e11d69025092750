"""Expansion of inner batches, so that each message has a row.

An inner batch is an entry that contains several messages. If a message lacks a field, the field of
the batch is used. The queue offset of a message is that of the batch plus the number of the message
in the batch. The plain twin is ``turbopump.message.batch.inner_entries``. Arrow columns are unknown
here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from turbopump.errors import ProtocolError, StoredMessageError
from turbopump.message.batch import inner_count, walk_batch
from turbopump.message.entry import (
    BORN_TIMESTAMP_AT,
    FIXED_SIZE,
    MAGIC_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    TOPIC_SIZE_MAX_V1,
)
from turbopump.message.properties import COMPRESSION_MASK, SysFlag
from turbopump.spark.arrow_arrays import Ints, Mask
from turbopump.spark.entries import Entries

INFLATED_SIZE_MAX: Final = 1 << 30
"""Maximum decompressed bytes of inner batches that are read together. They are some MiB as
stored."""

_COMPRESSION: Final = int(SysFlag.COMPRESSED | COMPRESSION_MASK)
_WRAPPED: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)

Item = tuple[int, int, int, int]
"""Message of a batch, as start and size of the body, then start and size of the properties."""


def expand_batches(entries: Entries, which: Mask | None = None) -> Entries:
    """Replace each inner batch by rows, one row for each message in the batch.

    ``which`` is a mask of the entries that may be expanded, or None for all entries.

    A batch that cannot be expanded becomes ``unreadable``. It has a row for each of its offsets, so
    that no reader misses an offset. Only the first row has the body and the properties of the
    batch.
    """
    wrapped = (entries.sys_flags & _WRAPPED) == _WRAPPED
    if which is not None:
        wrapped &= which
    if not wrapped.any():
        return entries
    if (entries.sys_flags[wrapped] & SysFlag.COMPRESSED).any():
        return expand_batches(_with_batches_decompressed(entries, wrapped), which)
    counts = np.ones(len(entries), np.int64)
    found: list[Item] = []
    for row in np.flatnonzero(wrapped).tolist():
        counted = _messages_counted(entries, row)
        try:
            items = _items_of(entries, row, counted)
        except ProtocolError as error:
            entries.note_fault(row, f"the inner batch cannot be unpacked: {error}")
            wrapped[row] = False
            counts[row] = counted or 1
        else:
            counts[row] = len(items)
            found += items
    expanded = entries.rows(np.repeat(np.arange(len(entries)), counts))
    expanded.batches = entries
    _place_items(expanded, np.repeat(wrapped, counts), found, counts)
    return expanded


def _messages_counted(entries: Entries, row: int) -> int | None:
    """Return the number of messages in an inner batch, as the broker has stored it.

    The result is None if the number is not stored, as by old brokers.
    """
    begin, end = entries.cuts[row, 4:].tolist()
    return inner_count(bytes(entries.raw[begin:end]).decode(errors="replace"))


def _items_of(entries: Entries, row: int, counted: int | None) -> list[Item]:
    """Find the messages in an inner batch.

    Raises ProtocolError if the batch cannot be expanded.
    """
    if entries.faults is not None and entries.faults[row]:
        raise ProtocolError(entries.faults[row])
    begin, end = entries.cuts[row, :2].tolist()
    items = walk_batch(bytes(entries.raw[begin:end]))
    if not items or counted not in (None, len(items)):
        raise ProtocolError(
            f"it has {len(items)} messages, but the broker has counted {counted or 'none'}"
        )
    return [
        (begin + body_at, body_size, begin + properties_at, properties_size)
        for _, body_at, body_size, properties_at, properties_size in items
    ]


def _place_items(expanded: Entries, is_item: Mask, found: list[Item], counts: Ints) -> None:
    """For rows from inner batches, set the positions and the fields."""
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    expanded.is_item = is_item
    expanded.number = np.arange(len(expanded)) - begins
    expanded.batch_of = np.repeat(np.arange(len(counts)), counts)
    cuts = expanded.cuts
    # Only the first row of a batch that cannot be expanded has body and properties.
    again = ~is_item & (expanded.number > 0)
    cuts[again, 0] = cuts[again, 1]
    cuts[again, 4] = cuts[again, 5]
    if not found:
        return
    body_at, body_sizes, properties_at, properties_sizes = np.array(found, np.int64).T
    expanded.flags_at[is_item] = body_at - 8
    expanded.sys_flags[is_item] &= ~_COMPRESSION
    topic_sizes = cuts[is_item, 3] - cuts[is_item, 2]
    topic_head_sizes = 1 + (topic_sizes > TOPIC_SIZE_MAX_V1)
    expanded.sizes[is_item] = (
        (FIXED_SIZE - 1 + expanded.shift[is_item, 1])
        + body_sizes
        + (topic_head_sizes + topic_sizes)
        + properties_sizes
    )
    cuts[is_item, 0] = body_at
    cuts[is_item, 1] = body_at + body_sizes
    cuts[is_item, 4] = properties_at
    ends = properties_at + properties_sizes
    cuts[is_item, 5] = expanded.ends_without_crc(properties_at, ends)


def _with_batches_decompressed(entries: Entries, wrapped: Mask) -> Entries:
    """Return a copy of the entries, with the bodies of inner batches decompressed.

    A body that cannot be decompressed stays as it is, without its compression flags. Raises
    StoredMessageError if the decompressed bodies are too large together.
    """
    parts: list[bytes | memoryview] = []
    inflated = 0
    spans = zip(entries.positions.tolist(), entries.sizes.tolist(), strict=True)
    for row, (at, size) in enumerate(spans):
        entry: bytes | memoryview = entries.raw[at : at + size]
        if wrapped[row] and entries.sys_flags[row] & SysFlag.COMPRESSED:
            if inflated > INFLATED_SIZE_MAX:
                offset = entries.long_view[at + QUEUE_OFFSET_AT]
                raise StoredMessageError(
                    f"the compressed batches before queue offset {offset} of queue "
                    f"{entries.int_view[at + QUEUE_ID_AT]} have more than {INFLATED_SIZE_MAX} "
                    "bytes together: set the option pullBatchSize lower"
                )
            body = entries.decompressed_body(row)
            inflated += len(body or b"")
            entry = _with_body(entries, row, body)
        parts.append(entry)
    sizes = np.array([len(part) for part in parts], np.int64)
    copied = Entries(b"".join(parts), np.cumsum(sizes) - sizes, sizes)
    copied.status = entries.status
    copied.faults = entries.faults
    return copied


def _with_body(entries: Entries, row: int, body: bytes | None) -> bytes:
    """Return a copy of an entry with another body. The copy has no compression flags.

    If ``body`` is None, the entry keeps its own body.
    """
    at = int(entries.positions[row])
    entry = entries.raw[at : at + int(entries.sizes[row])]
    begin, end = (entries.cuts[row, :2] - at).tolist()
    if body is None:
        body = bytes(entry[begin:end])
    flags = int(entries.sys_flags[row]) & ~_COMPRESSION
    size = len(entry) + len(body) - (end - begin)
    return b"".join(
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
