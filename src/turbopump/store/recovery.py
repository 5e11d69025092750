"""Opening a store: where the log ends, what of it is damaged, and queues and indexes that agree with it.

1. Queues and indexes are loaded and their last entries found.
2. Where to begin reading the log: after a clean stop behind the last entry a queue points to; after a crash at the newest segment whose
   first message is older than the checkpoint (it was on the disk, in the log, the queues and the indexes), and not behind the offset
   that our own part of the checkpoint vouches for (store times go back when the wall clock does); at the start of the log if derived
   files are missing.
3. Queues and indexes are cut there: what they say of messages behind it may never have reached the disk. Every entry from there on is
   checked and handed to the dispatcher, which writes it to them again.
4. A bad entry with a good one somewhere behind it is damage: the range is set apart, its queues get gaps, and reading goes on behind
   it. A bad entry with nothing good behind it is a torn tail: the log ends there, and everything is cut to it.
5. What was recovered after a crash may be in the page cache only (the process was killed, the machine was not), and what was cut off
   is still on the disk: both count as dirty, so that the store syncs them before it says what is flushed.
6. Derived files are disposable. Where queues ended, and which begin where, was noted at some places of the log (``queue_ends.py``): reading
   begins at the newest such place, not behind that of 2, at which every queue, once cut there, ends as it did; and having read, no queue
   may end before the newest place that the log reaches. A queue that lacks units, or whose files do not belong together, or a count of
   units that is not the one noted at the clean stop, makes recovery begin anew, with empty queues and indexes, at the start of the log.
   An entry that fits into no queue even then is damage. A queue of which the log has no message goes on where it ended.
   Where nothing is known after a crash (what was noted is lost, or another program had the store), the log before 2 is read as well,
   and no queue may end before its last message there, or begin behind its first (``queue_comparison.py``). So it is after a clean stop
   of ours if the checkpoint is lost.

Source of the file rules: apache/rocketmq ``CommitLog.recoverNormally`` / ``recoverAbnormally``; Apache ends the log at the first bad entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from turbopump.message.sysflag import SysFlag
from turbopump.store.batch_consume_queue import BatchConsumeQueue
from turbopump.store.checkpoint import Checkpoint
from turbopump.store.commit_log import NOTHING, CommitLog
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.entry_mark import EntryMark
from turbopump.store.key_index import KeyIndex
from turbopump.store.queue_comparison import PROGRESS_STEP, lacking_queue, late_queue, outermost_messages
from turbopump.store.queue_ends import KnownEnds, deletions_since, wrong_end

_LOOK: Final = 4096
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log that holds no good entry although good ones follow: offsets in bytes, and what is wrong at its start."""

    start: int
    end: int
    fault: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found. Offsets in bytes of the log; ``torn`` says what was wrong where the log now ends, None if nothing was;
    ``misfit`` which queue was not as it should have been, so that more was read again; ``compared`` up to where the log was read only to be
    compared with the queues, None if it was not."""

    clean: bool
    begun_at: int
    log_end: int
    entries: int
    rebuilt: bool
    damages: tuple[Damage, ...] = ()
    torn: str | None = None
    misfit: str | None = None
    compared: int | None = None


class _QueueHoleError(Exception):
    """A queue lacks units that no damage explains; its text says which."""


@dataclass(slots=True)
class Recovery:
    """The parts of a loaded store that recovery brings together. ``index`` None: nothing is indexed.

    ``derived_complete`` False: index files are known to be missing, so that the whole log must be read. ``index_synced`` False: the
    crashed program does not sync its index with the checkpoint (Apache's only syncs full files). ``on_progress`` gets (offset reached,
    about where the log ends) when reading begins, every few MiB, and when it has ended. ``known``: where queues ended. ``stopped_here``:
    the clean stop was ours.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    dispatcher: Dispatcher
    checkpoint: Checkpoint
    clean: bool
    derived_complete: bool = True
    index_synced: bool = True
    stopped_here: bool = False
    on_progress: Callable[[int, int], None] = lambda _offset, _end: None
    known: KnownEnds = field(default_factory=KnownEnds)
    damages: list[Damage] = field(default_factory=list)
    misfit: str | None = None
    fitted: bool = False
    """Whether all queues were found to end, where reading begins, as they did when the log was there."""
    compared: int | None = None
    made_anew: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where queues had ended whose offsets were seen to begin anew."""
    first_units: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Offset and size of the first messages of the queues that had theirs, as their files said before they were cut."""

    def run(self) -> RecoveryReport:
        """Bring log, queues and indexes to one consistent end. Raises OSError and StoreDamagedError."""
        log, index = self.log, self.index
        if index is not None and self.clean:  # else its newest file may well be odd, and is rewound first
            index.check_headers()
        self.known.deleted.update(self.queues.finish_deletions(deletions_since(log.start, self.known.deleted)))
        self.known = self.known.since(log.start)
        if not self.clean:
            self.first_units = {
                (queue.topic, queue.queue_id): unit[:2]
                for queue in self.queues
                if not queue.min_index and (unit := queue.unit(0))
            }
        begin = self._begin_after_clean_stop() if self.clean else self._begin_after_crash()
        rebuilt = False
        try:
            begin = self._rewind_index(self._where_queues_fit(begin))
            rebuilt = not self._derived_reach(begin)
            if not rebuilt:
                self._cut_queues(begin)
                entries, torn = self._redispatch(begin, rebuilding=False)
                self._settle_ends(begin, {}, rebuilding=False)
                end = log.walked_to
                self._compare_queues(begin)
        except _QueueHoleError as hole:
            rebuilt, self.misfit = True, str(hole)
        if rebuilt:
            emptied = self._emptied_queues()
            begin = self._forget_derived()
            entries, torn = self._redispatch(begin, rebuilding=True)
            self._settle_ends(begin, emptied, rebuilding=True)
            end = log.walked_to
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
        return RecoveryReport(self.clean, begin, end, entries, rebuilt, tuple(self.damages), torn, self.misfit, self.compared)

    def _where_queues_fit(self, begin: int) -> int:
        """``begin``, or the place before it from which on the queues must be written again, so that each goes on where it did; they are cut
        there. Raises _QueueHoleError if no place is known at which they fit, although some are."""
        if self.queues.damaged:
            raise _QueueHoleError("the files of a queue do not belong together")
        fault = self.known.lost_front(self.queues)
        if fault is not None:
            raise _QueueHoleError(fault)
        if self.clean and self.known.places and self.known.places[-1].at >= begin:
            return begin  # compared when reading has come there
        for place in self.known.back_from(begin, self.log.start):
            self._cut_queues(place.at)
            fault = self.known.misfit(place, self.queues)
            if fault is None:
                self.fitted = True
                return place.at
            self.misfit = self.misfit or fault
        if self.misfit is not None:
            raise _QueueHoleError(self.misfit)
        if not self.known.places:
            self._cut_queues(begin)
            for queue in self.queues:
                if isinstance(queue, BatchConsumeQueue) and queue.tail_damaged:
                    text = "its last units are damaged, and where it ended is not known"
                    raise _QueueHoleError(f"topic={queue.topic} queue={queue.queue_id}: {text}")
        return begin

    def _settle_ends(self, begin: int, emptied: dict[tuple[str, int], int], *, rebuilding: bool) -> None:
        """No queue ends before it did when the log was at the newest place known: what is missing was damaged in the log, or is no longer
        in it. ``emptied`` is where queues ended that the log had no message of. Raises _QueueHoleError, but not if ``rebuilding``: then
        the log is right.
        """
        log, clean_end = self.log, self.checkpoint.log_end
        place = self.known.newest(log.walked_to)
        ends = self.known.least_ends(place) if place is not None else {}
        for key, end in emptied.items():
            ends[key] = max(end, ends.get(key, 0))
        for (topic, queue_id), end in ends.items():
            queue = self.queues.find(topic, queue_id)
            found = queue.max_index if queue is not None else 0
            if found >= end:
                continue
            queue = queue or self.queues.find_or_make(topic, queue_id)
            if self.damages and self._explained(queue, end - found, begin, rebuilding):
                queue.fill_gap(end, self._gap_offset(topic))
            elif not rebuilding:
                raise _QueueHoleError(wrong_end(topic, queue_id, found, end, place.at if place is not None else log.start))
            elif found and self.made_anew.get((topic, queue_id), 0) >= end:
                queue.fill_gap(end, (queue.unit(found - 1) or (log.start,))[0])
            elif not found and log.start and queue.is_batch:
                queue.fill_gap(end, 0)
            elif not found and log.start:
                queue.begin_empty_at(end)
        if self.clean and not rebuilding and log.walked_to == clean_end and self.queues.units != self.checkpoint.queue_units:
            text = f"queues have {self.queues.units} units, and had {self.checkpoint.queue_units} at the clean stop"
            raise _QueueHoleError(text)

    def _compare_queues(self, begin: int) -> None:
        """Where no place is known after a crash, or after a clean stop of ours whose checkpoint is lost, see that no queue ends before its
        last message in the log before ``begin``, which was not read, or begins behind its first. Raises _QueueHoleError.

        It costs reading that part of the log (RocketMQ does not look there), once: then a place is noted. To begin at the log's start
        instead would write messages of deleted topics again, whose deletion is not known either.
        """
        told = self.clean and not (self.stopped_here and self.checkpoint.log_end != self.log.walked_to)
        if told or begin <= self.log.start or self.known.newest(self.log.walked_to) is not None:
            return
        self.compared = begin
        first, last, old = outermost_messages(self.log, begin, self.known.deleted, self.first_units, self.on_progress)
        deleted: dict[str, int] = {}
        for mark in old.values():
            queue = self.queues.find(mark.topic, mark.queue_id)
            if queue is not None and self._began_later(queue, mark):
                deleted[mark.topic] = max(mark.offset, deleted.get(mark.topic, 0))
        fault = lacking_queue(last, self.queues, deleted) or late_queue(first, self.queues)
        if fault is not None:
            raise _QueueHoleError(fault)

    def _emptied_queues(self) -> dict[tuple[str, int], int]:
        """Where the queues end of which the log has no message any more, by their own files."""
        start, ends = self.log.start, {}
        for queue in self.queues if start else ():
            unit = queue.unit(queue.max_index - 1)
            if queue.max_index and (unit is None or unit[0] < start):
                ends[queue.topic, queue.queue_id] = queue.max_index
        return ends

    def _cut_queues(self, offset: int) -> None:
        for queue in self.queues:
            queue.cut_at(offset, self._is_there)

    def _rewind_index(self, begin: int) -> int:
        """Cut the index after a crash; where reading must begin for it."""
        index = self.index
        if index is None or self.clean:
            return begin
        begin = max(index.rewind(begin if self.index_synced else max(min(begin, index.end_offset), 0)), self.log.start)
        self._lower_index_time(index)
        return begin

    def _redispatch(self, begin: int, *, rebuilding: bool) -> tuple[int, str | None]:
        """Dispatch every good entry from ``begin`` on: (how many, what is wrong behind the last); ``damages`` are those of this run.

        Raises _QueueHoleError if a queue lacks units that no damage explains, unless ``rebuilding``: then the entry is damaged.
        """
        log, damages, entries = self.log, self.damages, 0
        damages.clear()
        self.made_anew.clear()
        last = self._about_the_end()
        self.on_progress(begin, last)
        progress_at = begin + PROGRESS_STEP
        position = begin
        while True:
            for mark in log.walk(position):
                fault = self._dispatch(mark, begin, rebuilding)
                if fault is None:
                    entries += 1
                else:
                    damages.append(Damage(mark.offset, mark.offset + mark.size, fault))
                if mark.offset >= progress_at:
                    progress_at = mark.offset + PROGRESS_STEP
                    self.on_progress(mark.offset, max(last, mark.offset))
            fault = log.fault
            following = log.next_good(log.walked_to) if fault is not None else None
            if fault is None or following is None:
                self.on_progress(log.walked_to, log.walked_to)
                return entries, None if fault == NOTHING else fault
            damages.append(Damage(log.walked_to, following, fault))
            position = following

    def _about_the_end(self) -> int:
        """Where the zeros begin at the end of the last file, if nothing but zeros follows a zero page: for the progress only."""
        if not self.log.files:
            return 0
        last = self.log.files.files[-1]
        low, high = 0, last.segment.size // _LOOK
        while low < high:
            middle = (low + high) // 2
            if any(last.segment.read_cold(middle * _LOOK, _LOOK)):
                low = middle + 1
            else:
                high = middle
        return last.start + low * _LOOK

    def _dispatch(self, mark: EntryMark, begin: int, rebuilding: bool) -> str | None:
        """Hand on an entry; what is wrong with it if its place in its queue cannot be."""
        if mark.topic in self.known.deleted and mark.offset < self.known.deleted[mark.topic]:
            self.dispatcher.dispatch_mark(mark, None)
            return None
        inner = mark.sys_flag & _INNER_BATCH != 0
        queue = self.queues.find_or_make(mark.topic, mark.queue_id, batch=inner)
        if inner and not queue.is_batch:
            return None  # of a topic that was deleted, and made again as another kind
        index, expected = mark.queue_offset, queue.max_index
        if index != expected and not mark.sys_flag & _PREPARED:
            if not expected and not rebuilding and self._began_later(queue, mark):
                self.dispatcher.dispatch_mark(mark, None)
                return None
            if index > expected and self._explained(queue, index - expected, begin, rebuilding):
                queue.fill_gap(index, self._gap_offset(mark.topic))
            elif not expected and self._came_while_deleting(mark, begin):
                self.known.deleted[mark.topic] = mark.offset + mark.size
                self.dispatcher.dispatch_mark(mark, None)
                return None
            elif index == 0 and expected:  # as it was after a deletion that is not noted
                self.made_anew[mark.topic, mark.queue_id] = expected
                queue = self.queues.make_anew(queue)
            elif expected < index == self.made_anew.get((mark.topic, mark.queue_id)):
                queue.fill_gap(index, mark.offset)  # a recovery of an earlier release kept the old messages behind the new ones
            elif not self._begins_anew(queue, mark, begin):
                if not rebuilding:
                    text = f"its units end at {expected}, and the log goes on with {index} at {mark.offset}"
                    raise _QueueHoleError(f"topic={mark.topic} queue={mark.queue_id}: {text}")
                return f"it says that it is queue offset {index} of {mark.topic} queue {mark.queue_id}, which has {expected} before it"
        self.dispatcher.dispatch_mark(mark, queue)
        return None

    def _gap_offset(self, topic: str) -> int:
        """Where the last damage was, but not among the messages of a deleted topic: its units would look as if they were to go."""
        return max(self.damages[-1].start, self.known.deleted.get(topic, 0))

    def _came_while_deleting(self, mark: EntryMark, begin: int) -> bool:
        """Whether an entry that is not the first of its queue, and has none before it, belongs to a topic that was just being deleted: made
        anew, it would have begun with 0, behind the place of the deletion, and nothing that was not read or damaged may have been that."""
        deleted = self.known.deleted.get(mark.topic, -1)
        return begin <= deleted and all(damage.end <= deleted for damage in self.damages)

    def _began_later(self, queue: ConsumeQueue, mark: EntryMark) -> bool:
        """Whether the first message of the queue, by its own files, lies behind this entry, and is there: the entry is of a topic that was
        deleted and made anew, also where that is not noted."""
        offset, size = self.first_units.get((queue.topic, queue.queue_id), (0, 0))
        return offset > mark.offset and self._is_there(queue, 0, offset, size)

    def _explained(self, queue: ConsumeQueue, missing: int, begin: int, rebuilding: bool) -> bool:
        """Whether so many messages can lie in the damaged ranges behind the queue's last one."""
        start, made_anew = self.log.start, self.known.deleted.get(queue.topic)
        if not queue.max_index and start > 0 and begin == start and made_anew is None:
            return False  # its first messages were deleted with the log
        if begin > start and not rebuilding and not self.fitted and queue.ends_with_a_file:
            return False  # the files behind may have been taken away: the messages may all be there
        unit = queue.unit(queue.max_index - 1)
        after = unit[0] if unit is not None else max(begin, made_anew or 0)
        room = missing * queue.message_size_min
        for damage in reversed(self.damages):
            if damage.end <= after or room <= 0:
                break
            room -= damage.end - damage.start
        return room <= 0

    def _begins_anew(self, queue: ConsumeQueue, mark: EntryMark, begin: int) -> bool:
        """Whether the queue may go on with this entry although it does not follow its last unit: it is the first that the log still has;
        or its topic was deleted and made again, so that its offsets began with 0 once more."""
        index = mark.queue_offset
        if not queue.max_index:
            return begin == self.log.start
        if not queue.min_index <= index < queue.max_index:
            return False
        old, previous = queue.unit(index), queue.unit(index - 1)
        return old is not None and previous is not None and previous[0] > old[0]

    def _is_there(self, queue: ConsumeQueue, index: int, offset: int, size: int) -> bool:
        """Whether the log has, at ``offset``, the entry that unit ``index`` of the queue should point to, or no longer has it because
        its segment was deleted (not before the unit was on the disk)."""
        if offset < self.log.start:
            return True
        mark = self.log.entry_at(offset)
        return mark is not None and (mark.size, mark.topic, mark.queue_id, mark.queue_offset) == (
            size,
            queue.topic,
            queue.queue_id,
            index,
        )

    def _forget_derived(self) -> int:
        self.queues.rebuild()
        if self.index is not None:
            self.index.remove_all()
            self._lower_index_time(self.index)
        return self.log.start

    def _lower_index_time(self, index: KeyIndex) -> None:
        """Files are written anew, and may end elsewhere. RocketMQ: after a kill ``IndexService.load`` removes each that ends later than
        this, and fills it again from the segment that was begun before it on; keys of earlier messages in such a file would be lost.
        """
        if index.full_timestamp < self.checkpoint.index_timestamp:
            self.checkpoint.index_timestamp = index.full_timestamp
            self.checkpoint.write()

    def _derived_reach(self, begin: int) -> bool:
        """Whether queues and indexes have what is in the log before the place where reading begins."""
        if self.log.start == 0 and any(queue.min_index for queue in self.queues):
            return False
        if begin <= self.log.start:
            return True
        return self.derived_complete and (bool(self.known.places) or any(queue.max_index for queue in self.queues))

    def _begin_after_clean_stop(self) -> int:
        """The end of the last entry that a queue points to, if that entry is there and whole; else the start of its segment."""
        last = max((unit for queue in self.queues if (unit := queue.last_unit) is not None), default=None)
        if last is None:
            return self.log.start
        offset, size, _ = last
        mark = self.log.entry_at(offset)
        if mark is not None and mark.size == size:
            return offset + size
        file = self.log.files.at(offset)
        return file.start if file is not None else self.log.start

    def _begin_after_crash(self) -> int:
        for file in reversed(self.log.files.files):
            if self.checkpoint.safe_offset and file.start > self.checkpoint.safe_offset:
                continue
            mark = self.log.entry_at(file.start)
            if mark is not None and mark.store_timestamp <= self.checkpoint.safe_timestamp:
                return file.start
        return self.log.start
