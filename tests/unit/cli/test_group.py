"""`turbopump group`: consumer groups as a broker keeps them, and `turbopump consumer set-mode`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.broker_commands import Run, commands_at

from turbopump.blocking import ConsumeFrom, Producer, PullConsumer, PushConsumer
from turbopump.testing.broker_in_loop import BrokerThread

NAME = "broker-test"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """With six messages in the one queue of `orders`."""
    with BrokerThread() as running:
        running.create_topic("orders", 1)
        with Producer(running.namesrv) as producer:
            for number in range(6):
                producer.send("orders", b"%d" % number)
        yield running


@pytest.fixture
def run(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Run:
    return commands_at(broker, capsys)


def changes(answer: str) -> dict[str, tuple[Any, Any]]:
    """Old and new value of each thing in the JSON form of changes."""
    found = json.loads(answer)["changes"]
    assert {one["where"] for one in found} <= {NAME}
    assert [one["fault"] for one in found] == [None] * len(found)
    return {one["what"]: (one["old"], one["new"]) for one in found}


def commit(broker: BrokerThread, group: str, offset: int) -> None:
    with PullConsumer(broker.namesrv, group=group) as consumer:
        consumer.commit(consumer.queues("orders")[0], offset)


def test_a_group_is_created_altered_shown_and_deleted(run: Run) -> None:
    code, out, _ = run("group create made --max-retries 3 --disabled --output json")
    assert code == 0
    assert changes(out) == {
        "group made": (None, "created"),
        "consumeEnable": ("true", "false"),
        "retryMaxTimes": ("16", "3"),
    }
    code, out, _ = run("group alter made --enabled --set consumeTimeoutMinute=3 --output json")
    assert changes(out) == {"consumeEnable": ("false", "true"), "consumeTimeoutMinute": ("15", "3")}
    code, out, _ = run("group show made --output json")
    (settings,) = json.loads(out)["settings"]
    assert settings == {
        "broker": NAME,
        "enabled": True,
        "ordered": False,
        "broadcast": True,
        "max_retries": 3,
        "retry_queues": 1,
        "others": ["consumeTimeoutMinute=3"],
    }
    code, out, _ = run("group delete made --yes --output json")
    assert changes(out) == {"group made": ("there", None)}
    assert run("group show made")[0] == 3


def test_a_dry_run_shows_the_changes_and_makes_none(run: Run) -> None:
    code, out, _ = run("group create dry --max-retries 3 --dry-run --output json")
    assert (code, json.loads(out)["dry_run"]) == (0, True)
    assert changes(out)["retryMaxTimes"] == ("16", "3")
    assert run("group show dry")[0] == 3


def test_a_policy_of_retries_is_json(run: Run) -> None:
    assert run("group create waits")[0] == 0
    policy = 'groupRetryPolicy={"type":"EXPONENTIAL"}'
    assert run(f"group alter waits --set {policy}")[0] == 0
    (others,) = (
        one["others"] for one in json.loads(run("group show waits --output json")[1])["settings"]
    )
    assert others[0].startswith('groupRetryPolicy={"type":"EXPONENTIAL"')
    assert run(f"group alter waits --set {policy}") == (0, "nothing changes\n", "")


def test_an_existing_group_is_not_created_again(run: Run) -> None:
    assert run("group create twice")[0] == 0
    code, _, err = run("group create twice --max-retries 1")
    assert code == 4
    assert f"the group twice exists on {NAME}: turbopump group alter twice changes it" in err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--set retryMaxTime=3", "no setting retryMaxTime (did you mean retryMaxTimes?)"),
        ("--set retryMaxTimes=x", "Expected `int`"),
        ("--set retryMaxTimes=3 --max-retries 3", "give --max-retries or --set retryMaxTimes"),
        ("--set groupRetryPolicy={", "JSON"),
        ("", "give the settings to change"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_changes(
    run: Run, given: str, told: str
) -> None:
    run("group create strict")
    code, _, err = run(f"group alter strict {given}")
    assert code == 2
    assert told in err


def test_the_lag_is_shown_in_messages_and_seconds(broker: BrokerThread, run: Run) -> None:
    commit(broker, "late", 4)
    shown = json.loads(run("group show late --output json")[1])
    assert (shown["behind"], shown["members"]) == (2, [])
    assert 0 < shown["behind_seconds"] < 3600
    (queue,) = shown["queues"]
    assert (queue["topic"], queue["broker"], queue["offset"], queue["end"]) == (
        "orders",
        NAME,
        4,
        6,
    )
    out = run("group show late")[1]
    assert "the group late has no consumers now" in out
    assert "behind by 2 messages in all, the oldest" in out
    lines = run("group show late --output csv")[1].splitlines()
    assert lines[0] == "topic,broker,queue,offset,end,behind,behind_seconds,last_timestamp"
    listed = json.loads(run("group list --output json")[1])["groups"]
    assert {"group": "late", "consumers": 0, "behind": 2} in listed


def test_a_group_with_consumers_is_shown_and_not_deleted(broker: BrokerThread, run: Run) -> None:
    group = "running"
    with PushConsumer(
        broker.namesrv, group=group, topic="orders", tags="A || B", consume_from=ConsumeFrom.FIRST
    ) as consumer:
        shown = json.loads(run(f"group show {group} --output json")[1])
        (member,) = shown["members"]
        assert member["client_id"] == consumer.client_id
        assert {"topic": "orders", "kind": "TAG", "expression": "A || B"} in shown["subscriptions"]
        assert "  PYTHON    V5_3_3\n" in run(f"group show {group}")[1]
        code, _, err = run(f"group delete {group} --yes")
        assert code == 1
        assert "has 1 consumer, which would create it again: stop them first" in err
    assert run(f"group show {group}")[0] == 0


def test_a_deletion_needs_yes_and_keeps_offsets_if_asked(broker: BrokerThread, run: Run) -> None:
    commit(broker, "left", 2)
    code, out, err = run("group delete left")
    assert code == 2
    assert "dry run: nothing was changed" in out
    assert "--yes deletes it" in err
    assert run("group delete left --yes --dry-run") == (0, out, "")
    code, out, _ = run("group delete left --keep-offsets --yes --output json")
    assert changes(out) == {"group left": ("there", None)}
    assert json.loads(run("group show left --output json")[1])["behind"] == 4
    code, out, _ = run("group delete left --yes --topics --output json")
    assert changes(out)["offsets"] == ("1 queue", None)
    assert run("group delete left --yes")[0] == 3


def test_an_unknown_group_is_exit_code_3_with_a_suggestion(run: Run) -> None:
    run("group create payments")
    for command in ("show", "alter --enabled", "delete"):
        code, out, err = run(f"group {command} paymnts")
        assert (code, out) == (3, "")
        assert "no broker knows the group paymnts (did you mean payments?)" in err


def test_a_group_pops_a_topic_and_pulls_it_again(run: Run) -> None:
    what = "switched reads orders by"
    command = "consumer set-mode {} -g switched -t orders --output json"
    assert changes(run(command.format("pop") + " --dry-run")[1]) == {
        what: (None, "pop, all share all queues")
    }
    told = {what: (None, "pop, 2 others share the queues of one")}
    assert changes(run(command.format("pop") + " --share 2")[1]) == told
    assert changes(run(command.format("pull"))[1]) == {
        what: ("pop, 2 others share the queues of one", "pull")
    }
