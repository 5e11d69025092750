"""A slave that stops, one whose disk is full, one that accepts and never reads: its master
acknowledges nothing that the slave does not have, its memory is bounded, and all goes on by itself.

A SYNC_MASTER with `inSyncReplicas=2` and one slave, each a process of its own. `make test` has the
last two in virtual time: tests/unit/broker/test_replication.py.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.crash import power
from tests.crash.broker_process import BrokerProcess
from tests.crash.replica_pair import MASTER, PATIENCE_S, SLAVE, all_bodies
from tests.unit.broker.talking import Client

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.replication import (
    GetBrokerHaStatus,
    HAClientRuntimeInfo,
    HARuntimeInfo,
)
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.replication.stream import REPORT

IN_FULL = "several seconds of waiting each: --full"
NOT_COPIED = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
"""What a send is answered that no slave has."""
SOON: dict[str, object] = {
    "slaveTimeout": 300,
    "haMaxTimeSlaveNotCatchup": 1500,
    "haHousekeepingInterval": 4000,
    "haSendHeartbeatInterval": 300,
}
"""Of both sides. A slave that says nothing for longer than it may be behind is none that is waited
for."""
BODY_SIZE = 30_000
GROWTH_MAX = 48 * 1024 * 1024
"""Of the master's memory while so much more waits for a slave that does not read."""
BACKLOG = 96 * 1024 * 1024


class Pair:
    """A master, its slave, and what was acknowledged."""

    def __init__(self, master: BrokerProcess, slave: BrokerProcess) -> None:
        self.master = master
        self.slave = slave
        self.client = Client(master.address)
        self.acknowledged: set[bytes] = set()
        self._number = 0

    async def send(self) -> int:
        """One message more; what was answered."""
        self._number += 1
        body = (b"%d " % self._number).ljust(BODY_SIZE, b"x")
        request = SendMessageV2(topic="T", queue_id=0)
        answer = await self.client.ask(request, body, timeout=PATIENCE_S)
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged.add(body)
        return answer.code

    async def until(self, *codes: int) -> None:
        """Send until one of these is answered."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.send() not in codes:
                await asyncio.sleep(0.02)

    async def not_copied(self, count: int) -> None:
        """Send so many; none is acknowledged."""
        codes = [await self.send() for _ in range(count)]
        assert set(codes) <= set(NOT_COPIED), codes

    async def slave_has_what_counts(self, *, all_of_the_log: bool = True) -> None:
        """See that the slave has what was acknowledged; by default wait first until it has all that
        the master has."""
        slave = Client(self.slave.address)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while all_of_the_log and await log_end(slave) < await log_end(self.client):
                    await asyncio.sleep(0.05)
                while (await slave.code(GetMaxOffset(topic="T", queue_id=0)))[0]:
                    await asyncio.sleep(0.05)  # it was stopped before it knew the topic
            assert self.acknowledged <= await all_bodies(slave)
        finally:
            await slave.close()


async def log_end(client: Client) -> int:
    info = await client.remoting.call(client.address, GetBrokerHaStatus())
    return info.master_commit_log_max_offset if info.master else as_slave(info).max_offset


def as_slave(info: HARuntimeInfo) -> HAClientRuntimeInfo:
    assert info.ha_client_runtime_info is not None
    return info.ha_client_runtime_info


@asynccontextmanager
async def pair(home: Path, slave_store: Path | None = None, **more: Any) -> AsyncIterator[Pair]:
    """A master with its slave in sync."""
    async with BrokerProcess(home / "m", home / "m-store", MASTER | SOON | more) as master:
        await master.start()
        await master.create_topic("T", 1)
        store, names = slave_store or home / "s-store", master.namesrv
        async with BrokerProcess(home / "s", store, SLAVE | SOON | more, namesrv=names) as slave:
            await slave.start()
            both = Pair(master, slave)
            try:
                await both.until(ResponseCode.SUCCESS)
                yield both
            finally:
                await both.client.close()


@contextmanager
def stopped(process: BrokerProcess) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def stops(home: Path, rounds: int) -> int:
    async with pair(home) as both:
        for _ in range(rounds):
            under_way = asyncio.gather(*(both.send() for _ in range(256)))
            await asyncio.sleep(0)  # they are sent, and some are answered before it stops
            with stopped(both.slave):
                await under_way
                await both.until(*NOT_COPIED)
                await both.not_copied(3)
                await both.until(ResponseCode.SLAVE_NOT_AVAILABLE)
                await both.not_copied(20)
            await both.until(ResponseCode.SUCCESS)
            await both.slave_has_what_counts()
        return len(both.acknowledged)


def test_nothing_is_acknowledged_while_the_slave_is_stopped(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    if not full:
        pytest.skip(IN_FULL)
    rounds = 10
    acknowledged = asyncio.run(stops(tmp_path, rounds))
    measured(f"{rounds} stops of a slave: {acknowledged} acknowledged, all on the slave")


async def disk_is_full(home: Path, rounds: int) -> int:
    small: dict[str, Any] = {
        "mappedFileSizeCommitLog": 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 1000,
        "maxMessageSize": 64 * 1024,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
        "cleanFileForciblyEnable": "false",
        "diskFreeSpaceMin": 0,
    }
    with power.Ext4(home, 64 * 1024 * 1024) as file_system:
        filler = file_system.mount_point / "filler"
        async with pair(home, file_system.mount_point / "store", **small) as both:
            for _ in range(rounds):
                power.fill(filler)
                await both.until(*NOT_COPIED)
                await both.until(ResponseCode.SLAVE_NOT_AVAILABLE)
                await both.slave_has_what_counts(all_of_the_log=False)
                power.free(filler)
                await both.until(ResponseCode.SUCCESS)
                await both.slave_has_what_counts()
            assert "the slave does not copy" in both.slave.log_tail(100_000)
            return len(both.acknowledged)


@pytest.mark.skipif(
    power.why_not() is not None and not os.environ.get("CI"),
    reason=f"a slave's full disk not run: {power.why_not()}",
)
def test_a_slave_whose_disk_is_full_goes_on_when_there_is_room(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    if not full:
        pytest.skip(IN_FULL)
    rounds = 5
    acknowledged = asyncio.run(disk_is_full(tmp_path, rounds))
    measured(f"{rounds} times a full disk of a slave: {acknowledged} acknowledged, all there")


async def never_reads(home: Path) -> int:
    """By how many bytes the master has grown with BACKLOG waiting for one that does not read."""
    patient = {"slaveTimeout": 5000, "haMaxTimeSlaveNotCatchup": 5000}
    async with pair(home, **patient, haHousekeepingInterval=20_000) as both:
        info = await both.client.remoting.call(both.slave.address, GetBrokerHaStatus())
        host, _, port = (as_slave(info).master_addr or "").rpartition(":")
        before = resident(both.master.pid)
        _reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        try:
            writer.write(REPORT.pack(1))
            await writer.drain()
            while await log_end(both.client) < BACKLOG:
                writer.write(REPORT.pack(1))  # it is there, so it is not closed
                codes = await asyncio.gather(*(both.send() for _ in range(64)))
                assert set(codes) == {ResponseCode.SUCCESS}, "the other slave has them"
            grown = resident(both.master.pid) - before
            with stopped(both.slave):
                await both.until(*NOT_COPIED)
                await both.not_copied(3)  # it acknowledges nothing, and counts for nothing
            await both.until(ResponseCode.SUCCESS)
            await both.slave_has_what_counts()
            return grown
        finally:
            writer.close()


def resident(pid: int) -> int:
    """Anonymous memory of a process, in bytes: without the files that it maps."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_a_slave_that_never_reads_takes_no_memory_and_counts_for_nothing(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    if not full:
        pytest.skip(IN_FULL)
    grown = asyncio.run(never_reads(tmp_path))
    assert grown < GROWTH_MAX
    measured(f"a slave that does not read {BACKLOG >> 20} MiB: the master grew {grown >> 10} KiB")
