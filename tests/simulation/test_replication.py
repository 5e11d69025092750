"""A master that waits for one of two slaves, through isolation and one-way loss, and meanwhile
through kills, power cuts of one and of all at once: what was acknowledged is on every broker in the
end, and all logs are the same."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from tests.loops import on_a_client_s_host
from tests.simulation.figures import Figures
from tests.simulation.world.simulation import Simulation
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

HOSTS = (MASTER, SLAVE, SECOND_SLAVE)
SECONDS = 30.0
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
        self.deeds: Counter[str] = Counter()

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

    async def go_on(self, deed: Callable[[], Awaitable[str]]) -> None:
        """One after the other of a kind, for SECONDS."""
        loop = self.simulation.loop
        end = loop.time() + SECONDS
        while loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0, 10))
            self.deeds[await deed()] += 1

    async def break_the_network(self) -> str:
        """Between two hosts, for a while; what was done."""
        rng, network = self.rng, self.simulation.network
        one, other = rng.sample(HOSTS, 2)
        deed = rng.choice(["one_way_losses", "isolations", "resets"])
        if deed == "resets":
            network.reset(one, other)
            return deed
        ways = [(one, other), (other, one)][: 1 if deed == "one_way_losses" else 2]
        for way in ways:
            network.cut(*way)
        await asyncio.sleep(rng.uniform(0.5, 25))
        for way in ways:
            network.heal(*way)
        return deed

    async def end_programs(self) -> str:
        """Of one host, for a while, or of all at once; what was done."""
        rng = self.rng
        deed = rng.choice(["kills", "power_cuts", "power_cuts_of_all"])
        if deed == "power_cuts_of_all":
            for host in HOSTS:
                self.replicas.kill(host, power_cut=True)
            for host in rng.sample(HOSTS, len(HOSTS)):
                await self.start(host)
            return deed
        one = rng.choice(HOSTS)
        self.replicas.kill(one, power_cut=deed == "power_cuts")
        await asyncio.sleep(rng.uniform(0.5, 25))
        await self.start(one)
        return deed

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


async def war(simulation: Simulation, figures: Figures) -> None:
    async with started(simulation) as replicas:
        story = Story(replicas)
        for host in HOSTS:
            await story.start(host)
        client = replicas.client_of(MASTER)
        master = replicas.brokers[MASTER].store
        await eventually(lambda: not master.confirmed.alone)
        sending = asyncio.create_task(story.send(client))
        await asyncio.gather(story.go_on(story.break_the_network), story.go_on(story.end_programs))
        story.sending = False
        healed = simulation.loop.time()
        await sending
        stores = [replicas.brokers[host].store for host in HOSTS]
        await eventually(
            lambda: (
                len({end for store in stores for end in (store.log.end, store.durable.value)}) == 1
            ),
            seconds=healed + HEALED_S - simulation.loop.time(),
        )
        story.check()
        figures.most(seconds_until_all_logs_were_the_same=simulation.loop.time() - healed)
        figures.count(acknowledged=len(story.acknowledged), lost=0, **story.deeds)
        assert len(story.acknowledged) > 10


@pytest.mark.seeds_of_sim(100)
def test_nothing_acknowledged_is_lost_and_all_logs_become_the_same(
    seed: int, figures: Figures
) -> None:
    on_a_client_s_host(lambda simulation: war(simulation, figures), seed=seed)
