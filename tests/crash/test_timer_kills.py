"""kill -9 with timer messages pending, and messages at delay levels among them: each comes, none
early, and the broker's memory does not grow with them.

Two kinds. The *many* are due within a short time, in which the broker is killed again and again:
what it then has to catch up with says nothing about how exact it is. The *few* are due before, at
any time of a second, while all the many wait and nothing else happens: by them lateness is judged,
and by how late this machine lets a plain sleep be in the same seconds.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.broker_process import BrokerProcess
from tests.crash.plain_sleeps import QUIET_MS, lateness_of_sleeps

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.message.message import Message, MessageQueue

TOPIC = "later"
QUEUES = 4
IN_FLIGHT = 64
LATE_MS = 1000
FEW_PER_SECOND = 50
"""Four times what a million a day are."""
FEW_S_MAX = 40
LEVELS = 18
BY_LEVEL = 4
"""Each fourth of the many waits at a delay level, if one ends within the time in which they are
due."""
MEMORY_MAX = 200 * 1000 * 1000
PACE_COUNT = 10_000
PULL_BATCH = 1000
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxMessageSize": 1024 * 1024,
    "sendThreadPoolQueueCapacity": 100_000,
    "waitTimeMillsInSendQueue": 60_000,
    "maxTransferCountOnMessageInMemory": PULL_BATCH,
    "maxTransferCountOnMessageInDisk": PULL_BATCH,
    "maxTransferBytesOnMessageInDisk": 1024 * 1024,
}


@dataclass(frozen=True)
class Extent:
    """``count``: of the many; the first is due after ``first_s`` seconds (None: when all are sent
    and the few came, by the pace of this machine), the last ``over_s`` seconds later."""

    count: int
    first_s: float | None
    over_s: float
    kills: int
    level_s: int
    """What each delay level adds to the one before, so that several end while the many are due,
    whenever it is that one is sent."""


class Story:
    """``due`` is number → time of delivery in ms, of the many and the few; ``killed`` the times
    (ms) of kills and when the broker was ready again; ``sleeps`` how late plain sleeps were while
    the few came."""

    def __init__(self, broker: BrokerProcess, rng: random.Random, level_s: int) -> None:
        self.broker = broker
        self.rng = rng
        self.level_s = level_s
        self.by_level = 0
        self.due: dict[int, int] = {}
        self.few: list[int] = []
        self.many_begin = 0
        self.killed: list[tuple[int, int]] = []
        self.sleeps: list[float] = []
        self.memory: dict[str, int] = {}
        """The most of each kind at any look."""
        self.pending = 0
        """Messages that waited when the memory was looked at for the first time."""
        self.came: list[tuple[int, int]] = []
        """(number, store time in ms) of every message that consumers have seen."""
        self._read: dict[MessageQueue, int] = {}

    async def pace(self) -> float:
        """Seconds that the sending of a message takes here and now, found out with others than
        those that count."""
        begun = time.monotonic()
        await self._send(
            lambda: Message("pace", b".", deliver_at=int(time.time() * 1000) + 1000)
            for _ in range(PACE_COUNT)
        )
        return (time.monotonic() - begun) / PACE_COUNT

    async def send_many(self, count: int, first_s: float, over_s: float) -> None:
        """So many messages, due evenly from ``first_s`` seconds from now on."""
        self.many_begin = int((time.time() + first_s) * 1000)

        def many(number: int) -> Message:
            now = time.time()
            left = self.many_begin / 1000 - now
            fitting = [
                level
                for level in range(1, LEVELS + 1)
                if left < level * self.level_s < left + over_s
            ]
            if number % BY_LEVEL == 0 and fitting:
                level = self.rng.choice(fitting)
                self.by_level += 1
                # the broker counts from when it is stored
                self.due[number] = int((now + level * self.level_s) * 1000)
                return Message(TOPIC, b"%d" % number, delay_level=level)
            deliver = int(self.many_begin + self.rng.uniform(0, over_s) * 1000)
            self.due[number] = max(deliver, int(time.time() * 1000) + 50)
            return Message(TOPIC, b"%d" % number, deliver_at=self.due[number])

        await self._send(lambda number=number: many(number) for number in range(count))

    async def send_few(self) -> float:
        """Messages that come before the many; when the last is due, as ``time.time()`` tells it."""
        begin = int(time.time()) + 2
        seconds = min(self.many_begin // 1000 - 2 - begin, FEW_S_MAX)
        first = len(self.due)
        self.few = list(range(first, first + max(seconds, 0) * FEW_PER_SECOND))
        # in each second all its parts, so that chance has no hand in a p99
        for at, number in enumerate(self.few):
            self.due[number] = begin * 1000 + int((at + self.rng.random()) * 1000 / FEW_PER_SECOND)
        mixed = self.rng.sample(self.few, len(self.few))
        await self._send(
            lambda number=number: Message(TOPIC, b"%d" % number, deliver_at=self.due[number])
            for number in mixed
        )
        return float(begin + max(seconds, 0))

    async def _send(self, messages: Iterable[Callable[[], Message]]) -> None:
        made = iter(messages)

        async def one_after_the_other(producer: Producer) -> None:
            for make in made:
                await producer.send(make())

        async with Producer(self.broker.namesrv, send_timeout=60.0) as producer:
            await asyncio.gather(*(one_after_the_other(producer) for _ in range(IN_FLIGHT)))

    async def kill_now_and_then(self, kills: int, over_s: float) -> None:
        """Kills while they are delivered, some of them while the broker starts."""
        for number in range(kills):
            at = self.many_begin / 1000 + over_s * (number + self.rng.uniform(0.2, 0.8)) / kills
            await asyncio.sleep(max(at - time.time(), 0))
            began = int(time.time() * 1000)
            await self.broker.kill()
            if number % 3 == 2:
                await self.broker.spawn()
                await asyncio.sleep(self.rng.uniform(0.1, 0.8))
                await self.broker.kill()
            await self.broker.start()
            self.killed.append((began, int(time.time() * 1000)))
            self.look_at_memory()

    def look_at_memory(self) -> None:
        """Of the broker's process, in bytes: all that is resident, and what is not of files."""
        text = Path(f"/proc/{self.broker.pid}/status").read_text()
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name in ("VmRSS", "RssAnon"):
                self.memory[name] = max(int(rest.split()[0]) * 1024, self.memory.get(name, 0))
        if not self.killed:
            now = time.time() * 1000
            self.pending = sum(due > now for due in self.due.values())

    async def read(self) -> None:
        """See what came since the last time."""
        async with PullConsumer(self.broker.namesrv, group="g") as consumer:
            for queue in await consumer.queues(TOPIC):
                while True:
                    offset = self._read.get(queue, 0)
                    result = await consumer.pull(queue, offset, PULL_BATCH)
                    self.came += [
                        (int(message.body), message.store_timestamp) for message in result.messages
                    ]
                    if result.next_offset <= offset:
                        break
                    self._read[queue] = result.next_offset


async def told(home: Path, rng: random.Random, extent: Extent) -> Story:
    levels = " ".join(f"{level * extent.level_s}s" for level in range(1, LEVELS + 1))
    async with BrokerProcess(
        home / "home", home / "store", {**SETTINGS, "messageDelayLevel": levels}
    ) as broker:
        await broker.start()
        await broker.create_topic(TOPIC, QUEUES)
        story = Story(broker, rng, extent.level_s)
        first_s = extent.first_s
        if first_s is None:
            first_s = FEW_S_MAX + 10 + 1.2 * extent.count * await story.pace()
        await story.send_many(extent.count, first_s, extent.over_s)
        until = await story.send_few()
        story.look_at_memory()
        story.sleeps = await lateness_of_sleeps(until)
        await story.kill_now_and_then(extent.kills, extent.over_s)
        await asyncio.sleep(max(max(story.due.values()) / 1000 - time.time(), 0) + 1)
        deadline = time.monotonic() + 120
        while True:
            await story.read()
            if (
                len({number for number, _ in story.came}) == len(story.due)
                or time.monotonic() > deadline
            ):
                return story
            await asyncio.sleep(1)


def p99(values: Iterable[float]) -> float:
    """What 99 of 100 stay below; 0 if there are none."""
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.99)] if ordered else 0


def caught_up_s(late: dict[int, tuple[int, int]], ready: int) -> float:
    """Seconds from a start of the broker until a message came that was late by no more than its
    slot. ``late``: number → (due, came)."""
    at = min(
        (came for due, came in late.values() if came >= ready and came - due <= LATE_MS),
        default=ready,
    )
    return (at - ready) / 1000


def test_pending_timer_messages_and_delay_levels_survive_kill_9(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    extent = (
        Extent(1_000_000, None, 90.0, 5, level_s=20)
        if full
        else Extent(3_000, 7.0, 5.0, 2, level_s=1)
    )
    if "TURBOPUMP_TIMERS" in os.environ:
        extent = Extent(int(os.environ["TURBOPUMP_TIMERS"]), None, 90.0, 5, level_s=20)
    story = asyncio.run(told(tmp_path, rng, extent))
    first: dict[int, int] = {}
    for number, at in story.came:
        first[number] = min(at, first.get(number, at))
    lost = set(story.due) - set(first)
    early = [number for number, at in story.came if at < story.due[number]]
    came = {number: (story.due[number], at) for number, at in first.items()}
    measured(
        f"{len(story.due):,} messages, {story.by_level:,} of them at delay levels, "
        f"{extent.kills} kills: {len(lost)} lost, "
        f"{len(early)} early, {len(story.came) - len(first):,} twice; memory with "
        f"{story.pending:,} of them pending, and after each "
        f"kill, at most {story.memory['RssAnon'] / 1e6:.0f} MB, with pages of files "
        f"{story.memory['VmRSS'] / 1e6:.0f} MB"
    )
    idle = [first[number] - story.due[number] for number in story.few if number in first]
    machine = max(story.sleeps, default=0.0)
    quiet = machine <= QUIET_MS
    measured(
        f"idle, {len(idle):,} of them in {len(story.sleeps)} s while the others waited: lateness "
        f"p99 {p99(idle):.0f} ms, at most "
        f"{max(idle, default=0)} ms; plain sleeps were late by {machine:.1f} ms at most: a "
        f"{'quiet' if quiet else 'busy'} machine"
    )
    ups = ", ".join(f"{caught_up_s(came, ready):.1f}" for _, ready in story.killed)
    downs = ", ".join(f"{(ready - began) / 1000:.1f}" for began, ready in story.killed)
    many = [at - due for number, (due, at) in came.items() if due >= story.many_begin]
    measured(
        f"{extent.count / extent.over_s:,.0f} due in a second: down for {downs} s, caught up "
        f"{ups} s after each start; "
        f"lateness p99 of all that {p99(many) / 1000:.1f} s"
    )
    assert (lost, early) == (set(), [])
    assert story.memory["RssAnon"] <= MEMORY_MAX
    if full:
        assert idle, (
            "sending took so much longer than was foreseen that the broker was never "
            "idle: run it again"
        )
        assert story.pending >= extent.count, (
            "sending took longer than was foreseen, so that the first came before the last was sent"
        )
        assert story.by_level > extent.count // BY_LEVEL // 2, (
            "most were sent when no level ended in time: level_s is too small"
        )
        assert p99(idle) <= LATE_MS + (0 if quiet else 2 * machine)
