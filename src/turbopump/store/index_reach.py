"""Whether the index reaches up to where recovery begins to read the log: a start that was killed,
or files copied from a running store, may have left it behind the queues."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import Final

from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.key_index import KeyIndex, keys_of

_LOOKED_AT: Final = 16
"""Messages, each the newest of its queue: most have a key, and one that has tells."""


def begin_for_index(
    log: CommitLog, queues: Iterable[ConsumeQueue], index: KeyIndex, begin: int
) -> int:
    """``begin``, or, if the index lacks keys of messages before it, the place from which on it must
    be filled again; it is cut there. Cost: a few entries are read."""
    ends = (
        unit[0]
        for queue in queues
        if (unit := queue.last_unit) is not None and log.start <= unit[0] < begin
    )
    for offset in nlargest(_LOOKED_AT, ends):
        mark = log.entry_at(offset)
        if mark is not None and keys_of(mark):
            if offset <= index.end_offset:
                return begin
            there = index.end_offset
            if there <= log.start:
                return max(index.rewind(log.start), log.start)
            if log.entry_at(there) is None:
                there = log.segment_end(there) - log.segment_size
            return max(min(index.rewind(there), begin), log.start)
    return begin
