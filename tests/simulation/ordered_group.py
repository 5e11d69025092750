"""A group that handles its messages in order, through failures."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeVar

from tests.handlers_in_order import HandlersInOrder
from tests.simulation.kept_programs import KeptPrograms
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.simulation import Simulation, simulate

from turbopump.broker.broker import Broker
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.errors import TurbopumpError

WHOLE = "TURBOPUMP_SIM_MINUTES" in os.environ
FAILURES = 100 if WHOLE else 8
"""In each seed; `make sim` has a hundred in each of the first five seeds and the sample in the
others."""
NAMESRV, BROKER, PRODUCER = "10.0.0.1", "10.0.0.2", "10.0.1.1"
CONSUMERS = ("10.0.2.1", "10.0.2.2", "10.0.2.3")
TOPIC, GROUP, QUEUES = "orders", "billing", 4


class World(KeptPrograms):
    """Queues are locked and pulled, unless the settings say otherwise."""

    consumer_settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, simulation: Simulation, *, failing: float, longest: float = 3.0) -> None:
        super().__init__(simulation, rest_s=40, may_fail=CONSUMERS)
        self.failing = failing
        self.longest = longest
        self.watch = HandlersInOrder()
        self.broker: Broker | None = None
        self.producing = True
        self.wanted = set(CONSUMERS)
        self.stops: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        for host, program in (
            (NAMESRV, self.name_server),
            (BROKER, self._broker),
            (PRODUCER, self._producer),
        ):
            self.keep(host, program)
        for host in CONSUMERS:
            self.keep(host, self.consumer)

    async def fail(self, times: int) -> None:
        """Break so many things."""
        rng = self.simulation.random
        for _ in range(times):
            await asyncio.sleep(rng.uniform(3, 60))
            self.check_alive()
            self.fail_once(rng.random(), rng.choice(CONSUMERS))

    def fail_once(self, deed: float, host: str) -> None:
        """Break the broker, this member, or what is between them; ``deed`` is between 0 and 1."""
        if deed < 0.15:
            self.simulation.end(BROKER, power_cut=False)
        elif deed < 0.35:
            self.simulation.end(BROKER, power_cut=True)
        elif deed < 0.45:
            self.stop(BROKER)
        elif deed < 0.6:
            self.simulation.end(host, power_cut=False)
        elif deed < 0.7:
            self.stop(host)
        elif deed < 0.8:
            self.simulation.network.reset(BROKER, host)
        elif deed < 0.92:
            self.cut_off(host)
        else:
            self._pause(self.simulation.process(host), self.simulation.random.uniform(1, 100))

    def cut_off(self, host: str) -> None:
        """From the broker for a while, one way or both."""
        there, back = (BROKER, host), (host, BROKER)
        self.cut(self.simulation.random.choice(((there,), (back,), (there, back))), longest_s=100)

    def _pause(self, process: SimulatedProcess, seconds: float) -> None:
        if process.alive and not process.paused:
            self.watch.paused(process)
            process.pause()
            self.simulation.loop.call_later(seconds, process.resume)

    async def drain(self, seconds: float = 3600) -> None:
        """Until every message has been handled."""
        self.producing = False
        self.failing = 0.0
        await asyncio.sleep(30)  # a send that is under way may still store its message
        deadline = self.simulation.loop.time() + seconds
        while self.simulation.loop.time() < deadline and self.missing:
            await asyncio.sleep(5)
        self.check_alive()

    @property
    def missing(self) -> int:
        if self.broker is None or not self.simulation.process(BROKER).alive:
            return 1
        stored = {
            (queue, n)
            for queue in range(QUEUES)
            for n in range(self.broker.store.max_offset(TOPIC, queue))
        }
        return len(
            stored - {(queue, n) for queue, done in self.watch.succeeded.items() for n in done}
        )

    @property
    def handled(self) -> int:
        """How many messages."""
        return sum(map(len, self.watch.succeeded.values()))

    def stop(self, host: str) -> None:
        """Tell a program to close."""
        if host in self.stops:
            self.stops[host].set()

    # --- programs
    # ----------------------------------------------------------------------------------------------

    async def until_wanted(self, host: str) -> None:
        while host in CONSUMERS and host not in self.wanted:
            await asyncio.sleep(1)

    async def _broker(self, host: str) -> None:
        self.broker = None
        config = BrokerConfig(
            broker_name="broker-a",
            bind_address=host,
            namesrv_addr=f"{NAMESRV}:9876",
            store_path_root_dir=str(Path("/store")),
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            mapped_file_size_commit_log=256 * 1024,
            mapped_file_size_consume_queue=20 * 1000,
            max_hash_slot_num=50,
            max_index_num=200,
            default_topic_queue_nums=QUEUES,
        )
        disk, clock = self.simulation.disk(host).mount(), self.simulation.clock(host)
        broker = Broker(config, clock=clock, disk=disk, source=self.source(host))
        await broker.start()
        self.broker = broker
        stop = self.stops[host] = asyncio.Event()
        await stop.wait()
        self.broker = None
        await broker.close()

    async def _producer(self, host: str) -> None:
        rng = self.source(host)
        async with Producer(
            f"{NAMESRV}:9876",
            group="sellers",
            clock=self.simulation.clock(host),
            random=rng,
            local_ip=host,
        ) as producer:
            while True:
                await asyncio.sleep(rng.uniform(0, 2))
                if self.producing:
                    try:
                        await producer.send(TOPIC, b"x")
                    except TurbopumpError:
                        continue

    def handler(self, rng: Random, process: SimulatedProcess) -> Callable[[Any], object]:
        """What the consumer of this process is given."""

        async def handle(message: Delivery) -> Retry | None:
            assert message.topic == TOPIC
            return (
                None
                if await self.handle(message.queue_id, message.queue_offset, rng, process)
                else Retry()
            )

        return handle

    async def handle(self, queue: int, offset: int, rng: Random, process: SimulatedProcess) -> bool:
        """Whether it succeeded."""
        self.watch.begin(queue, offset, process)
        good = False
        try:
            await asyncio.sleep(rng.choice((0.0, 0.1, rng.uniform(0, self.longest))))
            good = rng.random() >= self.failing
        finally:
            self.watch.end(queue, offset, process, good=good)
        return good

    async def consumer(self, host: str) -> None:
        rng, process = self.source(host), self.simulation.process(host)

        handle = self.handler(rng, process)

        consumer = PushConsumer(
            f"{NAMESRV}:9876",
            group=GROUP,
            topic=TOPIC,
            handler=handle,
            consume_from=ConsumeFrom.FIRST,
            clock=self.simulation.clock(host),
            random=rng,
            local_ip=host,
            **{"ordered": True, **self.consumer_settings},
        )
        async with consumer:
            stop = self.stops[host] = asyncio.Event()
            await stop.wait()


WorldT = TypeVar("WorldT", bound=World)


async def main(failures: int, kind: type[WorldT], simulation: Simulation) -> WorldT:
    world = kind(simulation, failing=0.1)
    world.start()
    await asyncio.sleep(20)
    await world.fail(failures)
    await asyncio.sleep(120)
    await world.drain()
    await world.end()
    return world


def war(kind: type[WorldT], seed: int, failures: int) -> WorldT:
    """Such a world after so many failures, and an hour at most in which the rest was handled."""

    return simulate(seed, partial(main, failures, kind))
