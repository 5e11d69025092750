"""Newest change of each key among the changes of a batch.

All changes of a key usually come in one queue, where the order of messages counts. In two cases
they come in several: a new key moves a row to another queue, and a topic may get more queues. Then
the position decides, which is the time in the source. Positions also unmask messages that were sent
again much later. A rule:

- In one queue, a later offset wins, unless its position is older by more than a tolerance.
- Between queues, the later position wins.
- Of equal positions in several queues, that order is taken in which a row is inserted only where
  none is, and deleted only where one is.

Only Arrow and NumPy are used; one Python loop handles the equal positions, which are rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turbopump.spark.changes.change import INSERTED, UNKNOWN

POSITION: Final = "_position"
QUEUE: Final = "_queue"
OFFSET: Final = "_offset"
DELETED: Final = "_deleted"
PLACE: Final = (POSITION, QUEUE, OFFSET)
"""Columns that name the newest change of a row."""
INDEX: Final = "_index"
PRIOR: Final = "_existed"
CHANGE_COLUMNS: Final = pa.schema(
    [
        (POSITION, pa.int64()),
        (QUEUE, pa.string()),
        (OFFSET, pa.int64()),
        (INDEX, pa.int32()),
        (DELETED, pa.bool_()),
        (PRIOR, pa.int8()),
    ]
)
"""Columns of a change besides the columns of its row. ``_index`` orders changes of one message."""

KNOWN: Final = np.iinfo(np.int32).max
"""Value of ``_index`` for the place of a known row, which comes after its own message."""

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def newest_changes(
    changes: pa.Table, keys: Sequence[str], tolerance: int, known: pa.Table | None = None
) -> pa.Table:
    """Return the newest change of each key, unless a known one is newer.

    ``changes`` has the columns of the rows and ``CHANGE_COLUMNS``. ``known`` has the newest changes
    of keys before, as columns of the key, ``PLACE`` and ``_deleted``. A key that is not in
    ``known`` has no row. ``tolerance`` is that of the format (``ChangeFormat``). The position of a
    result is the latest one of its key in its queue.
    """
    if not changes.num_rows:
        return changes
    facts = changes.select([*keys, *CHANGE_COLUMNS.names])
    first_known = changes.num_rows
    if known is not None and known.num_rows:
        facts = pa.concat_tables([facts, _as_changes(known, facts.schema)])
    names = [*keys, QUEUE, OFFSET, INDEX]
    order = pc.sort_indices(facts.select(names), [(name, "ascending") for name in names])
    rows = facts.take(order)
    of_key = _starts(rows.select(keys))
    of_queue = of_key | _starts(rows.select([QUEUE]))
    position = rows[POSITION].to_numpy()
    lifted = _running_maximum(position, of_queue)
    is_late = position < lifted - tolerance
    kept = np.flatnonzero(~is_late)
    key: Integers = np.cumsum(of_key, dtype=np.int64)[kept]
    queue: Integers = np.cumsum(of_queue, dtype=np.int64)[kept]
    lifted = lifted[kept]
    # The last change of each queue of a key; the one with the latest position comes last.
    last = np.flatnonzero(np.append(queue[1:] != queue[:-1], True))
    last = last[np.lexsort((lifted[last], key[last]))]
    wins: Flags = np.append(key[last][1:] != key[last][:-1], True)
    winners = last[wins]
    ties = ~wins[:-1] & wins[1:] & (lifted[last][:-1] == lifted[last][1:])
    if ties.any():
        _resolve_ties(rows, kept, key, queue, lifted, winners, key[last][1:][ties])
    at = order.to_numpy()[kept[winners]]
    is_new = at < first_known
    found = changes.take(pa.array(at[is_new]))
    return found.set_column(
        found.schema.get_field_index(POSITION), POSITION, pa.array(lifted[winners][is_new])
    )


def _as_changes(known: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return known places of keys as changes. Each comes after its own message."""
    count = known.num_rows
    facts = {
        INDEX: pa.array(np.full(count, KNOWN, np.int32)),
        PRIOR: pa.array(np.full(count, UNKNOWN, np.int8)),
    }
    return pa.table(
        [
            facts[name] if name in facts else known[name].cast(schema.field(name).type)
            for name in schema.names
        ],
        schema=schema,
    )


def _starts(columns: pa.Table) -> Flags:
    """Return true for each row that differs from the row before."""
    found = np.zeros(columns.num_rows, bool)
    found[0] = True
    for column in columns.columns:
        values = column.combine_chunks()
        found[1:] |= pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    return found


def _running_maximum(values: Integers, starts: Flags) -> Integers:
    """Return the maximum of the values up to each row, since the last start."""
    known, ranks = np.unique(values, return_inverse=True)
    group = np.cumsum(starts) * np.int64(len(known))
    found: Integers = known[np.maximum.accumulate(group + ranks) - group]
    return found


def _resolve_ties(
    rows: pa.Table,
    kept: Integers,
    key: Integers,
    queue: Integers,
    position: Integers,
    winners: Integers,
    tied: Integers,
) -> None:
    """Choose the winners of keys whose latest position is in several queues.

    ``winners`` is changed in place.
    """
    deleted = rows[DELETED].to_numpy(zero_copy_only=False)[kept].tolist()
    existed = rows[PRIOR].to_numpy()[kept].tolist()
    known = (rows[INDEX].to_numpy() == KNOWN)[kept].tolist()
    begins, ends = np.searchsorted(key, tied), np.searchsorted(key, tied, side="right")
    places = np.searchsorted(key[winners], tied)  # winners are sorted by their keys
    for begin, end, place in zip(begins.tolist(), ends.tolist(), places.tolist(), strict=True):
        # Known places were there before all changes at their position.
        order = sorted(range(begin, end), key=lambda at: (position[at], not known[at]))
        is_there = False
        for _, group in groupby(order, lambda at: (position[at], known[at])):
            queues = [list(each) for _, each in groupby(group, queue.__getitem__)]
            last = _last_of(queues, is_there, deleted, existed)
            is_there = not deleted[last]
        winners[place] = last


def _last_of(
    queues: list[list[int]], is_there: bool, deleted: list[bool], existed: list[int]
) -> int:
    """Return the last of the changes at one position.

    ``queues`` has the changes of each queue, as indexes of ``deleted`` and ``existed``.
    ``is_there`` is the existence of the row before.

    The rows of a key come in one queue, its home. Other queues only have deletes, of rows that got
    another key. Such a delete belongs where the home queue inserts a row although there is one.
    """
    home = max(queues, key=lambda each: (not all(deleted[at] for at in each), each[-1]))
    moves = [at for each in queues if each is not home for at in each if deleted[at]]
    gaps = sum(existed[at] == INSERTED and not deleted[former] for former, at in pairwise(home))
    gaps += is_there and existed[home[0]] == INSERTED
    last = home[-1]
    return last if deleted[last] or len(moves) <= gaps else moves[-1]
