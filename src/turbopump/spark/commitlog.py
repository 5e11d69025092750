"""``format("rocketmqCommitlog")``: the files of a CommitLog as rows, without a broker: a backup, a
dead broker's disk, or the store of one that runs. Options, the division into tasks, and what Spark
asks for.

The one rule: nothing in the directory is changed, locked or created. Reading one task is
``log_scan.scan``. As with ``source.py`` the module is light to import, for Spark looks at it in
every session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from turbopump.errors import ConfigError
from turbopump.spark.plain_errors import hidden_traceback, plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from turbopump.spark.log_scan import LogRange, ScanOptions
    from turbopump.store.files import StoreFile

TASK_SIZE: Final = 64 << 20
"""Bytes of log for a task, unless options or the session say otherwise."""
TASK_SIZE_MIN: Final = 1 << 20
"""Smaller tasks cost more to start than to run."""
_READ_ONLY: Final = (
    'format("rocketmqCommitlog") reads the files of a log, in batches. To write, send to a topic '
    'with format("rocketmq"); to follow a log that grows, read its topics with '
    'readStream.format("rocketmq")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What to read. Times are ms since 1970 UTC; None means not asked for."""

    path: str
    columns: tuple[str, ...] | None = None
    topics: tuple[str, ...] = ()
    broker_name: str | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    partitions_min: int | None = None
    partitions_max: int | None = None


class CommitLogDataSource(DataSource):
    """A directory of CommitLog segments as rows. Options and columns:
    docs/guide/spark-commitlog.md. A wrong option is a ConfigError in one sentence."""

    partitions_default: ClassVar[int] = 1
    """Into how many tasks a log of some MiB is divided at least. ``session.rocketmq_session`` sets
    it."""

    @classmethod
    def name(cls) -> str:
        return "rocketmqCommitlog"

    @plain_errors
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(log_schema(log_options(self.options).columns))

    @plain_errors
    def reader(self, schema: StructType) -> CommitLogReader:
        from pyspark.sql.pandas.types import from_arrow_schema

        options = log_options(self.options)
        wanted = log_schema(_columns(",".join(schema.names)))
        if from_arrow_schema(wanted) != schema:  # Spark compares batches to the letter
            raise ConfigError(
                f"the given schema is {schema.simpleString()}, but these columns are "
                f"{from_arrow_schema(wanted).simpleString()}"
            )
        return CommitLogReader(options, wanted, self.partitions_default)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigError(_READ_ONLY)

    streamWriter = writer  # noqa: N815

    @plain_errors
    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802
        raise ConfigError(_READ_ONLY)


class LogPartition(InputPartition):
    """One Spark task: parts of segments, read one after the other."""

    def __init__(self, ranges: list[LogRange], store: str | None) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.store = store


class CommitLogReader(DataSourceReader):
    """Finds the segments once, when the query is planned."""

    def __init__(self, options: LogOptions, schema: pa.Schema, partitions_default: int) -> None:
        self._options, self._schema = options, schema
        self._partitions_default = partitions_default

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        tasks, store = plan(self._options, self._partitions_default)
        return [LogPartition(ranges, store) for ranges in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from turbopump.spark.log_scan import scan

        assert isinstance(partition, LogPartition)
        options = scan_options(self._options, self._schema, partition.store)
        with hidden_traceback():
            for part in partition.ranges:
                yield from scan(part, options)


def log_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """These columns (None: all of them) as the Arrow schema that Spark compares batches with."""
    import pyarrow as pa

    from turbopump.spark.options import READ_SCHEMA

    whole = pa.schema([*READ_SCHEMA, ("segment", pa.string()), ("status", pa.string())])
    return whole if columns is None else pa.schema([whole.field(name) for name in columns])


def scan_options(options: LogOptions, schema: pa.Schema, store: str | None) -> ScanOptions:
    """What one task needs."""
    from turbopump.spark.log_scan import ScanOptions

    return ScanOptions(
        schema=schema,
        broker_name=options.broker_name,
        topics=frozenset(options.topics),
        starting_ms=options.starting_ms,
        ending_ms=options.ending_ms,
        store=store,
    )


# The options: every name that is accepted, its field and how its text is read
# (docs/guide/spark-commitlog.md lists them; a test compares).
def log_options(options: Mapping[str, str]) -> LogOptions:
    """The options as Spark hands them over (any case). Raises ConfigError in one sentence for what
    cannot be used."""
    from turbopump.spark.options import did_you_mean

    spelled = {name.lower(): name for name in LOG_OPTIONS}
    values: dict[str, Any] = {}
    for spelling, text in options.items():
        name = spelled.get(spelling.lower())
        if name is None:
            raise ConfigError(
                f"unknown option {spelling!r}{did_you_mean(spelling, LOG_OPTIONS)}; options: "
                f"{', '.join(LOG_OPTIONS)}"
            )
        field, read = LOG_OPTIONS[name]
        try:
            value = read(str(text).strip())
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None
        if values.setdefault(field, value) != value:
            raise ConfigError(
                "the options topic and subscribe mean the same thing but differ: give one of them"
            )
    if "path" not in values:
        raise ConfigError(
            "it is not said what to read: give the store's directory, or its commitlog folder, "
            'as .load("/data/store")'
        )
    low, high = values.get("partitions_min"), values.get("partitions_max")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"minPartitions {low} is more than maxPartitions {high}: lower one")
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
        raise ConfigError("the path of a directory is expected")
    return os.path.abspath(text)


def _columns(text: str) -> tuple[str, ...]:
    from turbopump.spark.options import did_you_mean

    known = log_schema().names
    spelled = {name.lower(): name for name in known}
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name = spelled.get(part.lower())
        if name is None:
            raise ConfigError(
                f"there is no column {part!r}{did_you_mean(part, known)}; columns: "
                f"{', '.join(known)}"
            )
        if name in names:
            raise ConfigError(f"column {name!r} is listed twice")
        names.append(name)
    if not names:
        raise ConfigError("no column is named; leave the option columns out to read them all")
    return tuple(names)


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
    if not topics:
        raise ConfigError("a topic is expected, several separated by commas")
    return topics


def _broker_name(text: str) -> str:
    return text


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ConfigError(f"a whole number from {low} to {high} is expected, not {text!r}")
        return int(text)

    return read


LOG_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "path": ("path", _path),
    "columns": ("columns", _columns),
    "topic": ("topics", _topics),
    "subscribe": ("topics", _topics),
    "brokerName": ("broker_name", _broker_name),
    "startingTimestamp": ("starting_ms", _whole(0, 2**53)),
    "endingTimestamp": ("ending_ms", _whole(0, 2**53)),
    "minPartitions": ("partitions_min", _whole(1, 100_000)),
    "maxPartitions": ("partitions_max", _whole(1, 100_000)),
}


# The division of a log into tasks. The one rule: a part begins where a good entry does, or where a
# segment does, and ends where the next part begins; so damage between two of them is in one part.
def plan(options: LogOptions, partitions_default: int) -> tuple[list[list[LogRange]], str | None]:
    """The parts of segments to read, by task, and the store's directory if it has ConsumeQueues.

    Raises ConfigError if there is no log at the path.
    """
    segments, store = find_log(Path(options.path))
    parts = _parts(segments, store, options)
    sizes = _sizes(parts)
    total = sum(sizes)
    count = max(-(-total // TASK_SIZE), min(partitions_default, total // TASK_SIZE_MIN), 1)
    count = max(count, min(options.partitions_min or 1, max(total // _PAGE, 1)))
    count = min(count, options.partitions_max or count)
    return _divided(parts, sizes, count), None if store is None else str(store)


_PAGE: Final = 4096


def find_log(path: Path) -> tuple[list[StoreFile], Path | None]:
    """The segments at a path (a store, its commitlog folder, or one segment), in order, and the
    store's directory if that is known.

    Raises ConfigError if there is no log.
    """
    from turbopump.store.files import StoreFile, segment_offset

    if not path.exists():
        raise ConfigError(
            f"there is no {path} on this machine: give a store's directory, or its commitlog "
            "folder, that the driver and each executor has"
        )
    if path.is_file() and segment_offset(path.name) is not None:
        return [StoreFile(segment_offset(path.name) or 0, path.stat().st_size, path)], None
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
            f"{path} holds neither a commitlog folder nor segments, files named by 20 digits: "
            "give the directory that storePathRootDir names, or its commitlog folder"
        )
    return segments, folder.parent if folder.name == "commitlog" else None


def _parts(
    segments: Sequence[StoreFile], store: Path | None, options: LogOptions
) -> list[LogRange]:
    """A part for each segment that may have what is asked for."""
    from turbopump.spark.log_scan import LogRange, dispatched_end, store_time_at

    live = store is not None and _is_live(store)
    parts = []
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        end = segment.end if is_last else segments[number + 1].start
        parts.append(LogRange(str(segment.path), segment.start, segment.start, end, is_last, live))
    if live and store is not None and parts:
        # The writer goes on: what was whole when the query was planned is read, by every task.
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


def _is_live(store: Path) -> bool:
    """Whether a broker has the store open, as far as its lock tells."""
    from turbopump.store.files import StorePaths
    from turbopump.store.inspection.report import Findings
    from turbopump.store.inspection.store_files import read_run_state
    from turbopump.store.read_only_disk import ReadOnlyDisk

    return read_run_state(ReadOnlyDisk(), StorePaths(store), Findings()).running


def _sizes(parts: Sequence[LogRange]) -> list[int]:
    """About how many bytes of each part are written: files are made long before."""
    from turbopump.spark.log_scan import about_written

    return [about_written(part.path, part.end - part.start) for part in parts]


def _divided(parts: Sequence[LogRange], sizes: Sequence[int], count: int) -> list[list[LogRange]]:
    """The parts cut into ``count`` tasks of about equal size, or fewer."""
    from turbopump.spark.log_scan import first_good_entry

    tasks: list[list[LogRange]] = [[]]
    step, filled = max(-(-sum(sizes) // count), 1), 0
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
