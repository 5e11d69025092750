"""Producers and consumer groups against a broker that dies and comes back, all written down in a
ledger.

Each producer has one lane per queue, and a lane sends one message after the other: so the ledger
can judge the order, and many sends are outstanding. Its one rule: whoever ends the broker says so
*before* (`fix`), and what is acknowledged later counts as unknown. It must not know how the broker
dies.
"""

import asyncio
import random
import time
from collections import defaultdict

from tests.crash.broker_process import NAME
from tests.simulation.world.ledger import Ledger, Queue, Send

from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import TurbopumpError
from turbopump.message.message import MessageQueue

TOPIC = "crash"


class Load:
    """`producers` × `queues` lanes and the `groups`, each one consumer. `pause_s`: what a lane
    waits after each message, on average."""

    def __init__(
        self,
        namesrv: str,
        rng: random.Random,
        *,
        producers: int = 4,
        queues: int = 8,
        groups: tuple[str, ...] = ("accounting", "shipping"),
        body_size_max: int = 2000,
        pause_s: float = 0.0,
    ) -> None:
        self.ledger = Ledger(in_flight_max=10_000)
        self.groups = groups
        self.acknowledged = 0
        self.acknowledged_at: dict[bytes, float] = {}
        self.first_answer_at: float | None = None
        """When the first send after `resume` was acknowledged."""
        self.seen: dict[str, set[bytes]] = defaultdict(set)
        self._namesrv = namesrv
        self._rng = rng
        self._queues = queues
        self._body_size_max = body_size_max
        self._pause_s = pause_s
        self._number = 0
        self._fixed = True
        self._serving = asyncio.Event()
        self._progress = asyncio.Condition()
        self._stopping = False
        self._lives = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: dict[str, tuple[PushConsumer, asyncio.Task[None]]] = {}
        self._producers = [
            Producer(namesrv, group=f"producer-{number}", retries=0, send_timeout=8.0)
            for number in range(producers)
        ]

    async def start(self) -> None:
        """Begin to send as soon as `resume` says that there is a broker; consumers join now."""
        for number, producer in enumerate(self._producers):
            await producer.start()
            for queue_id in range(self._queues):
                self._tasks.append(
                    asyncio.create_task(self._lane(f"producer-{number}", producer, queue_id))
                )
        for group in self.groups:
            await self.join(group)

    def resume(self) -> None:
        """The broker serves (again)."""
        self._fixed = False
        self.first_answer_at = None
        self._serving.set()

    def fix(self) -> None:
        """Call it just before the broker is ended: acknowledgements that arrive from now on promise
        nothing."""
        self._fixed = True
        self._serving.clear()
        self.ledger.disturbance()

    async def until(self, acknowledged: int, seconds: float = 180.0) -> None:
        """Wait until so many sends are acknowledged in all."""
        async with asyncio.timeout(seconds), self._progress:
            await self._progress.wait_for(lambda: self.acknowledged >= acknowledged)

    async def until_answered(self, seconds: float = 180.0) -> None:
        """Wait until a send was acknowledged since `resume`."""
        async with asyncio.timeout(seconds), self._progress:
            await self._progress.wait_for(lambda: self.first_answer_at is not None)

    async def join(self, group: str) -> None:
        """Start the consumer of a group; the one before, if there is one, has left."""
        self._lives += 1
        self.ledger.disturbance()
        consumer = PushConsumer(
            self._namesrv, group=group, topic=TOPIC, consume_from=ConsumeFrom.FIRST
        )
        await consumer.start()
        self._consumers[group] = (
            consumer,
            asyncio.create_task(self._consume(group, consumer, self._lives)),
        )

    async def leave(self, group: str) -> None:
        """Stop the consumer of a group (it commits if there is a broker)."""
        consumer, task = self._consumers.pop(group)
        await consumer.close()
        await task

    async def commit(self) -> None:
        """Let every consumer tell the broker where it stands."""
        await asyncio.gather(*(consumer.commit() for consumer, _ in self._consumers.values()))

    async def drain(self, seconds: float = 180.0, wanted: set[bytes] | None = None) -> None:
        """Stop sending and wait until every group has all that was acknowledged (or the bodies
        `wanted`). Returns silently if that takes too long: the ledger then says what is missing."""
        self._stopping = True
        self._serving.set()
        await asyncio.gather(*self._tasks)
        if wanted is None:
            wanted = {send.body for send in self.ledger.acknowledged}
        await self.until_seen(wanted, seconds)

    async def until_seen(self, wanted: set[bytes], seconds: float) -> bool:
        """Wait until every group has been given these bodies; False if that takes too long."""
        try:
            async with asyncio.timeout(seconds), self._progress:
                await self._progress.wait_for(
                    lambda: all(wanted <= self.seen[group] for group in self.groups)
                )
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for group in list(self._consumers):
            await self.leave(group)
        for producer in self._producers:
            await producer.close()

    async def _lane(self, name: str, producer: Producer, queue_id: int) -> None:
        queue = MessageQueue(TOPIC, NAME, queue_id)
        place = Queue(TOPIC, NAME, queue_id)
        while True:
            await self._serving.wait()
            if self._stopping:
                return
            self._number += 1
            body = b"%d by %s " % (self._number, name.encode())
            body += self._rng.randbytes(self._rng.randrange(self._body_size_max))
            send = self.ledger.send(name, TOPIC, body, time.monotonic())
            try:
                result = await producer.send(TOPIC, body, queue=queue)
            except TurbopumpError:
                send.maybe(time.monotonic())
                # The broker is dying and nobody has said so yet, or it is not routed yet: let
                # others run.
                await asyncio.sleep(0.02)
                continue
            if result.status is not SendStatus.OK or self._fixed:
                send.maybe(time.monotonic())
                continue
            await self._acknowledged(send, place, result.queue_offset)
            if self._pause_s:
                await asyncio.sleep(self._rng.uniform(0, 2 * self._pause_s))

    async def _acknowledged(self, send: Send, place: Queue, offset: int) -> None:
        now = time.monotonic()
        send.acknowledged(place, offset, now)
        self.acknowledged += 1
        self.acknowledged_at[send.body] = now
        if self.first_answer_at is None:
            self.first_answer_at = now
        async with self._progress:
            self._progress.notify_all()

    async def _consume(self, group: str, consumer: PushConsumer, life: int) -> None:
        async for message in consumer:
            queue = Queue(message.topic, message.broker_name, message.queue_id)
            self.ledger.delivered(
                group, f"{group}-1", queue, message.queue_offset, message.body, life
            )
            self.seen[group].add(message.body)
            async with self._progress:
                self._progress.notify_all()
