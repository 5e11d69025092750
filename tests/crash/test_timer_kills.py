"""kill -9 with timer messages pending: each comes, none early, and the broker's memory does not grow with them."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.crash.broker_process import BrokerProcess

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.message.message import Message

TOPIC = "later"
QUEUES = 4
IN_FLIGHT = 64
LATE_MS = 1000
SETTLED_MS = 8_000
"""So long after a kill lateness is not judged: the broker starts, and catches up."""
MEMORY_MAX = 200 * 1000 * 1000
PACE_COUNT = 10_000
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxMessageSize": 1024 * 1024,
    "sendThreadPoolQueueCapacity": 100_000,
    "waitTimeMillsInSendQueue": 60_000,
}


class Story:
    """``due`` is number → time of delivery in ms; ``down`` the times (ms) that do not count for lateness."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.due: dict[int, int] = {}
        self.down: list[tuple[int, int]] = []
        self.memory: dict[str, int] = {}
        self.pending = 0
        """Messages that waited when the memory was looked at."""

    async def pace(self) -> float:
        """Seconds that the sending of a message takes here and now, found out with others than those that count."""
        begun = time.monotonic()
        numbers = iter(range(PACE_COUNT))

        async def one_after_the_other(producer: Producer) -> None:
            for _ in numbers:
                await producer.send(Message("pace", b".", deliver_at=int(time.time() * 1000) + 1000))

        async with Producer(self.broker.namesrv, send_timeout=60.0) as producer:
            await asyncio.gather(*(one_after_the_other(producer) for _ in range(IN_FLIGHT)))
        return (time.monotonic() - begun) / PACE_COUNT

    async def send(self, count: int, first_s: float, last_s: float) -> None:
        """So many messages, due between the times, seconds from now on."""
        begun = time.time()
        numbers = iter(range(count))

        async def one_after_the_other(producer: Producer) -> None:
            for number in numbers:
                deliver = max(int((begun + self.rng.uniform(first_s, last_s)) * 1000), int(time.time() * 1000) + 50)
                await producer.send(Message(TOPIC, b"%d" % number, deliver_at=deliver))
                self.due[number] = deliver

        async with Producer(self.broker.namesrv, send_timeout=60.0) as producer:
            await asyncio.gather(*(one_after_the_other(producer) for _ in range(IN_FLIGHT)))

    async def kill_now_and_then(self, kills: int) -> None:
        """Kills while they are delivered, some of them while the broker starts."""
        end = max(self.due.values()) / 1000
        begin = max(min(self.due.values()) / 1000, time.time())
        for number in range(kills):
            at = begin + (end - begin) * (number + self.rng.uniform(0.2, 0.8)) / kills
            await asyncio.sleep(max(at - time.time(), 0))
            began = int(time.time() * 1000)
            await self.broker.kill()
            if number % 3 == 2:
                await self.broker.spawn()
                await asyncio.sleep(self.rng.uniform(0.1, 0.8))
                await self.broker.kill()
            await self.broker.start()
            self.down.append((began - LATE_MS, int(time.time() * 1000) + SETTLED_MS))

    def look_at_memory(self) -> None:
        """Of the broker's process, in bytes: all that is resident, and what is not of files."""
        text = Path(f"/proc/{self.broker.pid}/status").read_text()
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name in ("VmRSS", "RssAnon"):
                self.memory[name] = int(rest.split()[0]) * 1024
        now = time.time() * 1000
        self.pending = sum(due > now for due in self.due.values())

    async def arrivals(self) -> list[tuple[int, int]]:
        """(number, store time in ms) of every message that consumers see."""
        found: list[tuple[int, int]] = []
        async with PullConsumer(self.broker.namesrv, group="g") as consumer:
            for queue in await consumer.queues(TOPIC):
                offset = await consumer.min_offset(queue)
                while True:
                    result = await consumer.pull(queue, offset)
                    found += [(int(message.body), message.store_timestamp) for message in result.messages]
                    if result.next_offset <= offset:
                        break
                    offset = result.next_offset
        return found


async def told(
    home: Path, rng: random.Random, count: int, seconds: float | None, over: float, kills: int
) -> tuple[Story, list[tuple[int, int]]]:
    """The first is due after so many seconds (None: when all are sent, by the pace of this machine), the last ``over`` seconds later."""
    async with BrokerProcess(home / "home", home / "store", SETTINGS) as broker:
        await broker.start()
        await broker.create_topic(TOPIC, QUEUES)
        story = Story(broker, rng)
        if seconds is None:
            seconds = 20 + 1.5 * count * await story.pace()
        await story.send(count, seconds, seconds + over)
        await asyncio.sleep(2)  # the last are taken in
        story.look_at_memory()
        await story.kill_now_and_then(kills)
        await asyncio.sleep(max(max(story.due.values()) / 1000 - time.time(), 0) + 1)
        deadline = time.monotonic() + 60
        while True:
            came = await story.arrivals()
            if len({number for number, _ in came}) == count or time.monotonic() > deadline:
                return story, came
            await asyncio.sleep(1)


def test_pending_timer_messages_survive_kill_9(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    count, seconds, over, kills = (1_000_000, None, 180.0, 5) if full else (3_000, 4.0, 8.0, 2)
    count = int(os.environ.get("TURBOPUMP_TIMERS", count))
    story, came = asyncio.run(told(tmp_path, rng, count, seconds, over, kills))
    first: dict[int, int] = {}
    for number, at in came:
        first.setdefault(number, at)
    lost = set(story.due) - set(first)
    early = [number for number, at in came if at < story.due[number]]
    late = sorted(
        first[number] - due
        for number, due in story.due.items()
        if number in first and not any(began <= due <= back for began, back in story.down)
    )
    p99 = late[int(len(late) * 0.99)] if late else 0
    measured(
        f"{count:,} timer messages, {kills} kills: {len(lost)} lost, {len(early)} early, {len(came) - len(first):,} twice, "
        f"lateness p99 {p99} ms of {len(late):,}; memory with {story.pending:,} of them pending "
        f"{story.memory['RssAnon'] / 1e6:.0f} MB, with pages of files {story.memory['VmRSS'] / 1e6:.0f} MB"
    )
    assert (lost, early) == (set(), [])
    assert story.memory["RssAnon"] <= MEMORY_MAX
