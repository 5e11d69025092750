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

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from turbopump.durable_files import FileLockedError, lock_file, sync_directory
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
    """The journal of one group, open for one run: ``GROUP.journal``, and ``GROUP.lock``, which the
    system releases when its holder ends. Methods return when the line is on the disk (``aim``) or
    with the system. Raises ResendError if another process, or another part of this one, has it
    open, or a line is damaged; OSError as the system does."""

    def __init__(self, directory: Path, group: str, *, run: str, now_ms: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = journal_path(directory, group)
        lock_path = path.with_suffix(".lock")
        try:
            self._lock = lock_file(lock_path)
        except FileLockedError as holder:
            raise ResendError(
                f"somebody else on this machine is resending the dead letters of group {group!r}, "
                f"{holder} (lock file {lock_path}); wait until that has ended"
            ) from None
        try:
            self._file = path.open("a+b", buffering=0)
            try:
                sync_directory(directory)
                self.state, size = read_journal(path.read_bytes(), path)
                self._file.truncate(size)
                self._append({"run": run, "at": now_ms}, sync=False)
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)

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
        rest = memoryview(text + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]
        if sync:
            os.fsync(self._file.fileno())
        self.state.add(_LINE.decode(text))


def journal_path(directory: Path, group: str) -> Path:
    return directory / f"{group.replace('/', '_')}.journal"


def read_unlocked(directory: Path, group: str) -> bytes:
    """Read a journal, also while another process writes it; empty if there is none."""
    try:
        return journal_path(directory, group).read_bytes()
    except FileNotFoundError:
        return b""
