"""Archive of topics in a lake, exactly once.

The table is the checkpoint. Each batch begins at the offsets in the table, reads up to offsets
chosen in advance, and is committed together with its end offsets. So a batch that was killed was
either complete, or is repeated. There is no state beside the table.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from turbopump.errors import (
    ConfigError,
    DataLossError,
    LakeError,
    LakeInUseError,
    OffsetGapError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
    TurbopumpError,
)
from turbopump.message.message import MessageQueue
from turbopump.spark import planning
from turbopump.spark.offsets import Offsets, admit
from turbopump.spark.options import BODY_FAULT, COLUMN_NAMES, read_options
from turbopump.spark.pipelines import made_again
from turbopump.spark.pipelines.lake import (
    DATA,
    FORMATS,
    REJECTED,
    ArchivedRanges,
    Bodies,
    DataFile,
    Definition,
    Lake,
    LakeBatch,
    Snapshot,
    check_shape,
    create_or_open,
    definition_at,
    lake_place,
    no_step,
    open_lake,
    staged_name,
)
from turbopump.spark.pipelines.running import RowProgress, error_inside
from turbopump.spark.pipelines.writing import (
    REPORT_COLUMN,
    Fetching,
    FileWriting,
    TaskReport,
    check_names,
    checked_columns,
)
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH: Final = 500_000
"""Maximum rows of a batch: about ten seconds of work, which is repeated after a kill."""
COMPACT_FROM: Final = 16
COMPACT_TARGET: Final = 128 << 20
"""Target size of a compacted file in bytes. A partition is compacted when it has ``COMPACT_FROM``
files smaller than half of this."""
COMPACT_EVERY_S: Final = 3600
"""Seconds between two compactions in a run that follows its topics; other runs compact at their
end."""
ATTEMPTS: Final = 4
"""Attempts of a batch while brokers cannot be reached; each attempt waits for them as the source
does."""

_CHOOSING: Final = (
    "assigned",
    "topic_pattern",
    "starting",
    "ending",
    "starting_timestamp_ms",
    "ending_timestamp_ms",
    "starting_timestamps",
    "ending_timestamps",
    "starting_group",
    "tags",
    "sql_filter",
    "columns",
    "broker_offline",
)
"""Fields of source options that would leave messages out."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ArchiveReport:
    """Result of a run.

    - ``messages``: number of archived offsets.
    - ``rows``, ``rejected``: rows in the files of this run.
    - ``lost``: messages that the broker no longer had.
    - ``lake_messages``, ``lake_rows``: the same for the whole lake.
    """

    messages: int
    rows: int
    rejected: int
    lost: int
    batches: int
    files_compacted: int
    lake_messages: int
    lake_rows: int
    version: int
    seconds: float
    stopped: bool
    restarted: tuple[str, ...] = ()
    """Queues that began another generation, each as ``T@broker-a:0``."""
    rejected_allowed: bool = True
    """False if more rows were rejected than ``max_rejected`` allows."""

    @property
    def agrees(self) -> bool:
        """True if the number of rows matches the offsets."""
        return (
            self.rows + self.rejected + self.lost == self.messages
            and self.lake_rows == self.lake_messages
        )

    @property
    def ok(self) -> bool:
        """True if the counts agree, and not too many rows were rejected."""
        return self.agrees and self.rejected_allowed


def archive(
    lake: str | Path,
    topics: Sequence[str],
    *,
    name_server: str,
    spark: SparkSession | None = None,
    format: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
    bodies: Bodies | None = None,
    starting: str | int = "earliest",
    rows_per_batch: int = ROWS_PER_BATCH,
    follow: bool = False,
    interval: float = 10.0,
    compact: bool = True,
    fail_on_data_loss: bool = True,
    restart_queues: bool = False,
    max_rejected: int | str | None = None,
    options: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    progress: RowProgress | None = None,
    at_step: Callable[[str], None] = no_step,
) -> ArchiveReport:
    """Append the messages of ``topics`` that ``lake`` lacks, up to their present end. With
    ``follow``, continue until ``stop`` is set.

    - ``lake``: a directory that is the same for driver and executors.
    - ``format``, ``columns``, ``bodies``: definition of a new lake: ``parquet`` or ``delta``,
      columns of the source, and ``json_bodies`` or ``avro_bodies``. An existing lake has its own.
    - ``starting``: start of a queue that the lake does not know: ``earliest``, ``latest`` or a time
      in ms. ``latest`` is the queue's end in the first run, and the lake stores that offset. A new
      queue of a known topic is then read from its first message.
    - ``interval``: seconds between two batches if there is nothing to read.
    - ``options``: further options of the source, such as credentials.
    - ``restart_queues``: begin another generation of a queue that was deleted and made again, or
      lost its end.
    - ``max_rejected``: maximum rejected rows for ``report.ok``: a number, or a share such as
      ``"5%"``. By default, ``ok`` is false only if all rows were rejected.

    Without ``restart_queues``, a queue that was made again is left out, and so is a missing topic;
    the others continue. The run then raises DataLossError or RouteNotFoundError at its end.

    Raises LakeInUseError, OffsetGapError and LakeError. Raises ConfigError for an invalid argument,
    DataLossError if messages are lost and ``fail_on_data_loss``, and RemotingError if no broker
    answers.
    """
    root = lake_place(lake)
    rejects = rejected_limit(max_rejected)
    if rows_per_batch < 1:
        raise ConfigError(f"rows_per_batch is {rows_per_batch}: expected 1 or more")
    definition = _definition(root, format, columns, bodies)
    run = ArchiveRun(
        topics=sorted(set(_texts(topics))),
        options={**(options or {}), "nameServer": name_server},
        starting=starting,
        follow=follow,
        fail_on_data_loss=fail_on_data_loss,
        restart_queues=restart_queues,
        at_step=at_step,
    )
    stop = stop or threading.Event()
    progress = progress or RowProgress()
    began = time.monotonic()
    run.check()
    run.spark = spark or rocketmq_session()
    with run.cluster, run.opened(root, definition) as run.lake:
        snapshot = run.counted_to = run.lake.snapshot()
        compacted_at = began
        target: Offsets | None = None
        while not stop.is_set():
            begins: Offsets = {}
            try:
                if follow or target is None:
                    snapshot, target = run.look(snapshot)
                begins, ends = run.plan(snapshot, target, rows_per_batch, progress)
                if begins:
                    at_step("planned")
                    snapshot = run.archive_batch(snapshot, begins, ends, progress)
            except (RemotingError, RouteNotFoundError) as error:
                if not (follow and _was_away(type(error))):
                    raise
                _log.warning("%s; the archive continues when it is back", error)
                stop.wait(interval)
                continue
            if not begins and not follow:
                break
            if compact and follow and time.monotonic() - compacted_at >= COMPACT_EVERY_S:
                snapshot, compacted_at = run.compacted(snapshot), time.monotonic()
            if not begins:
                stop.wait(interval)
        stopped = stop.is_set() and not follow
        run.count_rows(snapshot)
        if compact:
            snapshot = run.compacted(snapshot)
    run.raise_fault()
    return ArchiveReport(
        messages=run.messages,
        rows=run.rows[DATA],
        rejected=run.rows[REJECTED],
        lost=run.lost,
        batches=run.batches,
        files_compacted=run.files_compacted,
        lake_messages=snapshot.messages,
        lake_rows=snapshot.rows(),
        version=snapshot.version,
        seconds=time.monotonic() - began,
        stopped=stopped,
        restarted=tuple(map(str, sorted(run.restarted))),
        rejected_allowed=rejects(run.rows[DATA], run.rows[REJECTED]),
    )


def rejected_limit(text: int | str | None) -> Callable[[int, int], bool]:
    """Return a function that checks the good and rejected rows of a run. The limit is a number of
    rejected rows or a share of all rows. By default, the check fails only if all rows were
    rejected. Raises ConfigError."""
    if text is None:
        return lambda good, rejected: good > 0 or rejected == 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(text), re.ASCII)
    most = float(found[1]) if found else -1
    if found is None or (not found[2] and "." in found[1]) or (found[2] and most > 100):
        raise ConfigError(
            f"max_rejected is {text!r}: expected a number of rows, or a share such as 5%"
        )
    if found[2]:
        return lambda good, rejected: rejected * 100 <= most * (good + rejected)
    return lambda _, rejected: rejected <= most


def compact(lake: str | Path, *, files_min: int = 2, size_target: int = COMPACT_TARGET) -> int:
    """Merge small files in each partition that has at least ``files_min`` of them. Return by how
    many the number of files has decreased. Raises LakeError and LakeInUseError."""
    opened = open_lake(lake_place(lake))
    with opened.writing():
        return opened.compact(files_min=files_min, size_target=size_target)


def _definition(
    root: Path,
    format: str | None,  # noqa: A002
    columns: Sequence[str] | None,
    bodies: Bodies | None,
) -> Definition:
    """Return the definition of the lake. Arguments that are None keep the existing lake's value, or
    the default."""
    there = definition_at(root)
    usual = there or Definition(format="parquet", columns=COLUMN_NAMES)
    wanted = Definition(
        format=format or usual.format,
        columns=checked_columns(_texts(columns)) if columns is not None else usual.columns,
        bodies=bodies or usual.bodies,
    )
    if wanted.format not in FORMATS:
        raise ConfigError(f"unknown format {format!r}: use {' or '.join(FORMATS)}")
    if wanted.bodies is not None and "body" not in wanted.columns:
        raise ConfigError("bodies become columns only where the column body is read")
    if there is None:
        check_names(wanted)
    else:
        check_shape(root, there, wanted)
    return wanted


def _texts(given: Sequence[str]) -> tuple[str, ...]:
    """Return a list of names, which may be given as one text with commas."""
    return tuple(given.split(",") if isinstance(given, str) else given)


def _was_away(kind: type[Exception] | None) -> bool:
    """Return True for an error that means that no broker or no name server was reachable."""
    if kind is None or issubclass(kind, ResponseError):
        return False
    return issubclass(kind, (RemotingError, RouteNotFoundError))


class ArchiveRun:
    """State of one run of ``archive``."""

    spark: SparkSession
    lake: Lake
    counted_to: Snapshot
    """Version up to which the rows of all files are counted."""

    def __init__(
        self,
        *,
        topics: list[str],
        options: dict[str, str],
        starting: str | int,
        follow: bool,
        fail_on_data_loss: bool,
        restart_queues: bool,
        at_step: Callable[[str], None],
    ) -> None:
        self.topics = topics
        self.follow = follow
        self.absent: frozenset[MessageQueue] = frozenset()
        self.restart_queues = restart_queues
        self.faults: dict[str, TurbopumpError] = {}
        """Faults of topics and queues that are left out, by name."""
        self.changed: set[MessageQueue] = set()
        """Queues that were made again, so the lake's rows are of other messages."""
        self.behind: set[MessageQueue] = set()
        """Queues whose slave has less than the lake, after the warning about it."""
        self.compared: set[MessageQueue] = set()
        """Queues whose newest row matches the broker's message. A queue that disappears is compared
        again when it returns."""
        self.renamed: dict[MessageQueue, int | None] = {}
        """First offsets of queues that are in the lake under another broker's name."""
        self.restarted: set[MessageQueue] = set()
        self.options = {**options, "failOnDataLoss": str(fail_on_data_loss).lower()}
        self.starting = starting
        self.fail_on_data_loss = fail_on_data_loss
        self.at_step = at_step
        self.messages = self.lost = self.batches = self.files_compacted = 0
        self.rows = {DATA: 0, REJECTED: 0}
        self.known = read_options({**self.options, "topic": ",".join(topics) or "-"})
        self.cluster = connected(self.known)

    def check(self) -> None:
        """Raise ConfigError for invalid arguments."""
        if not self.topics:
            raise ConfigError("an archive needs a topic at least")
        plain = read_options({"nameServer": self.options["nameServer"], "topic": "-"})
        chosen = [name for name in _CHOOSING if getattr(self.known, name) != getattr(plain, name)]
        if chosen:
            raise ConfigError(
                "an archive has every message of its topics: options can say how to "
                f"reach and read brokers, but cannot select messages ({', '.join(chosen)})"
            )
        if isinstance(self.starting, str) and self.starting not in ("earliest", "latest"):
            raise ConfigError(
                f"starting is {self.starting!r}: expected earliest, latest or a time in ms"
            )

    @contextmanager
    def opened(self, root: Path, definition: Definition) -> Iterator[Lake]:
        """Open the lake for writing, and create it if necessary. No lake is created while no topic
        exists, unless the run waits for topics."""
        if definition_at(root) is None and not self._queues({}) and not self.follow:
            self.raise_fault()
        lake = create_or_open(root, definition)
        with lake.writing():
            yield lake

    def raise_fault(self) -> None:
        """Raise the first fault of a queue or topic that was left out, and log the others."""
        first, *others = self.faults.values() or [None]
        for fault in others:
            _log.error("%s", fault)
        if first is not None:
            if self.messages:
                first.add_note(f"{self.messages:,} messages of the others were archived")
            raise first

    def _queues(self, ranges: ArchivedRanges) -> list[MessageQueue]:
        """Return the queues of all existing topics. A missing topic is a fault, except for one in
        the lake if the run follows its topics or may lose messages."""
        found: list[MessageQueue] = []
        known = {queue.topic for queue in ranges}
        for topic in self.topics:
            try:
                found += self.cluster.queues(topic)
            except RouteNotFoundError as error:
                if topic in known and (self.follow or not self.fail_on_data_loss):
                    continue  # _look_for_absent reports it
                self._leave_out(topic, error)
            else:
                self.faults.pop(topic, None)
        return found

    def _leave_out(self, name: str, fault: TurbopumpError) -> None:
        """Record the fault of a topic or queue that is left out. A run that follows its topics may
        never end, so the fault is logged at once."""
        if self.follow and name not in self.faults:
            _log.error("%s; the others continue", fault)
        self.faults[name] = fault

    def look(self, snapshot: Snapshot) -> tuple[Snapshot, Offsets]:
        """Return the lake's state and the present ends of all readable queues. If
        ``restart_queues`` is set, queues that were made again begin another generation."""
        ends = self._ends(snapshot)
        if self.restart_queues and self.changed:
            snapshot = self._restart(snapshot, ends)
        return snapshot, {queue: end for queue, end in ends.items() if queue not in self.changed}

    def _ends(self, snapshot: Snapshot) -> Offsets:
        found = self.cluster.offsets_max(self._queues(snapshot.ranges))
        self._look_for_absent(snapshot, found)
        self.compared &= found.keys()
        self.changed.clear()
        same = set[MessageQueue]()
        for queue, end in list(found.items()):
            there = snapshot.ranges.get(queue)
            if there is None:
                self._look_for_old_name(snapshot, queue, end)
            elif there.end <= end:
                same.add(queue)
            elif self.cluster.is_read_from_slave(queue):
                del found[queue]
                if queue not in self.behind:
                    text = "the master of %s is away, and its slave has less than the lake"
                    _log.warning(text, queue)
                self.behind.add(queue)
            else:
                self._change(queue, f"ends at {end}, but the lake has it up to {there.end} already")
        differing = made_again.changed_queues(
            self.cluster, self.lake, snapshot, same - self.compared
        )
        for queue, offset in differing.items():
            self._change(queue, f"has another message at offset {offset} than the lake")
        self.compared |= same - differing.keys()
        for queue in found.keys() - self.changed:
            self.faults.pop(str(queue), None)
        return found

    def _change(self, queue: MessageQueue, what: str) -> None:
        self.changed.add(queue)
        if not self.restart_queues:
            fault = DataLossError(
                f"{queue} {what}: the topic or broker was deleted and made again, or lost "
                "its end. Use --restart-queue (restart_queues) to begin another "
                "generation of the queue"
            )
            self._leave_out(str(queue), fault)

    def _restart(self, snapshot: Snapshot, ends: Offsets) -> Snapshot:
        """Begin another generation of the changed queues. It begins after the last message that
        lake and broker have in common, else at the first message."""
        mins = self.cluster.offsets_min(self.changed)
        begins: Offsets = {}
        for queue in sorted(self.changed):
            there = snapshot.ranges[queue]
            low, high = max(there.begin, mins[queue]), min(there.end, ends[queue])
            at = made_again.first_difference(
                self.cluster, self.lake, snapshot, queue, low, max(low, high)
            )
            begins[queue] = at if at > low else mins[queue]
            text = "%s was made again, or lost its end; generation %d begins at offset %d"
            _log.warning(text, queue, there.generation + 1, begins[queue])
        snapshot = self.lake.restart(snapshot, begins)
        self.restarted |= self.changed
        self.changed.clear()
        return snapshot

    def _look_for_old_name(self, snapshot: Snapshot, queue: MessageQueue, end: int) -> None:
        """Look for the messages of a new queue in the lake under another broker's name, because a
        broker may have been renamed together with its store."""
        if queue in self.renamed or not made_again.tells_brokers_apart(self.lake):
            return
        self.renamed[queue] = None
        alike = {
            old: min(there.end, end) - 1
            for old, there in snapshot.ranges.items()
            if (old.topic, old.queue_id) == (queue.topic, queue.queue_id)
            and there.begin < min(there.end, end)
        }
        columns = made_again.columns_of(self.lake)
        rows = made_again.rows_at(self.lake, snapshot, alike)
        for old in sorted(rows, key=alike.__getitem__):
            if rows[old] == made_again.message_at(self.cluster, queue, alike[old], columns):
                self.renamed[queue] = alike[old] + 1
                _log.warning(
                    "%s has the messages of %s, which the lake has up to offset %d: the broker was "
                    "renamed. The queue is read from there on",
                    queue, old, alike[old] + 1,
                )  # fmt: skip

    def plan(
        self, snapshot: Snapshot, ends: Offsets, rows_max: int, progress: RowProgress
    ) -> tuple[Offsets, Offsets]:
        """Return the begins and ends of the next batch; empty if there is nothing to read.

        Queues that begin at their end come first, as a batch of their own without messages. That
        batch stores their offset in the lake, so that later messages are read.
        """
        begins = {queue: self._begin(snapshot, queue, end) for queue, end in ends.items()}
        progress.expect(sum(max(0, end - begins[queue]) for queue, end in ends.items()))
        unfinished = {
            queue: end for queue, end in (snapshot.unfinished or {}).items() if queue in ends
        }
        if unfinished:
            known = {queue: archived.end for queue, archived in snapshot.ranges.items()}
            return {
                queue: known.get(queue, min(begins[queue], end))
                for queue, end in unfinished.items()
            }, unfinished
        at_end = {
            queue: end
            for queue, end in ends.items()
            if queue not in snapshot.ranges
            and begins[queue] == end
            and (self.starting == "latest" or self.renamed.get(queue) is not None)
        }
        if at_end:
            return at_end, at_end
        ends = admit(begins, ends, rows_max)
        read = [queue for queue, end in ends.items() if begins[queue] < end]
        return {queue: begins[queue] for queue in read}, {queue: ends[queue] for queue in read}

    def archive_batch(
        self, before: Snapshot, begins: Offsets, ends: Offsets, progress: RowProgress
    ) -> Snapshot:
        """Read, write and commit one batch."""
        if begins == ends:
            return self.lake.append(
                before, LakeBatch(begins=begins, ends=ends, lost={}, files=()), self.at_step
            )
        staging = str(self.lake.staging.absolute())
        stem = staged_name(f"{before.version + 1:08d}")
        writing = FileWriting(staging, stem, self.lake.definition, before.generations)
        reports = self._patiently(lambda: self._job(begins, ends, writing).collect())
        tasks = [msgspec.json.decode(row[REPORT_COLUMN], type=TaskReport) for row in reports]
        lost = self._missing(tasks, begins, ends)
        files = tuple(file for task in tasks for file in task.files)
        self._check_files(files)
        self.at_step("written")
        batch = LakeBatch(begins=begins, ends=ends, lost=lost, files=files)
        after = self.lake.append(before, batch, self.at_step)
        count = sum(ends[queue] - begins[queue] for queue in ends)
        self.messages += count
        self.lost += sum(lost.values())
        self.batches += 1
        progress.add(count)
        return after

    def _job(self, begins: Offsets, ends: Offsets, writing: FileWriting) -> DataFrame:
        """Return a Spark job that reads and writes the messages between two sets of offsets. Its
        rows are task reports."""
        definition = self.lake.definition
        columns = definition.columns
        if definition.bodies is not None and BODY_FAULT not in columns:
            columns = (*columns, BODY_FAULT)
        options = replace(
            self.known,
            columns=columns,
            partitions_max=self.known.partitions_max or _parallelism(self.spark),
        )
        tasks = planning.tasks(begins, ends, options)
        numbers = self.spark.range(0, len(tasks), 1, len(tasks))
        return numbers.mapInArrow(Fetching(tasks, options, writing), f"{REPORT_COLUMN} string")

    def _begin(self, snapshot: Snapshot, queue: MessageQueue, end: int) -> int:
        there = snapshot.ranges.get(queue)
        if there is not None:
            return there.end
        renamed = self.renamed.get(queue)
        if renamed is not None:
            return renamed
        if isinstance(self.starting, int):
            return min(end, self.cluster.offset_at(queue, self.starting))
        is_new_topic = all(known.topic != queue.topic for known in snapshot.ranges)
        if self.starting == "latest" and is_new_topic:
            return end
        return self.cluster.offset_min(queue)

    def _look_for_absent(self, snapshot: Snapshot, found: Offsets) -> None:
        """Log queues of the lake that have no broker now, once. Record a fault for queues that no
        longer exist."""
        present = {(queue.topic, queue.broker_name) for queue in found}
        absent = snapshot.ranges.keys() - found.keys()
        was_absent, self.absent = self.absent, frozenset(absent)
        for queue in sorted(absent):
            if queue.topic not in self.topics:
                continue
            if (queue.topic, queue.broker_name) not in present:
                if queue not in was_absent:
                    _log.warning("%s is not in the route now; the others continue", queue)
            elif self.fail_on_data_loss:
                fault = DataLossError(
                    f"{queue} no longer exists, because its topic has fewer queues now: "
                    "use --skip-lost (fail_on_data_loss) to continue without it"
                )
                self._leave_out(str(queue), fault)

    def _missing(
        self, tasks: list[TaskReport], begins: Offsets, ends: Offsets
    ) -> dict[MessageQueue, int]:
        """Count the missing messages of each queue. Raises OffsetGapError for a queue whose rows do
        not match its offsets."""
        rows: dict[MessageQueue, int] = defaultdict(int)
        for task in tasks:
            for each in task.queues:
                queue = MessageQueue(each.topic, each.broker_name, each.queue_id)
                within = begins.get(queue, 0) <= each.offset_min <= each.offset_max
                if not within or each.offset_max >= ends.get(queue, 0):
                    raise OffsetGapError(
                        f"{queue}: rows of the offsets {each.offset_min} to {each.offset_max} were "
                        f"written, which were not asked for; nothing was committed"
                    )
                rows[queue] += each.rows
        missing = {queue: ends[queue] - begins[queue] - rows[queue] for queue in ends}
        wrong = [
            queue
            for queue, count in missing.items()
            if count < 0 or (count > 0 and self.fail_on_data_loss)
        ]
        if wrong:
            queue = wrong[0]
            raise OffsetGapError(
                f"{queue}: {rows[queue]} rows were written for the offsets {begins[queue]} to "
                f"{ends[queue] - 1}; nothing was committed"
            )
        return {queue: count for queue, count in missing.items() if count}

    def _check_files(self, files: tuple[DataFile, ...]) -> None:
        """Raise LakeError if the driver does not see all files that executors have written."""
        for file in files:
            path = self.lake.staging / file.name
            try:
                rows = pq.read_metadata(path).num_rows
            except FileNotFoundError:
                raise LakeError(
                    f"an executor has written {path}, but the driver does not see it: the lake "
                    "must be in a directory that all share"
                ) from None
            if rows != file.rows:
                raise LakeError(f"{path} has {rows} rows, not {file.rows}: is the disk sound?")

    def count_rows(self, snapshot: Snapshot) -> None:
        """Count the rows in all files that were added since the last count."""
        old = {file.path for file in self.counted_to.files}
        for file in snapshot.files:
            if file.path not in old:
                self.rows[file.table] += pq.read_metadata(self.lake.root / file.path).num_rows
        self.counted_to = snapshot

    def compacted(self, snapshot: Snapshot) -> Snapshot:
        """Merge small files of the lake, and return the new version."""
        self.count_rows(snapshot)
        try:
            self.files_compacted += self.lake.compact(
                files_min=COMPACT_FROM, size_target=COMPACT_TARGET
            )
        except LakeInUseError as error:  # not an error: the archived messages are committed
            _log.warning("%s", error)
        self.counted_to = self.lake.snapshot()
        return self.counted_to

    def _patiently(self, job: Callable[[], list[Any]]) -> list[Any]:
        """Run a Spark job, and repeat the job if a broker was offline."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return job()
            except PySparkException as error:
                if attempt == ATTEMPTS or not _was_away(error_inside(error)):
                    raise
                _log.warning("a batch has failed as a broker was away; attempt %d", attempt + 1)
                # queues_of_known waits for the brokers
                for topic in set(self.topics) - self.faults.keys():
                    self.cluster.offsets_max(self.cluster.queues_of_known(topic))
        raise AssertionError("unreachable")


def _parallelism(spark: SparkSession) -> int | None:
    """Return Spark's default parallelism. None with Spark Connect, which hides it; then each queue
    is a task."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None
