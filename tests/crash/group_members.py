"""A group whose members are processes that join, leave and are killed, and what their journals say
of it.

Its one rule: everything is judged from what was written down, with the one monotonic clock of the
machine. It must not know how the load is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash import group_member

import turbopump
from turbopump.client.allocation import strategy_of
from turbopump.message.message import MessageQueue

PATIENCE_S = 60.0


class Event(NamedTuple):
    """A line of a journal."""

    at: float
    member: str
    what: str
    words: list[str]


class Member:
    """One life of a member."""

    def __init__(self, name: str, journal: Path, arguments: list[str]) -> None:
        self.name = name
        self.alive = True
        """As far as its journal goes: until it was seen to be gone."""
        self.client_id = ""
        self.queues: frozenset[int] = frozenset()
        self._journal = journal
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._read = 0

    async def prepare(self) -> None:
        """Start the process, which waits to be told to join."""
        with self._journal.with_suffix(".log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                group_member.__file__,
                *self._arguments,
                str(self._journal),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(Path(turbopump.__file__).parent.parent)},
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await self._process.stdout.readline() == b"ready\n", self.log

    def join(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"join\n")

    async def end(self, number: signal.Signals) -> None:
        """Send it a signal and wait until it is gone."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            await self._process.communicate()
        assert self._process.returncode in (0, -signal.SIGKILL), self.log

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def log(self) -> str:
        return self._journal.with_suffix(".log").read_text(errors="replace")[-4000:]

    def news(self) -> list[Event]:
        """The lines that it has written since this was asked last."""
        if not self._journal.exists():
            return []
        with self._journal.open("rb") as journal:
            journal.seek(self._read)
            data = journal.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        events = []
        for line in whole.decode().splitlines():
            at, what, *words = line.split()
            events.append(Event(float(at), self.name, what, words))
            if what == "id":
                self.client_id = words[0]
            elif what == "queues":
                self.queues = frozenset(map(int, words))
        return events


@dataclass
class Change:
    """Somebody joined, left or was killed. ``told``: up to where the broker knew each queue to be
    done, just before."""

    kind: str
    member: str
    begun: float
    told: dict[int, int]
    members: list[str]
    """Who is there afterwards."""
    kept: frozenset[int] = frozenset()
    """Queues that stay locked for members that were killed."""
    gone: float = 0.0
    """When its process had ended."""


@dataclass
class Group:
    """``told`` asks the broker up to where each queue is done."""

    name: str
    topic: str
    queues: int
    ordered: bool
    namesrv: str
    home: Path
    told: Callable[[str], Awaitable[dict[int, int]]]
    members: dict[str, Member] = field(default_factory=dict)
    """Those that are there."""
    lives: dict[str, Member] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    locked: dict[int, float] = field(default_factory=dict)
    """Of each queue that a killed member had locked and nobody got yet, when that member was
    gone."""
    inherited: list[tuple[float, float]] = field(default_factory=list)
    """When somebody got such a queue, and how long that was after the kill."""
    seen: set[bytes] = field(default_factory=set)

    async def start(self, count: int) -> None:
        """So many members join at once."""
        members = await asyncio.gather(*(self._new() for _ in range(count)))
        self.members = {member.name: member for member in members}
        self.changes.append(Change("start", "", time.monotonic(), {}, list(self.members)))
        for member in members:
            member.join()
        await self.until(self.divided, PATIENCE_S)

    async def change(self, kind: str, rng: random.Random) -> None:
        """Make it and wait until every queue has its owner, those apart that stay locked for
        somebody who was killed."""
        if kind == "join":
            member = await self._new()
            begun, told = time.monotonic(), await self.told(self.name)
            member.join()
            change = Change(kind, member.name, begun, told, [*self.members, member.name])
            self.members[member.name] = member
        else:
            member = rng.choice(list(self.members.values()))
            self.read()
            begun, told = time.monotonic(), await self.told(self.name)
            change = Change(
                kind,
                member.name,
                begun,
                told,
                [name for name in self.members if name != member.name],
            )
            await member.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            change.gone = time.monotonic()
            self.read()
            del self.members[member.name]
            member.alive = False
            if self.ordered and kind == "kill":
                self.locked |= dict.fromkeys(member.queues, change.gone)
        change.kept = frozenset(self.locked)
        self.changes.append(change)
        await self.until(self.divided, PATIENCE_S)

    async def _new(self) -> Member:
        name = f"{self.name}-{len(self.lives)}"
        kind = "ordered" if self.ordered else "concurrent"
        member = Member(
            name, self.home / f"{name}.journal", [self.namesrv, self.name, self.topic, kind]
        )
        self.lives[name] = member
        await member.prepare()
        return member

    async def until_seen(self, bodies: set[bytes], seconds: float) -> None:
        """Wait until all these have been handled, or so long."""
        await self.until(lambda: bodies <= self.seen, seconds)

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Read on until this holds; judging finds out if that takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            self.read()
            if condition() or time.monotonic() > deadline:
                return
            await asyncio.sleep(0.02)

    def read(self) -> None:
        for member in self.lives.values():
            for event in member.news():
                self.events.append(event)
                if event.what == "begin":
                    self.seen.add(bytes.fromhex(event.words[2]))
                elif event.what == "queues":
                    for queue in self.locked.keys() & set(map(int, event.words)):
                        self.inherited.append((event.at, event.at - self.locked.pop(queue)))

    def divided(self) -> bool:
        """Whether everybody who is there has exactly the queues that are his, but for those that
        are still locked."""
        held = {name: member.queues for name, member in self.members.items()}
        return self._divided(held, frozenset(self.locked))

    def _divided(self, held: dict[str, frozenset[int]], kept: frozenset[int]) -> bool:
        ids = {self.lives[name].client_id: name for name in held}
        if "" in ids:
            return False
        divide = strategy_of("AVG")
        every = [MessageQueue(self.topic, "broker", queue) for queue in range(self.queues)]
        for client_id, name in ids.items():
            share = frozenset(queue.queue_id for queue in divide(every, sorted(ids), client_id))
            if not share - kept <= held[name] <= share:
                return False
        return True

    async def end(self) -> None:
        """End all processes."""
        await asyncio.gather(
            *(member.end(signal.SIGKILL) for member in self.lives.values() if member.runs)
        )
        self.read()

    # --- judging
    # ----------------------------------------------------------------------------------------------

    def settling(self) -> list[tuple[float, float]]:
        """Of each change but the start, when everybody had his queues, and how many seconds after
        the broker's notice (the first that somebody got); endless if never."""
        times = []
        events = sorted(self.events)
        ends = [*(change.begun for change in self.changes[1:]), float("inf")]
        held: dict[str, frozenset[int]] = {}
        position = 0
        for change, end in zip(self.changes, ends, strict=True):
            notice = settled = None
            while position < len(events) and events[position].at < end:
                event = events[position]
                position += 1
                if event.what == "queues":
                    held[event.member] = frozenset(map(int, event.words))
                if (
                    event.what == "notice"
                    and event.at >= change.begun
                    and event.member in change.members
                    and notice is None
                ):
                    notice = event.at
                if notice is not None and settled is None and event.what in ("queues", "notice"):
                    present = {name: held.get(name, frozenset()) for name in change.members}
                    settled = event.at if self._divided(present, change.kept) else None
            if notice is None or settled is None:
                times.append((change.begun, float("inf")))
            else:
                times.append((settled, settled - notice))
        return times[1:]

    def late(self) -> list[tuple[float, float]]:
        """When processes were held up: from, to."""
        return [
            (event.at - float(event.words[0]), event.at)
            for event in self.events
            if event.what == "late"
        ]

    def repeated(self) -> tuple[int, list[str]]:
        """How many messages began again, and which should not have: at whoever took over a queue,
        only what the broker had not been told before that; in order, moreover, only what a killed
        member had begun."""
        begun: dict[tuple[int, int], list[str]] = defaultdict(list)
        taken: dict[tuple[str, int], float] = {}
        killed = {change.member: change for change in self.changes if change.kind == "kill"}
        count, wrong = 0, []
        for event in sorted(self.events):
            if event.what == "queues":
                for queue in map(int, event.words):
                    taken.setdefault((event.member, queue), event.at)
                for name, queue in list(taken):
                    if name == event.member and str(queue) not in event.words:
                        del taken[name, queue]
            if event.what != "begin":
                continue
            queue, offset = int(event.words[0]), int(event.words[1])
            before = begun[queue, offset]
            if before:
                count += 1
                at = taken.get((event.member, queue), event.at)
                cause = [change for change in self.changes if change.begun <= at][-1]
                sentence = (
                    f"{event.member} began {queue}/{offset} again after {before} (told "
                    f"{cause.told.get(queue)})"
                )
                if offset < cause.told.get(queue, 0):
                    wrong.append(sentence)
                elif self.ordered and not (
                    before[-1] in killed and offset >= killed[before[-1]].told.get(queue, 0)
                ):
                    wrong.append(f"{sentence}, which nobody left unfinished")
            before.append(event.member)
        return count, wrong
