"""Two masters and their slaves are stopped and started one after the other, as the guide says
(cluster.md), while clients send and read: every send is answered OK, nothing is lost, nothing comes
twice."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.crash import patient_masters
from tests.crash.broker_process import BrokerProcess
from tests.crash.replica_pair import MASTER, SLAVE

from turbopump.admin.cluster import Servers
from turbopump.admin.draining import drain, find_broker, set_write_permission
from turbopump.admin.replication import Replication, replication_problems
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.client.sending.send_result import SendStatus
from turbopump.clock import SystemClock
from turbopump.errors import TurbopumpError
from turbopump.protocol.requests.replication import GetBrokerHaStatus

TOPIC, QUEUES, LANES = "rolling", 2, 8
ROUTES_S = 1.0
"""How often these clients ask for routes; 30 s unless they are told."""
PATIENCE_S = 120.0
SLAVE_WAIT_MS = 60_000
"""Of a sample, which runs beside other tests, as its other waits; in full all are as they are by
default."""


class Traffic:
    """Sends one message after the other in some lanes, and reads them as a group."""

    def __init__(self, namesrv: str, send_timeout: float) -> None:
        routes = {"route_interval": ROUTES_S}
        self._producer = Producer(
            namesrv, group="rolling-producer", send_timeout=send_timeout, **routes
        )
        self._consumer = PushConsumer(
            namesrv, group="rolling", topic=TOPIC, consume_from=ConsumeFrom.FIRST, **routes
        )
        self.sent: dict[bytes, str] = {}
        """Body -> the broker that stored it."""
        self.failed: list[str] = []
        self.read: Counter[bytes] = Counter()
        self._progress = asyncio.Condition()
        self._stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Traffic"]:
        """Until the end of the block; all that was sent is read then, or PATIENCE_S are over."""
        async with self._producer, self._consumer:
            reading = asyncio.create_task(self._read())
            lanes = [asyncio.create_task(self._send(lane)) for lane in range(LANES)]
            yield self
            self._stopping = True
            await asyncio.gather(*lanes)
            await self.until(lambda: self.read.keys() >= self.sent.keys())
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._progress:
            await self._progress.wait_for(condition)

    async def some_to(self, *brokers: str) -> None:
        """Wait until each of these has taken messages from now on."""
        before = Counter(self.sent.values())
        await self.until(
            lambda: all(Counter(self.sent.values())[name] > before[name] + 20 for name in brokers)
        )

    async def _send(self, lane: int) -> None:
        number = 0
        while not self._stopping:
            number += 1
            body = b"%d/%d" % (lane, number)
            try:
                result = await self._producer.send(TOPIC, body)
            except TurbopumpError as error:
                self.failed.append(str(error))
                continue
            self.sent[body] = result.queue.broker_name
            if result.status is not SendStatus.OK:
                self.failed.append(f"{result.queue.broker_name}: {result.status.value}")
            await self._notify()

    async def _read(self) -> None:
        async for message in self._consumer:
            self.read[message.body] += 1
            await self._notify()

    async def _notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()


async def until_in_sync(servers: Servers, *masters: BrokerProcess) -> None:
    """Wait until each of these has its slave, and nothing is amiss."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = await Replication(servers).states()
            slaves = [len(one.status.ha_connection_info) for one in seen if one.status is not None]
            there = len(seen) == 2 * len(masters) and sum(slaves) == len(masters)
            by_name = itertools.groupby(seen, lambda one: one.name)
            if there and not any(list(replication_problems(list(one), "")) for _, one in by_name):
                return
            await asyncio.sleep(0.2)


async def restarted(
    servers: Servers, name: str, pair: tuple[BrokerProcess, BrokerProcess], routes_s: float
) -> None:
    """As the guide says: drain, the slave, the master."""
    master, slave = pair
    broker = await find_broker(servers, name)
    assert await set_write_permission(servers, broker, wiped=True) == {}
    async with asyncio.timeout(PATIENCE_S):
        rounds = drain(servers, broker, SystemClock(), routes_s=routes_s)
        assert [state async for state in rounds][-1].drained
    await slave.stop()
    await slave.start()
    async with asyncio.timeout(PATIENCE_S):
        while not (await servers.call(master.address, GetBrokerHaStatus())).in_sync_slave_nums:
            await asyncio.sleep(0.1)
    await master.stop()
    await master.start()


async def rolled(home: Path, names: list[str], full: bool) -> Traffic:
    script = None if full else Path(patient_masters.__file__)
    patient = {} if full else {"slaveTimeout": SLAVE_WAIT_MS}
    send_timeout, routes_s = (3.0, 3 * ROUTES_S) if full else (2.0 * PATIENCE_S, 6 * ROUTES_S)
    async with AsyncExitStack() as stack:
        pairs: dict[str, tuple[BrokerProcess, BrokerProcess]] = {}
        namesrv = ""
        for name in ("a", "b"):
            pair = []
            for settings in (MASTER, SLAVE):
                one = f"{name}{len(pair)}"
                of_pair = {**settings, **patient, "brokerName": name}
                broker = BrokerProcess(
                    *(home / one, home / f"{one}-store", of_pair), namesrv=namesrv, script=script
                )
                pair.append(await stack.enter_async_context(broker))
                await broker.start()
                namesrv = broker.namesrv
            await pair[0].create_topic(TOPIC, QUEUES)
            pairs[name] = (pair[0], pair[1])
        servers = await stack.enter_async_context(Servers([namesrv]))
        masters = [pair[0] for pair in pairs.values()]
        await until_in_sync(servers, *masters)
        async with Traffic(namesrv, send_timeout).running() as traffic:
            await traffic.some_to("a", "b")
            for name in names:
                await restarted(servers, name, pairs[name], routes_s)
                await until_in_sync(servers, *masters)
                await traffic.some_to("a", "b")
        return traffic


def test_no_send_fails_while_brokers_are_restarted_one_after_the_other(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    names = ["a", "b"] if full else ["a"]
    traffic = asyncio.run(rolled(tmp_path, names, full))
    twice = sum(count > 1 for count in traffic.read.values())
    measured(
        f"{len(traffic.sent):,} sent while pairs were restarted, {len(traffic.failed)} failed; "
        f"{twice} came twice"
    )
    assert traffic.failed == []
    assert traffic.read.keys() == traffic.sent.keys()
    assert twice == 0
