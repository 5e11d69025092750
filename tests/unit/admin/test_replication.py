"""What is amiss between a master and its slaves, by their own words."""

from __future__ import annotations

import pytest
from tests.loops import in_loop
from tests.unit.broker.accounts_of_slaves import ADMIN, ON, access_of, until_same_accounts
from tests.unit.broker.ha_status import ha_status
from tests.unit.broker.replicas import MASTER, NAMESRV, SLAVE, Replicas, eventually, with_replicas

from turbopump.admin.admin import Admin
from turbopump.admin.replication import (
    BrokerReplication,
    open_ha_port,
    replication_problems,
    seconds_left,
)
from turbopump.errors import ClientError
from turbopump.protocol.requests.replication import (
    COMPARING,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)

SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
IN_SYNC = HAConnectionRuntimeInfo(addr="h:9", in_sync=True)
FAR = HAConnectionRuntimeInfo(
    addr="h:9", diff=3_000_000_000, transferred_byte_in_second=100_000_000
)


def master(*slaves: HAConnectionRuntimeInfo, **settings: str) -> BrokerReplication:
    status = HARuntimeInfo(master=True, ha_connection_info=list(slaves))
    return BrokerReplication("a", 0, "h:1", status, settings=settings)


def slave(at: str | None = "h:3", read_ms: int = 1, fault: str | None = None) -> BrokerReplication:
    """``read_ms`` 0: it has no connection."""
    client = HAClientRuntimeInfo(
        master_addr=at, max_offset=400, last_read_timestamp=read_ms, fault=fault
    )
    return BrokerReplication("a", 1, "h:2", HARuntimeInfo(ha_client_runtime_info=client))


SILENT = BrokerReplication("a", 1, "h:2", None, "it does not answer")


@pytest.mark.parametrize(
    ("brokers", "says"),
    [
        ([master(IN_SYNC, **SYNC), slave()], []),
        ([slave()], ["it has no master now: consumers read from its slaves, and sends fail"]),
        (
            [master(brokerRole="ASYNC_MASTER"), slave(read_ms=0)],
            ["its slave 1 (h:2) does not copy from h:3"],
        ),
        (
            [master(brokerRole="ASYNC_MASTER"), slave(read_ms=0, fault="it has another log")],
            ["its slave 1 (h:2) does not copy from h:3: it has another log"],
        ),
        (
            [master(HAConnectionRuntimeInfo(addr="h:9", proof=COMPARING)), slave()],
            ["its slave h:9 still compares its log with the master's and copies no messages yet"],
        ),
        (
            [master(**SYNC), slave(None, 0)],
            ["its slave 1 (h:2) does not copy: no name server has the address of its master"],
        ),
        ([master(), SILENT], ["0 of its 1 slave copy from it"]),
        ([master(IN_SYNC), SILENT], []),
        (
            [master(FAR, **SYNC), slave()],
            [
                "its slave h:9 is not in sync, 3,000,000,000 bytes behind, about 30 s at "
                "100,000,000 bytes/s"
            ],
        ),
        (
            [master(IN_SYNC, brokerRole="SYNC_MASTER", inSyncReplicas="1"), slave()],
            [
                "brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave: "
                "acknowledged messages are lost with its machine"
            ],
        ),
        (  # Apache's 4.9 has no inSyncReplicas, and waits for a slave
            [master(IN_SYNC, brokerRole="SYNC_MASTER"), slave()],
            [],
        ),
        (
            [master(**SYNC)],
            [
                "it waits for 1 slave (inSyncReplicas=2) and has 0: sends are answered "
                "SLAVE_NOT_AVAILABLE"
            ],
        ),
        (
            [master(IN_SYNC, IN_SYNC, **SYNC | {"inSyncReplicas": "3"}), slave(), slave()],
            [
                "it waits for 2 slaves (inSyncReplicas=3), and its slaves count as 1: "
                "slaves at one address count as one"
            ],
        ),
    ],
)
def test_each_problem_of_replication_is_reported(
    brokers: list[BrokerReplication], says: list[str]
) -> None:
    assert [one.message for one in replication_problems(brokers, "-n 'n:1'")] == says


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({"haAllowedPeers": "", "bindAddress": "0.0.0.0"}, True),
        ({"haAllowedPeers": "", "bindAddress": "127.0.0.1"}, False),
        (
            {"haAllowedPeers": "", "bindAddress": "0.0.0.0", "listenPort": "of a later release"},
            False,
        ),
        ({"bindAddress": "0.0.0.0", "haListenPort": "10912"}, False),  # Apache's
        ({}, False),  # it does not tell
    ],
)
def test_an_open_port_is_seen_by_what_a_master_of_ours_tells(
    settings: dict[str, str], is_open: bool
) -> None:
    assert (open_ha_port(master(**settings)) is not None) == is_open


def test_a_slave_that_is_connected_to_nobody_copies_from_nobody() -> None:
    assert slave().row["copies_from"] == "h:3"
    assert slave(read_ms=0).row["copies_from"] is None


def test_the_time_left_is_told_if_there_is_a_rate() -> None:
    assert [seconds_left(0, 0), seconds_left(100, 0), seconds_left(100, 30)] == [0, None, 4]


@in_loop(with_replicas)
async def test_the_slaves_of_a_master_in_sync(replicas: Replicas, /) -> None:
    master = await replicas.master()
    await replicas.slave()
    await eventually(lambda: ha_status(master).in_sync_slave_nums)
    async with Admin(f"{NAMESRV}:9876") as admin:
        (copying,) = await admin.replication.slaves("broker-a")
        assert (copying.is_in_sync, copying.behind_bytes, copying.seconds_left) == (True, 0, 0)
        assert copying.address.startswith(f"{SLAVE}:")
        assert await admin.replication.slaves("broker-a:1") == []
        assert (await admin.replication.status("broker-a")).in_sync_slave_nums == 1
        assert [one.id for one in await admin.replication.states()] == [0, 1]
        assert await admin.replication.problems() == {}
        await admin.replication.reset_master_flush_offset("broker-a:1", 10)


@in_loop(with_replicas)
async def test_problems_are_listed_by_broker(replicas: Replicas, /) -> None:
    await replicas.slave()
    async with Admin(f"{NAMESRV}:9876") as admin:
        ((name, problems),) = (await admin.replication.problems()).items()
        assert name == "broker-a"
        assert problems[0].message.startswith("it has no master now")


@in_loop(with_replicas)
async def test_accounts_of_a_slave_are_compared(replicas: Replicas, /) -> None:
    master, slave = await replicas.master(**ON), await replicas.slave(**ON)
    await until_same_accounts(slave, master)
    async with Admin(f"{NAMESRV}:9876", credentials=ADMIN) as admin:
        assert await admin.replication.differing_accounts("broker-a") == {}
        with pytest.raises(ClientError, match="no broker broker-b"):
            await admin.replication.differing_accounts("broker-b")
        await replicas.stop(SLAVE)
        await replicas.slave(**access_of(secret="another"))
        await admin.users.create("ann", "s", server=f"{MASTER}:10911")
        (difference,) = (await admin.replication.differing_accounts("broker-a")).values()
        assert difference == "ann is missing"
