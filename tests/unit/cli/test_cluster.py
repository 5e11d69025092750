"""`turbopump cluster ha`: where replication stands, and what is amiss."""

import json

import pytest

from turbopump.admin.replication import BrokerReplication, findings, seconds_left
from turbopump.cli import main
from turbopump.protocol.requests.replication import (
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from turbopump.testing.broker_in_loop import BrokerThread


def master(*slaves: HAConnectionRuntimeInfo) -> BrokerReplication:
    status = HARuntimeInfo(
        master=True, master_commit_log_max_offset=500, ha_connection_info=list(slaves)
    )
    return BrokerReplication("a", 0, "h:1", status)


def slave(master_address: str | None = "h:2") -> BrokerReplication:
    info = HAClientRuntimeInfo(master_addr=master_address, max_offset=400)
    return BrokerReplication("a", 1, "h:3", HARuntimeInfo(ha_client_runtime_info=info))


def test_a_pair_that_is_in_sync_has_no_findings() -> None:
    copied = HAConnectionRuntimeInfo(addr="h:9", slave_ack_offset=500, in_sync=True)
    assert findings([master(copied), slave()]) == []


def test_what_is_amiss_is_said() -> None:
    behind = HAConnectionRuntimeInfo(addr="h:9", slave_ack_offset=100, diff=400)
    assert findings([master(behind), slave()]) == ["slave h:9 of a is 400 bytes behind"]
    assert findings([master(), slave()]) == ["no slave copies from a (h:1): their logs say why"]
    assert findings([slave()]) == [
        "broker a has no master: its slaves are read, and it takes no messages"
    ]


def test_the_time_left_is_told_if_there_is_a_rate() -> None:
    assert [seconds_left(0, 0), seconds_left(100, 0), seconds_left(100, 30)] == [0, None, 4]


def test_a_master_alone_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread() as running:
        assert main(["cluster", "ha", "-n", running.namesrv]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"broker-test 0  {running.broker_address}  master  log ")
        assert main(["cluster", "ha", "-n", running.namesrv, "--output", "json"]) == 0
        row = json.loads(capsys.readouterr().out)["brokers"][0]
        assert (row["role"], row["slaves"]) == ("master", [])


def test_a_broker_is_drained_and_may_be_sent_to_again(capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread() as running:
        drain = ["broker", "drain", "broker-test", "-n", running.namesrv]
        assert main([*drain, "--routes", "0"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said == [
            f"write permission of broker-test is wiped at {running.namesrv}",
            "it has no slave: while it is stopped nobody can read what it has",
            f"broker-test is drained: it is safe to stop it ({running.broker_address})",
            "clients send to it again when it was stopped and started, or after: turbopump broker "
            f"drain broker-test --undo -n '{running.namesrv}'",
        ]
        assert main([*drain, "--timeout", "0", "--output", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["drained"] is False
        assert main([*drain, "--undo"]) == 0
        assert "is given back at" in capsys.readouterr().out
