"""A lake: a directory with one table of messages, and the offsets up to which it is complete.

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

from turbopump.durable_files import FileLockedError, lock_file, now_text, sync_directory
from turbopump.errors import ConfigError, LakeError, LakeInUseError, OffsetGapError
from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import Offsets

FORMATS: Final = {
    "parquet": "turbopump.spark.pipelines.parquet_lake:ParquetLake",
    "delta": "turbopump.spark.pipelines.delta_lake:DeltaLake",
}
"""Formats by name, and the class that commits in each. Another (Iceberg) is another line here and a
class with the six methods of ``Lake``."""

DATA: Final = "data"
REJECTED: Final = "_rejected"
TABLES: Final = (DATA, REJECTED)
"""The folders of a lake that hold rows."""

STAGING: Final = "_staging"
_DEFINITION: Final = "_lake.json"
_LOCK: Final = "_lock"
_COMPACTING: Final = "_compacting"
_VERSION: Final = 1
_VERSION_NAMED: Final = 2
"""Version of a lake whose bodies have ``columns`` or a ``struct``; releases that do not know these
refuse it."""
GENERATION: Final = "queueGeneration"
"""The column of a lake in which a queue was restarted; null in rows of a queue's first generation,
then 1, 2 and so on."""
STAGED_KEPT_S: Final = 86_400
"""Longer than a batch takes."""


class Bodies(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bodies as columns: ``kind`` is ``json`` or ``avro``, ``schema`` a Spark DDL or an Avro schema
    in JSON. ``kept``: whether the column ``body`` stays beside them. ``columns``: the columns'
    names, where they are not those of the fields. ``struct``: the one column that has all of them
    within it."""

    kind: str
    schema: str
    kept: bool = True
    columns: tuple[str, ...] = ()
    struct: str = ""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a lake's table. It never changes; only a column ``queueGeneration`` may be
    added later (``Snapshot.generations``)."""

    v: int = _VERSION
    format: str
    columns: tuple[str, ...]
    """Columns of the source, without those of bodies."""
    bodies: Bodies | None = None


class _Bounds(msgspec.Struct):
    queueOffset: int  # noqa: N815


class _Stats(msgspec.Struct):
    minValues: _Bounds  # noqa: N815
    maxValues: _Bounds  # noqa: N815


class DataFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of rows. ``stats``: its rows' bounds as Delta writes them, JSON."""

    name: str
    table: str = DATA
    topic: str
    date: str
    """``2013-01-01``, of the store time in UTC."""
    hour: int
    rows: int
    size: int
    stats: str = ""

    @property
    def path(self) -> str:
        """Path in the lake after the commit, with ``/``."""
        topic = quote(self.topic, safe="")
        return f"{self.table}/topic={topic}/date={self.date}/hour={self.hour}/{self.name}"

    def offsets(self) -> tuple[int, int] | None:
        """The lowest and the highest offset of its rows, if they are known."""
        if not self.stats:
            return None
        stats = msgspec.json.decode(self.stats, type=_Stats)
        return stats.minValues.queueOffset, stats.maxValues.queueOffset

    def may_have(self, offsets: Iterable[int]) -> bool:
        """Return True if a row may have one of these offsets."""
        bounds = self.offsets()
        return bounds is None or any(bounds[0] <= offset <= bounds[1] for offset in offsets)


def stats_of(bounds: list[tuple[int, int] | None]) -> str:
    """The ``stats`` of a file with the rows of several, by their lowest and highest offsets."""
    known = [each for each in bounds if each is not None]
    if len(known) < len(bounds):
        return ""
    low, high = min(each[0] for each in known), max(each[1] for each in known)
    return msgspec.json.encode(_Stats(_Bounds(low), _Bounds(high))).decode()


class Stretch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Offsets of one queue in the table: from ``begin`` to ``end`` (exclusive), except for ``lost``
    of them, which the broker no longer had.

    A queue that was deleted and made again begins another ``generation``, because its offsets
    repeat. ``former`` counts the rows of all earlier generations.
    """

    begin: int
    end: int
    lost: int = 0
    generation: int = 0
    former: int = 0

    @property
    def rows(self) -> int:
        """Number of rows that the offsets require."""
        return self.end - self.begin - self.lost + self.former

    def to(self, end: int, lost: int) -> Stretch:
        """The same with a batch more."""
        return msgspec.structs.replace(self, end=end, lost=self.lost + lost)

    def restarted(self, begin: int) -> Stretch:
        """The next generation, of which there is nothing yet."""
        return Stretch(begin, begin, generation=self.generation + 1, former=self.rows)


Stretches = dict[MessageQueue, Stretch]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A lake at one version."""

    version: int
    stretches: Stretches
    files: tuple[DataFile, ...]
    unfinished: Offsets | None = None
    """Required end of the next batch, if a killed writer committed half of it."""

    def rows(self, table: str | None = None) -> int:
        """In one table, or in all."""
        return sum(file.rows for file in self.files if table in (None, file.table))

    @property
    def messages(self) -> int:
        """Number of rows that the offsets require."""
        return sum(each.rows for each in self.stretches.values())

    @property
    def generations(self) -> dict[MessageQueue, int]:
        """Generations of the restarted queues. If there are any, tables have the column
        ``queueGeneration``."""
        return {queue: each.generation for queue, each in self.stretches.items() if each.generation}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One commit: the messages between two sets of offsets, in staged files."""

    begins: Offsets
    ends: Offsets
    lost: Mapping[MessageQueue, int]
    files: tuple[DataFile, ...]


def staged_name(rest: str) -> str:
    """The name of a file for a lake that a writer on this host commits."""
    return f"part-{_host()}-{rest}"


def draft_name(rest: str) -> str:
    """The same for a file that gets its own name once it is whole."""
    return f".{_host()}-{rest}"


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def drop_left(paths: Iterable[Path], own: str) -> None:
    """Throw away what killed writers have left: what begins with ``own``, of this host, of which
    the lock says that no writer is left. Another host's may be at work where locks do not reach
    across hosts, so its files stay for a day; and it may take them away at the same moment."""
    for path in paths:
        if path.name.startswith(own) or is_older(path, STAGED_KEPT_S):
            path.unlink(missing_ok=True)


def is_older(path: Path, seconds: float) -> bool:
    """Return True if a file or folder has not changed for this long; False if it does not exist."""
    try:
        return path.stat().st_mtime < time.time() - seconds
    except FileNotFoundError:
        return False


def no_step(_name: str) -> None:
    """Do nothing at a step of a commit. Tests kill the process there."""


class Lake(ABC):
    """An open lake. ``writing()`` is entered before anything is changed."""

    def __init__(self, root: Path, definition: Definition) -> None:
        self.root = root
        self.definition = definition

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The newest version. Raises LakeError if it cannot be read."""

    @abstractmethod
    def append(
        self, before: Snapshot, batch: Batch, at_step: Callable[[str], None] = no_step
    ) -> Snapshot:
        """Commit a batch; what the lake is then. ``at_step`` hears ``committed``, ``placed``, in
        the order of the format. Raises LakeError if another writer was faster."""

    @abstractmethod
    def restart(self, before: Snapshot, begins: Offsets) -> Snapshot:
        """Commit that these queues begin another generation, at these offsets; what the lake is
        then. Raises LakeError if another writer was faster."""

    @abstractmethod
    def recover(self) -> None:
        """Finish or throw away what a killed writer has left. Only while ``writing()``."""

    def compact(self, *, files_min: int, size_target: int) -> int:
        """Put small files of a partition together, where it has ``files_min`` or more; how many
        files have gone. Offsets and rows stay. Only while ``writing()``. Raises LakeInUseError
        while another host compacts."""
        with self.compacting():
            return self._compact(files_min, size_target)

    @abstractmethod
    def _compact(self, files_min: int, size_target: int) -> int:
        """``compact``, while no other host does."""

    @abstractmethod
    def paths(self, table: str = DATA) -> list[Path]:
        """The files that make up a table now, each where it can be opened."""

    @property
    def staging(self) -> Path:
        return self.root / STAGING

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lake's lock, with everything a killed writer left put right. Raises
        LakeInUseError if another process has it."""
        alone = (
            "writes to this lake, which takes one writer at a time: wait until it ends, or use "
            "another directory"
        )
        with locked(self.root / _LOCK, self.root, alone):
            self.recover()
            yield

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Compact alone, also where locks do not reach across hosts: ``deltalake`` commits two
        compactions of the same files, and the table has their rows twice. A file of this host
        is of a killed process, for this one has the lock. Raises LakeInUseError."""
        claim, own = self.root / _COMPACTING, f"host {socket.gethostname()}"
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
        """Throw away the staged files that killed writers have left: ``drop_left``."""
        self.staging.mkdir(exist_ok=True)
        drop_left(self.staging.iterdir(), staged_name(""))

    def move_staged(self, files: Iterable[DataFile]) -> None:
        """Move staged files durably to their final places. Existing files stay. Raises LakeError
        for a file that is in neither place."""
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

    def check_follows(self, before: Snapshot, batch: Batch) -> None:
        """Raises OffsetGapError unless the batch begins where the table ends, queue by queue."""
        for queue, begin in batch.begins.items():
            there = before.stretches.get(queue)
            if there is not None and there.end != begin:
                raise OffsetGapError(
                    f"{self.root}: the table has {queue} up to offset {there.end}, but the batch "
                    f"begins at {begin}; nothing was committed"
                )


def create_or_open(root: Path, wanted: Definition) -> Lake:
    """The lake at ``root``, made if there is none.

    Raises ConfigError if there is one of another shape, or a directory with something else; and
    LakeError as ``open_lake``.
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
    """Raise ConfigError if a directory has files of others. Leftovers of a killed writer, and files
    that a file system or a desktop puts into each directory, do not count."""
    if not root.is_dir():
        return
    strange = sorted(
        each.name
        for each in root.iterdir()
        if each.name not in (STAGING, "lost+found") and not each.name.startswith(".")
    )
    # Another host may have made the lake meanwhile.
    if strange and definition_at(root) is None:
        raise ConfigError(
            f"{root} is not a lake and not empty (it has {strange[0]!r}): give an empty "
            "or a new directory"
        )


def lake_place(place: str | Path) -> Path:
    """The directory of a lake. Raises ConfigError for a URL, also for one that ``Path`` has made
    ``s3:/bucket/lake`` of."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(place))
    if found:
        raise ConfigError(
            f"{place} is not a directory: a lake is a directory on a file system, and "
            f"{found[1]} is not supported. Give a path"
        )
    return Path(place)


def check_shape(root: Path, there: Definition, wanted: Definition) -> None:
    """Raises ConfigError if the lake that is there has another shape."""
    for what in ("format", "columns", "bodies"):
        if getattr(there, what) != getattr(wanted, what):
            raise ConfigError(
                f"{root} is a lake with other {what} ({_said(getattr(there, what))}), "
                "which cannot change. Leave the option out, or use another directory"
            )


def definition_at(root: Path) -> Definition | None:
    """Read the definition of the lake at ``root``; None if there is none. Raises LakeError, and
    ConfigError as ``lake_place``."""
    try:
        data = (lake_place(root) / _DEFINITION).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data, type=Definition)
    except msgspec.DecodeError as error:
        raise LakeError(f"{root / _DEFINITION} cannot be read: {error}") from None
    if found.v not in (_VERSION, _VERSION_NAMED) or found.format not in FORMATS:
        raise LakeError(
            f"{root} is a lake of version {found.v} and format {found.format!r}; this release "
            f"reads versions {_VERSION} and {_VERSION_NAMED} and {', '.join(FORMATS)}: use the one "
            "that wrote it"
        )
    return found


def open_lake(root: Path) -> Lake:
    """The lake at ``root``, as an absolute path: pyarrow takes ``s3:x`` for a URI. Raises LakeError
    if there is none, or none that can be read."""
    definition = definition_at(root)
    if definition is None:
        raise LakeError(f"{root} is not a lake: `turbopump pipeline archive` makes one")
    return _class_of(definition.format)(root.absolute(), definition)


def _class_of(format_name: str) -> type[Lake]:
    module, _, name = FORMATS[format_name].partition(":")
    try:
        kind: type[Lake] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise LakeError(
            f"lakes of format {format_name} need {error.name}, which is not installed: "
            "pip install '.[lake]' in a checkout of Turbopump"
        ) from None
    return kind


@contextmanager
def locked(path: Path, what: Path, alone: str) -> Iterator[None]:
    """Hold the lock that a file is, which says who does. Raises LakeInUseError if somebody else
    has it: what is locked, who has it, and ``alone``, what is not for two."""
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
    """Make a file with this content, all of it or nothing, durably. Raises FileExistsError if
    there is one, which is left alone."""
    draft = path.with_name(draft_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}"))
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename it never replaces
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def _said(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
