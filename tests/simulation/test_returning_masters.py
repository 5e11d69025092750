"""Two brokers that take over from each other by hand, and come back with messages of their own, of
random sizes: after every round the logs are the same, byte for byte, or the slave says that they
are not. With SYNC_MASTER and inSyncReplicas=2 nothing that was acknowledged is lost."""

import asyncio
import random
from collections import Counter

import pytest
from tests.loops import on_a_client_s_host
from tests.simulation.figures import Figures
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.replicas import MASTER, SLAVE, SYNC, Replicas, eventually, log_of, started

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole, FlushDiskType
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.protocol.requests.send import SendMessageV2

HOSTS = (MASTER, SLAVE)
SENDERS = 4
SETTLED_S = 40.0
LOUD = ("another log", "but that of the master", "begins at", "no good entry")
"""Words of a slave that does not copy for what its log holds, or its master's."""


class Pair:
    """One run. ``master``: the host that is the master now."""

    def __init__(self, replicas: Replicas, *, synchronous: bool, flush: FlushDiskType) -> None:
        self.replicas = replicas
        self.rng: random.Random = replicas.simulation.random
        self.synchronous = synchronous
        self.flush = flush
        self.master = MASTER
        self.acknowledged: set[bytes] = set()
        self.figures: Counter[str] = Counter()
        self._roots = dict.fromkeys(HOSTS, "/store")
        self._number = 0

    @property
    def slave(self) -> str:
        return SLAVE if self.master == MASTER else MASTER

    def broker(self, host: str) -> Broker:
        return self.replicas.brokers[host]

    async def start(self, host: str) -> None:
        settings = {
            "flush_disk_type": self.flush,
            "store_path_root_dir": self._roots[host],
            "slave_timeout": 1000,
        }
        if host == self.slave:
            await self.replicas.broker(host, BrokerRole.SLAVE, **settings, broker_id=1)
        elif self.synchronous:
            role = {**SYNC, "ha_max_time_slave_not_catchup": 6000}
            await self.replicas.broker(host, role.pop("broker_role"), **settings, **role)
        else:
            await self.replicas.broker(host, BrokerRole.ASYNC_MASTER, **settings)

    async def send(self, seconds: float) -> None:
        """From several senders at a time; only what is answered 0 counts."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        client = self.replicas.client_of(self.master)

        async def one() -> None:
            while loop.time() < end:
                self._number += 1
                size = self.rng.choice([1, 30, 300, 3000])
                body = b"%d " % self._number + b"x" * self.rng.randrange(size)
                request = SendMessageV2(topic="T", queue_id=0, default_topic="TBW102")
                try:
                    answer = await client.ask(request, body, timeout=2)
                except TurbopumpError:
                    return
                if answer.code == 0:
                    self.acknowledged.add(body)
                await asyncio.sleep(self.rng.uniform(0, 0.1))

        await asyncio.gather(*(one() for _ in range(SENDERS)))

    def kill(self, host: str, *, power_cut: bool = False) -> None:
        self.replicas.kill(host, power_cut=power_cut)

    async def part(self) -> None:
        """The slave is away for a while, or not; then the master ends under load."""
        rng, network = self.rng, self.replicas.simulation.network
        sending = asyncio.create_task(self.send(rng.uniform(0.5, 3)))
        await asyncio.sleep(rng.uniform(0, 0.5))
        away = rng.choice(["stays", "stopped", "killed", "hears nothing", "is not heard"])
        self.figures[f"slave {away}"] += 1
        ways = {
            "hears nothing": (self.master, self.slave),
            "is not heard": (self.slave, self.master),
        }
        if away == "stopped":
            await self.replicas.stop(self.slave)
        elif away == "killed":
            self.kill(self.slave)
        elif away in ways:
            network.cut(*ways[away])
        await asyncio.sleep(rng.uniform(0, 1))
        # ASYNC_FLUSH: what was acknowledged may not be on this disk, and is on the slave's
        power_cut = rng.random() < 0.3
        self.figures["power cuts" if power_cut else "kills"] += 1
        self.kill(self.master, power_cut=power_cut)
        await sending
        if away in ways:
            network.heal(*ways[away])
        if away not in ("stopped", "killed"):
            if rng.random() < 0.5:
                await self.replicas.stop(self.slave)
            else:
                self.kill(self.slave)

    async def take_over(self) -> None:
        """The slave is made the master, and the old master its slave; one of them is killed while
        that begins, or neither."""
        rng = self.rng
        self.master = self.slave
        await self.start(self.master)
        await self.send(rng.choice([0, 0.05, 0.3, 1]))
        await self.start(self.slave)
        sending = asyncio.create_task(self.send(rng.choice([0, 0.5, 2])))
        for _ in range(rng.choice([0, 1, 1, 2])):
            await asyncio.sleep(rng.uniform(0, rng.choice([0.05, 0.2, 1])))
            host = rng.choice(HOSTS)
            power_cut = self.flush is FlushDiskType.SYNC_FLUSH and rng.random() < 0.5
            self.figures["kills of a new pair"] += 1
            self.kill(host, power_cut=power_cut)
            await self.start(host)
        await sending

    async def settle(self) -> bool:
        """The slave has its master's log, or says that it has another one. False: it cannot copy,
        because its master's log has a hole after a power cut, and nobody else has those bytes."""
        master, slave = self.broker(self.master), self.broker(self.slave)
        link = slave.parts.listening.replication.slave
        assert link is not None

        def refused() -> bool:
            return not link.accepted and any(words in (link.fault or "") for words in LOUD)

        def copies() -> bool:
            return link.accepted and slave.store.log.end == master.store.log.end

        await eventually(lambda: refused() or copies(), seconds=SETTLED_S)
        if not copies() and "no good entry" in (link.fault or ""):
            self.figures["holes at the master"] += 1
            return False
        if not copies() and log_of(slave.store) == log_of(master.store)[: slave.store.log.end]:
            self.figures["damage mended"] += 1  # what a power cut had left
            await eventually(copies, seconds=SETTLED_S)
        if copies():
            assert log_of(slave.store) == log_of(master.store), "a silent difference"
            self.figures["the same"] += 1
            return True
        self.figures["refused"] += 1
        if self.rng.random() < 0.7:
            await self.replicas.stop(self.slave)
            self._roots[self.slave] += "1"
            await self.start(self.slave)
            self.figures["emptied"] += 1
            return await self.settle()
        return True

    def lost(self) -> set[bytes]:
        """What was acknowledged, and is not at the master."""
        store, found, offset = self.broker(self.master).store, set[bytes](), 0
        while offset < store.max_offset("T", 0):
            result = store.get("T", 0, offset, 32)
            found |= {message.body for message in decode_entries(result.data)}
            offset = result.next_offset
        return self.acknowledged - found


async def story(simulation: Simulation, figures: Figures) -> None:
    async with started(simulation) as replicas:
        rng = simulation.random
        pair = Pair(replicas, synchronous=rng.random() < 0.7, flush=rng.choice(list(FlushDiskType)))
        await pair.start(MASTER)
        await pair.start(SLAVE)
        link = pair.broker(SLAVE).parts.listening.replication.slave
        assert link is not None
        await eventually(lambda: link.accepted)
        for _ in range(rng.choice([1, 2, 3])):
            await pair.part()
            await pair.take_over()
            goes_on = await pair.settle()
            if pair.synchronous:
                lost = pair.lost()
                assert not lost, sorted(lost)[:3]
            if not goes_on:  # nobody makes such a slave the master
                break
        acknowledged = len(pair.acknowledged) if pair.synchronous else 0
        figures.count(
            acknowledged_with_2=acknowledged, lost=0, silent_differences=0, **pair.figures
        )


@pytest.mark.seeds_of_sim(500)
def test_a_master_that_comes_back_has_the_same_log_or_says_that_it_has_not(
    seed: int, figures: Figures
) -> None:
    on_a_client_s_host(lambda simulation: story(simulation, figures), seed=seed)
