"""Our commands for brokers, name servers, topics and groups on Apache's servers: they show and
change there what they show and change on ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.interop.apache import NEWEST, ApacheCluster
from tests.interop.patient_apache import patient_apache

from turbopump.blocking import Producer, PullConsumer
from turbopump.cli import main

Run = Callable[[str], tuple[int, Any]]
NAME = "broker-a"


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    with patient_apache(NEWEST, tmp_path_factory.mktemp("apache")) as cluster:
        yield cluster


@pytest.fixture
def run(apache: ApacheCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `turbopump COMMAND`: its exit code and its JSON."""

    def run_command(command: str) -> tuple[int, Any]:
        code = main([*command.split(), "--output", "json", "-n", apache.namesrv])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return run_command


def changes(told: tuple[int, Any]) -> dict[str, tuple[Any, Any]]:
    """Old and new value of each thing that a command changed."""
    assert told[0] == 0, told
    return {one["what"]: (one["old"], one["new"]) for one in told[1]["changes"]}


def test_brokers_and_their_settings(apache: ApacheCluster, run: Run) -> None:
    code, listed = run("broker list")
    (row,) = listed["brokers"]
    assert (code, row["broker"], row["address"]) == (0, NAME, apache.broker)
    assert row["version"] == NEWEST
    code, shown = run(f"broker show {NAME}")
    assert (code, shown["figures"]["is_active"]) == (0, True)
    assert run("cluster list")[1]["clusters"][0]["masters"] == 1
    setting = f"broker config set fileReservedTime=48 -b {NAME}"
    assert changes(run(f"{setting} --dry-run")) == {"fileReservedTime": ("72", "48")}
    assert changes(run(setting)) == {"fileReservedTime": ("72", "48")}
    code, found = run("broker config get fileReservedTime")
    assert found["settings"] == [{"server": NAME, "key": "fileReservedTime", "value": "48"}]


def test_a_key_that_apaches_broker_ignores_is_a_failure(run: Run) -> None:
    code, answer = run(f"broker config set noSuchKey=1 -b {NAME}")
    (change,) = answer["changes"]
    assert (code, change["fault"]) == (1, "it did not take 1")


def test_name_servers_permissions_and_values(apache: ApacheCluster, run: Run) -> None:
    (row,) = run("namesrv list")[1]["name_servers"]
    assert (row["name_server"], row["masters"]) == (apache.namesrv, 1)
    what = f"write permission of {NAME}"
    assert changes(run(f"namesrv wipe {NAME}")) == {what: ("yes", "no")}
    assert changes(run(f"namesrv restore {NAME}")) == {what: ("no", "yes")}
    assert changes(run("kv put NS k v")) == {"NS k": (None, "v")}
    assert run("kv list NS")[1]["values"] == [{"key": "k", "value": "v"}]
    assert changes(run("kv delete NS k")) == {"NS k": ("v", None)}


def test_topics_and_groups(apache: ApacheCluster, run: Run) -> None:
    assert run("topic create shown --queues 1")[0] == 0
    with Producer(apache.namesrv) as producer:
        for _ in range(3):
            producer.send("shown", b"x")
    code, shown = run("topic show shown")
    (queue,) = shown["queues"]
    assert (code, shown["messages"], queue["end"]) == (0, 3, 3)
    assert queue["last_stored"] > 0
    assert changes(run("group create readers --max-retries 3")) == {
        "group readers": (None, "created"),
        "retryMaxTimes": ("16", "3"),
    }
    assert changes(run("group alter readers --disabled")) == {"consumeEnable": ("true", "false")}
    with PullConsumer(apache.namesrv, group="readers") as consumer:
        consumer.commit(consumer.queues("shown")[0], 1)
    code, group = run("group show readers")
    assert (code, group["settings"][0]["max_retries"], group["settings"][0]["enabled"]) == (
        0,
        3,
        False,
    )
    assert (group["behind"], group["members"]) == (2, [])
    assert group["behind_seconds"] > 0
    what = "readers reads shown by"
    assert run("consumer set-mode pop -g readers -t shown --share 1")[0] == 0
    assert changes(run("consumer set-mode pull -g readers -t shown"))[what][1] == "pull"
    assert changes(run("group delete readers --yes"))["group readers"] == ("there", None)
    assert run("group show readers")[0] == 3
