"""The journal of a group's resends: which dead letters were aimed where, and which have arrived.

::

    {"run": "…", "at": ms}                               a run begins
    {"start": [topic, broker, queue, offset], …}         the end of a target before the first aim
    {"aim": [[id, broker, queue], …], "topic": …, "at"}  on the disk before the first is sent
    {"done": [id, …]}                                    a broker or the target has them
    {"lost": [id, …]}                                    looked for there, and not sent

One JSON object a line. One rule: what was aimed and is not done is in doubt, and is looked for
before it is sent again. A last line that is torn was being written when the process or the machine
died: what it says had not begun. It must not know brokers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from turbopump.errors import ResendError
from turbopump.message.message import MessageQueue


@dataclass(frozen=True, slots=True)
class ResendAim:
    """Where a letter was sent, where that queue ended before, and when (ms since 1970)."""

    queue: MessageQueue
    start: int
    at_ms: int


class _JournalLine(msgspec.Struct, omit_defaults=True):
    run: str | None = None
    at: int = 0
    start: tuple[str, str, int, int] | None = None
    aim: list[tuple[str, str, int]] = msgspec.field(default_factory=list)
    topic: str = ""
    done: list[str] = msgspec.field(default_factory=list)
    lost: list[str] = msgspec.field(default_factory=list)


_LINE: Final = msgspec.json.Decoder(_JournalLine)


@dataclass(slots=True)
class JournalState:
    """What the lines add up to. Ids are those of the resent messages."""

    done: set[str] = field(default_factory=set)
    in_doubt: dict[str, ResendAim] = field(default_factory=dict)
    starts: dict[MessageQueue, int] = field(default_factory=dict)

    def add(self, line: _JournalLine) -> None:
        if line.run is not None:
            self.starts.clear()
        if line.start is not None:
            topic, broker, queue_id, offset = line.start
            self.starts[MessageQueue(topic, broker, queue_id)] = offset
        for id_, broker, queue_id in line.aim:
            queue = MessageQueue(line.topic, broker, queue_id)
            self.in_doubt[id_] = ResendAim(queue, self.starts.get(queue, 0), line.at)
        for id_ in line.lost:
            self.in_doubt.pop(id_, None)
        for id_ in line.done:
            self.in_doubt.pop(id_, None)
            self.done.add(id_)


def read_journal(data: bytes, what: object) -> tuple[JournalState, int]:
    """The state, and the size of the whole lines. Raises ResendError for a line that is damaged."""
    state = JournalState()
    size = 0
    lines = data.splitlines(keepends=True)
    for number, text in enumerate(lines, 1):
        try:
            if not text.endswith(b"\n"):
                break
            state.add(_LINE.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                break
            raise ResendError(
                f"{what} is damaged in line {number} ({error}), so nobody knows which dead letters "
                "were resent; put back a copy of the file, or move it away: then the targets alone "
                "are asked"
            ) from None
        size += len(text)
    return state, size


class Journal:
    """A journal to be written. Its methods return when the line is on the disk (``aim``) or with
    the system."""

    def __init__(self, file: JournalFile, *, run: str, now_ms: int) -> None:
        self._file = file
        data = file.read()
        self.state, size = read_journal(data, file.path)
        if size < len(data):
            file.truncate(size)
        self._append({"run": run, "at": now_ms}, sync=False)

    def start(self, ends: Mapping[MessageQueue, int]) -> None:
        """Where target queues end now. Written out with the next aim."""
        for queue, offset in ends.items():
            start = (queue.topic, queue.broker_name, queue.queue_id, offset)
            self._append({"start": start}, sync=False)

    def aim(self, aims: Mapping[str, MessageQueue], now_ms: int) -> None:
        """These are going to be sent. May block."""
        by_topic: dict[str, list[tuple[str, str, int]]] = {}
        for id_, queue in aims.items():
            by_topic.setdefault(queue.topic, []).append((id_, queue.broker_name, queue.queue_id))
        for number, (topic, aim) in enumerate(by_topic.items(), 1):
            last = number == len(by_topic)
            self._append({"aim": aim, "topic": topic, "at": now_ms}, sync=last)

    def done(self, ids: Iterable[str]) -> None:
        """These are in the target. If the line is lost, they are in doubt, and found."""
        if ids := list(ids):
            self._append({"done": ids}, sync=False)

    def lost(self, ids: Iterable[str]) -> None:
        """These were aimed, and are not in the target."""
        if ids := list(ids):
            self._append({"lost": ids}, sync=False)

    def _append(self, line: dict[str, Any], *, sync: bool) -> None:
        text = msgspec.json.encode(line)
        self._file.append(text + b"\n", sync=sync)
        self.state.add(_LINE.decode(text))


class JournalFile:
    """``GROUP.journal``, to which lines are added and synced, and ``GROUP.lock``, which the system
    releases when its holder ends. Open for one writer. Raises ResendError if another process, or
    another part of this one, has it open; OSError as the system does."""

    def __init__(self, directory: Path, group: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = journal_path(directory, group)
        lock_path = self.path.with_name(f"{_name_of(group)}.lock")
        self._lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 64, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise ResendError(
                f"somebody else on this machine is resending the dead letters of group {group!r}"
                f"{f', process {holder}' if holder else ''} (lock file {lock_path}); wait until "
                "that has ended"
            ) from None
        except OSError:
            os.close(self._lock)
            raise
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o644)
            _sync_directory(directory)
        except OSError:
            os.close(self._lock)
            raise

    def read(self) -> bytes:
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            return file.read()

    def truncate(self, size: int) -> None:
        """Cut off what is behind ``size`` bytes."""
        os.ftruncate(self._file, size)

    def append(self, data: bytes, *, sync: bool) -> None:
        """Add ``data``; with ``sync`` it is on the disk on return. May block."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)


def journal_path(directory: Path, group: str) -> Path:
    return directory / f"{_name_of(group)}.journal"


def _name_of(group: str) -> str:
    return group.replace("/", "_")


def read_unlocked(directory: Path, group: str) -> bytes:
    """What a journal says now, also while another process writes it; empty if there is none."""
    try:
        return journal_path(directory, group).read_bytes()
    except FileNotFoundError:
        return b""


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
