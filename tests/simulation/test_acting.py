"""A master that dies and comes back, at random, while messages wait in it, and its slave, which
acts for it and dies as well: every delayed message, timer and transaction is delivered, and every
popped message that was not acknowledged comes again. How many come twice is counted."""

import asyncio
import random
from collections import Counter

import pytest
from tests.loops import on_a_client_s_host
from tests.simulation.figures import Figures
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.acting_cluster import ACTS, OTHER, ActingCluster, at
from tests.unit.broker.popping import Popper
from tests.unit.broker.replicas import MASTER, SLAVE, eventually, started
from tests.unit.broker.transacting import Transactor

from turbopump.message.message import ReceivedMessage
from turbopump.protocol.requests.send import TransactionOutcome

RETRIED = "%RETRY%g_P"
SETTLED_S = 150.0
LONGEST_S = 60


def commits(_message: ReceivedMessage) -> TransactionOutcome:
    return TransactionOutcome.COMMIT


class Story:
    """One run. ``waiting``: what was acknowledged and must be delivered, by kind."""

    def __init__(self, cluster: ActingCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.waiting: dict[str, set[bytes]] = {
            kind: set() for kind in ("delays", "timers", "transactions", "pops")
        }
        self.figures: Counter[str] = Counter()
        self.producers = [
            Transactor(client, cluster.now_ms) for client in (cluster.master, cluster.other)
        ]
        self._number = 0
        self._up = {MASTER, SLAVE}

    async def start(self) -> None:
        await self.cluster.start()
        for client in (self.cluster.master, self.cluster.other):
            await client.create("P")
        await self.connect()

    async def connect(self) -> None:
        """Producers ask to be asked, and consumers are there, at both masters."""
        for producer in self.producers:
            producer.answer = commits
            await producer.announce()
            await producer.client.join("c1")

    def body(self, kind: str) -> bytes:
        self._number += 1
        return b"%b %d" % (kind.encode(), self._number)

    async def submit(self) -> None:
        """One piece of work at the master."""
        rng = self.rng
        kind = rng.choice(list(self.waiting))
        body = self.body(kind)
        if kind == "delays":
            await at(self.cluster.master, body, DELAY=rng.choice((1, 2)))
        elif kind == "timers":
            due = self.cluster.now_ms() + rng.randrange(1000, LONGEST_S * 1000)
            await at(self.cluster.master, body, TIMER_DELIVER_MS=due)
        elif kind == "transactions":
            await self.producers[0].prepare(body)
        else:
            await self.cluster.master.send(body, topic="P")
            popper = Popper(self.cluster.master, self.cluster.now_ms, "P")
            for popped in await popper.pop(invisible_ms=rng.randrange(2000, 30_000)):
                if rng.random() < 0.5:
                    self.waiting[kind].discard(popped.body)
                    await popper.ack(popped)
                elif popped.message.topic == "P":
                    self.waiting[kind].add(popped.body)
            return
        self.waiting[kind].add(body)

    async def work(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await self.submit()
            await asyncio.sleep(self.rng.choice((0, 0.01, 0.3)))

    async def leave(self, host: str) -> None:
        if self.rng.random() < 0.3:
            self.figures["stops"] += 1
            await self.cluster.replicas.stop(host)
        else:
            self.figures["kills"] += 1
            self.cluster.replicas.kill(host)
        self._up.discard(host)

    async def come_back(self, host: str) -> None:
        if host == MASTER:
            await self.cluster.start_master()
        else:
            await self.cluster.replicas.slave(**ACTS)
        self._up.add(host)

    async def outage(self) -> None:
        """The master is away for a while; the slave may be, too."""
        rng = self.rng
        await asyncio.sleep(rng.choice((0, 0.3, 2)))
        await self.leave(MASTER)
        for _ in range(rng.choice((0, 0, 1, 2))):
            await asyncio.sleep(rng.uniform(0, 10))
            await self.leave(SLAVE)
            await asyncio.sleep(rng.uniform(0, 3))
            await self.come_back(SLAVE)
        await asyncio.sleep(rng.choice((0, 1, 5, 20, 40)))
        await self.come_back(MASTER)
        await self.connect()

    def delivered(self) -> dict[str, Counter[bytes]]:
        found: dict[str, Counter[bytes]] = {kind: Counter() for kind in self.waiting}
        for host in (MASTER, OTHER):
            for topic in ("T", RETRIED):
                for body in self.cluster.stored(host, topic):
                    found[body.split()[0].decode()][body] += 1
        return found

    def missing(self) -> set[bytes]:
        found = self.delivered()
        return {body for kind, all_ in self.waiting.items() for body in all_ - set(found[kind])}


async def story(simulation: Simulation, figures: Figures) -> None:
    async with started(simulation) as replicas:
        run = Story(ActingCluster(replicas), simulation.random)
        await run.start()
        for _ in range(simulation.random.choice((1, 2, 3))):
            await run.work(simulation.random.uniform(1, 6))
            await run.outage()
        try:
            await eventually(lambda: not run.missing(), seconds=SETTLED_S)
        except TimeoutError:
            raise AssertionError(sorted(run.missing())) from None
        await asyncio.sleep(LONGEST_S + 30)
        found = run.delivered()
        acting = run.cluster.acting
        assert not acting.active
        twice = {
            f"{kind}_twice": sum(count > 1 for count in found[kind].values()) for kind in found
        }
        elsewhere = {body for topic in ("T", RETRIED) for body in run.cluster.stored(OTHER, topic)}
        figures.count(
            lost=0,
            waiting=sum(map(len, run.waiting.values())),
            by_the_other_master=len(elsewhere),
            **run.figures,
            **twice,
        )


@pytest.mark.seeds_of_sim(300)
def test_what_waits_at_a_master_that_is_away_is_delivered(seed: int, figures: Figures) -> None:
    on_a_client_s_host(lambda simulation: story(simulation, figures), seed=seed)
