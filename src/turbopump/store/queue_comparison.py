"""Queues against the log, where nothing is noted of how far they went: does one lack the first or
the last of its messages?

The rule: it only compares. A queue agrees if its last unit does not lie before the last message
that the log has of it, and its first not behind the first one, unless it begins with an earlier
index (its topic was deleted and made anew). Where a queue has no units, its topic may have been
deleted: it counts as lost if somebody still knows the topic, or if another queue of the topic is
older than that message (a deletion would have taken it along), unless the topic was made anew
since, as another of its queues shows. It must not know what is done about a queue that lacks
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from turbopump.message.rules import is_system_topic
from turbopump.message.sysflag import SysFlag
from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.entry_mark import EntryMark
from turbopump.store.good_entries import good_entries

_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)

Messages = dict[tuple[str, int], EntryMark]


def outermost_messages(
    log: CommitLog,
    end: int,
    deleted: Mapping[str, int],
    begun: Mapping[tuple[str, int], tuple[int, int]],
    on_progress: Callable[[int, int], None],
) -> tuple[Messages, Messages, Messages]:
    """The first and the last good message of each queue before the offset ``end`` of the log, and
    the last before the one with which the queue begins, of those for which ``begun`` has its
    offset. ``deleted`` says up to which offset those of a topic are no queue's any more. It reads
    all of that: some 3 µs a message, or what the disk can do."""
    first: Messages = {}
    last: Messages = {}
    old: Messages = {}
    nowhere = 0, 0
    for mark in good_entries(log, log.start, on_progress, end=end):
        if not mark.sys_flag & _PREPARED and not (
            deleted and mark.offset < deleted.get(mark.topic, 0)
        ):
            key = mark.topic, mark.queue_id
            last[key] = mark
            if key not in first:
                first[key] = mark
            if mark.offset < begun.get(key, nowhere)[0]:
                old[key] = mark
    return first, last, old


def late_queue(first: Messages, queues: ConsumeQueueTable) -> str | None:
    """Which queue, of those that have units, begins behind the first of its messages; None if none
    does."""
    for (topic, queue_id), mark in first.items():
        queue = queues.find(topic, queue_id)
        if queue is None or not queue.max_index or mark.queue_offset >= queue.min_index:
            continue
        unit = queue.unit(queue.min_index)
        if unit is None or unit[0] > mark.offset:
            text = (
                f"its units begin at {queue.min_index}, and the log has {mark.queue_offset} "
                f"at {mark.offset}"
            )
            return f"topic={topic} queue={queue_id}: {text}"
    return None


def lacking_queue(last: Messages, queues: ConsumeQueueTable, old: Mapping[str, int]) -> str | None:
    """Which queue lacks the last of its messages; None if none does. ``old`` says where the last
    message of a topic lies that was deleted before the topic was made anew."""
    begun = _begun(queues)
    for (topic, queue_id), mark in last.items():
        queue = queues.find(topic, queue_id)
        if queue is not None and not queue.is_batch and mark.sys_flag & _INNER_BATCH:
            continue  # of a topic that was deleted, and made again as another kind
        found = queue.max_index if queue is not None else 0
        unit = queue.unit(found - 1) if queue is not None and found else None
        last_unit_at = unit[0] if unit is not None else -1 if found else None
        known = queues.is_batch(topic) is not None
        if lacks(
            mark.offset,
            last_unit_at,
            topic,
            known=known,
            begun_at=begun.get(topic),
            old_at=old.get(topic, -1),
        ):
            text = f"its units end at {found}, and the log has {mark.queue_offset} at {mark.offset}"
            return f"topic={topic} queue={queue_id}: {text}"
    return None


def lacks(
    message_at: int,
    last_unit_at: int | None,
    topic: str,
    *,
    known: bool,
    begun_at: int | None,
    old_at: int = -1,
) -> bool:
    """Whether a queue lacks a message that the log has of it: that message, or one behind it, must
    be the one of its last unit. Offsets of the log; ``last_unit_at`` None: the queue has never had
    one, as far as its files tell. ``known``: there is such a topic. ``begun_at``: where the oldest
    unit of any queue of the topic points. ``old_at``: where another queue of the topic has a
    message that came before the one with which it begins: the topic was deleted behind that."""
    if last_unit_at is not None:
        return last_unit_at < message_at
    if message_at < old_at:
        return False
    return known or is_system_topic(topic) or (begun_at is not None and begun_at < message_at)


def _begun(queues: ConsumeQueueTable) -> dict[str, int]:
    """Where the oldest unit of each topic points."""
    begun: dict[str, int] = {}
    for queue in queues:
        unit = queue.unit(queue.min_index) if queue.max_index else None
        if unit is not None and unit[1] > 0:
            begun[queue.topic] = min(begun.get(queue.topic, unit[0]), unit[0])
    return begun
