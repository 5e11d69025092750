"""`python -m bench.held_polls`: cost of thousands of held long polls, and of waking some of them.

Consumers of many groups, with a connection each, hold a pull of each of their queues. Several
groups hold a pull of each queue. Then messages arrive, one at a time. Each pull of that queue must
be answered with the message, and no other pull. Exit status 1: a goal was missed.
"""

import asyncio
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import click
import msgspec

from bench import wire
from bench.brokers import OURS, RunningBroker, running_broker
from bench.cores import Cores
from bench.generator import CACHE
from bench.memory import MIB, memory_of
from bench.remote import create_topic, send_one
from bench.table import plain_table

MEMBERS, GROUPS_OF_TOPIC = 10, 5
HOLD_MS = 600_000
GOAL_MIB = 50.0
PATIENCE_S = 120.0


class Held(msgspec.Struct, frozen=True):
    """Memory of the broker in bytes; milliseconds from a message's send to the last answer, one for
    each message."""

    connections: int
    polls: int
    idle: int
    connected: int
    holding: int
    woken: int
    woken_wrongly: int
    wake_ms: list[float]

    @property
    def above_idle_mib(self) -> float:
        return (self.holding - self.idle) / MIB


class Consumer(asyncio.Protocol):
    """One connection: the member of a group that holds its queues."""

    def __init__(self, group: int, member: int, polls: int) -> None:
        self.group = f"held-group-{group}"
        self.topic = f"held-topic-{group // GROUPS_OF_TOPIC}"
        self.queues = range(member * polls, (member + 1) * polls)
        self.answered: list[tuple[int, wire.Answer]] = []
        self.has_answer = asyncio.Event()
        self._client_id = f"127.0.0.1@{group}-{member}"
        self._answers = wire.Answers()
        self._opaques = count(1)
        self._queue_of: dict[int, int] = {}
        self._waiting: dict[int, asyncio.Future[wire.Answer]] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for answer in self._answers.feed(data):
            if answer.opaque in self._queue_of:
                self.answered.append((self._queue_of.pop(answer.opaque), answer))
                self.has_answer.set()
            else:
                self._waiting.pop(answer.opaque).set_result(answer)

    async def heartbeat(self) -> None:
        """Send a heartbeat. When the answer arrives, all earlier requests are answered or held."""
        opaque = next(self._opaques)
        body = wire.heartbeat(
            self._client_id,
            self.group,
            {"topic": self.topic, "subString": "*", "expressionType": "TAG"},
        )
        self._waiting[opaque] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[opaque]
        self._send(wire.request(wire.HEART_BEAT, opaque, {}, body))
        answer = await waiting
        if answer.code != wire.SUCCESS:
            raise RuntimeError(f"a heartbeat was answered by {answer}")

    def poll(self) -> None:
        for queue in self.queues:
            opaque = next(self._opaques)
            self._queue_of[opaque] = queue
            fields = wire.pull_fields(
                self.group, self.topic, queue, 0, sys_flag=wire.SUSPEND, hold_ms=HOLD_MS
            )
            self._send(wire.request(wire.PULL_MESSAGE, opaque, fields))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _send(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)


async def hold(broker: RunningBroker, connections: int, polls: int, arrivals: int) -> Held:
    """All of it, against a broker that has just been started."""
    groups = -(-connections // MEMBERS)
    for topic in range(-(-groups // GROUPS_OF_TOPIC)):
        create_topic(broker.port, f"held-topic-{topic}", MEMBERS * polls)
    idle = memory_of(broker.pid).anonymous
    consumers = [
        Consumer(number // MEMBERS, number % MEMBERS, polls) for number in range(connections)
    ]
    loop = asyncio.get_running_loop()
    try:
        for consumer in consumers:
            await loop.create_connection(
                lambda consumer=consumer: consumer, "127.0.0.1", broker.port
            )  # type: ignore[misc]
        await everybody(consumers)
        connected = memory_of(broker.pid).anonymous
        for consumer in consumers:
            consumer.poll()
        await everybody(consumers)
        holding = memory_of(broker.pid).anonymous
        if any(consumer.answered for consumer in consumers):
            raise RuntimeError("a pull of an empty queue was answered at once")
        woken = wrongly = 0
        wake_ms: list[float] = []
        for number in range(arrivals):
            place = (
                consumers[number * 7 % connections].topic,
                consumers[number * 7 % connections].queues[number % polls],
            )
            concerned = [
                one for one in consumers if one.topic == place[0] and place[1] in one.queues
            ]
            wake_ms.append(await arrive(broker, concerned, *place))
            await everybody(consumers)
            got = [(one, queue, answer) for one in consumers for queue, answer in one.answered]
            right = [
                one
                for one, queue, answer in got
                if one in concerned and queue == place[1] and is_one_message(answer)
            ]
            woken += len(right)
            wrongly += len(got) - len(right)
            for consumer in concerned:
                consumer.answered.clear()
                consumer.has_answer.clear()
        return Held(
            connections,
            connections * polls,
            idle,
            connected,
            holding,
            woken,
            wrongly,
            sorted(wake_ms),
        )
    finally:
        for consumer in consumers:
            consumer.close()


async def everybody(consumers: list[Consumer]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(consumer.heartbeat() for consumer in consumers))


async def arrive(broker: RunningBroker, concerned: list[Consumer], topic: str, queue: int) -> float:
    """Send one message, wait for the answers of all whom it concerns; the milliseconds from the one
    to the others."""
    begun = time.perf_counter()
    await asyncio.to_thread(send_one, broker.port, topic, queue=queue)
    async with asyncio.timeout(PATIENCE_S):
        for consumer in concerned:
            await consumer.has_answer.wait()
    return (time.perf_counter() - begun) * 1000


def is_one_message(answer: wire.Answer) -> bool:
    return answer.code == wire.SUCCESS and len(wire.entry_sizes(answer.body)) == 1


@click.command(help=__doc__)
@click.option("--connections", type=click.IntRange(1), default=1000, show_default=True)
@click.option(
    "--polls",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Held by each connection.",
)
@click.option("--arrivals", type=click.IntRange(1), default=50, show_default=True)
def main(connections: int, polls: int, arrivals: int) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="held-", dir=CACHE) as directory,
        running_broker(OURS, Path(directory), Cores.of_this_machine()) as broker,
    ):
        held = asyncio.run(hold(broker, connections, polls, arrivals))
    click.echo(
        f"{held.polls:,} polls on {held.connections:,} connections; anonymous memory "
        f"{held.idle / MIB:.1f} MiB idle,"
        f" {held.connected / MIB:.1f} connected, {held.holding / MIB:.1f} holding; a message "
        "reached all whom it concerned after"
        f" {held.wake_ms[len(held.wake_ms) // 2]:.1f} ms (median), {held.wake_ms[-1]:.1f} at most"
    )
    small = held.above_idle_mib <= GOAL_MIB
    rows = (
        (
            "memory above idle",
            f"{held.above_idle_mib:.1f} MiB",
            f"<= {GOAL_MIB:.0f}",
            "reached" if small else "MISSED",
        ),
        (
            f"woken by {arrivals} messages",
            f"{held.woken} rightly, {held.woken_wrongly} wrongly",
            "0 wrongly",
            "reached" if not held.woken_wrongly else "MISSED",
        ),
    )
    click.echo(plain_table(("", "measured", "wanted", ""), rows))
    sys.exit(not small or held.woken_wrongly > 0)


if __name__ == "__main__":
    main()
