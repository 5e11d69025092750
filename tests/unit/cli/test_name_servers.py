"""`turbopump namesrv list|show|config|wipe|restore`, `kv` and `topic order`, against servers of
ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.ports import free_ports
from tests.unit.cli.broker_commands import Run, commands_at

from turbopump.testing.broker_in_loop import BrokerThread

NAME = "broker-test"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        running.create_topic("orders", 2)
        yield running


@pytest.fixture
def run(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Run:
    return commands_at(broker, capsys)


def changes(told: tuple[int, str, str]) -> dict[str, tuple[Any, Any]]:
    """Old and new value of each thing in the JSON form of changes, of a command that did it."""
    assert told[0] == 0, told
    found = json.loads(told[1])["changes"]
    return {one["what"]: (one["old"], one["new"]) for one in found}


def test_name_servers_are_listed_with_what_they_know(broker: BrokerThread, run: Run) -> None:
    code, out, _ = run("namesrv list --output json")
    (row,) = json.loads(out)["name_servers"]
    assert code == 0
    assert (row["name_server"], row["masters"], row["slaves"]) == (broker.namesrv, 1, 0)
    shown = json.loads(run("namesrv show --output json")[1])
    assert shown["brokers"] == [
        {
            "cluster": "DefaultCluster",
            "broker": NAME,
            "id": 0,
            "address": broker.broker_address,
            "writable": True,
        }
    ]
    assert run(f"namesrv show {broker.namesrv}")[1].endswith(f"knows {row['topics']} topics\n")


def test_a_name_server_that_does_not_answer_is_named(broker: BrokerThread, run: Run) -> None:
    gone = f"127.0.0.1:{free_ports(0)}"
    code, out, _ = run(f"namesrv list --output json -n {broker.namesrv};{gone}")
    answers, silent = json.loads(out)["name_servers"]
    assert code == 1
    assert "fault" not in answers
    assert silent["name_server"] == gone
    assert silent["fault"]


def test_name_servers_that_know_other_brokers_are_a_fault(broker: BrokerThread, run: Run) -> None:
    with BrokerThread(broker_name="another") as other:
        code, out, err = run(f"namesrv list --output json -n {broker.namesrv};{other.namesrv}")
    assert (code, json.loads(out)["differ"]) == (1, True)
    assert "the name servers know other brokers" in err


def test_settings_of_a_name_server_are_read_and_changed(run: Run) -> None:
    command = "namesrv config set enableTopicList=false --output json"
    assert changes(run(f"{command} --dry-run")) == {"enableTopicList": ("true", "false")}
    assert changes(run(command)) == {"enableTopicList": ("true", "false")}
    assert run("namesrv config get enableTopicList")[1].split()[-1] == "false"
    assert changes(run("namesrv config set enableTopicList=true --output json"))
    code, out, _ = run("namesrv config set kvConfigPath=/tmp/x --output json")
    assert code == 1
    assert json.loads(out)["changes"][0]["fault"]
    assert run("namesrv config get nope")[0] == 3


def test_the_write_permission_is_wiped_and_restored(run: Run) -> None:
    what = f"write permission of {NAME}"
    assert changes(run(f"namesrv wipe {NAME} --dry-run --output json")) == {what: ("yes", "no")}
    assert changes(run(f"namesrv wipe {NAME} --output json")) == {what: ("yes", "no")}
    (route,) = json.loads(run("topic route orders --output json")[1])["brokers"]
    assert route["perm"] == 4
    (row,) = json.loads(run("namesrv show --output json")[1])["brokers"]
    assert row["writable"] is False
    assert changes(run(f"namesrv restore -b {NAME} --output json")) == {what: ("no", "yes")}
    code, _, err = run("namesrv wipe broker-tst")
    assert code == 3
    assert "no broker broker-tst is registered (did you mean broker-test?)" in err


def test_values_are_put_shown_and_deleted(run: Run) -> None:
    assert changes(run("kv put NS k v --dry-run --output json")) == {"NS k": (None, "v")}
    assert run("kv get NS k")[0] == 3
    assert changes(run("kv put NS k v --output json")) == {"NS k": (None, "v")}
    assert changes(run("kv put NS k w --output json")) == {"NS k": ("v", "w")}
    assert run("kv get NS k") == (0, "w\n", "")
    assert run("kv list NS --output csv") == (0, "key,value\nk,w\n", "")
    assert changes(run("kv delete NS k --output json")) == {"NS k": ("w", None)}
    assert run("kv list NS")[0] == 3
    code, _, err = run("kv list")
    assert code == 2
    assert "name servers do not list their namespaces" in err


def test_a_topic_is_ordered_over_all_brokers(run: Run) -> None:
    what = "ordered queues of orders"
    set_queues = f"topic order -t orders {NAME}:2 --output json"
    assert changes(run(f"{set_queues} --dry-run")) == {what: (None, 2)}
    assert run("topic order -t orders")[0] == 3
    assert changes(run(set_queues)) == {what: (None, 2)}
    listed = json.loads(run("topic order --output json")[1])["topics"]
    assert listed == [{"topic": "orders", "broker": NAME, "queues": 2}]
    assert changes(run("topic order -t orders b:1 --keep-others --output json")) == {
        what: (None, 1)
    }
    assert run("kv get ORDER_TOPIC_CONFIG orders")[1] == f"b:1;{NAME}:2\n"
    assert changes(run("topic order -t orders --remove --output json"))
    assert run("topic order") == (0, "", "turbopump: no topic is globally ordered\n")


@pytest.mark.parametrize("wrong", ["b:1", "-t orders b", "-t orders b:0", "-t orders b:1 --remove"])
def test_wrong_ordered_queues_are_refused(run: Run, wrong: str) -> None:
    assert run(f"topic order {wrong}")[0] == 2


def test_a_topic_is_created_ordered_with_its_numbers_of_queues(run: Run) -> None:
    assert run("topic create strict --ordered --read-queues 3 --write-queues 2")[0] == 0
    (settings,) = json.loads(run("topic show strict --output json")[1])["brokers"]
    numbers = settings["read_queues"], settings["write_queues"], settings["order"]
    assert numbers == (3, 2, True)
    listed = json.loads(run("topic order -t strict --output json")[1])["topics"]
    assert listed == [{"topic": "strict", "broker": NAME, "queues": 2}]
