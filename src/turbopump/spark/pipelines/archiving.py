"""Archiving of topics in a lake, with each message exactly once.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from turbopump.blocking.stop_signals import StopRequest
from turbopump.errors import (
    ConfigError,
    LakeError,
    LakeInUseError,
    OffsetGapError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.message import MessageQueue
from turbopump.spark import planning
from turbopump.spark.job_metrics import JobCounts, JobMetrics
from turbopump.spark.offsets import Offsets, limit_ends
from turbopump.spark.options import BODY_FAULT, COLUMN_NAMES, ReadOptions, read_options
from turbopump.spark.pipelines.lake import (
    DATA,
    FORMATS,
    REJECTED,
    Bodies,
    DataFile,
    Definition,
    Lake,
    LakeBatch,
    check_shape,
    create_or_open,
    definition_at,
    lake_place,
    no_step,
    open_lake,
    staged_name,
)
from turbopump.spark.pipelines.row_progress import RowProgress
from turbopump.spark.pipelines.running import error_inside
from turbopump.spark.pipelines.topic_queues import TopicQueues, check_a_topic_exists
from turbopump.spark.pipelines.writing import (
    REPORT_COLUMN,
    Fetching,
    FileWriting,
    TaskReport,
    TaskWriting,
    check_names,
    checked_columns,
)
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH: Final = 500_000
"""Maximum rows of a batch. A batch takes about ten seconds, and is repeated after a kill."""
COMPACT_FROM: Final = 16
COMPACT_TARGET: Final = 128 << 20
"""Target size of a compacted file in bytes. A partition is compacted when it has ``COMPACT_FROM``
files smaller than half of this."""
COMPACT_EVERY_S: Final = 3600
"""Seconds between two compactions in a run that follows its topics. Other runs compact at their
end."""
ATTEMPTS: Final = 4
"""Number of attempts of a batch while brokers cannot be reached. Each attempt waits for them as the
source does."""

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
    """Counts and outcome of one run of ``archive``.

    - ``messages``: number of archived offsets.
    - ``rows``, ``rejected``: numbers of rows in the files of this run.
    - ``lost``: number of messages that the broker no longer had.
    - ``lake_messages``, ``lake_rows``: numbers of offsets and rows in the whole lake.
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
    """Queues that were deleted and made again, each as ``T@broker-a:0``. Their rows begin another
    generation."""
    rejected_allowed: bool = True
    """False if more rows were rejected than ``max_rejected`` allows."""

    @property
    def agrees(self) -> bool:
        """True if the row counts agree with the archived offsets.

        Each archived offset must have one row, except for lost messages.
        """
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
    stop: threading.Event | StopRequest | None = None,
    progress: RowProgress | None = None,
    metrics: JobMetrics | None = None,
    at_step: Callable[[str], None] = no_step,
) -> ArchiveReport:
    """Archive RocketMQ topics in a lake. Messages that are already in the lake are not read again.

    The run ends at the present end of the topics. With ``follow``, the run continues until ``stop``
    is set.

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
    - ``metrics``: counts of the run, under the name of the lake's directory.

    Without ``restart_queues``, a queue that was made again is left out, and so is a missing topic;
    the others continue. The run then raises DataLossError or RouteNotFoundError at its end.

    Raises LakeInUseError, OffsetGapError and LakeError. Raises ConfigError for an invalid argument,
    DataLossError if messages are lost and ``fail_on_data_loss``, and RemotingError if no broker
    answers.
    """
    root = lake_place(lake)
    limit = rejected_limit(max_rejected)
    if rows_per_batch < 1:
        raise ConfigError(f"rows_per_batch is {rows_per_batch}: expected 1 or more")
    definition = _definition(root, format, columns, bodies)
    topics = sorted(set(_texts(topics)))
    known = source_options(topics, name_server, fail_on_data_loss, options or {})
    if isinstance(starting, str) and starting not in ("earliest", "latest"):
        raise ConfigError(f"starting is {starting!r}: expected earliest, latest or a time in ms")
    began = time.monotonic()
    spark = spark or rocketmq_session()
    with connected(known) as cluster:
        if definition_at(root) is None and not follow:
            check_a_topic_exists(cluster, topics)  # no lake is created for nothing
        opened = create_or_open(root, definition)
        with opened.writing():
            queues = TopicQueues(
                cluster=cluster,
                lake=opened,
                topics=topics,
                starting=starting,
                follow=follow,
                fail_on_data_loss=fail_on_data_loss,
                restart_queues=restart_queues,
            )
            run = ArchiveRun(
                spark=spark,
                lake=opened,
                queues=queues,
                options=known,
                rows_per_batch=rows_per_batch,
                progress=progress or RowProgress(),
                counts=(metrics or JobMetrics()).job("archive", root.name),
                at_step=at_step,
            )
            stopped = run.archive_all(stop or threading.Event(), interval, compact=compact)
    queues.raise_fault(run.messages)
    return ArchiveReport(
        messages=run.messages,
        rows=run.rows[DATA],
        rejected=run.rows[REJECTED],
        lost=run.lost,
        batches=run.batches,
        files_compacted=run.files_compacted,
        lake_messages=run.snapshot.messages,
        lake_rows=run.snapshot.rows(),
        version=run.snapshot.version,
        seconds=time.monotonic() - began,
        stopped=stopped,
        restarted=tuple(map(str, sorted(queues.restarted))),
        rejected_allowed=limit.allows(run.rows[DATA], run.rows[REJECTED]),
    )


def source_options(
    topics: list[str], name_server: str, fail_on_data_loss: bool, options: Mapping[str, str]
) -> ReadOptions:
    """Return the options for reading the topics of an archive.

    Raises ConfigError if there is no topic, or if an option would leave messages out.
    """
    if not topics:
        raise ConfigError("no topic is given: name at least one")
    needed = {"nameServer": name_server, "topic": ",".join(topics)}
    fails = {"failOnDataLoss": str(fail_on_data_loss).lower()}
    known = read_options({**options, **fails, **needed})
    plain = read_options({"nameServer": name_server, "topic": "-"})
    chosen = [name for name in _CHOOSING if getattr(known, name) != getattr(plain, name)]
    if chosen:
        raise ConfigError(
            "an archive stores every message of its topics: remove the options that select "
            f"messages ({', '.join(chosen)})"
        )
    return known


class RejectedLimit(NamedTuple):
    """Maximum of rejected rows: a number of rows, or a percentage of all rows.

    If ``most`` is None, all rows but one may be rejected.
    """

    most: float | None
    is_share: bool = False

    def allows(self, good: int, rejected: int) -> bool:
        """Return True if a run with these counts of accepted and rejected rows is within the
        limit."""
        if self.most is None:
            return good > 0 or rejected == 0
        if self.is_share:
            return rejected * 100 <= self.most * (good + rejected)
        return rejected <= self.most


def rejected_limit(text: int | str | None) -> RejectedLimit:
    """Parse the argument ``max_rejected``.

    Raises ConfigError if the argument is neither a number nor a share such as ``5%``.
    """
    if text is None:
        return RejectedLimit(None)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(text), re.ASCII)
    most = float(found[1]) if found else -1
    if found is None or (not found[2] and "." in found[1]) or (found[2] and most > 100):
        raise ConfigError(
            f"max_rejected is {text!r}: expected a number of rows, or a share such as 5%"
        )
    return RejectedLimit(most, is_share=found[2] == "%")


def compact(lake: str | Path, *, files_min: int = 2, size_target: int = COMPACT_TARGET) -> int:
    """Merge small files of a lake. Return the decrease in the number of files.

    A partition is merged if it has at least ``files_min`` small files. ``size_target`` is the size
    of a merged file in bytes. Raises LakeError if there is no lake, and LakeInUseError while
    another process writes or compacts.
    """
    opened = open_lake(lake_place(lake))
    with opened.writing():
        return opened.compact(files_min=files_min, size_target=size_target)


def _definition(
    root: Path,
    format: str | None,  # noqa: A002
    columns: Sequence[str] | None,
    bodies: Bodies | None,
) -> Definition:
    """Return the definition of a new or existing lake.

    If an argument is None, the existing lake's value is kept. A new lake gets the default.
    """
    there = definition_at(root)
    if there is not None and there.format not in FORMATS:
        raise ConfigError(
            f"{root} has the state of source tables, which `turbopump pipeline cdc` keeps: archive "
            "into another directory"
        )
    usual = there or Definition(format="parquet", columns=COLUMN_NAMES)
    wanted = Definition(
        format=format or usual.format,
        columns=checked_columns(_texts(columns)) if columns is not None else usual.columns,
        bodies=bodies or usual.bodies,
    )
    if wanted.format not in FORMATS:
        raise ConfigError(f"unknown format {format!r}: use {' or '.join(FORMATS)}")
    if wanted.bodies is not None and "body" not in wanted.columns:
        raise ConfigError(
            "bodies can become columns only with the column body: add it to the columns"
        )
    if there is None:
        check_names(wanted)
    else:
        check_shape(root, there, wanted)
    return wanted


def _texts(given: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple. They may be given as one text with commas."""
    return tuple(given.split(",") if isinstance(given, str) else given)


def _was_offline(kind: type[Exception] | None) -> bool:
    """Return True if this class of errors is about an unreachable server.

    This means that no broker or no name server was reachable.
    """
    if kind is None or issubclass(kind, ResponseError):
        return False
    return issubclass(kind, (RemotingError, RouteNotFoundError))


@dataclass(eq=False, kw_only=True)
class ArchiveRun:
    """State of one run of ``archive``.

    The state has the newest version of the lake, and the counts for the report.
    """

    spark: SparkSession
    lake: Lake
    queues: TopicQueues
    options: ReadOptions
    rows_per_batch: int
    progress: RowProgress
    counts: JobCounts
    at_step: Callable[[str], None]
    messages: int = 0
    lost: int = 0
    batches: int = 0
    files_compacted: int = 0

    def __post_init__(self) -> None:
        self.rows = {DATA: 0, REJECTED: 0}
        self.snapshot = self.lake.snapshot()
        self._counted_to = self.snapshot
        """Version up to which the rows of all files are counted."""

    @property
    def needs_body_faults(self) -> bool:
        """True if tasks look into the bodies, so that they must know the bodies' faults."""
        return self.lake.definition.bodies is not None

    def archive_all(
        self, stop: threading.Event | StopRequest, interval: float, *, compact: bool
    ) -> bool:
        """Archive all messages up to the present end of the topics. With ``follow``, continue with
        new ones.

        Following continues until ``stop`` is set. Returns True if ``stop`` ended the run before the
        end of the topics.
        """
        follows = self.queues.follow
        compacted_at = time.monotonic()
        target: Offsets | None = None
        while not stop.is_set():
            try:
                if follows or target is None:
                    self.snapshot, target = self.queues.readable_ends(self.snapshot)
                is_idle = not self._archive_next(target)
            except (RemotingError, RouteNotFoundError) as error:
                if not (follows and _was_offline(type(error))):
                    raise
                _log.warning("%s; the archive waits and tries again", error)
                stop.wait(interval)
                continue
            if is_idle and not follows:
                break
            if compact and follows and time.monotonic() - compacted_at >= COMPACT_EVERY_S:
                self._compact_files()
                compacted_at = time.monotonic()
            if is_idle:
                stop.wait(interval)
        stopped = stop.is_set() and not follows
        self._count_rows()
        if compact:
            self._compact_files()
        return stopped

    def _archive_next(self, target: Offsets) -> bool:
        """Read, write and commit the next batch of messages. Return False if no messages are
        left."""
        began = time.monotonic()
        begins, ends = self._plan(target)
        if not begins:
            return False
        self.at_step("planned")
        files: tuple[DataFile, ...] = ()
        lost: dict[MessageQueue, int] = {}
        if begins != ends:
            reports = self._write_files(begins, ends)
            lost = self._missing(reports, begins, ends)
            files = tuple(file for report in reports for file in report.files)
            self._check_files(files)
            self.at_step("written")
        batch = LakeBatch(begins=begins, ends=ends, lost=lost, files=files)
        self.snapshot = self.lake.append(self.snapshot, batch, self.at_step)
        if begins != ends:
            count = sum(ends[queue] - begins[queue] for queue in ends)
            self.messages += count
            gone = sum(lost.values())
            self.lost += gone
            self.batches += 1
            self.progress.add(count)
            rejected = sum(file.rows for file in files if file.table == REJECTED)
            self.counts.count_batch(
                count - gone - rejected, time.monotonic() - began, rejected=rejected, lost=gone
            )
        return True

    def _plan(self, ends: Offsets) -> tuple[Offsets, Offsets]:
        """Choose the next batch. For each queue in the batch, return the begin and the end.

        Both results are empty if there is nothing to read. Queues that begin at their end come
        first, as a batch of their own without messages. That batch stores their offset in the lake,
        so that later messages are read.
        """
        ranges = self.snapshot.ranges
        begins = {
            queue: self.queues.begin_of(self.snapshot, queue, end) for queue, end in ends.items()
        }
        behind = {queue: max(0, end - begins[queue]) for queue, end in ends.items()}
        self.progress.expect(sum(behind.values()))
        self.counts.note_behind(behind)
        unfinished = {
            queue: end for queue, end in (self.snapshot.unfinished or {}).items() if queue in ends
        }
        if unfinished:
            # A killed writer has committed one table of this batch, so its end must not change.
            for queue, end in unfinished.items():
                if queue not in ranges:
                    begins[queue] = min(begins[queue], end)
            return {queue: begins[queue] for queue in unfinished}, unfinished
        at_end = {
            queue: end
            for queue, end in ends.items()
            if queue not in ranges and begins[queue] == end and self.queues.may_begin_at_end(queue)
        }
        if at_end:
            return at_end, at_end
        ends = limit_ends(begins, ends, self.rows_per_batch)
        read = [queue for queue, end in ends.items() if begins[queue] < end]
        return {queue: begins[queue] for queue in read}, {queue: ends[queue] for queue in read}

    def _write_files(self, begins: Offsets, ends: Offsets) -> list[TaskReport]:
        """Write a batch of messages into staged files, as a Spark job.

        The batch has the messages between two sets of offsets.
        """
        staging = str(self.lake.staging.absolute())
        stem = staged_name(f"{self.snapshot.version + 1:08d}")
        job = self._job(begins, ends, self._writing(staging, stem))
        rows = self._retry_while_offline(job.collect)
        return [msgspec.json.decode(row[REPORT_COLUMN], type=TaskReport) for row in rows]

    def _writing(self, staging: str, stem: str) -> TaskWriting:
        """Return the function that a task applies to the messages."""
        return FileWriting(staging, stem, self.lake.definition, self.snapshot.generations)

    def _job(self, begins: Offsets, ends: Offsets, writing: TaskWriting) -> DataFrame:
        """Return the Spark job for a batch. The job reads and writes messages between two sets of
        offsets.

        Each row of the job is the report of one task.
        """
        definition = self.lake.definition
        columns = definition.columns
        if "body" in columns and BODY_FAULT not in columns and self.needs_body_faults:
            columns = (*columns, BODY_FAULT)
        options = replace(
            self.options,
            columns=columns,
            partitions_max=self.options.partitions_max or _parallelism(self.spark),
        )
        tasks = planning.tasks(begins, ends, options)
        numbers = self.spark.range(0, len(tasks), 1, len(tasks))
        return numbers.mapInArrow(Fetching(tasks, options, writing), f"{REPORT_COLUMN} string")

    def _retry_while_offline(self, job: Callable[[], list[Any]]) -> list[Any]:
        """Run a Spark job, and run the job again if a broker was offline."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return job()
            except PySparkException as error:
                if attempt == ATTEMPTS or not _was_offline(error_inside(error)):
                    raise
                _log.warning(
                    "a broker was offline, so the batch is repeated; attempt %d", attempt + 1
                )
                self.queues.wait_for_brokers()
        raise AssertionError("unreachable")

    def _missing(
        self, tasks: list[TaskReport], begins: Offsets, ends: Offsets
    ) -> dict[MessageQueue, int]:
        """For each queue, count the messages that are in the batch but were not written.

        Raises OffsetGapError for a queue whose rows do not match its offsets.
        """
        rows: dict[MessageQueue, int] = defaultdict(int)
        for task in tasks:
            for each in task.queues:
                queue = MessageQueue(each.topic, each.broker_name, each.queue_id)
                within = begins.get(queue, 0) <= each.offset_min <= each.offset_max
                if not within or each.offset_max >= ends.get(queue, 0):
                    raise OffsetGapError(
                        f"{queue}: rows of the offsets {each.offset_min} to {each.offset_max} were "
                        f"written, outside the range of the batch; nothing was committed"
                    )
                rows[queue] += each.rows
        missing = {queue: ends[queue] - begins[queue] - rows[queue] for queue in ends}
        wrong = [
            queue
            for queue, count in missing.items()
            if count < 0 or (count > 0 and self.options.fail_on_data_loss)
        ]
        if wrong:
            queue = wrong[0]
            raise OffsetGapError(
                f"{queue}: {rows[queue]} rows were written for the offsets {begins[queue]} to "
                f"{ends[queue] - 1}; nothing was committed"
            )
        return {queue: count for queue, count in missing.items() if count}

    def _check_files(self, files: tuple[DataFile, ...]) -> None:
        """Raise LakeError unless the driver finds the files of the executors, with all rows."""
        for file in files:
            path = self.lake.staging / file.name
            try:
                rows = self._rows_in(path)
            except FileNotFoundError:
                raise LakeError(
                    f"an executor has written {path}, but the driver does not see it: the lake "
                    "must be in a directory that all share"
                ) from None
            if rows != file.rows:
                raise LakeError(f"{path} has {rows} rows, not {file.rows}: check the disk")

    def _rows_in(self, path: Path) -> int:
        """Return the number of rows in a staged file."""
        return int(pq.read_metadata(path).num_rows)

    def _count_rows(self) -> None:
        """Count the rows in the files added since the last count."""
        old = {file.path for file in self._counted_to.files}
        for file in self.snapshot.files:
            if file.path not in old:
                self.rows[file.table] += pq.read_metadata(self.lake.root / file.path).num_rows
        self._counted_to = self.snapshot

    def _compact_files(self) -> None:
        """Merge the small files of the lake, unless another process is using the lake."""
        self._count_rows()
        try:
            self.files_compacted += self.lake.compact(
                files_min=COMPACT_FROM, size_target=COMPACT_TARGET
            )
        except LakeInUseError as error:  # not an error: the archived messages are committed
            _log.warning("%s", error)
        self.snapshot = self.lake.snapshot()
        self._counted_to = self.snapshot


def _parallelism(spark: SparkSession) -> int | None:
    """Return Spark's default number of parallel tasks. Return None with Spark Connect.

    Spark Connect hides this number, so each queue is then one task.
    """
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None
