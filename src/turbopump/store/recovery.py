"""Opening a store: where the log ends, what of it is damaged, and queues and indexes that agree
with it.

1. Queues and indexes are loaded and their last entries found.
2. Where to begin reading the log: after a clean stop behind the last entry a queue points to; after
   a crash at the newest segment whose first message is older than the checkpoint (it was on the
   disk, in the log, the queues and the indexes), and not behind the offset that our own part of the
   checkpoint vouches for (store times go back when the wall clock does); at the start of the log if
   derived files are missing.
3. Queues and indexes are cut there: what they say of messages behind it may never have reached the
   disk. Every entry from there on is checked and handed to the dispatcher, which writes it to them
   again.
4. A bad entry with a good one somewhere behind it is damage: the range is set apart, its queues get
   gaps, and reading goes on behind it (``good_entries.py``). A bad entry with nothing good behind
   it is a torn tail: the log ends there, and everything is cut to it.
5. What was recovered after a crash may be in the page cache only (the process was killed, the
   machine was not), and what was cut off is still on the disk: both count as dirty, so that the
   store syncs them before it says what is flushed.
6. Derived files are disposable. Where queues ended, and which begin where, was noted at some places
   of the log (``queue_ends.py``): reading begins at the newest such place, not behind that of 2, at
   which every queue, once cut there, ends as it did; and having read, no queue may end before the
   newest place that the log reaches. A queue that lacks units, or whose files do not belong
   together, or a count of units that is not the one noted at the clean stop, makes recovery begin
   anew, with empty queues and indexes, at the start of the log. An entry that fits into no queue
   even then is damage (``entry_placement.py``). A queue of which the log has no message goes on
   where it ended. Where nothing is known after a crash (what was noted is lost, or another program
   had the store), the log before 2 is read as well, and no queue may end before its last message
   there, or begin behind its first (``queue_comparison.py``). So it is after a clean stop of ours
   if the checkpoint is lost.

Source of the file rules: apache/rocketmq ``CommitLog.recoverNormally`` / ``recoverAbnormally``;
Apache ends the log at the first bad entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from turbopump.store.batch_consume_queue import BatchConsumeQueue
from turbopump.store.checkpoint import Checkpoint
from turbopump.store.commit_log import NOTHING, CommitLog
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.entry_placement import EntryPlacement, QueueHoleError, is_there
from turbopump.store.good_entries import Damage, good_entries
from turbopump.store.index_reach import begin_for_index
from turbopump.store.key_index import KeyIndex
from turbopump.store.queue_comparison import lacking_queue, late_queue, outermost_messages
from turbopump.store.queue_ends import KnownEnds, deletions_since, wrong_end


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found. Offsets in bytes of the log; ``torn`` says what was wrong where the log
    now ends, None if nothing was; ``misfit`` which queue was not as it should have been, so that
    more was read again; ``compared`` up to where the log was read only to be compared with the
    queues, None if it was not."""

    clean: bool
    begun_at: int
    log_end: int
    entries: int
    rebuilt: bool
    damages: tuple[Damage, ...] = ()
    torn: str | None = None
    misfit: str | None = None
    compared: int | None = None


@dataclass(slots=True)
class Recovery:
    """The parts of a loaded store that recovery brings together. ``index`` None: nothing is
    indexed.

    ``derived_complete`` False: index files are known to be missing, so that the whole log must be
    read. ``index_synced`` False: the crashed program does not sync its index with the checkpoint
    (Apache's only syncs full files). ``on_progress`` gets (offset reached, about where the log
    ends) when reading begins, every few MiB, and when it has ended. ``known``: where queues ended.
    ``stopped_here``: the clean stop was ours.
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
    misfit: str | None = None
    fitted: bool = False
    """Whether all queues were found to end, where reading begins, as they did when the log was
    there."""
    compared: int | None = None
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
                reading = self._reading(begin, rebuilding=False)
                entries, torn = self._redispatch(reading)
                self._settle_ends(reading, {})
                end = log.walked_to
                self._compare_queues(reading)
        except QueueHoleError as hole:
            rebuilt, self.misfit = True, str(hole)
        if rebuilt:
            emptied = self._emptied_queues()
            begin = self._forget_derived()
            reading = self._reading(begin, rebuilding=True)
            entries, torn = self._redispatch(reading)
            self._settle_ends(reading, emptied)
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
        return RecoveryReport(
            self.clean,
            begin,
            end,
            entries,
            rebuilt,
            tuple(reading.damages),
            torn,
            self.misfit,
            self.compared,
        )

    def _where_queues_fit(self, begin: int) -> int:
        """``begin``, or the place before it from which on the queues must be written again, so that
        each goes on where it did; they are cut there. Raises QueueHoleError if no place is known at
        which they fit, although some are."""
        if self.queues.damaged:
            raise QueueHoleError("the files of a queue do not belong together")
        fault = self.known.lost_front(self.queues)
        if fault is not None:
            raise QueueHoleError(fault)
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
            raise QueueHoleError(self.misfit)
        if not self.known.places:
            self._cut_queues(begin)
            for queue in self.queues:
                if isinstance(queue, BatchConsumeQueue) and queue.tail_damaged:
                    text = "its last units are damaged, and where it ended is not known"
                    raise QueueHoleError(f"topic={queue.topic} queue={queue.queue_id}: {text}")
        return begin

    def _settle_ends(self, reading: EntryPlacement, emptied: dict[tuple[str, int], int]) -> None:
        """No queue ends before it did when the log was at the newest place known: what is missing
        was damaged in the log, or is no longer in it. ``emptied`` is where queues ended that the
        log had no message of. Raises QueueHoleError, but not where the queues are rebuilt: then the
        log is right.
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
            if reading.damages and reading.explained(queue, end - found):
                queue.fill_gap(end, reading.gap_offset(topic))
            elif not reading.rebuilding:
                raise QueueHoleError(
                    wrong_end(
                        topic, queue_id, found, end, place.at if place is not None else log.start
                    )
                )
            elif found and reading.made_anew.get((topic, queue_id), 0) >= end:
                queue.fill_gap(end, (queue.unit(found - 1) or (log.start,))[0])
            elif not found and log.start and queue.is_batch:
                queue.fill_gap(end, 0)
            elif not found and log.start:
                queue.begin_empty_at(end)
        if (
            self.clean
            and not reading.rebuilding
            and log.walked_to == clean_end
            and self.queues.units != self.checkpoint.queue_units
        ):
            text = (
                f"queues have {self.queues.units} units, and had "
                f"{self.checkpoint.queue_units} at the clean stop"
            )
            raise QueueHoleError(text)

    def _compare_queues(self, reading: EntryPlacement) -> None:
        """Where no place is known after a crash, or after a clean stop of ours whose checkpoint is
        lost, see that no queue ends before its last message in the log before where that was read,
        or begins behind its first. Raises QueueHoleError.

        It costs reading that part of the log (RocketMQ does not look there), once: then a place is
        noted. To begin at the log's start instead would write messages of deleted topics again,
        whose deletion is not known either.
        """
        begin = reading.begin
        told = self.clean and not (
            self.stopped_here and self.checkpoint.log_end != self.log.walked_to
        )
        if told or begin <= self.log.start or self.known.newest(self.log.walked_to) is not None:
            return
        self.compared = begin
        first, last, old = outermost_messages(
            self.log, begin, self.known.deleted, self.first_units, self.on_progress
        )
        deleted: dict[str, int] = {}
        for mark in old.values():
            queue = self.queues.find(mark.topic, mark.queue_id)
            if queue is not None and reading.began_later(queue, mark):
                deleted[mark.topic] = max(mark.offset, deleted.get(mark.topic, 0))
        fault = lacking_queue(last, self.queues, deleted) or late_queue(first, self.queues)
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
        there = partial(is_there, self.log)
        for queue in self.queues:
            queue.cut_at(offset, there)

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

    def _reading(self, begin: int, *, rebuilding: bool) -> EntryPlacement:
        return EntryPlacement(
            self.log,
            self.queues,
            self.dispatcher,
            self.known,
            self.first_units,
            begin,
            rebuilding,
            self.fitted,
        )

    def _redispatch(self, reading: EntryPlacement) -> tuple[int, str | None]:
        """Dispatch every good entry: (how many, what is wrong behind the last). Raises
        QueueHoleError."""
        log, damages, entries = self.log, reading.damages, 0
        for mark in good_entries(log, reading.begin, self.on_progress, damages.append):
            fault = reading.dispatch(mark)
            if fault is None:
                entries += 1
            else:
                damages.append(Damage(mark.offset, mark.offset + mark.size, fault))
        return entries, None if log.fault == NOTHING else log.fault

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
        """Whether queues and indexes have what is in the log before the place where reading
        begins."""
        if self.log.start == 0 and any(queue.min_index for queue in self.queues):
            return False
        if begin <= self.log.start:
            return True
        return self.derived_complete and (
            bool(self.known.places) or any(queue.max_index for queue in self.queues)
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
        mark = self.log.entry_at(offset)
        if mark is not None and mark.size == size:
            return offset + size
        starts = [file.start for file in self.log.files if file.start <= offset]
        return next(
            (start for start in reversed(starts) if self.log.entry_at(start) is not None),
            self.log.start,
        )

    def _begin_after_crash(self) -> int:
        for file in reversed(self.log.files.files):
            if self.checkpoint.safe_offset and file.start > self.checkpoint.safe_offset:
                continue
            mark = self.log.entry_at(file.start)
            if mark is not None and mark.store_timestamp <= self.checkpoint.safe_timestamp:
                return file.start
        return self.log.start
