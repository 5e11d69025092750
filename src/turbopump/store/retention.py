"""Retention: delete old segments at the front of the log, then the queue and index files of their
messages.

1. Deletion starts in an hour of ``deleteWhen``, if space is short (``disk_space.py``), or on
   request. Segments go that were last written ``fileReservedTime`` ago or earlier. If space is so
   short that deletion is forced, the oldest segments go at any age.
2. Segments are deleted one at a time, in order. Each removal is durable before the next begins, so
   a crash leaves no hole in the log. Three kinds of segments always stay. The last one stays.
   Segments stay whose queue units may not be on the disk, since an empty queue must keep its next
   offset. And segments with undelivered messages of the broker stay (``needed_from``).
3. Then queues begin at their first unit whose message is still in the log. Queue files with only
   older units are deleted, but never the last file of a queue. Index files are treated likewise.
   The new starts of queues and the list of index files are saved before any file is deleted, so
   that a later start does not take its absence for damage.

A file that a thread is reading stays open until the read ends (``Segment.hold``), although its name
is removed. Each step runs in a thread and then calls ``then``; the owner of the clock pauses
between steps. Source: apache/rocketmq ``CleanCommitLogService``, ``CleanConsumeQueueService``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.store.disk_space import SpaceLevel, SpaceWatch
from turbopump.store.flusher import Flusher
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import QueueEnds
from turbopump.store.roots import LogRoots

MANUAL_ROUNDS: Final = 20
"""Number of rounds that delete expired files after a manual request. RocketMQ:
``MAX_MANUAL_DELETE_FILE_TIMES``."""
QUEUES_AT_ONCE: Final = 32
"""Number of queues trimmed at a time. That lasts under 1 ms, or about 10 ms if their first units
must be read from the disk."""
QUEUE_FILES_AT_ONCE: Final = 50
"""Number of queue files deleted at a time."""


class NextStep(Enum):
    """Time at which the caller continues a deletion."""

    NOTHING = 0
    AT_ONCE = 1
    AFTER_A_PAUSE = 2


StepDone = Callable[[NextStep], None]


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Rules for deleting old files.

    - ``reserved_ms``: time in ms for which a segment is kept after its last write.
    - ``hours``: hours of the local day at which deletion starts.
    - ``forcibly``: True if the oldest segments may be deleted before their time when space is
      short.
    - ``batch_max``: largest number of segments deleted in one round.
    """

    reserved_ms: int = 72 * 3_600_000
    hours: frozenset[int] = frozenset({4})
    forcibly: bool = True
    batch_max: int = 10


@dataclass(slots=True, eq=False)
class Retention:
    """Deletes old segments of the log, and then the queue and index files of their messages.

    ``log_error`` gets a line for each failed deletion, ``log_info`` for each deleted segment.
    """

    disk: Disk
    clock: Clock
    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    rules: RetentionRules
    space: SpaceWatch
    flusher: Flusher
    roots: LogRoots
    queue_ends: QueueEnds
    log_error: Callable[[str], None]
    log_info: Callable[[str], None]
    needed_from: list[Callable[[], int | None]] = field(default_factory=list)
    """Functions that return the log offset of the first undelivered message (delays, timers), or
    None."""
    _manual_rounds: int = 0
    _deleted: int = 0
    _forced: bool = False
    _to_trim: list[ConsumeQueue] = field(default_factory=list)
    _doomed: list[tuple[ConsumeQueue, MappedFile]] = field(default_factory=list)
    _may_go: bool = False
    _trimmed_to: int = 0
    _trim_again: bool = False

    def request_deletion(self) -> None:
        """Let the next rounds of deletion delete expired files at any hour.

        RocketMQ: ``executeDeleteFilesManually``.
        """
        self._manual_rounds = MANUAL_ROUNDS

    def begin_round(self) -> bool:
        """Begin a round of deletion. Return False if nothing should be deleted now."""
        self._deleted = 0
        if self._trim_again:
            self._trim_again = False
            self._trimmed_to = 0
        asked = self._manual_rounds > 0
        self._manual_rounds = max(self._manual_rounds - 1, 0)
        hour = datetime.fromtimestamp(self.clock.now_ms() / 1000).hour
        return asked or hour in self.rules.hours or self.space.level >= SpaceLevel.CLEAN

    def delete_next(self, then: StepDone) -> None:
        """Delete the first segment of the log if the rules allow it, and then call ``then``."""
        # The file's time of last write decides, not the times of its messages, as in Apache's
        # broker. It comes from the file system, which may hang, so a thread reads it and writes the
        # record in ``turbopump.json``. The log may change meanwhile, so the first segment is
        # compared again after each step. A segment is forgotten only after its removal is reported,
        # because it can be read until then.
        files = self.log.files.files
        self._forced = self.rules.forcibly and self.space.level >= SpaceLevel.CLEAN_FORCIBLY
        if (
            len(files) < 2
            or self._deleted >= self.rules.batch_max
            or files[0].end > min(self.flusher.synced, self._first_needed_offset())
        ):
            then(NextStep.NOTHING)
            return
        first = files[0]
        due = self.clock.now_ms() - self.rules.reserved_ms
        old: list[bool] = []

        def look() -> None:
            if self._forced or self.disk.modified_ms(first.segment.path) <= due:
                self.roots.before_deleting(first)
                self.roots.note_start(first.end)
                old.append(True)

        def looked(error: OSError | None) -> None:
            if error is not None:
                self.log_error(f"{first.segment.path} is not deleted: {error}")
            if not old or files[:1] != [first]:
                then(NextStep.NOTHING)
                return
            self.disk.start_remove([first.segment], removed)

        def removed(gone: int, error: OSError | None) -> None:
            if error is not None:
                self.log_error(
                    f"{first.segment.path} cannot be deleted ({error.strerror or error}): trying "
                    "again with the next round"
                )
            if gone and files[:1] == [first]:
                self.log.files.forget_first()
                self._deleted += 1
                why = "space is short" if self._forced else "older than fileReservedTime"
                self.log_info(
                    f"deleted {first.segment.path}, {why}; the log begins at {self.log.start}"
                )
            then(NextStep.AFTER_A_PAUSE if gone and error is None else NextStep.NOTHING)

        self.disk.start(look, looked)

    def _first_needed_offset(self) -> int:
        return min(
            (offset for ask in self.needed_from if (offset := ask()) is not None),
            default=self.log.end,
        )

    def trim_next(self, then: StepDone) -> None:
        """Adapt some queues to the new start of the log, or delete some of their files.

        Each call does a part of the work, and then calls ``then``. The last one deletes index
        files.
        """
        # Each call does one step, in this order: set the starts of queues, save them, delete files.
        # A start that finds a queue without its first file, and no record of that, takes it for a
        # loss and writes all queues again. If the save fails, no file goes, and the next round
        # tries again.
        if self.log.start > self._trimmed_to:
            self._trimmed_to = self.log.start
            self._to_trim = list(self.queues)
            self._doomed = []
            self._may_go = False
        start = self._trimmed_to
        turn = self._to_trim[:QUEUES_AT_ONCE]
        self._to_trim = self._to_trim[QUEUES_AT_ONCE:]
        for queue in turn:
            queue.raise_min(start)
            self._doomed.extend((queue, file) for file in queue.files_before(start))
        if turn:
            then(NextStep.AT_ONCE)
        elif self._doomed and not self._may_go:
            self.queue_ends.save_firsts(lambda good: self._noted_firsts(good, then))
        elif self._doomed:
            self._remove_queue_files(then)
        else:
            self._trim_indexes(start, then)

    def _noted_firsts(self, good: bool, then: StepDone) -> None:
        self._may_go = good
        if not good:  # ``QueueEnds`` has reported it
            self._doomed.clear()
            self._trim_again = True
        then(NextStep.AT_ONCE)

    def _remove_queue_files(self, then: StepDone) -> None:
        taken = self._doomed[:QUEUE_FILES_AT_ONCE]
        self._doomed = self._doomed[QUEUE_FILES_AT_ONCE:]
        # A queue deleted meanwhile has no files. One created again has other files of the same
        # names.
        batch = [
            (queue, file)
            for queue, file in taken
            if self.queues.find(queue.topic, queue.queue_id) is queue
        ]

        def removed(gone: int, error: OSError | None) -> None:
            for queue, file in batch[:gone]:
                queue.forget_first(file)
            if error is not None:
                self.log_error(f"files of queues cannot be deleted: {error}")
            then(NextStep.AFTER_A_PAUSE)

        self.disk.start_remove([file.segment for _, file in batch], removed)

    def _trim_indexes(self, start: int, then: StepDone) -> None:
        index = self.index
        dropped = index.take_before(start) if index is not None else []
        if index is None or not dropped:
            then(NextStep.NOTHING)
            return

        def removed(_gone: int, error: OSError | None) -> None:
            for file in dropped:
                file.segment.close()
            if error is not None:
                self.log_error(
                    f"index files cannot be deleted, the next start tries again: {error}"
                )
            then(NextStep.NOTHING)

        def noted(error: OSError | None) -> None:
            if error is not None:
                self.log_error(
                    "the list of index files cannot be saved, and the next start fills "
                    f"the index again: {error}"
                )
            self.disk.start_remove([file.segment for file in dropped], removed)

        self.disk.start(index.note_names, noted)
