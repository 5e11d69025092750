"""kill -9 of a master under load that has messages of its own, of random sizes; its slave is made
the master by hand, and the old master comes back as the slave; one of them is killed while that
begins, too. The logs are the same, byte for byte, or the slave is refused; with inSyncReplicas=2
nothing acknowledged is lost."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash.broker_process import BrokerProcess
from tests.crash.replica_pair import MASTER, PATIENCE_S, SLAVE, all_bodies, in_sync
from tests.unit.broker.talking import Client

from turbopump.errors import TurbopumpError
from turbopump.protocol.requests.replication import PROVED, GetBrokerHaStatus, HARuntimeInfo
from turbopump.protocol.requests.send import SendMessageV2

OUTSTANDING = 8


class Pair:
    """Two directories, and who of them is the master: ``roles[0]``."""

    def __init__(self, home: Path, flush: str, rng: random.Random, names: str) -> None:
        self.home, self.flush, self.rng, self.names = home, flush, rng, names
        self.roles = ["one", "other"]
        self.acknowledged: set[bytes] = set()
        self.running: list[BrokerProcess] = []
        self._number = 0

    async def start(self, store: str) -> BrokerProcess:
        """The broker of a directory, in its role."""
        self._number += 1
        settings = MASTER if store == self.roles[0] else SLAVE
        process = BrokerProcess(
            self.home / f"{self._number}",
            self.home / store,
            {**settings, "flushDiskType": self.flush},
            namesrv=self.names,
        )
        await process.__aenter__()
        self.running.append(process)
        await process.start()
        return process

    async def send(self, client: Client, count: int) -> None:
        """So many messages, or until the broker is gone."""

        async def one(sender: int) -> None:
            with suppress(TurbopumpError):
                for number in range(count // OUTSTANDING):
                    body = b"%d of %d at %s " % (number, sender, client.address.encode())
                    body += b"x" * self.rng.randrange(self.rng.choice([1, 100, 10_000]))
                    answer = await client.ask(SendMessageV2(topic="T", queue_id=0), body)
                    if answer.code == 0:
                        self.acknowledged.add(body)

        await asyncio.gather(*(one(sender) for sender in range(OUTSTANDING)))

    def log(self, store: str, end: int) -> bytes:
        """The bytes of a log, of a broker that has stopped."""
        files = sorted((self.home / store / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files if path.name.isdigit())[:end]


async def status(client: Client) -> HARuntimeInfo:
    return await client.remoting.call(client.address, GetBrokerHaStatus())


async def settled(master: Client, slave: Client) -> tuple[int, str | None]:
    """Where the logs end, which are said to be the same; or where the slave's does, and why it is
    refused."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(TurbopumpError):
                here, there = (await status(slave)).ha_client_runtime_info, await status(master)
                assert here is not None
                if here.fault and (
                    "another log" in here.fault or "but that of the master" in here.fault
                ):
                    return here.max_offset, here.fault
                for one in there.ha_connection_info:
                    end = there.master_commit_log_max_offset
                    if one.proof == PROVED and one.slave_ack_offset == end == here.max_offset:
                        return end, None
            await asyncio.sleep(0.1)


def client_of(clients: list[Client], process: BrokerProcess) -> Client:
    clients.append(Client(process.address))
    return clients[-1]


async def a_master_returns(home: Path, names: str, rng: random.Random, tally: Counter[str]) -> int:
    """One story; how much was acknowledged."""
    pair = Pair(home, rng.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]), rng, names)
    clients: list[Client] = []

    try:
        master = await pair.start(pair.roles[0])
        await master.create_topic("T", 1)
        slave = await pair.start(pair.roles[1])
        client = client_of(clients, master)
        await in_sync(client)
        sending = asyncio.create_task(pair.send(client, 100_000))
        await asyncio.sleep(rng.uniform(0.2, 1))
        if rng.random() < 0.7:
            await slave.kill()  # from now on the master has messages alone
            await asyncio.sleep(rng.uniform(0, 0.3))
        await master.kill()
        await sending
        await slave.kill()
        pair.roles.reverse()
        master = await pair.start(pair.roles[0])
        await pair.send(client_of(clients, master), rng.choice([0, 50, 500, 3000]))
        slave = await pair.start(pair.roles[1])
        if rng.random() < 0.5:
            tally["killed again"] += 1
            again = rng.randrange(2)
            await asyncio.sleep(rng.uniform(0, 0.5))
            await (master, slave)[again].kill()
            process = await pair.start(pair.roles[again])
            master, slave = (process, slave) if again == 0 else (master, process)
        end, fault = await settled(client_of(clients, master), client_of(clients, slave))
        kept = await all_bodies(client_of(clients, master))
        assert pair.acknowledged <= kept, "an acknowledged message is lost"
        for process in (slave, master):
            await process.stop()
        ours, theirs = pair.log(pair.roles[1], end), pair.log(pair.roles[0], end)
        assert (ours == theirs) == (fault is None), fault or "a silent difference"
        tally["the same" if fault is None else "refused"] += 1
        return len(pair.acknowledged)
    finally:
        for one in clients:
            await one.close()
        for process in pair.running:
            await process.__aexit__()


async def stories(home: Path, count: int, rng: random.Random, tally: Counter[str]) -> int:
    """With one name server, which survives."""
    settings: dict[str, Any] = dict(MASTER)
    acknowledged = 0
    for number in range(count):
        async with BrokerProcess(home / f"n{number}", home / f"n{number}", settings) as names:
            acknowledged += await a_master_returns(home / str(number), names.namesrv, rng, tally)
    return acknowledged


def test_a_master_that_comes_back_has_the_same_log_or_is_refused(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    count, tally = (25 if full else 1), Counter[str]()
    acknowledged = asyncio.run(stories(tmp_path, count, rng, tally))
    measured(
        f"{count} masters came back with messages of their own: {acknowledged} acknowledged, 0 "
        f"lost, 0 silent differences ({dict(tally)})"
    )
