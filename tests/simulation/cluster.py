"""A small cluster in a simulated world: a name server, two brokers, producers and consumers, and
what happens to them.

The brokers flush before they acknowledge, so whatever is acknowledged must be consumed, through
every fault. Every program runs in a process of its own on a host of its own; a supervisor starts it
again when it was killed.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.simulation.world.ledger import Ledger, Queue
from tests.simulation.world.pipe import Link
from tests.simulation.world.process import ProcessKilled
from tests.simulation.world.simulation import Simulation

from turbopump.broker.broker import Broker
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.client.sending.send_result import SendStatus
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import TurbopumpError
from turbopump.namesrv.server import NameServer

NAMESRV = "10.0.0.1"
BROKERS = {"10.0.0.2": "broker-a", "10.0.0.3": "broker-b"}
PRODUCERS = ("10.0.1.1", "10.0.1.2")
CONSUMERS = ("10.0.2.1", "10.0.2.2")
HOSTS = (NAMESRV, *BROKERS, *PRODUCERS, *CONSUMERS)
NAMESRV_ADDRESS = f"{NAMESRV}:9876"
TOPIC = "orders"
GROUP = "accounting"

DRAIN_SECONDS_MAX = 1800.0
"""Longest time, with every fault healed, until everything acknowledged has been consumed."""


class Cluster:
    """Starts everything, keeps it running, and writes down what producers and consumers see. With
    ``flush_interval_ms`` brokers acknowledge at once, and flush so often."""

    def __init__(self, simulation: Simulation, flush_interval_ms: int | None = None) -> None:
        self.simulation = simulation
        self.flush_interval_ms = flush_interval_ms
        self.ledger = Ledger(in_flight_max=1000)
        self.producing = True
        self.lives = 0
        self._numbers = 0
        self._stops: dict[str, asyncio.Event] = {}
        self._supervisors: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._keep(NAMESRV, self._name_server)
        for host in BROKERS:
            self._keep(host, self._broker)
        await asyncio.sleep(5)
        for host in PRODUCERS:
            self._keep(host, self._producer)
        for host in CONSUMERS:
            self._keep(host, self._consumer)

    async def drain(self, seconds_max: float = DRAIN_SECONDS_MAX) -> None:
        """Stop producing and wait until the group has everything; returns silently if it does not
        get there in time.
        """
        self.producing = False
        loop = self.simulation.loop
        deadline = loop.time() + seconds_max
        while loop.time() < deadline and (self._sending() or self.ledger.missing(GROUP)):
            await asyncio.sleep(5)

    async def stop(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)

    def stop_cleanly(self, host: str) -> None:
        """Tell a broker to close, as SIGTERM does."""
        if host in self._stops:
            self._stops[host].set()

    def check_alive(self) -> None:
        """Raise what ended a program that nobody killed."""
        for supervisor in self._supervisors:
            if supervisor.done():
                supervisor.result()

    def _sending(self) -> bool:
        return any(send.ended == float("inf") for send in self.ledger.sends)

    def _keep(self, host: str, program: Callable[[str], Awaitable[None]]) -> None:
        self._supervisors.append(
            asyncio.create_task(self._supervise(host, program), name=f"keep {host}")
        )

    async def _supervise(self, host: str, program: Callable[[str], Awaitable[None]]) -> None:
        async def main() -> None:
            await program(host)

        while True:
            process = self.simulation.boot(host)
            try:
                await process.start(main())
                if host not in BROKERS:
                    return
                self.ledger.disturbance()  # a broker that was told to stop is started again
                self.simulation.end(host, power_cut=False)
            except ProcessKilled:
                self.ledger.disturbance()
            except OSError:
                # A broker whose disk fails at its start says so and ends; with a disk that works
                # nothing may fail.
                if host not in BROKERS or not self.simulation.disk(host).failed:
                    raise
                self.simulation.end(host, power_cut=True)
            await asyncio.sleep(self.simulation.random.uniform(0.1, 40))

    async def _name_server(self, host: str) -> None:
        server = NameServer(NamesrvConfig(bind_address=host), clock=self.simulation.clock(host))
        await server.start()
        await _until_killed()

    async def _broker(self, host: str) -> None:
        config = BrokerConfig(
            broker_name=BROKERS[host],
            bind_address=host,
            namesrv_addr=NAMESRV_ADDRESS,
            store_path_root_dir=str(Path("/store")),
            flush_disk_type=(
                FlushDiskType.SYNC_FLUSH
                if self.flush_interval_ms is None
                else FlushDiskType.ASYNC_FLUSH
            ),
            flush_interval_commit_log=self.flush_interval_ms or 500,
            max_message_size=4096,
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=50,
            max_index_num=200,
            default_topic_queue_nums=2,
        )
        broker = Broker(
            config,
            clock=self.simulation.clock(host),
            disk=self.simulation.disk(host).mount(),
            source=self._source(host),
        )
        await broker.start()
        stop = self._stops[host] = asyncio.Event()
        await stop.wait()
        await broker.close()

    async def _producer(self, host: str) -> None:
        rng = self._source(host)
        producer = Producer(
            NAMESRV_ADDRESS,
            group="sellers",
            clock=self.simulation.clock(host),
            random=rng,
            local_ip=host,
        )
        await producer.start()
        while self.producing:
            await self._send(host, producer)
            await asyncio.sleep(rng.uniform(0, 2))
        await producer.close()

    async def _send(self, host: str, producer: Producer) -> None:
        now = self.simulation.loop.time
        self._numbers += 1
        send = self.ledger.send(host, TOPIC, f"{self._numbers} from {host}".encode(), now())
        # Whoever is killed in between has begun a send of which nobody will ever know more.
        self.simulation.process(host).at_kill[send] = lambda: send.maybe(now())
        try:
            result = await producer.send(TOPIC, send.body)
        except TurbopumpError:
            send.maybe(now())
        else:
            if result.status is SendStatus.OK:
                queue = Queue(TOPIC, result.queue.broker_name, result.queue.queue_id)
                send.acknowledged(queue, result.queue_offset, now())
            else:
                send.maybe(now())
        del self.simulation.process(host).at_kill[send]

    async def _consumer(self, host: str) -> None:
        self.lives += 1
        life = self.lives
        self.ledger.disturbance()  # queues change hands
        consumer = PushConsumer(
            NAMESRV_ADDRESS,
            group=GROUP,
            topic=TOPIC,
            consume_from=ConsumeFrom.FIRST,
            instance_name="accountant",
            clock=self.simulation.clock(host),
            random=self._source(host),
            local_ip=host,
        )
        while True:
            try:
                await consumer.start()
                break
            except TurbopumpError:
                # No name server answers yet. A consumer that could not start is done for: take a
                # new one.
                await asyncio.sleep(5)
                return await self._consumer(host)
        async for message in consumer:
            queue = Queue(message.topic, message.broker_name, message.queue_id)
            self.ledger.delivered(GROUP, host, queue, message.queue_offset, message.body, life)
        return None

    def _source(self, host: str):  # type: ignore[no-untyped-def]
        """A random source for one life of the program on `host`."""
        return self.simulation.source(f"{host} from {self.simulation.loop.time()}")


class Mischief:
    """What goes wrong, drawn from the scenario's random source; everything is healed at the end.
    Power cuts are ``power_cuts`` times as likely as any other deed."""

    def __init__(self, cluster: Cluster, power_cuts: int = 1) -> None:
        self.cluster = cluster
        self.power_cuts = power_cuts
        self.simulation = cluster.simulation
        self.rng = self.simulation.random

    async def make(self, seconds: float) -> None:
        """Break something every few seconds for so long; then heal everything."""
        loop = self.simulation.loop
        deeds = (
            self._reset,
            self._cut_one_way,
            self._cut_both_ways,
            self._pause,
            self._kill,
            self._stop_cleanly,
            *(self._power_cut,) * self.power_cuts,
            self._power_cut_in_an_operation,
            self._disk_error,
            self._change_link,
            self._clock_jump,
        )
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(self.rng.uniform(1, 30))
            self.cluster.check_alive()
            self.rng.choice(deeds)()
        await asyncio.sleep(90)  # what was cut or paused comes back
        self.cluster.check_alive()

    def _pair(self) -> tuple[str, str]:
        one, other = self.rng.sample(HOSTS, 2)
        return one, other

    def _later(self, act: Callable[..., object], *args: object) -> None:
        self.simulation.loop.call_later(self.rng.uniform(0.1, 60), act, *args)

    def _reset(self) -> None:
        self.cluster.ledger.disturbance()
        self.simulation.network.reset(*self._pair())

    def _cut_one_way(self) -> None:
        self.cluster.ledger.disturbance()
        source, target = self._pair()
        self.simulation.network.cut(source, target)
        self._later(self.simulation.network.heal, source, target)

    def _cut_both_ways(self) -> None:
        self.cluster.ledger.disturbance()
        one, other = self._pair()
        for source, target in ((one, other), (other, one)):
            self.simulation.network.cut(source, target)
            self._later(self.simulation.network.heal, source, target)

    def _pause(self) -> None:
        self.cluster.ledger.disturbance()
        process = self.simulation.process(self.rng.choice(HOSTS))
        if process.alive and not process.paused:
            process.pause()
            self._later(process.resume)

    def _kill(self) -> None:
        self._kill_host(self.rng.choice(HOSTS))

    def _stop_cleanly(self) -> None:
        host = self.rng.choice(list(BROKERS))
        if not self.simulation.disk(host).failed:
            self.cluster.stop_cleanly(host)

    def _power_cut(self) -> None:
        self.simulation.end(self.rng.choice(list(BROKERS)), power_cut=True)

    def _power_cut_in_an_operation(self) -> None:
        self.simulation.disk(self.rng.choice(list(BROKERS))).cut_power_at(
            nth=self.rng.randint(1, 50)
        )

    def _disk_error(self) -> None:
        """One operation fails. Not followed by a kill: the page cache it leaves would show what the
        disk does not have."""
        host = self.rng.choice(list(BROKERS))
        operation = self.rng.choice(("sync", "sync", "create", "write", "rename", "directory_sync"))
        self.simulation.disk(host).fail(
            operation, self.rng.choice((errno.EIO, errno.ENOSPC)), nth=self.rng.randint(1, 20)
        )
        self._later(self._end_after_disk_error, host)

    def _end_after_disk_error(self, host: str) -> None:
        self.simulation.end(host, power_cut=True)
        self.simulation.disk(host).clear_faults()

    def _kill_host(self, host: str) -> None:
        """By kill -9; by a power cut if its disk has failed since the last one."""
        self.simulation.end(host, power_cut=host in BROKERS and self.simulation.disk(host).failed)

    def _change_link(self) -> None:
        link = self.simulation.network.link(*self._pair())
        link.latency_max = self.rng.choice((0.000_3, 0.01, 0.5))
        link.chunk_size_max = self.rng.choice((None, 1, 50, 1000))
        self._later(self._restore_link, link)

    def _restore_link(self, link: Link) -> None:
        usual = self.simulation.network.default_link
        link.latency_max, link.chunk_size_max = usual.latency_max, usual.chunk_size_max

    def _clock_jump(self) -> None:
        self.simulation.clock(self.rng.choice(HOSTS)).jump(self.rng.randint(-20_000, 20_000))


async def _until_killed() -> None:
    await asyncio.get_running_loop().create_future()
