"""`turbopump broker list|show|config|clean|cold-reads`, `cluster list`, `producer list` and `topic
show`, against a broker of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.broker_commands import Run, commands_at

from turbopump.blocking import Producer
from turbopump.testing.broker_in_loop import BrokerThread

NAME = "broker-test"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """With three messages in `orders`."""
    with BrokerThread() as running:
        running.create_topic("orders", 2)
        with Producer(running.namesrv, group="senders") as producer:
            for _ in range(3):
                producer.send("orders", b"x", queue=producer.publish_queues("orders")[1])
            yield running


@pytest.fixture
def run(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Run:
    return commands_at(broker, capsys)


def answer(told: tuple[int, str, str]) -> Any:
    assert told[0] == 0, told
    return json.loads(told[1])


def test_brokers_and_clusters_are_listed(broker: BrokerThread, run: Run) -> None:
    (row,) = answer(run("broker list --output json"))["brokers"]
    assert (row["broker"], row["id"], row["role"]) == (NAME, 0, "master")
    assert row["address"] == broker.broker_address
    assert row["log_size"] > 0
    assert row["version"] == "5.3.3"
    (cluster,) = answer(run("cluster list --output json"))["clusters"]
    assert (cluster["cluster"], cluster["masters"], cluster["slaves"]) == ("DefaultCluster", 1, 0)
    assert cluster["topics"] >= 1
    assert run("broker list --cluster nope")[0] == 3


def test_a_broker_is_shown_by_name_id_or_address(broker: BrokerThread, run: Run) -> None:
    for name in (NAME, f"{NAME}:0", broker.broker_address):
        assert f"{NAME}:0, master in DefaultCluster" in run(f"broker show {name}")[1]
    shown = answer(run(f"broker show -b {NAME} --output json"))
    assert shown["figures"]["log_end"] > 0
    every = run(f"broker show {NAME} --all")[1]
    assert "commitLogMaxOffset" in every
    code, _, err = run("broker show broker-tst")
    assert code == 3
    assert "no broker broker-tst is registered (did you mean broker-test?)" in err


def test_settings_are_read_and_changed(run: Run) -> None:
    settings = answer(run("broker config get fileReservedTime --output json"))["settings"]
    assert settings == [{"server": NAME, "key": "fileReservedTime", "value": "72"}]
    command = f"broker config set fileReservedTime=48 -b {NAME} --output json"
    change = {"where": NAME, "what": "fileReservedTime", "old": "72", "new": "48", "fault": None}
    assert answer(run(f"{command} --dry-run"))["changes"] == [change]
    assert answer(run(command))["changes"] == [change]
    assert run("broker config get fileReservedTime --output csv")[1].splitlines()[1] == (
        f"{NAME},fileReservedTime,48"
    )


def test_a_setting_that_cannot_change_is_refused_in_the_words_of_the_broker(run: Run) -> None:
    code, out, _ = run(f"broker config set listenPort=4 -b {NAME} --output json")
    (change,) = json.loads(out)["changes"]
    assert code == 1
    assert change["fault"].startswith("listenPort cannot be changed while the server runs")


def test_a_change_of_all_brokers_must_name_their_cluster(run: Run) -> None:
    assert run("broker config set fileReservedTime=48")[0] == 2
    assert run("broker config set fileReservedTime=48 --cluster DefaultCluster --dry-run")[0] == 0


def test_an_unknown_key_is_exit_code_3_with_a_suggestion(run: Run) -> None:
    code, out, err = run("broker config get fileReservedTme")
    assert (code, out) == (3, "")
    assert "no server has the key fileReservedTme (did you mean fileReservedTime?)" in err
    code, _, err = run(f"broker config get {NAME}")
    assert code == 3
    assert f"no server has the key {NAME}: it is a broker (-b {NAME} asks only this one)" in err
    code, out, _ = run(f"broker config set fileReservedTme=1 -b {NAME} --dry-run --output json")
    assert code == 1
    assert "did you mean" in json.loads(out)["changes"][0]["fault"]


def test_a_broker_is_cleaned(run: Run) -> None:
    changes = answer(run("broker clean --expired-queues --unused-topics --output json"))["changes"]
    assert [one["what"] for one in changes] == [
        "queue files without messages",
        "remains of deleted topics",
    ]
    assert run("broker clean")[0] == 2


def test_cold_reads_are_limited_and_shown(run: Run) -> None:
    limit = f"broker cold-reads limit {NAME} -g readers --output json"
    (change,) = answer(run(f"{limit} --bytes 1000"))["changes"]
    assert (change["old"], change["new"]) == (None, 1000)
    (row,) = answer(run(f"broker cold-reads list {NAME} --output json"))["groups"]
    assert (row["group"], row["limit"]) == ("readers", 1000)
    (change,) = answer(run(f"{limit} --default"))["changes"]
    assert (change["old"], change["new"]) == (1000, None)
    assert answer(run(f"broker cold-reads list {NAME} --output json"))["groups"] == []
    assert run(f"broker cold-reads read-ahead {NAME} --off")[0] == 0
    assert run(limit)[0] == 2


def test_producers_are_listed_by_group(run: Run) -> None:
    (row,) = answer(run("producer list -g senders --output json"))["producers"]
    assert (row["group"], row["language"]) == ("senders", "PYTHON")
    code, out, err = run("producer list -g nobody")
    assert (code, out, err) == (0, "", "turbopump: no producer is connected\n")


def test_the_queues_of_a_topic_are_shown(run: Run) -> None:
    shown = answer(run("topic show orders --output json"))
    assert shown["messages"] == 3
    assert shown["brokers"] == [
        {
            "broker": NAME,
            "read_queues": 2,
            "write_queues": 2,
            "perm": 6,
            "order": False,
            "attributes": [],
        }
    ]
    empty, full = shown["queues"]
    assert (empty["end"], empty["last_stored"]) == (0, None)
    assert (full["first"], full["end"], full["messages"]) == (0, 3, 3)
    assert full["last_stored"] > 0
    assert "3 messages in all" in run("topic show -t orders")[1]
    code, _, err = run("topic show odrers")
    assert code == 3
    assert "unknown topic odrers (did you mean orders?)" in err
