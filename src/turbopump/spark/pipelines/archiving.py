"""Archive topics into a lake, exactly once.

The table is the checkpoint. Each batch begins at the offsets in the table, reads up to offsets
chosen in advance, and is committed together with them. So a batch that was killed at any point is
repeated, or was complete. There is no state beside the table.
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
    Batch,
    Bodies,
    DataFile,
    Definition,
    Lake,
    Snapshot,
    Stretches,
    check_shape,
    create_or_open,
    definition_at,
    lake_place,
    no_step,
    open_lake,
    staged_name,
)
from turbopump.spark.pipelines.running import Progress, error_inside
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
"""About ten seconds of work, and what is done again after a kill."""
COMPACT_FROM: Final = 16
COMPACT_TARGET: Final = 128 << 20
"""In bytes. A partition is compacted when it has ``COMPACT_FROM`` files smaller than half of
this."""
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
"""Options of the source, by their field, that would leave messages out."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ArchiveReport:
    """Figures of a run. ``messages`` counts offsets; ``rows`` and ``rejected`` count rows in the
    files of this run; ``lost`` counts messages that the broker no longer had. ``lake_messages`` and
    ``lake_rows`` are the same of the whole lake."""

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
    """Queues that began another generation, as ``T@broker-a:0``."""
    rejected_allowed: bool = True
    """False if more rows were rejected than ``max_rejected`` says."""

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
    progress: Progress | None = None,
    at_step: Callable[[str], None] = no_step,
) -> ArchiveReport:
    """Append the messages of ``topics`` that ``lake`` lacks, up to their present end; with
    ``follow`` continue until ``stop`` is set.

    A new lake uses ``format`` (``parquet`` or ``delta``), ``columns`` and ``bodies``
    (``json_bodies``, ``avro_bodies``); an existing one has its own. A queue that the lake does not
    know begins at ``starting``: ``earliest``, a time in ms, or ``latest``. ``latest`` is the
    queue's end in the first run, and the lake keeps that offset. A new queue of a known topic is
    read from its first message instead of ``latest``. ``interval``: seconds between two batches
    when there is nothing to read. ``options``: further options of the source, such as credentials.
    The directory must be the same for driver and executors.

    A queue that was deleted and made again, or lost its end, is left out, and so is a missing
    topic; the others continue. At its end the run raises DataLossError or RouteNotFoundError for
    them. With ``restart_queues`` such a queue begins another generation instead. ``max_rejected``:
    a number of rows, or a share such as ``"5%"``, from which on ``report.ok`` is false; by default
    only if all rows were rejected.

    Raises LakeInUseError, OffsetGapError and LakeError; ConfigError for a wrong argument;
    DataLossError if messages are gone and ``fail_on_data_loss``; RemotingError without a broker.
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
    progress = progress or Progress()
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
    """Return a check of a run's good and rejected rows. The limit is a number of rejected rows or a
    share of all rows; by default not all may be rejected. Raises ConfigError."""
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
    """Put small files together, in each partition that has ``files_min`` of them; how many files
    have gone. Raises LakeError and LakeInUseError."""
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
    """Names that may be given as one text too, with commas."""
    return tuple(given.split(",") if isinstance(given, str) else given)


def _was_away(kind: type[Exception] | None) -> bool:
    """Return True for an error that means an unreachable broker or no reachable name server."""
    if kind is None or issubclass(kind, ResponseError):
        return False
    return issubclass(kind, (RemotingError, RouteNotFoundError))


class ArchiveRun:
    """One run of ``archive``: what it reads, and what it has done."""

    spark: SparkSession
    lake: Lake
    counted_to: Snapshot
    """The rows of all files up to this version are counted."""

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
        """Faults of topics and queues that are left out, by their names."""
        self.changed: set[MessageQueue] = set()
        """Queues that are not those that the lake has read."""
        self.behind: set[MessageQueue] = set()
        """Queues of which a slave has less than the lake, as was said."""
        self.compared: set[MessageQueue] = set()
        """Queues whose newest row is the broker's message; those that are gone are compared again
        when they come back."""
        self.renamed: dict[MessageQueue, int | None] = {}
        """First offsets of queues that the lake has under another broker's name."""
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
        """Raise ConfigError for what cannot be."""
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
        """Open the lake for writing, and make it if necessary. No lake is made while no topic
        exists, unless the run waits for topics."""
        if definition_at(root) is None and not self._queues({}) and not self.follow:
            self.raise_fault()
        lake = create_or_open(root, definition)
        with lake.writing():
            yield lake

    def raise_fault(self) -> None:
        """Raise the first fault of what was left out; the others are logged."""
        first, *others = self.faults.values() or [None]
        for fault in others:
            _log.error("%s", fault)
        if first is not None:
            if self.messages:
                first.add_note(f"{self.messages:,} messages of the others were archived")
            raise first

    def _queues(self, stretches: Stretches) -> list[MessageQueue]:
        """The queues of the topics that are there. A topic that is not is a fault, but one that the
        lake has may be gone where messages may."""
        found: list[MessageQueue] = []
        known = {queue.topic for queue in stretches}
        for topic in self.topics:
            try:
                found += self.cluster.queues(topic)
            except RouteNotFoundError as error:
                if topic in known and (self.follow or not self.fail_on_data_loss):
                    continue  # which _look_for_absent says
                self._leave_out(topic, error)
            else:
                self.faults.pop(topic, None)
        return found

    def _leave_out(self, name: str, fault: TurbopumpError) -> None:
        """Note the fault of a topic or queue that is left out. A run that follows its topics logs
        it at once, as it may never end."""
        if self.follow and name not in self.faults:
            _log.error("%s; the others continue", fault)
        self.faults[name] = fault

    def look(self, snapshot: Snapshot) -> tuple[Snapshot, Offsets]:
        """Return the lake's state and the present ends of all readable queues. If the run restarts
        queues, those that were made again begin another generation."""
        ends = self._ends(snapshot)
        if self.restart_queues and self.changed:
            snapshot = self._restart(snapshot, ends)
        return snapshot, {queue: end for queue, end in ends.items() if queue not in self.changed}

    def _ends(self, snapshot: Snapshot) -> Offsets:
        found = self.cluster.offsets_max(self._queues(snapshot.stretches))
        self._look_for_absent(snapshot, found)
        self.compared &= found.keys()
        self.changed.clear()
        same = set[MessageQueue]()
        for queue, end in list(found.items()):
            there = snapshot.stretches.get(queue)
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
        """Begin another generation of the changed queues: where the lake has what the broker has,
        behind that; else at the first message."""
        mins = self.cluster.offsets_min(self.changed)
        begins: Offsets = {}
        for queue in sorted(self.changed):
            there = snapshot.stretches[queue]
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
        """Look for the messages of a new queue under another broker's name in the lake: a broker
        may have been renamed with its store."""
        if queue in self.renamed or not made_again.tells_brokers_apart(self.lake):
            return
        self.renamed[queue] = None
        alike = {
            old: min(there.end, end) - 1
            for old, there in snapshot.stretches.items()
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
        self, snapshot: Snapshot, ends: Offsets, rows_max: int, progress: Progress
    ) -> tuple[Offsets, Offsets]:
        """The offsets between which the next batch lies, of the queues that it reads; none if there
        is nothing to read.

        Queues that begin at their end are a batch of their own, before all others: it has no
        messages, but the lake then has their offset, and what is sent from now on is read.
        """
        begins = {queue: self._begin(snapshot, queue, end) for queue, end in ends.items()}
        progress.expect(sum(max(0, end - begins[queue]) for queue, end in ends.items()))
        unfinished = {
            queue: end for queue, end in (snapshot.unfinished or {}).items() if queue in ends
        }
        if unfinished:
            known = {queue: stretch.end for queue, stretch in snapshot.stretches.items()}
            return {
                queue: known.get(queue, min(begins[queue], end))
                for queue, end in unfinished.items()
            }, unfinished
        at_end = {
            queue: end
            for queue, end in ends.items()
            if queue not in snapshot.stretches
            and begins[queue] == end
            and (self.starting == "latest" or self.renamed.get(queue) is not None)
        }
        if at_end:
            return at_end, at_end
        ends = admit(begins, ends, rows_max)
        read = [queue for queue, end in ends.items() if begins[queue] < end]
        return {queue: begins[queue] for queue in read}, {queue: ends[queue] for queue in read}

    def archive_batch(
        self, before: Snapshot, begins: Offsets, ends: Offsets, progress: Progress
    ) -> Snapshot:
        """Read, write and commit one batch."""
        if begins == ends:
            return self.lake.append(
                before, Batch(begins=begins, ends=ends, lost={}, files=()), self.at_step
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
        batch = Batch(begins=begins, ends=ends, lost=lost, files=files)
        after = self.lake.append(before, batch, self.at_step)
        count = sum(ends[queue] - begins[queue] for queue in ends)
        self.messages += count
        self.lost += sum(lost.values())
        self.batches += 1
        progress.add(count)
        return after

    def _job(self, begins: Offsets, ends: Offsets, writing: FileWriting) -> DataFrame:
        """Reading and writing the messages between two sets of offsets; the rows are reports."""
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
        there = snapshot.stretches.get(queue)
        if there is not None:
            return there.end
        renamed = self.renamed.get(queue)
        if renamed is not None:
            return renamed
        if isinstance(self.starting, int):
            return min(end, self.cluster.offset_at(queue, self.starting))
        is_new_topic = all(known.topic != queue.topic for known in snapshot.stretches)
        if self.starting == "latest" and is_new_topic:
            return end
        return self.cluster.offset_min(queue)

    def _look_for_absent(self, snapshot: Snapshot, found: Offsets) -> None:
        """Say which queues of the table have no broker now, once, or are gone."""
        present = {(queue.topic, queue.broker_name) for queue in found}
        absent = snapshot.stretches.keys() - found.keys()
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
        """Raise LakeError unless the driver sees what executors have written."""
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
        """Count what the files really have that have come since."""
        old = {file.path for file in self.counted_to.files}
        for file in snapshot.files:
            if file.path not in old:
                self.rows[file.table] += pq.read_metadata(self.lake.root / file.path).num_rows
        self.counted_to = snapshot

    def compacted(self, snapshot: Snapshot) -> Snapshot:
        """The lake with its small files put together."""
        self.count_rows(snapshot)
        try:
            self.files_compacted += self.lake.compact(
                files_min=COMPACT_FROM, size_target=COMPACT_TARGET
            )
        except LakeInUseError as error:  # what was archived is committed
            _log.warning("%s", error)
        self.counted_to = self.lake.snapshot()
        return self.counted_to

    def _patiently(self, job: Callable[[], list[Any]]) -> list[Any]:
        """Run a Spark job, and run it again if a broker was away."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return job()
            except PySparkException as error:
                if attempt == ATTEMPTS or not _was_away(error_inside(error)):
                    raise
                _log.warning("a batch has failed as a broker was away; attempt %d", attempt + 1)
                for topic in set(self.topics) - self.faults.keys():  # which waits for them
                    self.cluster.offsets_max(self.cluster.queues_of_known(topic))
        raise AssertionError("unreachable")


def _parallelism(spark: SparkSession) -> int | None:
    """None with Spark Connect, whose clients cannot see it: each queue is a task then."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None
