"""Journal of a group's resends. It records the target of each dead letter before the send, and the
result afterwards.

::

    {"run": "…", "at": ms}                               a run begins
    {"start": [topic, broker, queue, offset], …}         the end of a target before the first aim
    {"aim": [[id, broker, queue], …], "topic": …, "at"}  on the disk before the first is sent
    {"done": [id, …]}                                    a broker or the target has them
    {"lost": [id, …]}                                    looked for there, and not sent

Each line is one JSON object. One rule: a letter that has an aim and is not done is in doubt, and is
searched for before it is sent again. A torn last line was being written when the process or the
machine stopped. Its action had not started, so the line is ignored. This module must not know
brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from turbopump.disk.durable_files import FileLockedError, lock_file, sync_directory
from turbopump.errors import ResendError
from turbopump.message.message import MessageQueue


@dataclass(frozen=True, slots=True)
class ResendAim:
    """Queue to which a dead letter is sent.

    - ``start``: offset at the end of the queue before the send.
    - ``at_ms``: time of the record in ms since 1970 UTC.
    """

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
    """State of all resends, as recorded in a journal.

    - ``done``: ids of messages that are in a target.
    - ``in_doubt``: aims of messages that may be in a target, by id.
    - ``starts``: offset at the end of each target queue when the run began to use it.
    """

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
    """Return the state in a journal, and the size of its complete lines in bytes.

    Raises ResendError for a damaged line.
    """
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
                f"{what} is damaged in line {number} ({error}), so the resent dead "
                "letters are unknown; restore a copy of the file, or move it away: then "
                "only the targets are searched"
            ) from None
        size += len(text)
    return state, size


class Journal:
    """Journal of one group's resends, open for one run.

    The files are ``GROUP.journal`` and ``GROUP.lock``; the system releases the lock when the
    process ends. ``record_aims`` returns when its lines are on the disk. Other methods return when
    the system has the line. Raises ResendError if the journal is open elsewhere or a line is
    damaged, and OSError if the system cannot read or write the files.
    """

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
        """Record the end offsets of target queues. Call this before letters are sent there.

        The lines reach the disk together with the next aims.
        """
        for queue, offset in ends.items():
            start = (queue.topic, queue.broker_name, queue.queue_id, offset)
            self._append({"start": start}, sync=False)

    def record_aims(self, aims: Mapping[str, MessageQueue], now_ms: int) -> None:
        """Record the target queue of each letter, by id. Call this before the letters are sent.

        The call blocks the thread until the lines are on the disk.
        """
        by_topic: dict[str, list[tuple[str, str, int]]] = {}
        for id_, queue in aims.items():
            by_topic.setdefault(queue.topic, []).append((id_, queue.broker_name, queue.queue_id))
        for number, (topic, aim) in enumerate(by_topic.items(), 1):
            last = number == len(by_topic)
            self._append({"aim": aim, "topic": topic, "at": now_ms}, sync=last)

    def record_sent(self, ids: Iterable[str]) -> None:
        """Record the ids of letters that are in the target.

        If the line is lost, the letters are in doubt, and the next run finds them in the target.
        """
        if ids := list(ids):
            self._append({"done": ids}, sync=False)

    def record_lost(self, ids: Iterable[str]) -> None:
        """Record the ids of lost letters: meant to be sent, but not in the target."""
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
    """Return the bytes of a journal, even while another process writes to the file.

    The result is empty if there is no journal.
    """
    try:
        return journal_path(directory, group).read_bytes()
    except FileNotFoundError:
        return b""
