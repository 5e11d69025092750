"""Capture of database changes: the messages of a topic become the current state of Delta tables.

The run is that of ``archive``: batches between offsets that the lake stores, written by tasks, and
committed by the driver. Only the tasks' work and the lake differ.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from turbopump.blocking.stop_signals import StopRequest
from turbopump.errors import ConfigError
from turbopump.spark.changes.change import ANY_TABLE
from turbopump.spark.job_metrics import JobMetrics
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines.archiving import ArchiveRun, rejected_limit, source_options
from turbopump.spark.pipelines.change_writing import FORMATS, ChangeWriting, read_streams
from turbopump.spark.pipelines.lake import (
    STATE,
    ChangesDefinition,
    Definition,
    create_or_open,
    definition_at,
    lake_place,
    no_step,
)
from turbopump.spark.pipelines.row_progress import RowProgress
from turbopump.spark.pipelines.state_lake import StateLake
from turbopump.spark.pipelines.topic_queues import TopicQueues, check_a_topic_exists
from turbopump.spark.pipelines.writing import NEEDED_COLUMNS, TaskReport, TaskWriting
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES_PER_BATCH: Final = 100_000
"""Maximum messages of a batch. A batch rewrites each file of a state table that it changes."""
_COLUMNS: Final = (*NEEDED_COLUMNS, "msgId", "body")


@dataclass(frozen=True, kw_only=True)
class CdcReport:
    """Counts and outcome of one run of ``cdc``.

    - ``messages``: number of messages that were read.
    - ``changed_messages``: number of messages with changes of rows.
    - ``changes``: number of these changes.
    - ``inserted``, ``updated``, ``deleted``: numbers of rows of the lake that changed.
    - ``skipped``: number of messages that change no row, such as marks of time.
    - ``rejected``: number of messages in the table ``_rejected`` that are wrong.
    - ``statements``: the statements in the table ``_rejected``, which were not executed.
    - ``zero_dates``: number of zero dates that became null.
    - ``lost``: number of messages that the broker no longer had.
    """

    messages: int
    changed_messages: int
    changes: int
    inserted: int
    updated: int
    deleted: int
    skipped: int
    rejected: int
    statements: tuple[str, ...]
    zero_dates: int
    lost: int
    batches: int
    tables: int
    version: int
    seconds: float
    stopped: bool
    restarted: tuple[str, ...] = ()
    """Queues that were deleted and made again, each as ``T@broker-a:0``."""
    rejected_allowed: bool = True
    """False if more messages were rejected than ``max_rejected`` allows."""

    @property
    def agrees(self) -> bool:
        """True if each message has changes, or is skipped, rejected, a statement or lost."""
        others = self.skipped + self.rejected + len(self.statements) + self.lost
        return self.changed_messages + others == self.messages

    @property
    def ok(self) -> bool:
        """True if the counts agree, and not too many messages were rejected."""
        return self.agrees and self.rejected_allowed


def cdc(
    lake: str | Path,
    topic: str,
    *,
    name_server: str,
    format: str,  # noqa: A002
    spark: SparkSession | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
    types: Mapping[str, str] | None = None,
    time_zone: str | None = None,
    soft_deletes: bool | None = None,
    history: bool | None = None,
    starting: str | int = "earliest",
    rows_per_batch: int = MESSAGES_PER_BATCH,
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
) -> CdcReport:
    """Apply the database changes in a topic to the tables of a lake, one Delta table for each
    source table. The arguments that ``archive`` has as well mean the same.

    - ``format``: format of the bodies: ``canal-json``, ``debezium-json``, ``maxwell`` or ``ticdc``.
    - ``keys``: key columns by ``DATABASE.TABLE``, or by ``*``, if messages do not tell them.
    - ``types``: MySQL types by ``DATABASE.TABLE.COLUMN``, if messages do not tell them.
    - ``time_zone``: zone of times in columns of type ``timestamp``; default: UTC.
    - ``soft_deletes``: keep deleted rows, with ``_deleted`` set.
    - ``history``: also append each change to ``LAKE/_history/DATABASE/TABLE``.

    An existing lake has its own format, keys, types and options; arguments may repeat them. Raises
    the errors of ``archive``.
    """
    root = lake_place(lake)
    limit = rejected_limit(max_rejected)
    if rows_per_batch < 1:
        raise ConfigError(f"rows_per_batch is {rows_per_batch}: expected 1 or more")
    definition = _definition(root, format, keys, types, time_zone, soft_deletes, history)
    known = source_options([topic], name_server, fail_on_data_loss, options or {})
    if isinstance(starting, str) and starting not in ("earliest", "latest"):
        raise ConfigError(f"starting is {starting!r}: expected earliest, latest or a time in ms")
    began = time.monotonic()
    spark = spark or rocketmq_session()
    with connected(known) as cluster:
        if definition_at(root) is None and not follow:
            check_a_topic_exists(cluster, [topic])  # no lake is created for nothing
        opened = create_or_open(root, definition)
        assert isinstance(opened, StateLake)
        with opened.writing():
            queues = TopicQueues(
                cluster=cluster,
                lake=opened,
                topics=[topic],
                starting=starting,
                follow=follow,
                fail_on_data_loss=fail_on_data_loss,
                restart_queues=restart_queues,
            )
            run = CdcRun(
                spark=spark,
                lake=opened,
                queues=queues,
                options=known,
                rows_per_batch=rows_per_batch,
                progress=progress or RowProgress(),
                counts=(metrics or JobMetrics()).job("cdc", root.name),
                at_step=at_step,
            )
            stopped = run.archive_all(stop or threading.Event(), interval, compact=compact)
    queues.raise_fault(run.messages)
    applied = opened.applied.values()
    rejected = run.totals["rejected"]
    return CdcReport(
        messages=run.messages,
        changed_messages=run.totals["changed"],
        changes=run.totals["changes"],
        inserted=sum(each.inserted for each in applied),
        updated=sum(each.updated for each in applied),
        deleted=sum(each.deleted for each in applied),
        skipped=run.totals["skipped"],
        rejected=rejected,
        statements=tuple(run.statements),
        zero_dates=run.totals["zero_dates"],
        lost=run.lost,
        batches=run.batches,
        tables=len(opened.source_tables()),
        version=run.snapshot.version,
        seconds=time.monotonic() - began,
        stopped=stopped,
        restarted=tuple(map(str, sorted(queues.restarted))),
        rejected_allowed=limit.allows(run.messages - rejected, rejected),
    )


def _definition(
    root: Path,
    format: str,  # noqa: A002
    keys: Mapping[str, Sequence[str]] | None,
    types: Mapping[str, str] | None,
    time_zone: str | None,
    soft_deletes: bool | None,
    history: bool | None,
) -> Definition:
    """Return the definition of a new or existing lake.

    If an argument is None, the existing lake's value is kept. A new lake gets the default.
    """
    if format not in FORMATS:
        raise ConfigError(f"unknown format {format!r}: use {', '.join(FORMATS)}")
    there = definition_at(root)
    usual = ChangesDefinition(format=format)
    if there is not None and isinstance(there.changes, ChangesDefinition):
        usual = there.changes
    for name in types or {}:
        if name.count(".") < 2:
            raise ConfigError(f"the type of {name!r}: expected DATABASE.TABLE.COLUMN=TYPE")
    for name in keys or {}:
        if name != ANY_TABLE and "." not in name:
            raise ConfigError(f"the key of {name!r}: expected DATABASE.TABLE=COLUMN,COLUMN")
    if time_zone is not None:
        try:
            ZoneInfo(time_zone)
        except (ValueError, OSError, KeyError):
            raise ConfigError(
                f"the time zone {time_zone!r} is unknown: use a name such as Asia/Shanghai"
            ) from None
    return Definition(
        format=STATE,
        columns=_COLUMNS,
        changes=ChangesDefinition(
            format=format,
            keys=usual.keys if keys is None else {k: tuple(v) for k, v in keys.items()},
            types=usual.types if types is None else dict(types),
            zone=time_zone or usual.zone,
            soft_deletes=usual.soft_deletes if soft_deletes is None else soft_deletes,
            history=usual.history if history is None else history,
        ),
    )


@dataclass(eq=False, kw_only=True)
class CdcRun(ArchiveRun):
    """State of one run of ``cdc``.

    ``totals`` has the counts of the tasks.
    """

    totals: Counter[str] = field(default_factory=Counter)
    statements: list[str] = field(default_factory=list)

    @property
    def needs_body_faults(self) -> bool:
        return True

    def _writing(self, staging: str, stem: str) -> TaskWriting:
        return ChangeWriting(staging, stem, self.lake.definition, self.snapshot.generations)

    def _write_files(self, begins: Offsets, ends: Offsets) -> list[TaskReport]:
        reports = super()._write_files(begins, ends)
        for report in reports:
            self.totals.update(report.counts)
            self.statements += report.notes
        return reports

    def _rows_in(self, path: Path) -> int:
        if path.suffix == ".parquet":
            return super()._rows_in(path)
        return sum(int(table.num_rows) for _, table in read_streams(path))
