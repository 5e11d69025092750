"""A master that waits for one of two slaves, through isolation, one-way loss, kills, power cuts of
one and of all at once: what was acknowledged is on every broker in the end, and all logs are the
same."""

import asyncio
import os
import random

from tests.loops import on_a_client_s_host
from tests.unit.broker.replicas import (
    MASTER,
    SECOND_SLAVE,
    SLAVE,
    Replicas,
    eventually,
    log_of,
    started,
)
from tests.unit.broker.talking import Client

from turbopump.config.broker_config import BrokerRole, FlushDiskType
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.testing.simulation import Simulation

HOSTS = (MASTER, SLAVE, SECOND_SLAVE)
SECONDS = float(os.environ.get("TURBOPUMP_SIM_MINUTES", "0.5")) * 60
"""How long the mischief of one seed lasts, in virtual time."""
HEALED_S = 10.0
SETTINGS = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "slave_timeout": 1000}
"""Both sides: then a power cut takes nothing that was acknowledged."""


class Story:
    """One run: who sends, what was acknowledged, what is broken."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.simulation = replicas.simulation
        self.rng: random.Random = self.simulation.random
        self.acknowledged: set[bytes] = set()
        self.sending = True

    async def start(self, host: str) -> None:
        if host == MASTER:
            sync = {"broker_role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}
            await self.replicas.master(**SETTINGS, **sync)
        else:
            await self.replicas.slave(host, **SETTINGS)

    async def send(self, client: Client) -> None:
        """One message after the other; only what is answered 0 counts."""
        number = 0
        while self.sending:
            body = b"%d" % number
            number += 1
            request = SendMessageV2(topic="T", queue_id=0, default_topic="TBW102")
            try:
                answer = await client.ask(request, body, timeout=5)
            except TurbopumpError:
                await asyncio.sleep(0.5)
                continue
            if answer.code == 0:
                self.acknowledged.add(body)
            await asyncio.sleep(self.rng.uniform(0, 0.2))

    async def break_something(self) -> None:
        """For a while."""
        rng, network = self.rng, self.simulation.network
        one, other = rng.sample(HOSTS, 2)
        deed = rng.randrange(6)
        seconds = rng.uniform(0.5, 25)
        if deed == 0:
            network.cut(one, other)
            await asyncio.sleep(seconds)
            network.heal(one, other)
        elif deed == 1:
            network.cut(one, other)
            network.cut(other, one)
            await asyncio.sleep(seconds)
            network.heal(one, other)
            network.heal(other, one)
        elif deed == 2:
            network.reset(one, other)
        elif deed == 3:  # the power of all at once
            for host in HOSTS:
                self.replicas.kill(host, power_cut=True)
            for host in rng.sample(HOSTS, len(HOSTS)):
                await self.start(host)
        else:
            self.replicas.kill(one, power_cut=deed == 5)
            await asyncio.sleep(seconds)
            await self.start(one)

    def check(self) -> None:
        """The logs are the same, and have all that was acknowledged."""
        logs = [log_of(self.replicas.brokers[host].store) for host in HOSTS]
        assert logs[0] == logs[1] == logs[2]
        for host in HOSTS:
            store, found, offset = self.replicas.brokers[host].store, set[bytes](), 0
            while offset < store.max_offset("T", 0):
                result = store.get("T", 0, offset, 32)
                found |= {message.body for message in decode_entries(result.data)}
                offset = result.next_offset
            assert self.acknowledged <= found, host


async def war(simulation: Simulation) -> None:
    async with started(simulation) as replicas:
        story = Story(replicas)
        for host in HOSTS:
            await story.start(host)
        client = replicas.client_of(MASTER)
        master = replicas.brokers[MASTER].store
        await eventually(lambda: not master.confirmed.alone)
        sending = asyncio.create_task(story.send(client))
        loop = simulation.loop
        end = loop.time() + SECONDS
        while loop.time() < end:
            await asyncio.sleep(story.rng.uniform(0, 10))
            await story.break_something()
        story.sending = False
        await sending
        stores = [replicas.brokers[host].store for host in HOSTS]
        await eventually(
            lambda: (
                len({end for store in stores for end in (store.log.end, store.durable.value)}) == 1
            ),
            HEALED_S,
        )
        story.check()
        assert len(story.acknowledged) > 10


def test_nothing_acknowledged_is_lost_and_all_logs_become_the_same(seed: int) -> None:
    on_a_client_s_host(war, seed=seed)
