"""Clients that pop from one broker, through kills and power cuts."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from tests.simulation.kept_programs import KeptPrograms
from tests.simulation.world.simulation import Simulation

from turbopump.broker.broker import Broker
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.pop import PoppedDelivery
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.simple_consumer import SimpleConsumer
from turbopump.config.broker_config import BrokerConfig, DefaultRequestMode, FlushDiskType
from turbopump.errors import TurbopumpError

NAMESRV, BROKER, PRODUCER = "10.0.0.1", "10.0.0.2", "10.0.1.1"
PUSH, SIMPLE = ("10.0.2.1", "10.0.2.2"), ("10.0.3.1", "10.0.3.2")
TOPIC = "jobs"
INVISIBLE_S = 20.0


class World(KeptPrograms):
    """``done`` by group: how often each message was dealt with."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(
            simulation, rest_s=20, may_fail=(NAMESRV, BROKER, PRODUCER, *PUSH, *SIMPLE)
        )
        self.sent: set[bytes] = set()
        self.done: dict[str, Counter[bytes]] = {"pushed": Counter(), "asked": Counter()}
        self.producing = True
        self.failing = 0.1

    def start(self) -> None:
        programs = {NAMESRV: self.name_server, BROKER: self.run_broker, PRODUCER: self._producer}
        programs |= dict.fromkeys(PUSH, self._push_consumer) | dict.fromkeys(
            SIMPLE, self._simple_consumer
        )
        for host, program in programs.items():
            self.keep(host, program)

    async def fail(self, times: int) -> None:
        rng = self.simulation.random
        for _ in range(times):
            await asyncio.sleep(rng.uniform(3, 40))
            self.check_alive()
            deed, host = rng.random(), rng.choice((*PUSH, *SIMPLE))
            if deed < 0.4:
                self.simulation.end(BROKER, power_cut=deed < 0.2)
            elif deed < 0.6:
                self.simulation.end(host, power_cut=False)
            elif deed < 0.75:
                self.simulation.network.reset(BROKER, host)
            else:
                self.cut([rng.choice(((BROKER, host), (host, BROKER)))], longest_s=60)

    async def drain(self) -> None:
        """Until both groups have everything, an hour at most."""
        self.producing, self.failing = False, 0.0
        deadline = self.simulation.loop.time() + 3600
        while self.missing and self.simulation.loop.time() < deadline:
            await asyncio.sleep(5)
        self.check_alive()
        await self.end()

    @property
    def missing(self) -> dict[str, set[bytes]]:
        return {group: lost for group, done in self.done.items() if (lost := self.sent - set(done))}

    # --- programs
    # ----------------------------------------------------------------------------------------------

    async def run_broker(self, host: str) -> None:
        config = BrokerConfig(
            broker_name="broker-a",
            bind_address=host,
            namesrv_addr=f"{NAMESRV}:9876",
            store_path_root_dir=str(Path("/store")),
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            mapped_file_size_commit_log=1024 * 1024,
            mapped_file_size_consume_queue=20 * 1000,
            message_index_enable=False,
            default_message_request_mode=DefaultRequestMode.POP,
        )
        disk, clock = self.simulation.disk(host).mount(), self.simulation.clock(host)
        await Broker(config, clock=clock, disk=disk, source=self.source(host)).start()
        await asyncio.Event().wait()

    async def _producer(self, host: str) -> None:
        rng = self.source(host)
        async with Producer(
            f"{NAMESRV}:9876", group="sellers", **self._environment(host)
        ) as producer:
            for number in count():
                await asyncio.sleep(rng.uniform(0, 2))
                if self.producing:
                    body = b"%d" % number
                    try:
                        await producer.send(TOPIC, body)
                    except TurbopumpError:
                        continue
                    self.sent.add(body)

    async def _push_consumer(self, host: str) -> None:
        rng = self.source(host)

        async def handle(message: Delivery) -> Retry | None:
            assert isinstance(message, PoppedDelivery), "the broker has it pop"
            await asyncio.sleep(rng.choice((0.0, 0.1, rng.uniform(0, 3))))
            if rng.random() < self.failing:
                return Retry(delay=rng.choice((1, 5, None)))
            self.done["pushed"][message.body] += 1
            return None

        settings = {
            "client_rebalance": False,
            "pop_invisible_time": INVISIBLE_S,
            **self._common(host, "pushed"),
        }
        async with PushConsumer(f"{NAMESRV}:9876", handler=handle, **settings) as consumer:
            await consumer.wait_closed()

    async def _simple_consumer(self, host: str) -> None:
        rng = self.source(host)
        async with SimpleConsumer(f"{NAMESRV}:9876", **self._common(host, "asked")) as consumer:
            while True:
                try:
                    messages = await consumer.receive(
                        rng.randint(1, 40), INVISIBLE_S, timeout=rng.uniform(0, 15)
                    )
                    await asyncio.sleep(rng.uniform(0, 1))
                    good = [message for message in messages if rng.random() >= self.failing]
                    self.done["asked"].update(message.body for message in good)
                    await consumer.ack(good)
                    for message in messages:
                        if message not in good and rng.random() < 0.5:
                            await consumer.change_invisible_time(message, rng.uniform(1, 30))
                except TurbopumpError:
                    await asyncio.sleep(1)

    def _common(self, host: str, group: str) -> dict[str, Any]:
        return {
            "group": group,
            "topic": TOPIC,
            "consume_from": ConsumeFrom.FIRST,
            **self._environment(host),
        }

    def _environment(self, host: str) -> dict[str, Any]:
        return {"clock": self.simulation.clock(host), "random": self.source(host), "local_ip": host}
