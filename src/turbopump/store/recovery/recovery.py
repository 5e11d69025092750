"""Recovery of a store when it is opened. It finds the end and the damaged ranges of the log, and
makes queues and indexes agree with the log.

1. Queues and indexes are loaded and their last entries found.
2. The start of reading is chosen:
   - After a clean stop, the log is read from the end of the last entry to which a queue points.
   - After a crash, it is read from the newest segment whose first message is older than the
     checkpoint: that message was on the disk, in the log, the queues and the indexes. The segment
     must not begin behind the offset in our own part of the checkpoint, because store times go back
     when the wall clock does.
   - If derived files are missing, it is read from its start.
3. Queues and indexes are cut there, because their later entries may never have reached the disk.
   Every log entry from there on is checked and dispatched to them again.
4. A bad entry with a good one anywhere behind it is damage: the range is set apart, its queues get
   gaps, and reading continues (``scanner.py``). A bad entry with no good one behind it is a torn
   tail: the log ends there, and everything is cut to this end.
5. After a crash, recovered files count as dirty, so that the store syncs them before it reports
   them as flushed. If only the process was killed, their data may be in the page cache only. Parts
   that were cut off are still on the disk.
6. Derived files are disposable. Snapshots record the end of each queue at some offsets of the log,
   and the start of each queue (``queue_ends.py``). They are used three times:

   - Reading begins at the newest snapshot, not behind the offset of 2, at which every queue ends as
     the snapshot says, once it is cut there.
   - When all is read, no queue may end before its end in the newest snapshot that the log reaches.
   - Recovery begins again at the start of the log, with empty queues and indexes, if a queue lacks
     units, queue files do not belong together, or the count of units differs from the clean stop.
     An entry that fits into no queue even then is damage. A queue without messages in the log
     continues at its old end.

   If there is no snapshot after a crash (the file is lost, or another program used the store), the
   log before the offset of 2 is read as well: no queue may end before its last message there, or
   begin behind its first. The same is done after a clean stop of ours if the checkpoint is lost.

Source of the file rules: apache/rocketmq ``CommitLog.recoverNormally`` / ``recoverAbnormally``;
Apache ends the log at the first bad entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from typing import Final

from turbopump.store.dispatcher import Dispatcher
from turbopump.store.index.key_index import KeyIndex, index_entries_of
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry
from turbopump.store.log.scanner import NOTHING, Damage, EntryWalk, entry_at
from turbopump.store.queues.consume_queue import OFFSET_MAX, ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import NotedQueueEnds, deletions_since, wrong_end
from turbopump.store.recovery.checkpoint import StoreCheckpoint
from turbopump.store.recovery.log_replay import LogReplay, QueueHoleError, has_entry
from turbopump.store.recovery.queue_comparison import (
    first_and_last_messages,
    queue_that_begins_late,
    queue_that_ends_early,
)

_ENDS_IN_ZEROS: Final = "its properties end in zeros"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of recovering a store. Offsets are bytes of the log.

    - ``torn``: the fault at the new end of the log, or None.
    - ``mismatch``: the queue that was not as recorded, so that more of the log was read, or
      None.
    - ``compared``: offset up to which the log was read only to compare it with the queues, or
      None.
    - ``queued``: the offset up to which queues pointed behind the end of the log, and the number
      of these messages.
    """

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
    """Recovery of a store after its files are loaded and before it is opened.

    - ``index``: None if messages are not indexed.
    - ``clean``: the last run stopped cleanly.
    - ``derived_complete``: False if index files are known to be missing, so that the whole
      log must be read.
    - ``index_synced``: False if the crashed program does not sync its index with the
      checkpoint (Apache's only syncs full files).
    - ``stopped_here``: the clean stop was ours.
    - ``copied_again``: the log is a replica's, or that of a slave which acknowledges messages only
      after they are on the disk. If a power cut has torn it, it ends there, and the rest is copied
      again.
    - ``on_progress``: gets (offset reached, approximate end of the log) at the start, every
      few MiB, and at the end.
    - ``known``: recorded ends of the queues.
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
    """True if all queues ended as a snapshot says, at the offset where reading starts."""
    compared: int | None = None
    _cut_to: int | None = None
    """Log offset at which the queues were last cut, if no unit was written since."""
    first_units: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Log offset and size of the first message of each queue that has not lost it. They are read
    from the queue's files before the cut."""

    def run(self) -> RecoveryReport:
        """Bring the log, the queues and the indexes to one consistent end.

        Raises OSError, and StoreDamagedError if the store cannot be recovered.
        """
        # The order of these steps matters:
        # 1. Recorded deletions are finished first. A deleted queue must not pass for a lost one.
        # 2. The first units and the ends of the queues are read before the cut, which removes them.
        # 3. The offset where the queues agree decides where the index is cut. The index may need an
        #    earlier offset, and the queues are then cut there too: one replay fills both.
        # 4. If a queue turns out to lack units, at whatever point, all is written again from the
        #    start of the log. The ends of queues without messages there must be read before their
        #    files go.
        log, index = self.log, self.index
        # after a crash the newest file may be incomplete, and is rewound first
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
        found_ends: dict[tuple[str, int], tuple[int, int]] = {}
        if self.clean:
            begin = self._begin_after_clean_stop()
        else:
            found_ends = self._queue_ends()
            begin = self._begin_after_crash()
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
            rebuilt = True
            self.mismatch = str(hole)
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
        """Set the end of the log, the queues and the indexes to one offset.

        The log was read from ``begin`` on. After a crash, its files from there on must be synced.
        """
        log, index = self.log, self.index
        log.open_at(end)
        if not self.clean:
            for file in log.files:
                file.dirty = file.dirty or file.end > begin
        self.dispatcher.dispatched = end
        for queue in self.queues:
            queue.raise_min(log.start)
        if index is not None and index.end_offset >= end:
            index.rewind(end)
            self._lower_index_time(index)
        if index is not None:
            index.check_headers()

    def _queue_ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """For each queue, return the next index, and the log offset behind the last message.

        Queues whose last unit has no message are left out.
        """
        return {
            (queue.topic, queue.queue_id): (queue.max_index, unit[0] + unit[1])
            for queue in self.queues
            if (unit := queue.last_unit) is not None
        }

    def _queued_behind(
        self, end: int, found: Mapping[tuple[str, int], tuple[int, int]]
    ) -> tuple[int, int]:
        """Examine queues that pointed behind the end of the log. Return the furthest offset, and
        the number of missing messages.

        ``found`` has the ends of the queues before recovery.
        """
        furthest = missing = 0
        for (topic, queue_id), (index, message_end) in found.items():
            if end < message_end < OFFSET_MAX:
                queue = self.queues.find(topic, queue_id)
                furthest = max(furthest, message_end)
                missing += max(index - (queue.max_index if queue is not None else 0), 0)
        return furthest, missing

    def _offset_where_queues_agree(self, begin: int) -> int:
        """Return the log offset from which the units of all queues must be written again.

        The offset is ``begin`` or earlier, and the queues are cut there. Raises QueueHoleError if
        there are snapshots, and the queues agree with none of them.
        """
        # A start after a crash trusts a queue only up to an offset at which a snapshot records its
        # end. The queue's own files are no proof: after a power cut a unit in the middle may be
        # old, and a missing last file looks like a shorter queue. So the queues are cut at one
        # snapshot after the other, newest first. If all of them then end as the snapshot says,
        # every unit before it is there, and the log writes the later ones again. A queue that never
        # agrees has lost units that no later part of the log restores: then all queues are rebuilt.
        if self.queues.damaged:
            raise QueueHoleError("the files of a queue do not belong together")
        fault = self.known.lost_front(self.queues)
        if fault is not None:
            raise QueueHoleError(fault)
        if self.clean and self.known.snapshots and self.known.snapshots[-1].at >= begin:
            return begin  # ``_restore_ends`` compares the ends after reading
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
        """Extend each queue that is shorter than in the newest snapshot.

        The missing messages were damaged, or are no longer in the log. ``emptied`` has the ends of
        queues without messages in the log. Raises QueueHoleError if the log may still have the
        missing messages. In a rebuild, the log has already shown that it does not.
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
        """Compare the queues with the part of the log that was not read.

        No queue may end before its last message there, or begin behind its first. Raises
        QueueHoleError otherwise.

        This is needed without a snapshot after a crash, or after a clean stop of ours whose
        checkpoint is lost. It reads that part of the log once, because afterwards there is a
        snapshot. RocketMQ does not check it. A rebuild from the log's start is no alternative: it
        would restore the messages of deleted topics, whose deletion is not known either.
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
        """For each queue whose messages are no longer in the log, return its end.

        The queues' own files show these ends.
        """
        start = self.log.start
        ends: dict[tuple[str, int], int] = {}
        if not start:
            return ends
        for queue in self.queues:
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
        """Cut the index after a crash, and return the log offset from which it must be filled
        again."""
        index = self.index
        if index is None or self.clean:
            return begin
        if not self.index_synced:
            begin = max(min(begin, index.end_offset), 0)
        begin = max(index.rewind(begin), self.log.start)
        if self.derived_complete:  # else everything is written again
            begin = begin_for_index(self.log, self.queues, index, begin)
        self._lower_index_time(index)
        return begin

    def _redispatch(self, begin: int, *, rebuilding: bool) -> LogReplay:
        """Add every valid entry of the log from ``begin`` on to the queues and the index.

        Raises QueueHoleError if a queue lacks units and no damage explains it.
        """
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
        # A power cut may tear any entry behind the part that was surely on the disk. An entry
        # without a CRC over its properties may even look good: its properties then end in zeros. A
        # slave that copies again ends its log before the first such damage, and its master sends
        # the rest. Everybody else keeps the good entries behind damage, and ends the log only
        # before damage that nothing good follows.
        walk = EntryWalk(self.log, self.on_progress, replay.damages.append)
        damages = replay.damages
        for parsed in walk.entries(begin):
            if parsed.properties.endswith("\0") and self._may_be_torn(parsed):
                damages.append(Damage(parsed.offset, parsed.offset + parsed.size, _ENDS_IN_ZEROS))
            elif not (self.copied_again and self._torn_at(replay) is not None):
                replay.dispatch_entry(parsed)
                continue
            if self.copied_again and self._torn_at(replay) is not None:
                break
        replay.end_log(walk.end, walk.fault)
        torn = self._torn_at(replay) if self.copied_again else None
        if torn is not None:
            replay.end_log(torn.start, torn.fault)
            damages.remove(torn)
        while damages and damages[-1].end == replay.end:  # nothing good follows
            torn = damages.pop()
            replay.end_log(torn.start, torn.fault)
        return replay

    def _may_be_torn(self, parsed: ParsedEntry) -> bool:
        """Return True if zeros may have replaced the end of an entry.

        Only a whole-entry CRC covers the properties, and a copied entry may lack this CRC. In front
        of the part that a power cut may tear, a file may have been cut. If the log is copied
        again, a wrong guess costs only the copy of a few entries.
        """
        if self.copied_again:
            return True
        return not self.clean and parsed.offset >= self.checkpoint.safe_offset

    def _torn_at(self, replay: LogReplay) -> Damage | None:
        """Return the first damage that a power cut may have caused, or None.

        This is the first damage behind the part of the log that was surely on the disk.
        """
        safe = self.checkpoint.safe_offset
        return next((damage for damage in replay.damages if damage.start >= safe), None)

    def _forget_derived(self) -> int:
        self.queues.rebuild()
        if self.index is not None:
            self.index.remove_all()
            self._lower_index_time(self.index)
        return self.log.start

    def _lower_index_time(self, index: KeyIndex) -> None:
        """Lower the index time in the checkpoint, because rewritten index files may end elsewhere.

        RocketMQ: after a kill ``IndexService.load`` removes each file that ends later than this
        time, and fills it again from the last segment that began before it. Keys of earlier
        messages in such a file would be lost.
        """
        if index.full_timestamp < self.checkpoint.index_timestamp:
            self.checkpoint.index_timestamp = index.full_timestamp
            self.checkpoint.write()

    def _derived_reach(self, begin: int) -> bool:
        """Return True if the queues and indexes cover the part of the log that is not read.

        This is the part before ``begin``.
        """
        if self.log.start == 0 and any(queue.min_index for queue in self.queues):
            return False
        if begin <= self.log.start:
            return True
        return self.derived_complete and (
            bool(self.known.snapshots) or any(queue.max_index for queue in self.queues)
        )

    def _begin_after_clean_stop(self) -> int:
        """Return the log offset at which reading begins after a clean stop.

        It is the end of the last message in any queue, if that message is valid. Otherwise it is
        the start of the newest segment, up to that of the message, that begins with a valid entry.
        """
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


_SAMPLED_MAX: Final = 16
"""Maximum number of messages examined, each the newest of its queue. Most messages have a key, and
one key is enough."""


def begin_for_index(
    log: CommitLog, queues: Iterable[ConsumeQueue], index: KeyIndex, begin: int
) -> int:
    """Return the log offset from which the index must be filled, ``begin`` or earlier.

    The offset is earlier if the index lacks keys, and the index is cut there. A few entries of the
    log are read.
    """
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
