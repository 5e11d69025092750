"""Every file name of a store directory, built and parsed here and nowhere else.

::

    <root>/commitlog/00000000000000000000         segments, named by the offset of their first byte
    <root>/consumequeue/<topic>/<queueId>/00…     queue files, named likewise
    <root>/batchconsumequeue/<topic>/<queueId>/…  Apache's, of topics with queue.type=BatchCQ
    <root>/index/<yyyyMMddHHmmssSSS>              key indexes
    <root>/config/<table>.json                    topics, consumerOffset, subscriptionGroup, …
    <root>/timerwheel  <root>/timerlog/00…        messages that wait for their time
    <root>/config/timercheck                      how far their two files go
    <root>/checkpoint  <root>/abort  <root>/lock
    <root>/epochFileCheckpoint                    masters that wrote the log: replication/epochs.py
    <root>/turbopump.json                         ours: provenance.py
    <root>/turbopump.queues.json                  ours: queue_ends.py
    <root>/turbopump.history.json                 ours: replication/history.py
    <root>/turbopump.reserve                      ours: disk_space.py

Segments may lie in several directories, and in others than these; so may queues, indexes,
checkpoint and abort file. Source: apache/rocketmq ``StorePathConfigHelper``,
``MessageStoreConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from turbopump.errors import StoreError


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Paths of a store's files, below ``root`` unless set otherwise.

    Segments in ``read_only_commit_logs`` are read, but no new segment is made there.
    """

    root: Path
    commit_log_directories: tuple[Path, ...] = ()
    read_only_commit_logs: tuple[Path, ...] = ()
    consume_queue_directory: Path | None = None
    index_directory: Path | None = None
    checkpoint_file: Path | None = None
    abort_file: Path | None = None
    epoch_file: Path | None = None

    @property
    def commit_logs(self) -> tuple[Path, ...]:
        """Directories in which segments are made, the main directory first."""
        return self.commit_log_directories or (self.root / "commitlog",)

    @property
    def commit_log(self) -> Path:
        return self.commit_logs[0]

    @property
    def consume_queues(self) -> Path:
        return self.consume_queue_directory or self.root / "consumequeue"

    @property
    def batch_consume_queues(self) -> Path:
        return self.root / "batchconsumequeue"

    @property
    def index(self) -> Path:
        return self.index_directory or self.root / "index"

    @property
    def provenance(self) -> Path:
        return self.root / "turbopump.json"

    @property
    def queue_ends(self) -> Path:
        return self.root / "turbopump.queues.json"

    @property
    def history(self) -> Path:
        return self.root / "turbopump.history.json"

    @property
    def epochs(self) -> Path:
        return self.epoch_file or self.root / "epochFileCheckpoint"

    @property
    def reserve(self) -> Path:
        return self.root / "turbopump.reserve"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def checkpoint(self) -> Path:
        return self.checkpoint_file or self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        return self.abort_file or self.root / "abort"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def timer_wheel(self) -> Path:
        return self.root / "timerwheel"

    @property
    def timer_log(self) -> Path:
        return self.root / "timerlog"

    @property
    def timer_checkpoint(self) -> Path:
        return self.config / "timercheck"

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        """Return the directory of one queue.

        Raises StoreError for a topic name that would lead out of the store.
        """
        if not is_directory_name(topic):
            raise StoreError(f"topic name {topic!r} cannot be a directory name")
        return self.consume_queues / topic / str(queue_id)

    def table(self, name: str) -> Path:
        """Return the path of a JSON table, for example ``topics`` or ``consumerOffset``."""
        return self.config / f"{name}.json"


def is_directory_name(topic: str) -> bool:
    """Return True if a topic name can be the name of a directory inside the store."""
    return "/" not in topic and "\0" not in topic and topic not in ("", ".", "..")


def segment_name(offset: int) -> str:
    """Return the name of the file whose first byte has this offset."""
    return f"{offset:020d}"


def segment_offset(name: str) -> int | None:
    """Return the offset in the name of a segment file, or None for other names."""
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None


class StoreFile(NamedTuple):
    """File of a row of files. ``start`` is the offset of its first byte in the row."""

    start: int
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size
