"""Lake: a directory with a table of messages. It also has the offsets up to which the table is
complete.

::

    LAKE/_lake.json       definition of the table: its format, columns and bodies; written once
    LAKE/_lock            locked by the one process that writes
    LAKE/_compacting      exists while a host merges small files
    LAKE/_staging/        files of a batch that is not committed
    LAKE/data/topic=T/date=2013-01-01/hour=5/part-1b2c3d4e-….parquet       the table
    LAKE/_rejected/topic=T/date=2013-01-01/hour=5/part-….parquet           rows that did not fit

The table itself contains its offsets. Offsets and files are committed in one atomic step, and a
batch begins at the end of the last one. There is no separate checkpoint that could be lost or
outdated. A format (``FORMATS``) implements that step; everything else is the same for all formats.
Spark is unknown here.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from turbopump.disk.durable_files import FileLockedError, lock_file, now_text, sync_directory
from turbopump.errors import ConfigError, LakeError, LakeInUseError, OffsetGapError
from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import Offsets

FORMATS: Final = {
    "parquet": "turbopump.spark.pipelines.parquet_lake:ParquetLake",
    "delta": "turbopump.spark.pipelines.delta_lake:DeltaLake",
}
"""Class of each format by its name. A new format (Iceberg) needs a line here and a class with the
six methods of ``Lake``."""

STATE: Final = "state"
"""Format of a lake that ``cdc`` writes, with the state of source tables instead of messages."""
_CLASSES: Final = {**FORMATS, STATE: "turbopump.spark.pipelines.state_lake:StateLake"}

DATA: Final = "data"
REJECTED: Final = "_rejected"
TABLES: Final = (DATA, REJECTED)
"""Folders of a lake that contain rows."""

STAGING: Final = "_staging"
_DEFINITION: Final = "_lake.json"
_LOCK: Final = "_lock"
_COMPACTING: Final = "_compacting"
_VERSION: Final = 1
_VERSION_NAMED: Final = 2
"""Version of a lake whose bodies have ``columns`` or a ``struct``. Older releases refuse this
version."""
GENERATION: Final = "queueGeneration"
"""Column of a lake in which a queue was restarted. It is null in rows of a queue's first
generation, then 1, 2 and so on."""
STAGED_KEPT_S: Final = 86_400
"""Seconds after which another host's staged files are removed; longer than a batch takes."""


class Bodies(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Definition of the columns made from message bodies.

    - ``kind``: ``json`` or ``avro``.
    - ``schema``: a Spark schema as JSON, or an Avro schema.
    - ``kept``: True if the column ``body`` stays.
    - ``columns``: names of the columns, if they differ from the names of the fields.
    - ``struct``: name of the one column that contains all fields.
    """

    kind: str
    schema: str
    kept: bool = True
    columns: tuple[str, ...] = ()
    struct: str = ""


class ChangesDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of the changes in the messages of a state lake.

    - ``format``: format of the bodies, such as ``canal-json``.
    - ``keys``, ``types``: declared keys and types (``ChangeOptions``).
    - ``zone``: time zone of texts in columns of type ``timestamp``.
    - ``soft_deletes``: True if deleted rows stay, with a mark.
    - ``history``: True if each change is a row of a further table.
    """

    format: str
    keys: dict[str, tuple[str, ...]] = {}
    types: dict[str, str] = {}
    zone: str = "UTC"
    soft_deletes: bool = False
    history: bool = False


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """Unchanging definition of a lake's table.

    Only a column ``queueGeneration`` may be added later (``Snapshot.generations``).
    """

    v: int = _VERSION
    format: str
    columns: tuple[str, ...]
    """Columns of the source, without the columns that are decoded from bodies."""
    bodies: Bodies | None = None
    changes: ChangesDefinition | msgspec.UnsetType = msgspec.UNSET
    """Only in a state lake."""


class _Bounds(msgspec.Struct):
    queueOffset: int  # noqa: N815


class _Stats(msgspec.Struct):
    minValues: _Bounds  # noqa: N815
    maxValues: _Bounds  # noqa: N815


class DataFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One Parquet file of a lake.

    ``stats`` has the minimum and maximum of its columns, as JSON in Delta's form.
    """

    name: str
    table: str = DATA
    topic: str
    date: str
    """Day of the store time in UTC, such as ``2013-01-01``."""
    hour: int
    rows: int
    size: int
    stats: str = ""

    @property
    def path(self) -> str:
        """Path of the committed file, relative to the lake and with ``/`` as separator."""
        topic = quote(self.topic, safe="")
        return f"{self.table}/topic={topic}/date={self.date}/hour={self.hour}/{self.name}"

    def offsets(self) -> tuple[int, int] | None:
        """Return the lowest and the highest queue offset in the file.

        Return None if they are unknown.
        """
        if not self.stats:
            return None
        stats = msgspec.json.decode(self.stats, type=_Stats)
        return stats.minValues.queueOffset, stats.maxValues.queueOffset

    def may_have(self, offsets: Iterable[int]) -> bool:
        """Return True if the file may have a row at one of these queue offsets."""
        bounds = self.offsets()
        return bounds is None or any(bounds[0] <= offset <= bounds[1] for offset in offsets)


def stats_of(bounds: list[tuple[int, int] | None]) -> str:
    """Return the ``stats`` of a merged file.

    For each merged file, ``bounds`` has the lowest and the highest offset, or None if unknown. The
    result is empty if any are unknown.
    """
    known = [each for each in bounds if each is not None]
    if len(known) < len(bounds):
        return ""
    low, high = min(each[0] for each in known), max(each[1] for each in known)
    return msgspec.json.encode(_Stats(_Bounds(low), _Bounds(high))).decode()


class ArchivedRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Range of archived offsets in one queue, from ``begin`` to ``end`` (exclusive).

    ``lost`` is the number of missing messages that the broker no longer had. A queue that was
    deleted and made again begins another ``generation``, because its offsets repeat. ``former``
    counts the rows of all earlier generations.
    """

    begin: int
    end: int
    lost: int = 0
    generation: int = 0
    former: int = 0

    @property
    def rows(self) -> int:
        """Required number of rows in the lake for the queue."""
        return self.end - self.begin - self.lost + self.former

    def extended_to(self, end: int, lost: int) -> ArchivedRange:
        """Extend the range by one more batch. The batch ends at offset ``end``.

        ``lost`` is the number of missing messages in the batch.
        """
        return msgspec.structs.replace(self, end=end, lost=self.lost + lost)

    def next_generation(self, begin: int) -> ArchivedRange:
        """Return an empty range for the queue's next generation. It begins at offset ``begin``."""
        return ArchivedRange(begin, begin, generation=self.generation + 1, former=self.rows)


ArchivedRanges = dict[MessageQueue, ArchivedRange]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Files and offsets of a lake at one version."""

    version: int
    ranges: ArchivedRanges
    files: tuple[DataFile, ...]
    unfinished: Offsets | None = None
    """Required end of the next batch, if a killed writer committed half of it."""

    def rows(self, table: str | None = None) -> int:
        """Return the number of rows in one table, or in all tables if ``table`` is None."""
        return sum(file.rows for file in self.files if table in (None, file.table))

    @property
    def messages(self) -> int:
        """Required number of rows in the lake, according to its offsets."""
        return sum(each.rows for each in self.ranges.values())

    @property
    def generations(self) -> dict[MessageQueue, int]:
        """Generation numbers of queues that were made again after a deletion.

        If there are such queues, the tables of the lake have the column ``queueGeneration``.
        """
        return {queue: each.generation for queue, each in self.ranges.items() if each.generation}


class LakeBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Batch of messages for one commit: staged files, and the begin and end of each queue."""

    begins: Offsets
    ends: Offsets
    lost: Mapping[MessageQueue, int]
    files: tuple[DataFile, ...]


def staged_name(rest: str) -> str:
    """Return the name of a file that this host writes into the staging folder."""
    return f"part-{_host()}-{rest}"


def draft_name(rest: str) -> str:
    """Return the temporary name of a file. This host renames the file when it is complete."""
    return f".{_host()}-{rest}"


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def drop_left(paths: Iterable[Path], own: str) -> None:
    """Remove files of killed writers.

    - Files whose names begin with ``own`` are of this host. The lock guarantees that no other
      writer of this host is running.
    - Files of other hosts are kept for a day, because locks may not work across hosts. The other
      host may remove them at the same moment.
    """
    for path in paths:
        if path.name.startswith(own) or is_older(path, STAGED_KEPT_S):
            path.unlink(missing_ok=True)


def is_older(path: Path, seconds: float) -> bool:
    """Return True if a file or folder exists and has not changed for this many seconds."""
    try:
        return path.stat().st_mtime < time.time() - seconds
    except FileNotFoundError:
        return False


def no_step(_name: str) -> None:
    """Do nothing at a step of a commit. Tests instead pass a function that kills the process."""


class Lake(ABC):
    """An open lake of any format.

    Changes are only allowed inside ``writing()``.
    """

    has_messages = True
    """False if the lake does not have each message, so that messages cannot be compared with it."""

    def __init__(self, root: Path, definition: Definition) -> None:
        self.root = root
        self.definition = definition

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return the newest version of the lake.

        Raises LakeError if the version cannot be read.
        """

    @abstractmethod
    def append(
        self, before: Snapshot, batch: LakeBatch, at_step: Callable[[str], None] = no_step
    ) -> Snapshot:
        """Commit a batch of messages. Return the new version of the lake.

        ``at_step`` is called with ``committed`` and ``placed``, in the order of the format. Raises
        LakeError if another writer has committed after the version ``before``.
        """

    @abstractmethod
    def restart(self, before: Snapshot, begins: Offsets) -> Snapshot:
        """Begin another generation of queues that were made again after a deletion. Return the new
        version.

        ``begins`` has the queues and their first offsets. Raises LakeError if another writer has
        committed after the version ``before``.
        """

    @abstractmethod
    def recover(self) -> None:
        """Complete or remove the unfinished work of a killed writer.

        The call is only allowed inside ``writing()``.
        """

    def compact(self, *, files_min: int, size_target: int) -> int:
        """Merge small files of the lake. Return the decrease in the number of files.

        A partition is merged if it has at least ``files_min`` small files. Offsets and rows do not
        change. The call is only allowed inside ``writing()``. Raises LakeInUseError while another
        host compacts.
        """
        with self.compacting():
            return self._compact(files_min, size_target)

    @abstractmethod
    def _compact(self, files_min: int, size_target: int) -> int:
        """Do the work of ``compact``. The caller keeps other hosts from compacting."""

    @abstractmethod
    def paths(self, table: str = DATA) -> list[Path]:
        """Return the paths of the current files of a table. Each path can be opened."""

    @property
    def staging(self) -> Path:
        return self.root / STAGING

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the lake for one writer, and repair the work of a killed writer first.

        Raises LakeInUseError if another process has the lock.
        """
        alone = (
            "writes to this lake, which takes one writer at a time: wait until it ends, or use "
            "another directory"
        )
        with locked_file(self.root / _LOCK, self.root, alone):
            self.recover()
            yield

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Keep other hosts from compacting the lake, until the block ends.

        A file claims this right, which also works where locks do not work across hosts. Otherwise
        ``deltalake`` could commit two compactions of the same files, and the table would have their
        rows twice. If there is a claim of this host, a killed process has left it, because this
        process has the lock. Raises LakeInUseError if another host has the claim.
        """
        claim = self.root / _COMPACTING
        own = f"host {socket.gethostname()}"
        with suppress(FileNotFoundError):
            if claim.read_text().startswith(f"{own},") or is_older(claim, STAGED_KEPT_S):
                claim.unlink()
        try:
            create_exclusively(claim, f"{own}, since {now_text()}".encode())
        except FileExistsError:
            raise LakeInUseError(
                f"{self.root}: another host is compacting, according to {claim}, so this "
                "run does not compact. If that host no longer runs, remove the file"
            ) from None
        try:
            yield
        finally:
            claim.unlink(missing_ok=True)

    def clear_staging(self) -> None:
        """Remove staged files of killed writers.

        ``drop_left`` has the rules.
        """
        self.staging.mkdir(exist_ok=True)
        drop_left(self.staging.iterdir(), staged_name(""))

    def move_staged(self, files: Iterable[DataFile]) -> None:
        """Move committed files from the staging folder to their final paths, durably.

        Files that were moved before stay. Raises LakeError for a file that is at neither path.
        """
        folders = set()
        for file in files:
            target = self.root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(self.staging / file.name, target)
            except FileNotFoundError:
                if not target.exists():
                    raise LakeError(
                        f"{target} is missing, though it was committed: restore it from a backup"
                    ) from None
            folders.add(target.parent)
        for folder in sorted(folders):
            sync_directory(folder)

    def check_follows(self, before: Snapshot, batch: LakeBatch) -> None:
        """Raise OffsetGapError if a batch does not begin where the table ends.

        This is checked for each queue in the table.
        """
        for queue, begin in batch.begins.items():
            there = before.ranges.get(queue)
            if there is not None and there.end != begin:
                raise OffsetGapError(
                    f"{self.root}: the table has {queue} up to offset {there.end}, but the batch "
                    f"begins at {begin}; nothing was committed"
                )


def create_or_open(root: Path, wanted: Definition) -> Lake:
    """Open the lake at ``root``, or create a lake there.

    Raises ConfigError if an existing lake has another definition, or if the directory contains
    something else. Raises LakeError if an existing lake cannot be read.
    """
    _class_of(wanted.format)
    if definition_at(root) is None:
        _check_empty(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / STAGING).mkdir(exist_ok=True)
    if wanted.bodies is not None and (wanted.bodies.columns or wanted.bodies.struct):
        wanted = msgspec.structs.replace(wanted, v=_VERSION_NAMED)
    with suppress(FileExistsError):
        create_exclusively(root / _DEFINITION, msgspec.json.format(msgspec.json.encode(wanted)))
    lake = open_lake(root)
    check_shape(root, lake.definition, wanted)
    return lake


def _check_empty(root: Path) -> None:
    """Raise ConfigError if a directory is neither empty nor a lake.

    Files left by a killed writer, and files that a file system or a desktop puts into each
    directory, do not count.
    """
    if not root.is_dir():
        return
    strange = sorted(
        each.name
        for each in root.iterdir()
        if each.name not in (STAGING, "lost+found") and not each.name.startswith(".")
    )
    # Another host may have created the lake in the meantime.
    if strange and definition_at(root) is None:
        raise ConfigError(
            f"{root} is not a lake and not empty (it has {strange[0]!r}): give an empty "
            "or a new directory"
        )


def lake_place(place: str | Path) -> Path:
    """Return the directory of a lake.

    Raises ConfigError for a URL, also if ``Path`` has changed it to ``s3:/bucket/lake``.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(place))
    if found:
        raise ConfigError(
            f"{place} is not a directory: a lake is a directory on a file system, and "
            f"{found[1]} is not supported. Give a path"
        )
    return Path(place)


def check_shape(root: Path, there: Definition, wanted: Definition) -> None:
    """Raise ConfigError if an existing lake's definition differs from the wanted one."""
    for what in ("format", "columns", "bodies", "changes"):
        if getattr(there, what) != getattr(wanted, what):
            raise ConfigError(
                f"{root} is a lake with other {what} ({_said(getattr(there, what))}), "
                "which cannot change. Leave the option out, or use another directory"
            )


def definition_at(root: Path) -> Definition | None:
    """Return the definition of the lake at ``root``, or None if there is no lake.

    Raises LakeError if the definition cannot be read, and ConfigError if ``root`` is a URL.
    """
    try:
        data = (lake_place(root) / _DEFINITION).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data, type=Definition)
    except msgspec.DecodeError as error:
        raise LakeError(f"{root / _DEFINITION} cannot be read: {error}") from None
    if found.v not in (_VERSION, _VERSION_NAMED) or found.format not in _CLASSES:
        raise LakeError(
            f"{root} is a lake of version {found.v} and format {found.format!r}; this release "
            f"reads versions {_VERSION} and {_VERSION_NAMED} and {', '.join(FORMATS)}: use the one "
            "that wrote it"
        )
    return found


def open_lake(root: Path) -> Lake:
    """Open the existing lake at ``root``.

    The path becomes absolute, because pyarrow reads ``s3:x`` as a URI. Raises LakeError if there is
    no readable lake.
    """
    definition = definition_at(root)
    if definition is None:
        raise LakeError(f"{root} is not a lake: `turbopump pipeline archive` makes one")
    return _class_of(definition.format)(root.absolute(), definition)


def _class_of(format_name: str) -> type[Lake]:
    module, _, name = _CLASSES[format_name].partition(":")
    try:
        kind: type[Lake] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise LakeError(
            f"lakes of format {format_name} need {error.name}, which is not installed: "
            "pip install 'turbopump[lake]'"
        ) from None
    return kind


@contextmanager
def locked_file(path: Path, what: Path, alone: str) -> Iterator[None]:
    """Lock a file until the block ends. The file names the process with the lock.

    If another process has the lock, raises LakeInUseError. The error says that ``what`` is locked,
    names the process, and ends with ``alone``.
    """
    try:
        lock = lock_file(path)
    except FileLockedError as holder:
        raise LakeInUseError(f"{what}: {holder} {alone}") from None
    except OSError as error:
        raise LakeError(
            f"{path} cannot be locked ({error.strerror}): use a file system that has locks"
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def create_exclusively(path: Path, data: bytes) -> None:
    """Create a file with this content, atomically and durably. Never replace an existing file.

    Raises FileExistsError if the file exists, and does not change it.
    """
    draft = path.with_name(draft_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}"))
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename, a link never replaces a file
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def _said(value: Any) -> str:
    if value in (None, msgspec.UNSET):
        return "none"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
