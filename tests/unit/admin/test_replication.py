"""What is amiss between a master and its slaves, by their own words."""

from __future__ import annotations

import pytest

from turbopump.admin.replication import (
    BrokerReplication,
    open_ha_port,
    replication_problems,
    seconds_left,
)
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
