"""The clients of a campaign of kills, ours and Java's, and what is read at its end.

They do what `campaign.py` says of each kind of message, and write down in its history what they
see. Java's clients are `clients/java/five/Campaign.java`.
"""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from tests.crash.campaign import (
    LANES,
    LEVELS_S,
    QUEUES,
    TIMER_MS,
    TOPIC_OF,
    History,
    Place,
    Sent,
    Stored,
    body_of,
    id_in,
    is_committed,
    kind_of,
)
from tests.interop.foreign import java_client

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer, PullStatus
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.client.sending.send_result import SendResult, SendStatus
from turbopump.client.simple_consumer import SimpleConsumer
from turbopump.client.transaction_producer import TransactionProducer, TransactionState
from turbopump.errors import TurbopumpError
from turbopump.message.message import Message, MessageQueue, ReceivedMessage


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class OurClients:
    """Producers, consumers of every kind, and the lanes that send: of each kind ``LANES``, each
    with a pause of ``pause_s`` on average."""

    def __init__(
        self,
        namesrv: str,
        brokers: list[str],
        history: History,
        rng: random.Random,
        *,
        pause_s: float,
    ) -> None:
        self._namesrv, self._brokers, self._history, self._rng = namesrv, brokers, history, rng
        self._pause_s = pause_s
        self._number: Counter[str] = Counter()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._popping: list[asyncio.Task[None]] = []
        self._retrying = Producer(namesrv, group="o-plain")
        self._producer = Producer(namesrv, group="o-once", retries=0)
        self._transactions = TransactionProducer(
            namesrv, group="o-tx", checker=state_of, executor=first_state_of, retries=0
        )
        self._consumers = [
            self._consumer("plain", self._take),
            self._consumer("later", self._take),
            self._consumer("tx", self._take),
            self._consumer("ordered", self._take, ordered=True),
            self._consumer("dead", self._refuse, max_reconsume_times=1),
        ]
        self._pops = SimpleConsumer(
            namesrv, group="o-pop", topic="pop", consume_from=ConsumeFrom.FIRST
        )

    def _consumer(
        self, topic: str, handler: Callable[[Delivery], Awaitable[None]], **settings: object
    ) -> PushConsumer:
        return PushConsumer(
            self._namesrv,
            group=f"o-{topic}",
            topic=topic,
            handler=handler,
            consume_from=ConsumeFrom.FIRST,
            **settings,  # type: ignore[arg-type]
        )

    async def start(self) -> None:
        everybody = (self._retrying, self._producer, self._transactions, self._pops)
        for one in (*everybody, *self._consumers):
            await one.start()
        self._popping = [asyncio.create_task(self._pop()) for _ in range(2)]
        for kind in TOPIC_OF:
            for lane in range(LANES):
                self._tasks.append(asyncio.create_task(self._lane(kind, lane)))

    async def stop_sending(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in (*self._tasks, *self._popping):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._popping, return_exceptions=True)
        everybody = (self._retrying, self._producer, self._transactions, self._pops)
        await asyncio.gather(*(one.close() for one in (*everybody, *self._consumers)))

    async def _lane(self, kind: str, lane: int) -> None:
        while not self._stopping:
            self._number[f"{kind}-{lane}"] += 1
            message_id = f"o-{kind}-{lane}-{self._number[f'{kind}-{lane}']}"
            began = now_ms()
            one = self._history.sent[message_id] = Sent(began, began)
            pause = self._rng.uniform(0, 2 * self._pause_s)
            try:
                result = await self._send(kind, lane, message_id, one)
            except TurbopumpError:
                pause += 0.1
            else:
                queue, offset = result.queue, result.queue_offset
                place = Place(queue.broker_name, queue.topic, queue.queue_id, offset)
                one.answered(place, result.status is SendStatus.OK, now_ms())
            await asyncio.sleep(pause)

    async def _send(self, kind: str, lane: int, message_id: str, one: Sent) -> SendResult:
        topic, body = TOPIC_OF[kind], body_of(message_id)
        if kind in ("commit", "rollback", "asked"):
            message = Message(topic, body)
            return (await self._transactions.send_in_transaction(message, message_id)).sent
        if kind == "ordered":
            broker = self._brokers[lane % len(self._brokers)]
            queue = MessageQueue(topic, broker, lane % QUEUES)
            return await self._producer.send(topic, body, queue=queue)
        if kind == "delay":
            level = self._rng.randrange(len(LEVELS_S))
            one.due_ms += LEVELS_S[level] * 1000
            return await self._producer.send(topic, body, delay_level=level + 1)
        if kind == "timer":
            one.due_ms += self._rng.randrange(*TIMER_MS)
            return await self._producer.send(topic, body, deliver_at=one.due_ms)
        return await (self._retrying if kind == "plain" else self._producer).send(topic, body)

    async def _take(self, message: ReceivedMessage) -> None:
        self._history.note("o", place_of(message, message.broker_name), message.body, now_ms())

    async def _refuse(self, message: Delivery) -> None:
        await self._take(message)
        raise ValueError("a dead letter")

    async def _pop(self) -> None:
        while True:
            with contextlib.suppress(TurbopumpError):
                for message in await self._pops.receive(invisible_seconds=5, timeout=5):
                    await self._take(message)
                    await self._pops.ack(message)


def place_of(message: ReceivedMessage, broker: str) -> Place:
    return Place(broker, message.topic, message.queue_id, message.queue_offset)


def first_state_of(_message: Message, message_id: object) -> TransactionState:
    if kind_of(str(message_id)) == "asked":
        return TransactionState.UNKNOWN
    return state_of_id(str(message_id))


def state_of(message: ReceivedMessage) -> TransactionState:
    return state_of_id(id_in(message.body))


def state_of_id(message_id: str) -> TransactionState:
    return TransactionState.COMMIT if is_committed(message_id) else TransactionState.ROLLBACK


# --- Java's clients, in a process of their own


class JavaClients:
    """As ``OurClients``. The program writes a line for each event; ``stop`` on its standard input
    ends its lanes, ``end`` the program."""

    def __init__(self, namesrv: str, brokers: list[str], history: History, directory: Path) -> None:
        self._arguments = [namesrv, ",".join(brokers), str(LANES)]
        self._history, self._directory = history, directory
        self._stopped = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @staticmethod
    def build() -> list[str]:
        """The command. Raises ToolMissingError, BuildError."""
        return java_client("5.3.3", program="Campaign")

    async def start(self) -> None:
        self._directory.mkdir(parents=True)
        with (self._directory / "stderr").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self.build(),
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=self._directory,
                env={**os.environ, "HOME": str(self._directory)},
            )
        self._reading = asyncio.create_task(self._read())

    async def stop_sending(self) -> None:
        await self._tell("stop")
        async with asyncio.timeout(60):
            await self._stopped.wait()

    async def close(self) -> None:
        assert self._process is not None
        assert self._reading is not None
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(20):
                await self._tell("end")
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def _tell(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def _read(self) -> None:
        """::

        begun ID BEGUN_MS DUE_MS                        before a send
        sent AT_MS ID BROKER TOPIC QUEUE OFFSET STATUS  its answer
        got AT_MS BROKER TOPIC QUEUE OFFSET BODY        by a consumer
        """
        assert self._process is not None
        assert self._process.stdout is not None
        sent = self._history.sent
        while line := await self._process.stdout.readline():
            match line.decode().rstrip("\n").split("\t"):
                case ["begun", message_id, begun, due]:
                    sent[message_id] = Sent(int(begun), int(due))
                case ["sent", at, message_id, broker, topic, queue, offset, status]:
                    place = Place(broker, topic, int(queue), int(offset))
                    sent[message_id].answered(place, status == "SEND_OK", int(at))
                case ["got", at, broker, topic, queue, offset, body]:
                    place = Place(broker, topic, int(queue), int(offset))
                    self._history.note("j", place, body.encode(), int(at))
                case ["stopped"]:
                    self._stopped.set()


# --- what is there at the end


async def read_all(namesrv: str, topics: Iterable[str]) -> list[Stored]:
    """Every message of these topics, on all brokers."""
    found: list[Stored] = []
    async with PullConsumer(namesrv, group="auditor") as consumer:
        for topic in topics:
            for queue in await consumer.queues(topic):
                offset, end = 0, await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull(queue, offset)
                    if result.status is PullStatus.FOUND:
                        found += [
                            Stored(
                                place_of(each, queue.broker_name),
                                id_in(each.body),
                                each.store_timestamp,
                            )
                            for each in result.messages
                        ]
                    assert result.next_offset > offset, f"{queue} is stuck at {offset}"
                    offset = result.next_offset
    return found
