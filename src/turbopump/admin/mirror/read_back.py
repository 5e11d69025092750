"""Search of a target queue for the copies that an earlier run has stored.

The target is the only memory of a mirror: the newest copies name the original after which a run
continues. One rule: the queue is read backwards from its end, and far enough to see the whole batch
that was under way when the last run ended. Messages of other producers may be among its copies, and
the batch was marked before its place was known. After a power cut, copies of it may be missing
before others. This module reports what it reads; it sends nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.admin.mirror.mirrored_cluster import MirroredCluster
from turbopump.admin.mirror.origin import Origin, origin_of
from turbopump.message.entry import queue_offset_of
from turbopump.message.message import MessageQueue

BATCH_COUNT: Final = 128
"""Maximum number of messages in a batch of a mirror."""
_STEP_MAX: Final = 1 << 14


class FoundCopies(NamedTuple):
    """Result of a search.

    - ``end``: offset after the last message of the target queue.
    - ``newest``: originals of the newest copies, in the order of the target queue. Empty if there
      is no copy.
    - ``others``: first offset, after a copy, of a message that is no copy of this source queue.
    """

    end: int
    newest: list[Origin]
    others: int | None


def is_copy_of(source: MessageQueue, cluster: str, origin: Origin) -> bool:
    """Return True if a message with this origin is a copy of a message of the source queue."""
    return origin[:3] == (cluster, source.broker_name, source.queue_id)


async def find_copies(
    target: MirroredCluster, queue: MessageQueue, source: MessageQueue, cluster: str
) -> FoundCopies:
    """Search a target queue for the newest copy of the source queue's messages.

    Usually the last 128 messages are read. If other producers send to the queue, or it has no copy
    yet, more is read. Raises RemotingError.
    """
    low, end = await target.bounds(queue)
    begin = end
    newest: list[Origin] = []
    newest_at: int | None = None
    marked_others: int | None = None
    others: int | None = None
    lowest_other: int | None = None
    step = BATCH_COUNT
    while begin > low and (newest_at is None or newest_at - begin < BATCH_COUNT):
        upto, begin = begin, max(low, begin - step)
        step = min(step * 4, _STEP_MAX)
        copies: list[Origin] = []
        first_other = other_after = last_at = None
        for entry in await target.read(queue, begin, upto):
            at = queue_offset_of(entry)
            origin = origin_of(entry)
            if origin is not None and is_copy_of(source, cluster, origin):
                copies.append(origin)
                last_at = at
                continue
            first_other = at if first_other is None else first_other
            if copies and other_after is None:
                other_after = at
        if copies:
            others = lowest_other if other_after is None else other_after
            if newest_at is None:
                newest_at, marked_others = last_at, copies[-1].others
        lowest_other = lowest_other if first_other is None else first_other
        newest = copies + newest
    if marked_others is not None:
        others = marked_others
    return FoundCopies(end, newest, others if newest else None)
