"""Which place in its queue an entry gets that recovery reads from the log: nearly always the next
one.

The rule: an entry that says otherwise is believed where something explains it: damage before it, a
topic that was deleted (and made anew), a log that lost its front. What nothing explains is a queue
that lacks units, or, where the queues are written from the log alone, an entry that is damaged. It
must not know where reading begins, or why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turbopump.message.sysflag import SysFlag
from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.entry_mark import EntryMark
from turbopump.store.good_entries import Damage
from turbopump.store.queue_ends import KnownEnds

_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)


class QueueHoleError(Exception):
    """A queue lacks units that no damage explains; its text says which."""


@dataclass(slots=True)
class EntryPlacement:
    """One reading of the log from ``begin`` on, whose entries come one by one. ``rebuilding``: the
    queues were empty when it began. ``fitted``: all queues were found to end, where it began, as
    they did when the log was there. ``known`` hears of a deletion that shows.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    dispatcher: Dispatcher
    known: KnownEnds
    first_units: dict[tuple[str, int], tuple[int, int]]
    """Offset and size of the first messages of the queues that had theirs, as their files said
    before they were cut."""
    begin: int
    rebuilding: bool
    fitted: bool
    damages: list[Damage] = field(default_factory=list)
    """What was passed over so far."""
    made_anew: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where queues had ended whose offsets were seen to begin anew."""

    def dispatch(self, mark: EntryMark) -> str | None:
        """Hand on an entry; what is wrong with it if its place in its queue cannot be.

        Raises QueueHoleError if its queue lacks units that no damage explains, unless
        ``rebuilding``: then the entry is damaged.
        """
        if mark.topic in self.known.deleted and mark.offset < self.known.deleted[mark.topic]:
            self.dispatcher.dispatch_mark(mark, None)
            return None
        inner = mark.sys_flag & _INNER_BATCH != 0
        queue = self.queues.find_or_make(mark.topic, mark.queue_id, batch=inner)
        if inner and not queue.is_batch:
            return None  # of a topic that was deleted, and made again as another kind
        place: ConsumeQueue | None = queue
        if mark.queue_offset != queue.max_index and not mark.sys_flag & _PREPARED:
            place, fault = self._place(queue, mark)
            if fault is not None:
                return fault
        self.dispatcher.dispatch_mark(mark, place)
        return None

    def _place(
        self, queue: ConsumeQueue, mark: EntryMark
    ) -> tuple[ConsumeQueue | None, str | None]:
        """Of an entry that does not follow the last unit of its queue: the queue, ready for it
        (None: it was deleted with its topic), and what is wrong with the entry."""
        index, expected = mark.queue_offset, queue.max_index
        if not expected and not self.rebuilding and self.began_later(queue, mark):
            return None, None
        if index > expected and self.explained(queue, index - expected):
            queue.fill_gap(index, self.gap_offset(mark.topic))
        elif not expected and self._came_while_deleting(mark):
            self.known.deleted[mark.topic] = mark.offset + mark.size
            return None, None
        elif index == 0:  # as it was after a deletion that is not noted
            self.made_anew[mark.topic, mark.queue_id] = expected
            queue = self.queues.make_anew(queue)
        elif expected < index == self.made_anew.get((mark.topic, mark.queue_id)):
            # a recovery of an earlier release kept the old messages behind the new ones
            queue.fill_gap(index, mark.offset)
        elif not self._begins_anew(queue, mark):
            if not self.rebuilding:
                text = (
                    f"its units end at {expected}, and the log goes on with {index} at "
                    f"{mark.offset}"
                )
                raise QueueHoleError(f"topic={mark.topic} queue={mark.queue_id}: {text}")
            return (
                None,
                f"it says that it is queue offset {index} of {mark.topic} queue {mark.queue_id}, "
                f"which has {expected} before it",
            )
        return queue, None

    def gap_offset(self, topic: str) -> int:
        """Where the last damage was, but not among the messages of a deleted topic: its units would
        look as if they were to go."""
        return max(self.damages[-1].start, self.known.deleted.get(topic, 0))

    def explained(self, queue: ConsumeQueue, missing: int) -> bool:
        """Whether so many messages can lie in the damaged ranges behind the queue's last one."""
        start, made_anew = self.log.start, self.known.deleted.get(queue.topic)
        if not queue.max_index and start > 0 and self.begin == start and made_anew is None:
            return False  # its first messages were deleted with the log
        if (
            self.begin > start
            and not self.rebuilding
            and not self.fitted
            and queue.ends_with_a_file
        ):
            return False  # the files behind may have been taken away: the messages may all be there
        unit = queue.unit(queue.max_index - 1)
        after = unit[0] if unit is not None else max(self.begin, made_anew or 0)
        room = missing * queue.message_size_min
        for damage in reversed(self.damages):
            if damage.end <= after or room <= 0:
                break
            room -= damage.end - damage.start
        return room <= 0

    def began_later(self, queue: ConsumeQueue, mark: EntryMark) -> bool:
        """Whether the first message of the queue, by its own files, lies behind this entry, and is
        there: the entry is of a topic that was deleted and made anew, also where that is not
        noted."""
        offset, size = self.first_units.get((queue.topic, queue.queue_id), (0, 0))
        return offset > mark.offset and is_there(self.log, queue, 0, offset, size)

    def _came_while_deleting(self, mark: EntryMark) -> bool:
        """Whether an entry that is not the first of its queue, and has none before it, belongs to a
        topic that was just being deleted: made anew, it would have begun with 0, behind the place
        of the deletion, and nothing that was not read or damaged may have been that."""
        deleted = self.known.deleted.get(mark.topic, -1)
        return self.begin <= deleted and all(damage.end <= deleted for damage in self.damages)

    def _begins_anew(self, queue: ConsumeQueue, mark: EntryMark) -> bool:
        """Whether the queue may go on with this entry although it does not follow its last unit: it
        is the first that the log still has; or its topic was deleted and made again, so that its
        offsets began with 0 once more."""
        index = mark.queue_offset
        if not queue.max_index:
            return self.begin == self.log.start
        if not queue.min_index <= index < queue.max_index:
            return False
        old, previous = queue.unit(index), queue.unit(index - 1)
        return old is not None and previous is not None and previous[0] > old[0]


def is_there(log: CommitLog, queue: ConsumeQueue, index: int, offset: int, size: int) -> bool:
    """Whether the log has, at ``offset``, the entry that unit ``index`` of the queue should point
    to, or no longer has it because its segment was deleted (not before the unit was on the
    disk)."""
    if offset < log.start:
        return True
    mark = log.entry_at(offset)
    return mark is not None and (mark.size, mark.topic, mark.queue_id, mark.queue_offset) == (
        size,
        queue.topic,
        queue.queue_id,
        index,
    )
