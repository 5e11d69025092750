"""The journal of a group's resends: which dead letters were aimed where, and which have arrived.

::

    {"run": "…", "at": ms}                               a run begins
    {"start": [topic, broker, queue, offset], …}         where a target queue ended before anything was aimed at it in this run
    {"aim": [[id, broker, queue], …], "topic": …, "at"}  on the disk before the first of them is sent
    {"done": [id, …]}                                    a broker said that it has them, or they were found in the target
    {"lost": [id, …]}                                    they were looked for there, and have not been sent

One JSON object a line. One rule: what was aimed and is not done is in doubt, and is looked for
before it is sent again. A last line that is torn was being written when the process or the machine
died: what it says had not begun. It must not know brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from turbopump.client.dead_letters.journal_file import JournalFile
from turbopump.errors import ResendError
from turbopump.message.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a letter was sent, where that queue ended before, and when (ms since 1970)."""

    queue: MessageQueue
    start: int
    at_ms: int


class _Line(msgspec.Struct, omit_defaults=True):
    run: str | None = None
    at: int = 0
    start: tuple[str, str, int, int] | None = None
    aim: list[tuple[str, str, int]] = msgspec.field(default_factory=list)
    topic: str = ""
    done: list[str] = msgspec.field(default_factory=list)
    lost: list[str] = msgspec.field(default_factory=list)


_LINE: Final = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class JournalState:
    """What the lines add up to. Ids are those of the resent messages."""

    done: set[str] = field(default_factory=set)
    in_doubt: dict[str, Aim] = field(default_factory=dict)
    starts: dict[MessageQueue, int] = field(default_factory=dict)

    def add(self, line: _Line) -> None:
        if line.run is not None:
            self.starts.clear()
        if line.start is not None:
            topic, broker, queue_id, offset = line.start
            self.starts[MessageQueue(topic, broker, queue_id)] = offset
        for id_, broker, queue_id in line.aim:
            queue = MessageQueue(line.topic, broker, queue_id)
            self.in_doubt[id_] = Aim(queue, self.starts.get(queue, 0), line.at)
        for id_ in line.lost:
            self.in_doubt.pop(id_, None)
        for id_ in line.done:
            self.in_doubt.pop(id_, None)
            self.done.add(id_)


def read_journal(data: bytes, what: object) -> tuple[JournalState, int]:
    """The state, and the size of the whole lines. Raises ResendError if a line that is not the last
    cannot be read."""
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
                f"{what} is damaged in line {number} ({error}), so nobody knows which dead "
                "letters were resent; put back a copy of the "
                "file, or move it away: then the targets alone are asked"
            ) from None
        size += len(text)
    return state, size


class Journal:
    """A journal to be written. ``append`` methods return when the line is on the disk, or, for
    ``done``, with the system."""

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
            self._append(
                {"start": (queue.topic, queue.broker_name, queue.queue_id, offset)}, sync=False
            )

    def aim(self, aims: Mapping[str, MessageQueue], now_ms: int) -> None:
        """These are going to be sent. May block."""
        by_topic: dict[str, list[tuple[str, str, int]]] = {}
        for id_, queue in aims.items():
            by_topic.setdefault(queue.topic, []).append((id_, queue.broker_name, queue.queue_id))
        for number, (topic, places) in enumerate(by_topic.items(), 1):
            self._append(
                {"aim": places, "topic": topic, "at": now_ms}, sync=number == len(by_topic)
            )

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
