"""`turbopump offset` and `turbopump consumer`, against a broker of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.stand_ins import does_nothing

from turbopump.blocking import ConsumeFrom, Producer, PullConsumer, PushConsumer
from turbopump.message.message import MessageQueue
from turbopump.testing.broker_in_loop import BrokerThread

Run = Callable[..., subprocess.CompletedProcess[str]]
COUNT = 6


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """With six messages in the one queue of `orders`."""
    with BrokerThread() as running:
        running.create_topic("orders", 1)
        with Producer(running.namesrv) as producer:
            for number in range(COUNT):
                producer.send("orders", b"%d" % number)
        yield running


def place(broker: BrokerThread, group: str) -> int | None:
    with PullConsumer(broker.namesrv, group=group) as consumer:
        return consumer.committed(consumer.queues("orders")[0])


def stand(broker: BrokerThread, group: str, offset: int) -> MessageQueue:
    with PullConsumer(broker.namesrv, group=group) as consumer:
        queue = consumer.queues("orders")[0]
        consumer.commit(queue, offset)
        return queue


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_place_is_shown_reset_and_cloned(broker: BrokerThread, run_here: Run) -> None:
    queue = stand(broker, "billing", 4)
    stand(broker, "other", 0)
    server = ("-n", broker.namesrv, "--output", "json")
    shown = answer(run_here("offset", "show", "billing", *server))
    assert (shown["group"], shown["behind"]) == ("billing", 2)
    (row,) = shown["queues"]
    assert (row["topic"], row["broker"], row["offset"], row["end"]) == (
        "orders",
        queue.broker_name,
        4,
        COUNT,
    )
    for choice, expected in (
        (["--begin"], 0),
        (["--end"], COUNT),
        (["--time", "1h"], 0),
        (["--end", "--only-back"], 0),
    ):
        done = answer(run_here("offset", "reset", "billing", "orders", *choice, *server))
        assert [row["offset"] for row in done["queues"]] == [expected]
        assert place(broker, "billing") == expected
    exact = ["--offset", "3", "--queue", "0", "--broker", broker.broker_address]
    assert (
        answer(run_here("offset", "reset", "billing", "orders", *exact, *server))["queues"][0][
            "offset"
        ]
        == 3
    )
    cloned = answer(run_here("offset", "clone", "billing", "other", *server))
    assert [row["offset"] for row in cloned["queues"]] == [3]
    assert place(broker, "other") == 3


def test_what_is_asked_wrongly_is_refused_in_a_sentence(
    broker: BrokerThread, run_here: Run
) -> None:
    done = run_here("offset", "reset", "billing", "orders", "-n", broker.namesrv)
    assert (done.returncode, "give one of --begin, --end, --time, --offset" in done.stderr) == (
        2,
        True,
    )
    done = run_here("offset", "reset", "billing", "orders", "--offset", "3", "-n", broker.namesrv)
    assert (done.returncode, "--offset is of one queue" in done.stderr) == (2, True)
    done = run_here("offset", "reset", "nobody", "orders", "--end", "-n", broker.namesrv)
    assert (
        done.returncode,
        "no broker has both the group nobody and the topic orders" in done.stderr,
    ) == (3, True)


def test_groups_are_listed_and_shown_with_their_consumers(
    broker: BrokerThread, run_here: Run
) -> None:
    server = ("-n", broker.namesrv, "--output", "json")
    settings: dict[str, Any] = {
        "topic": "orders",
        "tags": "a || b",
        "consume_from": ConsumeFrom.FIRST,
    }
    with PushConsumer(broker.namesrv, group="readers", **settings) as consumer:
        consumer.commit(acknowledged=True)
        shown = answer(run_here("consumer", "show", "readers", *server))
        (client,) = shown["clients"]
        assert (client["client_id"], client["language"]) == (consumer.client_id, "PYTHON")
        assert {"topic": "orders", "kind": "TAG", "expression": "a || b"} in shown["subscriptions"]
        assert (shown["consume_type"], shown["message_model"]) == (
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        )
        (row,) = [
            row
            for row in answer(run_here("consumer", "list", *server))["consumers"]
            if row["group"] == "readers"
        ]
        assert row["client_id"] == consumer.client_id
    text = run_here("consumer", "show", "readers", "-n", broker.namesrv)
    assert text.returncode == 0
    assert text.stdout == "the group readers has no consumers now\n"


def test_consumers_of_a_group_tell_how_they_do_and_whether_they_get_along(
    broker: BrokerThread, run_here: Run
) -> None:
    server = ("-n", broker.namesrv, "--output", "json")
    settings: dict[str, Any] = {
        "topic": "orders",
        "consume_from": ConsumeFrom.FIRST,
        "handler": does_nothing,
    }
    with PushConsumer(broker.namesrv, group="together", **settings) as one:
        (client,) = answer(run_here("consumer", "status", "together", *server))["clients"]
        assert client["client_id"] == one.client_id
        (topic,) = [topic for topic in client["topics"] if topic["topic"] == "orders"]
        assert (topic["queues"], topic["expression"], topic["failed_tps"]) == (1, "*", 0)
        with PushConsumer(broker.namesrv, group="together", tags="a", **settings) as two:
            done = run_here("consumer", "status", "together", *server)
            assert done.returncode == 1
            told = json.loads(done.stdout)
            assert [row["client_id"] for row in told["clients"]] == sorted(
                [one.client_id, two.client_id]
            )
            assert [row["fault"] for row in told["clients"]] == [None, None]
            (sentence,) = told["conflicts"]
            assert sentence.startswith("consumers of group together subscribe differently")
            text = run_here("consumer", "status", "together", "-n", broker.namesrv)
            assert (text.returncode, f"conflict: {sentence}" in text.stdout) == (1, True)
        with PushConsumer(broker.namesrv, group="together", ordered=True, **settings) as three:
            (sentence,) = json.loads(run_here("consumer", "status", "together", *server).stdout)[
                "conflicts"
            ]
            assert f"{three.client_id} in order" in sentence
            assert f"{one.client_id} not in order" in sentence
    text = run_here("consumer", "status", "together", "-n", broker.namesrv)
    assert (text.returncode, text.stdout) == (0, "group together has no consumers now\n")
    text = run_here("consumer", "status", "togethr", "-n", broker.namesrv)
    assert (text.returncode, text.stdout) == (3, "")
    assert text.stderr.startswith(
        "turbopump: no broker knows the group togethr (did you mean together?); check the name "
    )
    unknown = run_here("consumer", "status", "nobodys", *server)
    assert (unknown.returncode, json.loads(unknown.stdout)["clients"]) == (3, [])
    assert "no broker knows the group nobodys; " in unknown.stderr
