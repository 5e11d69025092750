"""One broker of three is killed under load: producers with their usual retries lose no send, and no
message fails twice for one kill."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.crash.broker_process import SETTINGS, BrokerProcess
from tests.failed_attempts import FailedAttempts

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.errors import TurbopumpError
from turbopump.message.message import MessageQueue

TOPIC, QUEUES = "three", 4
PRODUCERS, LANES = 4, 16
WAIT_S_MAX = 180.0
SEND_TIMEOUT_S = 60.0
"""Of a sample, which runs beside other tests; in full it is 3 s, as by default."""


class Senders:
    """Producers with their default settings, unless this is a sample, each with lanes that send one
    message after the other until they are told to stop."""

    def __init__(self, namesrv: str, send_timeout: float) -> None:
        self.failed = FailedAttempts()
        self._producers = [
            Producer(
                namesrv, group=f"three-{number}", hooks=[self.failed], send_timeout=send_timeout
            )
            for number in range(PRODUCERS)
        ]
        self.stored: dict[bytes, str] = {}
        """Body -> message id of every send that succeeded."""
        self.errors: list[TurbopumpError] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = asyncio.Condition()
        self._stopping = False

    async def start(self) -> None:
        for number, producer in enumerate(self._producers):
            await producer.start()
            self._tasks += [
                asyncio.create_task(self._lane(f"{number}/{lane}", producer))
                for lane in range(LANES)
            ]

    async def _lane(self, name: str, producer: Producer) -> None:
        number = 0
        while not self._stopping:
            number += 1
            body = f"{name}/{number}".encode()
            try:
                self.stored[body] = (await producer.send(TOPIC, body)).msg_id
            except TurbopumpError as error:
                self.errors.append(error)
            async with self._progress:
                self._progress.notify_all()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S_MAX), self._progress:
            while len(self.stored) < count:
                await self._progress.wait()

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for producer in self._producers:
            await producer.close()


async def bodies_in(namesrv: str, names: list[str]) -> set[bytes]:
    """Everything that the three brokers hold."""
    bodies: set[bytes] = set()
    async with PullConsumer(namesrv, group="three-reader") as consumer:
        for name in names:
            for queue_id in range(QUEUES):
                queue = MessageQueue(TOPIC, name, queue_id)
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    pulled = await consumer.pull(queue, offset)
                    bodies.update(message.body for message in pulled.messages)
                    offset = pulled.next_offset
    return bodies


async def rounds(
    home: Path, rng: random.Random, kills: int, per_life: int, send_timeout: float
) -> tuple[Senders, set[bytes]]:
    async with AsyncExitStack() as stack:
        brokers: list[BrokerProcess] = []
        for number in range(3):
            settings = {**SETTINGS, "brokerName": f"broker-{number}"}
            namesrv = brokers[0].namesrv if brokers else ""
            broker = BrokerProcess(
                home / str(number), home / f"store-{number}", settings, namesrv=namesrv
            )
            brokers.append(await stack.enter_async_context(broker))
            await broker.start()
            await broker.create_topic(TOPIC, QUEUES)
        namesrv = brokers[0].namesrv
        senders = Senders(namesrv, send_timeout)
        await senders.start()
        for _ in range(kills):
            await senders.until(len(senders.stored) + per_life)
            victim = rng.choice(brokers)
            await victim.kill()
            await senders.until(len(senders.stored) + per_life)  # the two others carry it
            await victim.start()
        await senders.until(len(senders.stored) + per_life)
        await senders.stop()
        return senders, await bodies_in(namesrv, [f"broker-{number}" for number in range(3)])


def test_no_send_fails_when_one_broker_of_three_is_killed(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    kills, per_life, send_timeout = (30, 1500, 3.0) if full else (2, 400, SEND_TIMEOUT_S)
    senders, held = asyncio.run(rounds(tmp_path, rng, kills, per_life, send_timeout))
    failed = senders.failed.of
    measured(
        f"{kills} kills, {PRODUCERS * LANES} sends in flight, {len(senders.stored):,} sent, "
        f"{len(senders.errors)} failed; "
        f"{len(failed)} of them had a failed attempt, at most {max(failed.values(), default=0)} "
        "each"
    )
    assert senders.errors == []
    assert failed, "no message was in flight on the broker that was killed"
    assert max(failed.values()) == 1
    assert senders.stored.keys() <= held
