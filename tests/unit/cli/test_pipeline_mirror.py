"""`turbopump pipeline mirror`: what it shows, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.testing import BrokerThread


@pytest.fixture
def clusters() -> Iterator[tuple[str, str]]:
    """Name servers of two clusters. The first has the topic ``orders`` with three messages."""
    with BrokerThread(broker_cluster_name="A") as source, BrokerThread() as target:
        source.create_topic("orders", 2)
        with Producer(source.namesrv) as producer:
            for number in range(3):
                producer.send("orders", b"%d" % number)
        yield source.namesrv, target.namesrv


def test_the_report_counts_and_the_exit_code_says_if_all_is_there(
    clusters: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = clusters
    command = ["pipeline", "mirror", "--from", source, "--to", target]
    assert main([*command, "orders", "--metrics-port", "0"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("mirrored   3 messages in 2 queues of 1 topics")
    assert out.endswith("agree      yes\n")
    assert err.startswith("metrics at http://127.0.0.1:")
    assert main([*command, "orders", "bills", "--output", "json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["failed"] == {"bills": "cluster A has no topic bills"}
    assert (report["sent"], report["behind"], report["agrees"]) == (0, {}, False)
    assert main([*command, "orders", "--from-name", "DefaultCluster"]) == 2
    assert "both clusters are called DefaultCluster" in capfd.readouterr().err
