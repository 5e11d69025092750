"""Spark source ``format("rocketmqCommitlog")``, a reader of CommitLog files that needs no broker.

This module has the options of the source, and divides a log into tasks. The files may be a backup,
the disk of a dead broker, or the store of a running one. The rule: nothing in the directory is
changed, locked or created. ``log_scan.scan`` reads one task.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import ConfigError, StoreError
from turbopump.spark.log_scan import (
    LogRange,
    ScanOptions,
    about_written,
    dispatched_end,
    first_good_entry,
    is_blank,
    scan,
    store_time_at,
)
from turbopump.spark.options import (
    BODY_FAULT,
    INSTANT_MS,
    READ_SCHEMA,
    Option,
    check_order,
    column_names,
    given_values,
    read_topics,
    whole_number,
)
from turbopump.spark.plain_errors import hidden_traceback, plain_errors
from turbopump.spark.reading import keep_what_is_loaded
from turbopump.store.files import StoreFile, StorePaths, segment_offset
from turbopump.store.inspection.report import Findings
from turbopump.store.inspection.small_files import read_run_state

LOG_SCHEMA: Final = pa.schema(
    [
        *(field for field in READ_SCHEMA if field.name != BODY_FAULT),
        *((name, pa.string()) for name in ("segment", "status", BODY_FAULT)),
    ]
)
TASK_SIZE: Final = 64 << 20
"""Bytes of the log that one task reads, unless an option or the session sets the number of
tasks."""
TASK_SIZE_MIN: Final = 1 << 20
"""Minimum bytes of log in one task; smaller tasks cost more to start than to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of a read of CommitLog files.

    Times are in ms since 1970 UTC. A field is None if the option is not given.
    """

    path: str
    columns: tuple[str, ...] | None = None
    topics: tuple[str, ...] = ()
    broker_name: str | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    partitions_min: int | None = None
    partitions_max: int | None = None


class LogPartition(InputPartition):
    """Input of one Spark task: parts of CommitLog segments, to be read one after the other."""

    def __init__(self, ranges: list[LogRange], store: str | None) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.store = store


class CommitLogReader(DataSourceReader):
    """Spark reader of the files of a CommitLog.

    The list of segments is fixed when Spark plans the query.
    """

    def __init__(self, options: LogOptions, schema: pa.Schema, partitions_default: int) -> None:
        self._options = options
        self._schema = schema
        self._partitions_default = partitions_default

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        tasks, store = plan(self._options, self._partitions_default)
        return [LogPartition(ranges, store) for ranges in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_what_is_loaded()
        assert isinstance(partition, LogPartition)
        options = scan_options(self._options, self._schema, partition.store)
        with hidden_traceback():
            for part in partition.ranges:
                try:
                    yield from scan(part, options)
                except FileNotFoundError:
                    raise StoreError(
                        f"{part.path} is missing on {socket.gethostname()}, though the "
                        "query was planned with it. If this executor lacks the "
                        "directory, mount or copy it there. If the broker has deleted "
                        "the segment since, run the query again"
                    ) from None


def log_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the exact Arrow schema of these columns, or of all columns if ``columns`` is None."""
    if columns is None:
        return LOG_SCHEMA
    return pa.schema([LOG_SCHEMA.field(name) for name in columns])


def scan_options(options: LogOptions, schema: pa.Schema, store: str | None) -> ScanOptions:
    """Return the options for the scan in one Spark task."""
    return ScanOptions(
        schema=schema,
        broker_name=options.broker_name,
        topics=frozenset(options.topics),
        starting_ms=options.starting_ms,
        ending_ms=options.ending_ms,
        store=store,
    )


# The options: every accepted name, its field and its parser (docs/guide/spark-commitlog.md lists
# them; a test compares).
def log_options(options: Mapping[str, str]) -> LogOptions:
    """Parse the options of a read of CommitLog files. Spark passes them as text.

    The case of names is ignored. Raises ConfigError with one sentence for an invalid option.
    """
    if "paths" in options:
        raise ConfigError("load() takes one path: read several logs one by one, and union them")
    values = {name: value for name, (_, value) in given_values(options, LOG_OPTIONS).items()}
    if "path" not in values:
        raise ConfigError(
            "no path is given: give the store's directory, or its commitlog folder, "
            'such as .load("/data/store")'
        )
    check_order(values, "partitions_min", "partitions_max", "minPartitions", "maxPartitions")
    check_order(values, "starting_ms", "ending_ms", "startingTimestamp", "endingTimestamp")
    return LogOptions(**values)


def _path(text: str) -> str:
    scheme, separator, _ = text.partition(":/")
    if separator and scheme == "file":
        text = "/" + text.removeprefix("file:/").lstrip("/")
    elif separator and "/" not in scheme:
        raise ConfigError(
            f"{text} is not on a local disk. The files of a log are read from a path that each "
            "executor has: mount it, or copy it there"
        )
    if not text:
        raise ConfigError("expected the path of a directory")
    return os.path.abspath(text)


def log_column_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of columns.

    Raises ConfigError for an unknown or repeated column, or an empty list.
    """
    return column_names(text, LOG_SCHEMA.names)


LOG_OPTIONS: Final[Mapping[str, Option]] = {
    "path": Option("path", _path),
    "columns": Option("columns", log_column_names),
    "topic": Option("topics", read_topics),
    "subscribe": Option("topics", read_topics, alias_of="topic"),
    "brokerName": Option("broker_name", str),
    "startingTimestamp": Option("starting_ms", INSTANT_MS),
    "endingTimestamp": Option("ending_ms", INSTANT_MS),
    "minPartitions": Option("partitions_min", whole_number(1, 100_000)),
    "maxPartitions": Option("partitions_max", whole_number(1, 100_000)),
}


# The division of a log into tasks. The rule: a part begins at a good entry or at the start of a
# segment, and ends where the next part begins. So any damaged bytes are in exactly one part.
def plan(options: LogOptions, partitions_default: int) -> tuple[list[list[LogRange]], str | None]:
    """Divide a log into tasks. Each task is a list of parts of segments.

    The second result is the directory of the store. It is None if no ConsumeQueues belong to the
    segments. Raises ConfigError if there is no log at the path.
    """
    try:
        return _plan_once(options, partitions_default)
    except FileNotFoundError:  # a broker has just deleted its oldest segments
        return _plan_once(options, partitions_default)


def _plan_once(
    options: LogOptions, partitions_default: int
) -> tuple[list[list[LogRange]], str | None]:
    segments, store = find_log(Path(options.path))
    parts = _wanted_parts(segments, store, options)
    sizes = _written_sizes(parts)
    total = sum(sizes)
    count = max(-(-total // TASK_SIZE), min(partitions_default, total // TASK_SIZE_MIN), 1)
    count = max(count, min(options.partitions_min or 1, max(total // _PAGE, 1)))
    count = min(count, options.partitions_max or count)
    return _divide_parts(parts, sizes, count), None if store is None else str(store)


_PAGE: Final = 4096


def find_log(path: Path) -> tuple[list[StoreFile], Path | None]:
    """Return the segments at a path in order. Also return the directory of the store, or None if
    unknown.

    The path is a store, the commitlog folder of a store, or one segment. Raises ConfigError if
    there is no log at the path.
    """
    if not path.exists():
        raise ConfigError(
            f"{path} does not exist on this machine: give a store's directory, or its "
            "commitlog folder, that the driver and each executor can read"
        )
    if path.is_file() and segment_offset(path.name) is not None:
        return [StoreFile(segment_offset(path.name) or 0, path.stat().st_size, path)], None
    if path.is_file():
        raise ConfigError(
            f"{path} is neither a directory nor a segment, whose name is 20 digits: give "
            "the directory, or restore the name, which is the segment's offset in the log"
        )
    folder = path / "commitlog" if (path / "commitlog").is_dir() else path
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be listed: {error.strerror}") from None
    segments = sorted(
        StoreFile(start, (folder / name).stat().st_size, folder / name)
        for name in names
        if (start := segment_offset(name)) is not None
    )
    if not segments and folder.name != "commitlog":
        raise ConfigError(
            f"{path} has neither a commitlog folder nor segments, files named by 20 "
            "digits: give the directory of storePathRootDir, or its commitlog folder"
        )
    return segments, folder.parent if folder.name == "commitlog" else None


def _wanted_parts(
    segments: Sequence[StoreFile], store: Path | None, options: LogOptions
) -> list[LogRange]:
    """For each segment, return one part to read. Segments without wanted entries are left out.

    Only the times of the first entries decide this.
    """
    live = store is not None and _is_open_in_broker(store)
    while len(segments) > 1 and is_blank(str(segments[-1].path)):
        segments = segments[:-1]  # a file that the broker created in advance
    parts = []
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        end = segment.end if is_last else segments[number + 1].start
        parts.append(LogRange(str(segment.path), segment.start, segment.start, end, is_last, live))
    if live and store is not None and parts:
        # The broker keeps writing. All tasks read what was complete when the query was planned.
        end = dispatched_end(str(store))
        if end:
            parts = [part._replace(end=min(part.end, end)) for part in parts if part.begin < end]
            parts[-1] = parts[-1]._replace(is_last=True)
    first_times = [store_time_at(part.path, part.start, part.begin) for part in parts]
    return [
        part
        for part, first, following in zip(parts, first_times, [*first_times, None][1:], strict=True)
        if not (
            (options.starting_ms is not None and (following or _LATE) < options.starting_ms)
            or (options.ending_ms is not None and (first or 0) >= options.ending_ms)
        )
    ]


_LATE: Final = 1 << 62


def _is_open_in_broker(store: Path) -> bool:
    """Return True if a broker holds the lock of the store, and so is using the store."""
    return read_run_state(ReadOnlyDisk(), StorePaths(store), Findings()).running


def _written_sizes(parts: Sequence[LogRange]) -> list[int]:
    """For each part, estimate how many of its bytes are written.

    Brokers allocate a segment in full size before they write to it.
    """
    return [about_written(part.path, part.end - part.start) for part in parts]


def _divide_parts(
    parts: Sequence[LogRange], sizes: Sequence[int], count: int
) -> list[list[LogRange]]:
    """Divide the parts into at most ``count`` tasks of about equal size."""
    # A cut must be at a good entry, because a task walks from entry to entry. The nominal cut is
    # where the tasks so far are full. If no good entry follows it, the part stays in one task.
    tasks: list[list[LogRange]] = [[]]
    step = max(-(-sum(sizes) // count), 1)
    filled = 0
    for part, size in zip(parts, sizes, strict=True):
        begin = part.begin
        while filled + size > step * len(tasks) and len(tasks) < count:
            nominal = part.begin + step * len(tasks) - filled
            if nominal > begin:
                cut = first_good_entry(part.path, part.start, nominal, part.end)
                if cut is None:
                    break
                tasks[-1].append(part._replace(begin=begin, end=cut, is_last=False))
                begin = cut
            tasks.append([])
        tasks[-1].append(part._replace(begin=begin))
        filled += size
        while filled >= step * len(tasks) and len(tasks) < count:
            tasks.append([])
    return [task for task in tasks if task]
