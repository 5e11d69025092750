"""Replay of log entries into queues, in recovery and on a slave.

An entry nearly always follows the last unit of its queue. Any other entry is accepted if something
explains it: damage before it, a topic that was deleted (and made again), a log that lost its front.
Without an explanation, the queue lacks units. If queues are rebuilt from the log alone, the entry
counts as damaged instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turbopump.message.entry import FIXED_SIZE
from turbopump.message.properties import SysFlag
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry, is_apaches_batch
from turbopump.store.log.scanner import Damage, entry_at
from turbopump.store.queues.checked_entries import entry_fields, gather
from turbopump.store.queues.consume_queue import ConsumeQueue, pack_unit
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import NotedQueueEnds

PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


class QueueHoleError(Exception):
    """Raised when a queue lacks units, and no damage explains the loss.

    The text names the queue.
    """


@dataclass(slots=True)
class LogReplay:
    """Replay of the log into queues and indexes, one entry at a time.

    - ``begin``: log offset of the first entry.
    - ``rebuilding``: the queues were empty at the start.
    - ``queues_agree``: the queues were cut at ``begin``, and all of them ended as the snapshot
      there says.
    - ``known``: recorded ends of the queues. Deletions that the entries reveal are added.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    dispatcher: Dispatcher
    known: NotedQueueEnds
    first_units: dict[tuple[str, int], tuple[int, int]]
    """Log offset and size of the first message of each queue that has not lost it. They are read
    from the queue's files before the cut."""
    begin: int
    rebuilding: bool
    queues_agree: bool
    damages: list[Damage] = field(default_factory=list)
    """Damaged ranges of the log that were found so far."""
    entries: int = 0
    """Number of dispatched entries."""
    end: int = 0
    """End of the log, as found."""
    fault: str | None = None
    """Fault at the end of the log."""
    restarted_at: dict[tuple[str, int], int] = field(default_factory=dict)
    """Former end of each queue whose offsets restarted at 0 during the replay."""

    def end_log(self, end: int, fault: str | None) -> None:
        """Set the end of the log, and the fault found there."""
        self.end = end
        self.fault = fault

    def dispatch_entry(self, parsed: ParsedEntry) -> None:
        """Add a log entry to the consume queue of its topic, and to the index.

        An entry with an impossible queue offset counts as damage. Raises QueueHoleError if the
        queue lacks units and no damage explains it. If ``rebuilding`` is set, such an entry counts
        as damage instead.
        """
        queue, fault = self.place_entry(parsed)
        if fault is not None:
            self.damages.append(Damage(parsed.offset, parsed.offset + parsed.size, fault))
            return
        self.entries += 1
        self.dispatcher.dispatch_parsed(parsed, queue)

    def place_entry(self, parsed: ParsedEntry) -> tuple[ConsumeQueue | None, str | None]:
        """Find the queue for a log entry. Return the queue, and the fault of the entry.

        The queue is prepared for the entry, for example by a gap. The queue is None if the topic
        was deleted or is a BatchCQ topic. The fault is a wrong queue offset, or None. Raises the
        errors of ``dispatch_entry``.
        """
        if parsed.topic in self.known.deleted and parsed.offset < self.known.deleted[parsed.topic]:
            return None, None
        if is_in_no_queue(parsed, self.queues):
            return None, None
        queue = self.queues.find_or_make(parsed.topic, parsed.queue_id)
        if parsed.queue_offset == queue.max_index or parsed.sys_flag & PREPARED:
            return queue, None
        return self._queue_for(queue, parsed)

    def _queue_for(
        self, queue: ConsumeQueue, parsed: ParsedEntry
    ) -> tuple[ConsumeQueue | None, str | None]:
        """Find the queue for an entry whose queue offset does not follow the last unit.

        Several causes are examined in turn. The results are those of ``place_entry``.
        """
        # The order of the cases matters, from what is certain to what is only likely:
        # 1. An empty queue whose own first unit points behind this entry: the topic was deleted and
        #    made again, and this entry is older than that.
        # 2. A hole that the damaged ranges of the log are large enough for: it becomes a gap.
        # 3. An empty queue, and an entry that is not its first: it was stored while its topic was
        #    being deleted.
        # 4. Index 0 in a queue that has units: the topic was deleted and made again, and the
        #    deletion is not known any more. The queue starts over.
        # 5. The old messages that a recovery of an earlier release kept behind the new ones.
        # 6. The log lost its front, or the offsets in the units show a deletion.
        # Anything else is a lost unit, or, where queues are rebuilt from the log alone, damage.
        index, expected = parsed.queue_offset, queue.max_index
        if not expected and not self.rebuilding and self.belongs_to_deleted_topic(queue, parsed):
            return None, None
        if index > expected and self.damage_explains(queue, index - expected):
            queue.fill_gap(index, self.gap_offset(parsed.topic))
        elif not expected and self._came_while_deleting(parsed):
            self.known.deleted[parsed.topic] = parsed.offset + parsed.size
            return None, None
        elif index == 0:
            self.restarted_at[parsed.topic, parsed.queue_id] = expected
            queue = self.queues.make_anew(queue)
        elif expected < index == self.restarted_at.get((parsed.topic, parsed.queue_id)):
            queue.fill_gap(index, parsed.offset)
        elif not self._starts_over(queue, parsed):
            if not self.rebuilding:
                text = (
                    f"its units end at {expected}, and the next message in the log has "
                    f"{index}, at {parsed.offset}"
                )
                raise QueueHoleError(f"topic={parsed.topic} queue={parsed.queue_id}: {text}")
            name = f"{parsed.topic} queue {parsed.queue_id}"
            what = f"queue offset {index} of {name}, which has {expected} before it"
            return None, f"the entry claims {what}"
        return queue, None

    def gap_offset(self, topic: str) -> int:
        """Return the log offset to write into gaps of the queues of a topic.

        This is the offset of the last damage, but not before the deleted messages of the topic.
        Otherwise the gaps would pass for units of deleted messages.
        """
        return max(self.damages[-1].start, self.known.deleted.get(topic, 0))

    def damage_explains(self, queue: ConsumeQueue, missing: int) -> bool:
        """Return True if the missing messages of a queue fit into the damaged ranges of the log.

        Only ranges behind the last message of the queue count.
        """
        # A message needs at least ``FIXED_SIZE`` bytes. If the damaged bytes behind the queue's
        # last message are too few for the missing messages, only their units are lost. They must
        # not become gaps, because the log has the messages.
        start, deleted_at = self.log.start, self.known.deleted.get(queue.topic)
        if not queue.max_index and start > 0 and self.begin == start and deleted_at is None:
            return False  # its first messages were deleted with the log
        if (
            self.begin > start
            and not self.rebuilding
            and not self.queues_agree
            and queue.ends_with_a_file
        ):
            return False  # later files may have been removed: the messages may all be in the log
        unit = queue.unit(queue.max_index - 1)
        after = unit[0] if unit is not None else max(self.begin, deleted_at or 0)
        room = missing * FIXED_SIZE
        for damage in reversed(self.damages):
            if damage.end <= after or room <= 0:
                break
            room -= damage.end - damage.start
        return room <= 0

    def belongs_to_deleted_topic(self, queue: ConsumeQueue, parsed: ParsedEntry) -> bool:
        """Return True if the topic was deleted and made again after this entry.

        The proof is a valid first message of the queue, according to its files, that lies behind
        this entry. No recorded deletion is needed.
        """
        offset, size = self.first_units.get((queue.topic, queue.queue_id), (0, 0))
        return offset > parsed.offset and has_entry(self.log, queue, 0, offset, size)

    def _came_while_deleting(self, parsed: ParsedEntry) -> bool:
        """Return True if an entry was stored while its topic was being deleted.

        The entry is the first in an empty queue, and has an index above 0. If the topic had been
        made again instead, an entry with index 0 would lie between the deletion and this one. All
        of that part was read, undamaged.
        """
        deleted = self.known.deleted.get(parsed.topic, -1)
        return self.begin <= deleted and all(damage.end <= deleted for damage in self.damages)

    def _starts_over(self, queue: ConsumeQueue, parsed: ParsedEntry) -> bool:
        """Return True if a queue may continue with an entry that does not follow the last unit.

        Either the entry is the first that is left in the log, or its topic was deleted and made
        again, so that its offsets restarted at 0.
        """
        index = parsed.queue_offset
        if not queue.max_index:
            return self.begin == self.log.start
        if not queue.min_index <= index < queue.max_index:
            return False
        old, previous = queue.unit(index), queue.unit(index - 1)
        return old is not None and previous is not None and previous[0] > old[0]


def is_in_no_queue(parsed: ParsedEntry, queues: ConsumeQueueTable) -> bool:
    """Return True for a message of a BatchCQ topic, which belongs to no queue.

    The message shows this even if the type of the topic is unknown.
    """
    return queues.is_unserved(parsed.topic) or is_apaches_batch(parsed.sys_flag, parsed.topic)


def has_entry(log: CommitLog, queue: ConsumeQueue, index: int, offset: int, size: int) -> bool:
    """Return True if the log has the message to which a unit of a queue points.

    Also return True if the segment was deleted, because the unit had been on the disk before.
    """
    if offset < log.start:
        return True
    file = log.files.at(offset)
    if file is not None and FIXED_SIZE <= size <= min(file.end - offset, ENTRY_SIZE_MAX):
        # The entry is nearly always there, and passes the quick check.
        entry = file.read_at_start(offset - file.start, size)
        fields = entry_fields(queue.queue_id, queue.topic)
        unit = pack_unit(offset, size, 0)
        if gather(unit, 1, size, entry, offset, index, *fields, True)[1]:
            return True
    parsed = entry_at(log, offset)
    return parsed is not None and (
        parsed.size,
        parsed.topic,
        parsed.queue_id,
        parsed.queue_offset,
    ) == (size, queue.topic, queue.queue_id, index)
