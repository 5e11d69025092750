"""Name servers that are killed: one that starts again knows every topic within seconds, also those
that are made meanwhile; producers go on as long as one is left, and with what they know when none
is."""

import asyncio
import os
from collections import Counter

from tests.failed_attempts import FailedAttempts
from tests.loops import in_loop
from tests.unit.broker.registering import BROKER, NAME_SERVERS, SECOND, World, tell

from turbopump.client.producer import Producer
from turbopump.errors import RemotingError, TurbopumpError

RESTARTS = 10 if "TURBOPUMP_SIM_MINUTES" in os.environ else 4
"""Of each seed; four in `make test`."""
WHOLE_S = 5.0
"""How soon it knows everything after it listens."""


@in_loop(tell)
async def test_a_name_server_that_starts_again_has_every_topic_within_five_seconds(
    world: World, /, seed: int
) -> None:
    restarted, steady = NAME_SERVERS
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    made: list[str] = []
    making = asyncio.ensure_future(world.make_topics(made))
    for _ in range(RESTARTS):
        world.simulation.end(restarted, power_cut=False)
        await asyncio.sleep(world.simulation.random.choice([0.0, 0.3, 4.0, 20.0]))
        await world.start_name_server(restarted)
        before = made.copy()
        await asyncio.sleep(WHOLE_S)
        assert await world.topics(restarted) >= {*before, "TBW102"}
        await asyncio.sleep(world.simulation.random.choice([0.0, 5.0, 40.0]))
    making.cancel()
    await asyncio.sleep(WHOLE_S)
    assert await world.topics(restarted) == await world.topics(steady) >= set(made)


BOTH = (BROKER, SECOND)
LOOK_S = 0.05


async def whole(world: World, host: str, topics: list[str]) -> bool:
    """Whether the name server tells of both brokers' queues in each of these topics."""
    try:
        routes = [await world.route(host, topic) for topic in topics]
    except RemotingError:  # the connection was to the one before
        return False
    return all(sorted(route) == [("broker-a", 3), ("broker-b", 3)] for route in routes)


@in_loop(tell)
async def test_a_name_server_that_starts_again_tells_of_one_broker_of_two_for_five_seconds_at_most(
    world: World, /, seed: int
) -> None:
    restarted, chance = NAME_SERVERS[0], world.simulation.random
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    for host in BOTH:
        await world.start_broker(host=host)
    made: list[str] = []
    making = asyncio.ensure_future(world.make_topics(made, on=BOTH))
    for _ in range(RESTARTS):
        world.simulation.end(restarted, power_cut=chance.random() < 0.5)
        await asyncio.sleep(chance.choice([0.0, 0.3, 4.0, 20.0]))
        await world.start_name_server(restarted)
        before, begun = made.copy(), world.simulation.loop.time()
        while not await whole(world, restarted, before[-3:]):
            assert world.simulation.loop.time() - begun < WHOLE_S
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(chance.choice([1.0, 5.0, 40.0]))
        assert await whole(world, restarted, made[:-1])
    making.cancel()


THREE = (*NAME_SERVERS, "10.0.0.102")
PRODUCER = "10.0.0.51"
PAUSE_S = 4.0
ALONE_S = 600.0
"""How long known routes serve without any name server."""


class Sending:
    """A producer on a host of its own, with default settings, that sends to ``topics`` in turn,
    without end."""

    def __init__(self, world: World, topics: list[str]) -> None:
        self.simulation = world.simulation
        self.topics = topics
        self.sent: Counter[str] = Counter()
        self.errors: list[str] = []
        self.failed = FailedAttempts()

    async def until_sent(self, topic: str) -> None:
        """Wait for the first send to a new topic. The round of sends that runs does not know the
        topic yet, and the topic comes last in the next one."""
        async with asyncio.timeout(PAUSE_S * 2 * len(self.topics)):
            while not self.sent[topic]:
                await asyncio.sleep(LOOK_S)

    async def start(self) -> None:
        self._process = self.simulation.boot(PRODUCER)
        self._task = asyncio.ensure_future(self._process.start(self._run()))

    async def _run(self) -> None:
        async with Producer(
            [f"{host}:9876" for host in THREE],
            hooks=[self.failed],
            clock=self.simulation.clock(PRODUCER),
            random=self.simulation.source("producer"),
            local_ip=PRODUCER,
        ) as producer:
            while True:
                for topic in list(self.topics):
                    try:
                        await producer.send(topic, b"x")
                    except TurbopumpError as error:
                        self.errors.append(f"{self.simulation.loop.time():.1f} s: {error}")
                    else:
                        self.sent[topic] += 1
                    await asyncio.sleep(self.simulation.random.uniform(0, PAUSE_S))

    async def stop(self) -> None:
        self._process.kill()
        await asyncio.gather(self._task, return_exceptions=True)


@in_loop(tell)
async def test_no_send_fails_while_name_servers_die_and_known_routes_serve_ten_minutes_alone(
    world: World, /, seed: int
) -> None:
    simulation, chance = world.simulation, world.simulation.random
    for host in THREE:
        await world.start_name_server(host)
    await world.start_broker(THREE)
    sending = Sending(world, ["first"])
    await sending.start()
    await asyncio.sleep(chance.uniform(5, 40))
    *first_to_go, last = chance.sample(THREE, 3)
    for number, host in enumerate(first_to_go):
        simulation.end(host, power_cut=chance.random() < 0.5)
        await asyncio.sleep(chance.choice([0.0, 0.2, 45.0]))
        sending.topics.append(f"new-{number}")
        await asyncio.sleep(chance.uniform(5, 45))
    await sending.until_sent("new-1")
    assert set(sending.sent) == {"first", "new-0", "new-1"}
    simulation.end(last, power_cut=chance.random() < 0.5)
    before = sending.sent.copy()
    alone_s = chance.choice([ALONE_S / 10, ALONE_S])
    await asyncio.sleep(alone_s)
    assert sending.errors == []
    assert all(
        sending.sent[topic] - before[topic] > alone_s / PAUSE_S / len(before) for topic in before
    )
    assert max(sending.failed.of.values(), default=0) <= 1
    await world.start_name_server(last)
    await asyncio.sleep(WHOLE_S)
    assert await world.topics(last) >= set(sending.topics)
    sending.topics.append("new-2")
    await sending.until_sent("new-2")
    assert sending.errors == []
    await sending.stop()
