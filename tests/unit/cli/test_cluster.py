"""`turbopump cluster ha`: where replication stands, and what is amiss."""

import json

import pytest

from turbopump.admin.replication import BrokerReplication
from turbopump.cli import main
from turbopump.cli.cluster import ha_tables
from turbopump.protocol.requests.replication import (
    NOT_PROVED,
    PROVED,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from turbopump.testing.broker_in_loop import BrokerThread


def test_a_master_alone_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread() as running:
        assert main(["cluster", "ha", "-n", running.namesrv]) == 0
        said = capsys.readouterr().out
        heading, row = (line.split()[:4] for line in said.splitlines())
        assert heading == ["BROKER", "ID", "ADDRESS", "ROLE"]
        assert row == ["broker-test", "0", running.broker_address, "master"]
        assert main(["cluster", "ha", "-n", running.namesrv, "--output", "json"]) == 0
        row = json.loads(capsys.readouterr().out)["brokers"][0]
        assert (row["role"], row["slaves"]) == ("master", [])


def test_what_a_slave_has_not_proved_and_why_one_does_not_copy_is_shown() -> None:
    slaves = [HAConnectionRuntimeInfo(addr="h:9", in_sync=True, proof=NOT_PROVED)]
    slaves.append(HAConnectionRuntimeInfo(addr="h:8", in_sync=True, proof=PROVED))
    master = HARuntimeInfo(master=True, ha_connection_info=slaves)
    refused = HAClientRuntimeInfo(master_addr="h:1", fault="it has another log")
    brokers = [
        BrokerReplication("a", 0, "h:1", master),
        BrokerReplication("a", 1, "h:2", HARuntimeInfo(ha_client_runtime_info=refused)),
        BrokerReplication("a", 2, "h:3", None, "no answer"),
    ]
    of_brokers, of_slaves = (part for part in ha_tables(brokers) if not isinstance(part, str))
    assert [line.split("  ")[-1].strip() for line in of_brokers.lines()] == [
        "STATE",
        "ok",
        "does not copy: it has another log",
        "not asked: no answer",
    ]
    assert [line.split() for line in of_slaves.lines()][1:] == [
        ["a", "h:9", "0", "0", "B", "yes", "not", "proved", "0", "0"],
        ["a", "h:8", "0", "0", "B", "yes", "proved", "0", "0"],
    ]


def test_a_broker_is_drained_and_may_be_sent_to_again(capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread() as running:
        drain = ["broker", "drain", "broker-test", "-n", running.namesrv]
        assert main([*drain, "--routes", "0"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said == [
            f"write permission of broker-test is wiped at {running.namesrv}",
            "it has no slave: its messages cannot be read while it is stopped",
            f"broker-test is drained: it is safe to stop it ({running.broker_address})",
            "clients send to it again when it was stopped and started, or after: turbopump broker "
            f"drain broker-test --undo -n '{running.namesrv}'",
        ]
        assert main([*drain, "--timeout", "0", "--output", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["drained"] is False
        assert main([*drain, "--undo"]) == 0
        assert "is given back at" in capsys.readouterr().out
