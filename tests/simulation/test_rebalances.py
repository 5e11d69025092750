"""Members that join, leave and vanish under load: nothing is lost, no more comes twice than was in
flight, and soon every queue has its owner. In order nothing comes twice because somebody joined or
left; what a member that vanished had begun and not told comes once more.

A sample in `make test`, a thousand rebalances of each kind in `make sim`, over its first twenty
seeds.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial

import pytest
from tests.handlers_in_order import HandlersInOrder
from tests.simulation.figures import Figures
from tests.simulation.world.process import ProcessKilled, SimulatedProcess
from tests.simulation.world.simulation import Simulation, simulate
from tests.stand_ins import async_does_nothing

from turbopump.broker.broker import Broker
from turbopump.broker.membership import Membership
from turbopump.client.allocation import strategy_of
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.message.message import MessageQueue
from turbopump.namesrv.server import NameServer
from turbopump.protocol.requests.topics import TopicConfig

WHOLE = "TURBOPUMP_SIM_MINUTES" in os.environ
SAMPLE = 3 if WHOLE else 8


def rebalances(seed: int) -> int:
    """How many: fifty in each of the first twenty seeds of `make sim`, the sample in all others."""
    return 50 if WHOLE and seed <= 20 else SAMPLE


SETTLED_S = 2.0
NAMESRV, BROKER, PRODUCER = "10.0.0.1", "10.0.0.2", "10.0.1.1"
CONSUMERS = ("10.0.2.1", "10.0.2.2", "10.0.2.3", "10.0.2.4")
TOPIC, GROUP, QUEUES = "orders", "billing", 8
EVERY_QUEUE = [MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUES)]


class World:
    """A broker that stays, a producer, and members of one group that do not. ``ordered``: how they
    consume."""

    def __init__(self, simulation: Simulation, *, ordered: bool) -> None:
        self.simulation = simulation
        self.ordered = ordered
        self.handled: dict[int, Counter[int]] = defaultdict(Counter)
        """Of each queue, how often the handler of each offset began."""
        self.in_flight: Counter[int] = Counter()
        """Of each queue, how many may come twice: what its owner had taken when it lost it and had
        not told the broker at the notice."""
        self.watch = HandlersInOrder()
        self.untold: dict[int, Counter[int]] = defaultdict(Counter)
        """Of each queue, how often a member was killed that had begun with this offset and not told
        the broker."""
        self.notices: list[float] = []
        self.settled = 0
        """After how many notices every queue got the owner that the members' list says."""
        self.settling: list[float] = []
        """Of each queue, seconds from a notice until it had that owner."""
        self.inheriting: list[float] = []
        """The same for a queue whose lock a vanished member had kept, from when the broker gave the
        lock up."""
        self.members: dict[str, PushConsumer] = {}
        self.broker: Broker
        self._known: Counter[int] = Counter()
        self._begun: dict[int, dict[int, SimulatedProcess]] = defaultdict(dict)
        self._producing = True
        self._sending = False
        self._stops: dict[str, asyncio.Event] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._servers: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        self._servers.append(self.simulation.boot(NAMESRV).start(self._name_server()))
        self._servers.append(self.simulation.boot(BROKER).start(self._broker()))
        await asyncio.sleep(5)
        self._servers.append(self.simulation.boot(PRODUCER).start(self._producer()))
        for host in CONSUMERS[:2]:
            self.join(host)
        await asyncio.sleep(10)

    def noticed(self, client_ids: list[str]) -> None:
        """The broker tells the group that its members are others now."""
        now = self.simulation.loop.time()
        self.notices.append(now)
        for number in range(QUEUES):
            self._known[number] = self._committed(number)
        self._servers.append(asyncio.ensure_future(self._settle(now, sorted(client_ids))))

    async def _settle(self, noticed: float, client_ids: list[str]) -> None:
        """Note how long each queue waits for its owner among these members. When others come or go
        meanwhile, only what is late counts."""
        divide = strategy_of("AVG")
        owner = {queue: one for one in client_ids for queue in divide(EVERY_QUEUE, client_ids, one)}
        waiting, inherited = dict.fromkeys(EVERY_QUEUE, noticed), set[MessageQueue]()
        while waiting:
            now, found = self.simulation.loop.time(), self._owners()
            over = self.notices[-1] != noticed or now > noticed + 90
            for queue, since in list(waiting.items()):
                kept_until = self._kept_by_the_dead(queue, client_ids)
                if kept_until is not None:
                    waiting[queue] = since = max(noticed, kept_until)
                    inherited.add(queue)
                here = kept_until is None and found[queue] == [owner[queue]]
                if here or (over and now > since + SETTLED_S):
                    (self.inheriting if queue in inherited else self.settling).append(now - since)
                if here or over:
                    del waiting[queue]
                self.settled += here and not waiting
            await asyncio.sleep(0.01 if now < noticed + 0.5 else 0.05)

    def _owners(self) -> dict[MessageQueue, list[str]]:
        found: dict[MessageQueue, list[str]] = defaultdict(list)
        for host, member in self.members.items():
            for queue in member.queues if self.simulation.process(host).alive else ():
                found[queue].append(member.client_id)
        return found

    def _kept_by_the_dead(self, queue: MessageQueue, client_ids: list[str]) -> float | None:
        """Until when a queue is locked for a member that is no longer there; None if it is not."""
        tables = self.broker.tables
        held = tables.locks.locks._locks.get(GROUP, {}) if tables is not None else {}
        lock = held.get(queue)
        return lock.expires if lock is not None and lock.client_id not in client_ids else None

    async def change(self) -> None:
        """Somebody joins, leaves or vanishes."""
        rng = self.simulation.random
        here = [host for host in CONSUMERS if host in self._lives]
        away = [host for host in CONSUMERS if host not in self._lives]
        if away and (len(here) == 1 or rng.random() < 0.5):
            self.join(rng.choice(away))
        elif rng.random() < 0.5:
            self._stops[rng.choice(here)].set()
        else:
            self.vanish(rng.choice(here))
        await asyncio.sleep(rng.uniform(2.5, 8))

    def join(self, host: str) -> None:
        self._lives[host] = asyncio.create_task(self._live(host))

    def vanish(self, host: str) -> None:
        """By kill -9: its kernel closes the connections, and so the broker notices."""
        member = self.members.get(host)
        running = member.lifecycle.running if member is not None else None
        for assigned in running.assignment._queues.values() if running is not None else ():
            self.lost(assigned.queue, assigned.process_queue.next_offset)
        process = self.simulation.process(host)
        for number, begun in self._begun.items():
            told = self._committed(number)
            self.untold[number].update(
                offset for offset, by in begun.items() if offset >= told and by is process
            )
        self.simulation.end(host, power_cut=False)

    def _committed(self, number: int) -> int:
        return self.broker.tables.offsets.find(GROUP, TOPIC, number) or 0

    def lost(self, queue: MessageQueue, pulled: int) -> None:
        """A member has a queue no more, of which it had pulled so far."""
        if queue.topic == TOPIC:
            self.in_flight[queue.queue_id] += max(pulled - self._known[queue.queue_id], 0)

    async def _live(self, host: str) -> None:
        process = self.simulation.boot(host)
        try:
            await process.start(self._consumer(host))
            self.simulation.end(host, power_cut=False)
        except ProcessKilled:
            pass
        finally:
            self.members.pop(host, None)
            del self._lives[host]

    async def drain(self) -> None:
        """Until everything has been handled."""
        self._producing = False
        deadline = self.simulation.loop.time() + 600
        while (self._sending or self.missing) and self.simulation.loop.time() < deadline:
            await asyncio.sleep(1)
        for server in self._servers:
            assert not server.done() or server.result() is None

    @property
    def missing(self) -> int:
        return sum(
            self.broker.store.max_offset(TOPIC, queue) - len(self.handled[queue])
            for queue in range(QUEUES)
        )

    @property
    def twice(self) -> dict[int, int]:
        """Of each queue, how often a message came again."""
        return {
            queue: sum(offsets.values()) - len(offsets) for queue, offsets in self.handled.items()
        }

    async def end(self) -> None:
        tasks = [*self._lives.values(), *self._servers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- programs
    # ----------------------------------------------------------------------------------------------

    async def _name_server(self) -> None:
        await NameServer(
            NamesrvConfig(bind_address=NAMESRV), clock=self.simulation.clock(NAMESRV)
        ).start()
        await asyncio.Event().wait()

    async def _broker(self) -> None:
        config = BrokerConfig(
            broker_name="broker-a",
            bind_address=BROKER,
            namesrv_addr=f"{NAMESRV}:9876",
            store_path_root_dir="/store",
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20 * 1000,
            max_hash_slot_num=50,
            max_index_num=200,
            scrub_bytes_per_second=0,
        )
        disk, clock = self.simulation.disk(BROKER).mount(), self.simulation.clock(BROKER)
        self.broker = Broker(
            config, clock=clock, disk=disk, source=self.simulation.source("broker")
        )
        await self.broker.start()
        self.broker.tables.topics.put(
            TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        )
        await asyncio.Event().wait()

    async def _producer(self) -> None:
        rng = self.simulation.source("producer")
        settings = {"clock": self.simulation.clock(PRODUCER), "random": rng, "local_ip": PRODUCER}
        async with Producer(f"{NAMESRV}:9876", group="sellers", **settings) as producer:  # type: ignore[arg-type]
            while True:
                await asyncio.sleep(rng.uniform(0, 0.25))
                if self._producing:
                    self._sending = True
                    await producer.send(TOPIC, b"x")
                    self._sending = False

    async def _consumer(self, host: str) -> None:
        rng, process = (
            self.simulation.source(f"{host} from {self.simulation.loop.time()}"),
            self.simulation.process(host),
        )

        async def handle(message: Delivery) -> None:
            queue, offset = message.queue_id, message.queue_offset
            self.handled[queue][offset] += 1
            self._begun[queue][offset] = process
            if self.ordered:
                self.watch.begin(queue, offset, process)
            await asyncio.sleep(rng.choice((0.0, 0.01, rng.uniform(0, 0.5))))
            if self.ordered:
                self.watch.end(queue, offset, process, good=True)

        consumer = PushConsumer(
            f"{NAMESRV}:9876",
            group=GROUP,
            topic=TOPIC,
            handler=handle,
            ordered=self.ordered,
            consume_from=ConsumeFrom.FIRST,
            clock=self.simulation.clock(host),
            random=rng,
            local_ip=host,
        )
        stop = self._stops[host] = asyncio.Event()
        async with consumer:
            self.members[host] = consumer
            await stop.wait()
            self.members.pop(host)


@contextmanager
def watched(world: World) -> Iterator[None]:
    """The broker's notices and the queues that members lose are told to ``world``."""
    from turbopump.client.consumer.queue_loop import AssignedQueue

    with pytest.MonkeyPatch.context() as patch:
        notify, drop = Membership.notify_members, AssignedQueue.drop

        def notify_and_tell(self: Membership, group: str) -> None:
            notify(self, group)
            if group == GROUP:
                world.noticed(self._stored.clients.client_ids(group))

        def drop_and_tell(self: AssignedQueue) -> None:
            world.lost(self.queue, self.process_queue.next_offset)
            drop(self)

        patch.setattr(Membership, "notify_members", notify_and_tell)
        patch.setattr(AssignedQueue, "drop", drop_and_tell)
        yield


async def main(ordered: bool, seed: int, simulation: Simulation) -> World:
    world = World(simulation, ordered=ordered)
    with watched(world):
        await world.start()
        for _ in range(rebalances(seed)):
            await world.change()
        await asyncio.sleep(5)
        await world.drain()
        await world.end()
    return world


def run(seed: int, *, ordered: bool) -> World:
    return simulate(seed, partial(main, ordered, seed))


def tell(world: World, figures: Figures, changes: int) -> None:
    figures.count(rebalances=changes, messages=sum(map(len, world.handled.values())), lost=0)
    figures.most(settled_s=round(max(world.settling), 2))


def test_of_a_group_that_changes_nothing_is_lost_and_no_more_comes_twice_than_was_in_flight(
    seed: int, figures: Figures
) -> None:
    world = run(seed, ordered=False)
    assert world.missing == 0
    assert sum(map(len, world.handled.values())) > 100
    assert {
        queue: (twice, world.in_flight[queue])
        for queue, twice in world.twice.items()
        if twice > world.in_flight[queue]
    } == {}
    assert world.settled >= rebalances(seed) * 0.8
    assert max(world.settling) <= SETTLED_S
    assert world.inheriting == []
    tell(world, figures, rebalances(seed))
    figures.count(came_twice=sum(world.twice.values()), of_in_flight=world.in_flight.total())


def test_a_changing_ordered_group_loses_nothing_and_handed_over_messages_come_once(
    seed: int, figures: Figures
) -> None:
    """What a killed member had in hand comes again, once for each that was killed with it; its
    queues wait for the end of its locks."""
    world = run(seed, ordered=True)
    assert world.missing == 0
    assert sum(map(len, world.handled.values())) > 100
    assert world.watch.wrong == []
    twice = {
        (queue, offset): n - 1
        for queue, begun in world.handled.items()
        for offset, n in begun.items()
        if n > 1
    }
    assert {place: n for place, n in twice.items() if n > world.untold[place[0]][place[1]]} == {}
    assert len(world.settling) >= rebalances(seed) * 2
    assert max(world.settling) <= SETTLED_S
    assert max(world.inheriting, default=0.0) <= SETTLED_S
    tell(world, figures, rebalances(seed))
    killed = sum(offsets.total() for offsets in world.untold.values())
    figures.count(came_twice=sum(world.twice.values()), of_left_by_killed_members=killed)
    figures.most(settled_after_a_lock_s=round(max(world.inheriting, default=0.0), 2))


def test_a_new_owner_that_begins_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: were this to pass as well, the tests above had no teeth."""
    from turbopump.client.consumer.offsets import OffsetStore, StartOffset

    starting_offset = OffsetStore.starting_offset

    async def too_early(
        self: OffsetStore, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> StartOffset:
        start = await starting_offset(self, queue, consume_from)
        return start._replace(offset=max(start.offset - 20, 0))

    monkeypatch.setattr(OffsetStore, "starting_offset", too_early)
    world = run(11, ordered=False)
    assert any(twice > world.in_flight[queue] for queue, twice in world.twice.items())


def test_an_ordered_queue_that_is_given_away_too_early_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same for order: a member that does not wait for the handler of a queue that it gives
    away."""
    from turbopump.client.consumer.queue_loop import AssignedQueue

    monkeypatch.setattr(AssignedQueue, "idle", async_does_nothing)
    assert any(
        "while" in wrong for seed in range(6, 40) for wrong in run(seed, ordered=True).watch.wrong
    )
