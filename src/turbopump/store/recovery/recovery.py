"""Opening a store: where the log ends, what of it is damaged, and queues and indexes that agree
with it.

1. Queues and indexes are loaded and their last entries found.
2. Where to begin reading the log: after a clean stop behind the last entry a queue points to; after
   a crash at the newest segment whose first message is older than the checkpoint (it was on the
   disk, in the log, the queues and the indexes), and not behind the offset that our own part of the
   checkpoint gives (store times go back when the wall clock does); at the start of the log if
   derived files are missing.
3. Queues and indexes are cut there: what they say of messages behind it may never have reached the
   disk. Every entry from there on is checked and handed to the dispatcher, which writes it to them
   again.
4. A bad entry with a good one somewhere behind it is damage: the range is set apart, its queues get
   gaps, and reading goes on behind it (``scanner.py``). A bad entry with nothing good behind
   it is a torn tail: the log ends there, and everything is cut to it.
5. What was recovered after a crash may be in the page cache only (the process was killed, the
   machine was not), and what was cut off is still on the disk: both count as dirty, so that the
   store syncs them before it says what is flushed.
6. Derived files are disposable. Snapshots say where each queue ended when the log was at some
   offsets, and where each begins (``queue_ends.py``). They are used three times:

   - Reading begins at the newest snapshot, not behind the offset of 2, at which every queue ends as
     the snapshot says, once it is cut there.
   - When all is read, no queue may end before it did in the newest snapshot that the log reaches.
   - A queue that lacks units, queue files that do not belong together, or a count of units that is
     not the one of the clean stop make recovery begin again at the start of the log, with empty
     queues and indexes. An entry that fits into no queue even then is damage. A queue of which the
     log has no message goes on where it ended.

   Where there is no snapshot after a crash (the file is lost, or another program had the store),
   the log before the offset of 2 is read as well: no queue may end before its last message there,
   or begin behind its first. The same is done after a clean stop of ours if the checkpoint is lost.

Source of the file rules: apache/rocketmq ``CommitLog.recoverNormally`` / ``recoverAbnormally``;
Apache ends the log at the first bad entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from typing import Final

from turbopump.message.entry import FIXED_SIZE
from turbopump.message.properties import SysFlag
from turbopump.message.rules import is_system_topic
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.index.key_index import KeyIndex, index_entries_of
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry, is_apaches_batch
from turbopump.store.log.scanner import NOTHING, Damage, EntryWalk, entry_at
from turbopump.store.queues.checked_entries import entry_fields, gather
from turbopump.store.queues.consume_queue import OFFSET_MAX, ConsumeQueue, pack_unit
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import NotedQueueEnds, deletions_since, wrong_end
from turbopump.store.recovery.checkpoint import StoreCheckpoint


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found. Offsets in bytes of the log; ``torn`` says what was wrong where the log
    now ends, None if nothing was; ``mismatch`` which queue was not as it should have been, so that
    more was read again; ``compared`` up to where the log was read only to be compared with the
    queues, None if it was not; ``queued`` is what the queues had of messages behind the log's end:
    up to which offset, and how many."""

    clean: bool
    begun_at: int
    log_end: int
    entries: int
    rebuilt: bool
    damages: tuple[Damage, ...] = ()
    torn: str | None = None
    mismatch: str | None = None
    compared: int | None = None
    queued: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class Recovery:
    """The parts of a loaded store that recovery brings together. ``index`` None: nothing is
    indexed.

    ``derived_complete`` False: index files are known to be missing, so that the whole log must be
    read. ``index_synced`` False: the crashed program does not sync its index with the checkpoint
    (Apache's only syncs full files). ``on_progress`` gets (offset reached, about where the log
    ends) when reading begins, every few MiB, and when it has ended. ``known``: where queues ended.
    ``stopped_here``: the clean stop was ours. ``copied_again``: a slave's log, of which nothing was
    acknowledged before it was on the disk: where a power cut has torn it, it ends, and is copied
    again from there on.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    dispatcher: Dispatcher
    checkpoint: StoreCheckpoint
    clean: bool
    derived_complete: bool = True
    index_synced: bool = True
    stopped_here: bool = False
    copied_again: bool = False
    on_progress: Callable[[int, int], None] = lambda _offset, _end: None
    known: NotedQueueEnds = field(default_factory=NotedQueueEnds)
    mismatch: str | None = None
    queues_agree: bool = False
    """Whether all queues were found to end, where reading begins, as they did when the log was
    there."""
    compared: int | None = None
    _cut_to: int | None = None
    """Where the queues were cut last, if nothing was written since."""
    first_units: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Offset and size of the first messages of the queues that had theirs, as their files said
    before they were cut."""

    def run(self) -> RecoveryReport:
        """Bring log, queues and indexes to one consistent end. Raises OSError and
        StoreDamagedError."""
        log, index = self.log, self.index
        # else its newest file may well be odd, and is rewound first
        if index is not None and self.clean:
            index.check_headers()
        self.known.deleted.update(
            self.queues.finish_deletions(deletions_since(log.start, self.known.deleted))
        )
        self.known = self.known.since(log.start).without(self.queues.is_unserved)
        if not self.clean:
            self.first_units = {
                (queue.topic, queue.queue_id): unit[:2]
                for queue in self.queues
                if not queue.min_index and (unit := queue.unit(0))
            }
        found_ends = {} if self.clean else self._ends()
        begin = self._begin_after_clean_stop() if self.clean else self._begin_after_crash()
        rebuilt = False
        try:
            begin = self._rewind_index(self._offset_where_queues_agree(begin))
            rebuilt = not self._derived_reach(begin)
            if not rebuilt:
                self._cut_queues(begin)
                replay = self._redispatch(begin, rebuilding=False)
                self._restore_ends(replay, {})
                self._compare_queues(replay)
        except QueueHoleError as hole:
            rebuilt, self.mismatch = True, str(hole)
        if rebuilt:
            emptied = self._emptied_queues()
            begin = self._forget_derived()
            replay = self._redispatch(begin, rebuilding=True)
            self._restore_ends(replay, emptied)
        end = replay.end
        self._end_all_at(end, begin)
        return RecoveryReport(
            self.clean,
            begin,
            end,
            replay.entries,
            rebuilt,
            tuple(replay.damages),
            None if replay.fault == NOTHING else replay.fault,
            self.mismatch,
            self.compared,
            self._queued_behind(end, found_ends),
        )

    def _end_all_at(self, end: int, begin: int) -> None:
        """The log was read from ``begin`` on, and ends at ``end``: so do queues and indexes."""
        log, index = self.log, self.index
        log.open_at(end)
        if not self.clean:
            for file in log.files:
                file.dirty = file.dirty or file.end > begin
        self.dispatcher.dispatched = end
        for queue in self.queues:
            queue.raise_min(log.start)
            queue.end.advance(queue.max_index)
        if index is not None and index.end_offset >= end:
            index.rewind(end)
            self._lower_index_time(index)
        if index is not None:
            index.check_headers()

    def _ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Of each queue that points to a message at its end: one past its last index, and where
        that message ends in the log."""
        return {
            (queue.topic, queue.queue_id): (queue.max_index, unit[0] + unit[1])
            for queue in self.queues
            if (unit := queue.last_unit) is not None
        }

    def _queued_behind(
        self, end: int, found: Mapping[tuple[str, int], tuple[int, int]]
    ) -> tuple[int, int]:
        """``queued``: queues that ended, as ``found``, with messages behind the log's ``end``."""
        furthest = missing = 0
        for (topic, queue_id), (index, message_end) in found.items():
            if end < message_end < OFFSET_MAX:
                queue = self.queues.find(topic, queue_id)
                furthest = max(furthest, message_end)
                missing += max(index - (queue.max_index if queue is not None else 0), 0)
        return furthest, missing

    def _offset_where_queues_agree(self, begin: int) -> int:
        """``begin``, or the offset before it from which on the queues must be written again, so
        that each goes on where it did; they are cut there. Raises QueueHoleError if there are
        snapshots, and the queues agree with none of them."""
        # A start after a crash trusts a queue only up to an offset at which its end is known from
        # elsewhere. Its own files do not tell: after a power cut a unit in the middle may be old,
        # and a missing last file looks like a shorter queue. So the queues are cut at one snapshot
        # after the other, newest first. Where all of them end as that snapshot says, every unit
        # before it is there, and the log writes those behind it again. A queue that never agrees
        # has lost something that no later part of the log brings back: then all is rebuilt.
        if self.queues.damaged:
            raise QueueHoleError("the files of a queue do not belong together")
        fault = self.known.lost_front(self.queues)
        if fault is not None:
            raise QueueHoleError(fault)
        if self.clean and self.known.snapshots and self.known.snapshots[-1].at >= begin:
            return begin  # ``_restore_ends`` compares, when reading has come there
        for snapshot in self.known.back_from(begin, self.log.start):
            self._cut_queues(snapshot.at)
            fault = self.known.mismatch(snapshot, self.queues)
            if fault is None:
                self.queues_agree = True
                return snapshot.at
            self.mismatch = self.mismatch or fault
        if self.mismatch is not None:
            raise QueueHoleError(self.mismatch)
        if not self.known.snapshots:
            self._cut_queues(begin)
        return begin

    def _restore_ends(self, replay: LogReplay, emptied: dict[tuple[str, int], int]) -> None:
        """Let no queue end before it did in the newest snapshot: what is missing was damaged in the
        log, or is no longer in it. ``emptied`` says where queues ended of which the log had no
        message. Raises QueueHoleError, but not where the queues are rebuilt: then the log is right.
        """
        # A queue offset is never given twice, or consumers would take a new message for an old one.
        # So a queue that comes out shorter than it was is made as long again. Damage in the log
        # explains missing units: they become gaps. Without damage, units are missing that the log
        # would have: an attempt on the existing queues fails (QueueHoleError) and all is rebuilt.
        # If they are missing after that too, the log has lost those messages, with its front or
        # with a topic that was deleted: the queue goes on behind a gap, or empty, where it ended.
        log, clean_end = self.log, self.checkpoint.log_end
        snapshot = self.known.newest(replay.end)
        ends = self.known.least_ends(snapshot) if snapshot is not None else {}
        for key, end in emptied.items():
            ends[key] = max(end, ends.get(key, 0))
        for (topic, queue_id), end in ends.items():
            queue = self.queues.find(topic, queue_id)
            found = queue.max_index if queue is not None else 0
            if found >= end:
                continue
            queue = queue or self.queues.find_or_make(topic, queue_id)
            if replay.damages and replay.damage_explains(queue, end - found):
                queue.fill_gap(end, replay.gap_offset(topic))
            elif not replay.rebuilding:
                raise QueueHoleError(
                    wrong_end(
                        topic,
                        queue_id,
                        found,
                        end,
                        snapshot.at if snapshot is not None else log.start,
                    )
                )
            elif found and replay.restarted_at.get((topic, queue_id), 0) >= end:
                queue.fill_gap(end, (queue.unit(found - 1) or (log.start,))[0])
            elif not found and log.start:
                queue.begin_empty_at(end)
        if (
            self.clean
            and not replay.rebuilding
            and replay.end == clean_end
            and self.queues.units != self.checkpoint.queue_units
        ):
            text = (
                f"queues have {self.queues.units} units, and had "
                f"{self.checkpoint.queue_units} at the clean stop"
            )
            raise QueueHoleError(text)

    def _compare_queues(self, replay: LogReplay) -> None:
        """Without a snapshot after a crash, or after a clean stop of ours whose checkpoint is lost:
        see that no queue ends before its last message in the part of the log that was not read, or
        begins behind its first. Raises QueueHoleError.

        It costs reading that part of the log, once: then there is a snapshot. RocketMQ does not
        look there. To begin at the log's start instead would write messages of deleted topics
        again, whose deletion is not known either.
        """
        begin = replay.begin
        ends_known = self.clean and not (
            self.stopped_here and self.checkpoint.log_end != replay.end
        )
        if ends_known or begin <= self.log.start or self.known.newest(replay.end) is not None:
            return
        self.compared = begin
        first, last, old = first_and_last_messages(
            self.log, begin, self.known.deleted, self.first_units, self.on_progress
        )
        deleted: dict[str, int] = {}
        for parsed in old.values():
            queue = self.queues.find(parsed.topic, parsed.queue_id)
            if queue is not None and replay.belongs_to_deleted_topic(queue, parsed):
                deleted[parsed.topic] = max(parsed.offset, deleted.get(parsed.topic, 0))
        fault = queue_that_ends_early(last, self.queues, deleted) or queue_that_begins_late(
            first, self.queues
        )
        if fault is not None:
            raise QueueHoleError(fault)

    def _emptied_queues(self) -> dict[tuple[str, int], int]:
        """Where the queues end of which the log has no message any more, by their own files."""
        start, ends = self.log.start, {}
        for queue in self.queues if start else ():
            unit = queue.unit(queue.max_index - 1)
            if queue.max_index and (unit is None or unit[0] < start):
                ends[queue.topic, queue.queue_id] = queue.max_index
        return ends

    def _cut_queues(self, offset: int) -> None:
        if self._cut_to == offset:
            return
        there = partial(has_entry, self.log)
        for queue in self.queues:
            queue.cut_at(offset, there)
        self._cut_to = offset

    def _rewind_index(self, begin: int) -> int:
        """Cut the index after a crash; where reading must begin for it."""
        index = self.index
        if index is None or self.clean:
            return begin
        begin = max(
            index.rewind(begin if self.index_synced else max(min(begin, index.end_offset), 0)),
            self.log.start,
        )
        if self.derived_complete:  # else all is written again
            begin = begin_for_index(self.log, self.queues, index, begin)
        self._lower_index_time(index)
        return begin

    def _redispatch(self, begin: int, *, rebuilding: bool) -> LogReplay:
        """Dispatch every good entry from there on. Raises QueueHoleError."""
        replay = LogReplay(
            self.log,
            self.queues,
            self.dispatcher,
            self.known,
            self.first_units,
            begin,
            rebuilding,
            self.queues_agree,
        )
        walk = EntryWalk(self.log, self.on_progress, replay.damages.append)
        damages = replay.damages
        for parsed in walk.entries(begin):
            if parsed.properties.endswith("\0") and self._may_be_torn(parsed):
                damages.append(Damage(parsed.offset, parsed.offset + parsed.size, _ENDS_IN_ZEROS))
            elif not (self.copied_again and self._torn_at(replay) is not None):
                replay.dispatch(parsed)
                continue
            if self.copied_again:
                break
        replay.end, replay.fault = walk.end, walk.fault
        torn = self._torn_at(replay) if self.copied_again else None
        if torn is not None:
            replay.end, replay.fault = torn.start, torn.fault
            damages.remove(torn)
        while damages and damages[-1].end == replay.end:  # nothing good follows
            torn = damages.pop()
            replay.end, replay.fault = torn.start, torn.fault
        return replay

    def _may_be_torn(self, parsed: ParsedEntry) -> bool:
        """True where a power cut may have left the end of an entry zero. Only a CRC over the whole
        entry covers its properties, and a copied one need not have it."""
        return not self.clean and parsed.offset >= self.checkpoint.safe_offset

    def _torn_at(self, replay: LogReplay) -> Damage | None:
        """The first damage behind what was surely on the disk."""
        safe = self.checkpoint.safe_offset
        return next((damage for damage in replay.damages if damage.start >= safe), None)

    def _forget_derived(self) -> int:
        self.queues.rebuild()
        if self.index is not None:
            self.index.remove_all()
            self._lower_index_time(self.index)
        return self.log.start

    def _lower_index_time(self, index: KeyIndex) -> None:
        """Files are written anew, and may end elsewhere. RocketMQ: after a kill
        ``IndexService.load`` removes each that ends later than this, and fills it again from the
        segment that was begun before it on; keys of earlier messages in such a file would be lost.
        """
        if index.full_timestamp < self.checkpoint.index_timestamp:
            self.checkpoint.index_timestamp = index.full_timestamp
            self.checkpoint.write()

    def _derived_reach(self, begin: int) -> bool:
        """Whether queues and indexes have what is in the log before the offset where reading
        begins."""
        if self.log.start == 0 and any(queue.min_index for queue in self.queues):
            return False
        if begin <= self.log.start:
            return True
        return self.derived_complete and (
            bool(self.known.snapshots) or any(queue.max_index for queue in self.queues)
        )

    def _begin_after_clean_stop(self) -> int:
        """The end of the last entry that a queue points to, if that entry is there and whole; else
        the start of its segment, or of the newest before it that has a first entry."""
        last = max(
            (unit for queue in self.queues if (unit := queue.last_unit) is not None), default=None
        )
        if last is None:
            return self.log.start
        offset, size, _ = last
        parsed = entry_at(self.log, offset)
        if parsed is not None and parsed.size == size:
            return offset + size
        starts = [file.start for file in self.log.files if file.start <= offset]
        return next(
            (start for start in reversed(starts) if entry_at(self.log, start) is not None),
            self.log.start,
        )

    def _begin_after_crash(self) -> int:
        for file in reversed(self.log.files.files):
            if self.checkpoint.safe_offset and file.start > self.checkpoint.safe_offset:
                continue
            parsed = entry_at(self.log, file.start)
            if parsed is not None and parsed.store_timestamp <= self.checkpoint.safe_timestamp:
                return file.start
        return self.log.start


# An entry nearly always follows the last unit of its queue. One that says otherwise is believed
# where something explains it: damage before it, a topic that was deleted (and made anew), a log
# that lost its front. What nothing explains is a queue that lacks units, or, where queues are
# written from the log alone, an entry that is damaged.

_ENDS_IN_ZEROS: Final = "its properties end in zeros"
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


class QueueHoleError(Exception):
    """A queue lacks units that no damage explains; its text says which."""


@dataclass(slots=True)
class LogReplay:
    """One reading of the log from ``begin`` on, whose entries come one by one. ``rebuilding``: the
    queues were empty when it began. ``queues_agree``: cut at ``begin``, all queues ended as the
    snapshot there says. A deletion that the entries show is added to ``known``.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    dispatcher: Dispatcher
    known: NotedQueueEnds
    first_units: dict[tuple[str, int], tuple[int, int]]
    """Offset and size of the first messages of the queues that had theirs, as their files said
    before they were cut."""
    begin: int
    rebuilding: bool
    queues_agree: bool
    damages: list[Damage] = field(default_factory=list)
    """What was passed over so far."""
    entries: int = 0
    """How many were handed on."""
    end: int = 0
    """Where the log was found to end."""
    fault: str | None = None
    """What is wrong there."""
    restarted_at: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where queues had ended whose offsets were seen to begin anew."""

    def dispatch(self, parsed: ParsedEntry) -> None:
        """Hand on an entry. One whose position in its queue cannot be is damage.

        Raises QueueHoleError if its queue lacks_message units that no damage explains, unless
        ``rebuilding``: then the entry is damaged.
        """
        queue, fault = self.place(parsed)
        if fault is not None:
            self.damages.append(Damage(parsed.offset, parsed.offset + parsed.size, fault))
            return
        self.entries += 1
        self.dispatcher.dispatch_parsed(parsed, queue)

    def place(self, parsed: ParsedEntry) -> tuple[ConsumeQueue | None, str | None]:
        """Return the queue of an entry, ready for it, and what is wrong with its position there.
        None: it has no queue (its topic was deleted, or is a BatchCQ topic). Raises as
        ``dispatch``."""
        if parsed.topic in self.known.deleted and parsed.offset < self.known.deleted[parsed.topic]:
            return None, None
        if is_in_no_queue(parsed, self.queues):
            return None, None
        queue = self.queues.find_or_make(parsed.topic, parsed.queue_id)
        if parsed.queue_offset == queue.max_index or parsed.sys_flag & _PREPARED:
            return queue, None
        return self._queue_for(queue, parsed)

    def _queue_for(
        self, queue: ConsumeQueue, parsed: ParsedEntry
    ) -> tuple[ConsumeQueue | None, str | None]:
        """Of an entry that does not follow the last unit of its queue: the queue, ready for it
        (None: it was deleted with its topic), and what is wrong with the entry."""
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
                    f"its units end at {expected}, and the log goes on with {index} at "
                    f"{parsed.offset}"
                )
                raise QueueHoleError(f"topic={parsed.topic} queue={parsed.queue_id}: {text}")
            name = f"{parsed.topic} queue {parsed.queue_id}"
            what = f"queue offset {index} of {name}, which has {expected} before it"
            return None, f"it says that it is {what}"
        return queue, None

    def gap_offset(self, topic: str) -> int:
        """Where the last damage was; but behind the deleted messages of the topic, so that the gaps
        are not taken for units of those."""
        return max(self.damages[-1].start, self.known.deleted.get(topic, 0))

    def damage_explains(self, queue: ConsumeQueue, missing: int) -> bool:
        """Whether so many messages can lie in the damaged ranges behind the queue's last one."""
        # A message takes at least ``FIXED_SIZE`` bytes. If the damaged bytes behind the
        # queue's last message are too few for those that are missing, the units are lost and not
        # the messages: they must not become gaps, for the log has them.
        start, deleted_at = self.log.start, self.known.deleted.get(queue.topic)
        if not queue.max_index and start > 0 and self.begin == start and deleted_at is None:
            return False  # its first messages were deleted with the log
        if (
            self.begin > start
            and not self.rebuilding
            and not self.queues_agree
            and queue.ends_with_a_file
        ):
            return False  # the files behind may have been taken away: the messages may all be there
        unit = queue.unit(queue.max_index - 1)
        after = unit[0] if unit is not None else max(self.begin, deleted_at or 0)
        room = missing * FIXED_SIZE
        for damage in reversed(self.damages):
            if damage.end <= after or room <= 0:
                break
            room -= damage.end - damage.start
        return room <= 0

    def belongs_to_deleted_topic(self, queue: ConsumeQueue, parsed: ParsedEntry) -> bool:
        """Whether the first message of the queue, by its own files, lies behind this entry, and is
        there. Then the entry is of a topic that was deleted and made again, even if that deletion
        is not known."""
        offset, size = self.first_units.get((queue.topic, queue.queue_id), (0, 0))
        return offset > parsed.offset and has_entry(self.log, queue, 0, offset, size)

    def _came_while_deleting(self, parsed: ParsedEntry) -> bool:
        """Whether an entry that is not the first of its queue, and has none before it, belongs to a
        topic that was just being deleted. If the topic had been made again, its first entry, with
        index 0, would lie between the deletion and this one; all of that was read, undamaged."""
        deleted = self.known.deleted.get(parsed.topic, -1)
        return self.begin <= deleted and all(damage.end <= deleted for damage in self.damages)

    def _starts_over(self, queue: ConsumeQueue, parsed: ParsedEntry) -> bool:
        """Whether the queue may go on with this entry although it does not follow its last unit: it
        is the first that the log still has; or its topic was deleted and made again, so that its
        offsets began with 0 once more."""
        index = parsed.queue_offset
        if not queue.max_index:
            return self.begin == self.log.start
        if not queue.min_index <= index < queue.max_index:
            return False
        old, previous = queue.unit(index), queue.unit(index - 1)
        return old is not None and previous is not None and previous[0] > old[0]


def is_in_no_queue(parsed: ParsedEntry, queues: ConsumeQueueTable) -> bool:
    """True for a message of a BatchCQ topic, whether that is known of the topic or not."""
    return queues.is_unserved(parsed.topic) or is_apaches_batch(parsed.sys_flag, parsed.topic)


def has_entry(log: CommitLog, queue: ConsumeQueue, index: int, offset: int, size: int) -> bool:
    """Whether the log has, at ``offset``, the entry that unit ``index`` of the queue should point
    to, or no longer has it because its segment was deleted (not before the unit was on the
    disk)."""
    if offset < log.start:
        return True
    file = log.files.at(offset)
    if file is not None and FIXED_SIZE <= size <= min(file.end - offset, ENTRY_SIZE_MAX):
        # Nearly always it is, and good at first sight.
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


# A queue agrees with the log if its last unit does not lie before the last message that the log has
# of it, and its first not behind the first one, unless it begins with an earlier index (its topic
# was deleted and made again). A queue without units counts as lost if its topic still exists, or if
# another queue of the topic is older than that message: a deletion would have deleted that queue,
# too. It does not count as lost if another queue shows that the topic was made again since.


Messages = dict[tuple[str, int], ParsedEntry]


def first_and_last_messages(
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
    for parsed in EntryWalk(log, on_progress).entries(log.start, end):
        if not parsed.sys_flag & _PREPARED and not (
            deleted and parsed.offset < deleted.get(parsed.topic, 0)
        ):
            key = parsed.topic, parsed.queue_id
            last[key] = parsed
            if key not in first:
                first[key] = parsed
            if parsed.offset < begun.get(key, nowhere)[0]:
                old[key] = parsed
    return first, last, old


def queue_that_begins_late(first: Messages, queues: ConsumeQueueTable) -> str | None:
    """Which queue, of those that have units, begins behind the first of its messages; None if none
    does."""
    for (topic, queue_id), parsed in first.items():
        queue = queues.find(topic, queue_id)
        if queue is None or not queue.max_index or parsed.queue_offset >= queue.min_index:
            continue
        unit = queue.unit(queue.min_index)
        if unit is None or unit[0] > parsed.offset:
            return (
                f"topic={topic} queue={queue_id}: its units begin at {queue.min_index}, and the "
                f"log has {parsed.queue_offset} at {parsed.offset}"
            )
    return None


def queue_that_ends_early(
    last: Messages, queues: ConsumeQueueTable, old: Mapping[str, int]
) -> str | None:
    """Which queue lacks the last of its messages; None if none does. ``old`` says where the last
    message of a topic lies that was deleted before the topic was made anew."""
    begun = _begun(queues)
    for (topic, queue_id), parsed in last.items():
        queue = queues.find(topic, queue_id)
        if is_in_no_queue(parsed, queues):
            continue
        found = queue.max_index if queue is not None else 0
        unit = queue.unit(found - 1) if queue is not None and found else None
        last_unit_at = unit[0] if unit is not None else -1 if found else None
        known = queues.is_known(topic)
        if lacks_message(
            parsed.offset,
            last_unit_at,
            topic,
            known=known,
            begun_at=begun.get(topic),
            old_at=old.get(topic, -1),
        ):
            return (
                f"topic={topic} queue={queue_id}: its units end at {found}, and the log has "
                f"{parsed.queue_offset} at {parsed.offset}"
            )
    return None


def lacks_message(
    message_at: int,
    last_unit_at: int | None,
    topic: str,
    *,
    known: bool,
    begun_at: int | None,
    old_at: int = -1,
) -> bool:
    """Whether a queue lacks a message that the log has of it. A queue that has it ends with the
    unit of this message, or of a later one.

    Arguments are offsets of the log. ``last_unit_at`` None: the queue has never had a unit, as far
    as its files tell. ``known``: the topic exists. ``begun_at``: where the oldest unit of any queue
    of the topic points. ``old_at``: where another queue of the topic has a message older than its
    first unit, so that the topic must have been deleted after that message."""
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


_SAMPLED_MAX: Final = 16
"""Messages that are looked at, each the newest of its queue: most have a key, and one is enough."""


def begin_for_index(
    log: CommitLog, queues: Iterable[ConsumeQueue], index: KeyIndex, begin: int
) -> int:
    """``begin``, or, if the index lacks keys of messages before it, the offset from which on it
    must be filled again; it is cut there. Cost: a few entries are read."""
    ends = (
        unit[0]
        for queue in queues
        if (unit := queue.last_unit) is not None and log.start <= unit[0] < begin
    )
    for offset in nlargest(_SAMPLED_MAX, ends):
        parsed = entry_at(log, offset)
        if parsed is not None and index_entries_of(parsed):
            if offset <= index.end_offset:
                return begin
            there = index.end_offset
            if there <= log.start:
                return max(index.rewind(log.start), log.start)
            if entry_at(log, there) is None:
                there = log.segment_end(there) - log.segment_size
            return max(min(index.rewind(there), begin), log.start)
    return begin
