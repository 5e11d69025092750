"""`turbopump topic`: what exists is not changed by making it again, and nothing is hidden or
deleted without a word."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from turbopump.admin.cluster import Servers
from turbopump.admin.topics import find_topic
from turbopump.blocking import ConsumeFrom, Producer, PushConsumer
from turbopump.cli import main
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.testing.broker_in_loop import BrokerThread

Command = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """A topic named as the test, of four queues with two messages in each."""
    name: str = request.node.originalname or request.node.name
    broker.create_topic(name, 4)
    with Producer(broker.namesrv) as producer:
        for queue in producer.publish_queues(name) * 2:
            producer.send(name, b"x", queue=queue)
    return name


def run_command(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], command: str
) -> tuple[int, str, str]:
    code = main(["topic", *command.split(), "-n", broker.namesrv])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def run(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `turbopump topic COMMAND`: its exit code, standard output and standard error."""

    return partial(run_command, broker, capsys)


async def find_typed(broker: BrokerThread) -> dict[str, str]:
    async with Servers([broker.namesrv]) as servers:
        found = await find_topic(servers, [broker.broker_address], "typed")
    return found[broker.broker_address].attributes


def test_a_topic_is_made_with_attributes(broker: BrokerThread, run: Command) -> None:
    create = "create typed --attribute message.type=FIFO --attribute queue.type=SimpleCQ"
    assert run(create)[0] == 0

    assert broker.run(find_typed(broker)) == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert run("alter typed --queues 9")[0] == 0
    assert broker.run(find_typed(broker)) == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    code, _, err = run("create other --attribute queue.type=BatchCQ")
    assert (code, "this broker does not serve BatchCQ topics" in err) == (1, True)
    code, _, err = run("create other --attribute message.type=PRIORITY")
    assert (code, "value is not in set: [UNSPECIFIED, NORMAL" in err) == (1, True)
    for wrong in ("message.type", "=FIFO", "message.type=", "a=b,-c"):
        code, _, err = run(f"create other --attribute {wrong}")
        assert (code, f"'{wrong}': expected NAME=VALUE" in err) == (2, True)
    assert queues_and_perm(broker, "other") is None


def queues_and_perm(broker: BrokerThread, topic: str) -> tuple[int, int, int] | None:
    """Queues to read, queues to write and permissions, by the broker's own word."""

    async def ask() -> tuple[int, int, int] | None:
        async with Servers([broker.namesrv]) as servers:
            found = await find_topic(servers, [broker.broker_address], topic)
        one = found.get(broker.broker_address)
        return None if one is None else (one.read_queue_nums, one.write_queue_nums, one.perm)

    return broker.run(ask())


def test_a_topic_that_exists_is_not_created_again(
    broker: BrokerThread, topic: str, run: Command
) -> None:
    code, out, err = run(f"create {topic} --queues 2")
    assert (code, out) == (4, "")
    assert f"the topic {topic} exists: 4 queues, perm 6 on {broker.broker_address}" in err
    assert f"turbopump topic alter {topic}" in err
    assert queues_and_perm(broker, topic) == (4, 4, 6)


def test_if_it_need_only_be_there_it_is_left_as_it_is(
    broker: BrokerThread, topic: str, run: Command
) -> None:
    code, out, err = run(f"create {topic} --queues 2 --if-not-exists")
    assert (code, err) == (0, "")
    assert out == f"exists on {broker.broker_address}: 4 queues, perm 6\nnothing changes\n"
    assert queues_and_perm(broker, topic) == (4, 4, 6)
    assert run("create fresh --queues 2 --if-not-exists")[0] == 0
    assert queues_and_perm(broker, "fresh") == (2, 2, 6)


def test_a_topic_grows_and_what_is_not_named_stays(
    broker: BrokerThread, topic: str, run: Command
) -> None:
    code, out, err = run(f"alter {topic} --queues 6")
    assert (code, err) == (0, "")
    changes = [line.split()[1:] for line in out.splitlines()]
    assert changes == [
        ["WHAT", "OLD", "NEW"],
        ["read", "queues", "4", "6"],
        ["write", "queues", "4", "6"],
    ]
    code, out, err = run(f"alter {topic} --perm 4 --dry-run")
    assert (code, out.splitlines()[-1], err) == (0, "dry run: nothing was changed", "")
    assert queues_and_perm(broker, topic) == (6, 6, 6)
    assert run(f"alter -t {topic} -b broker-test --write-queues 4")[0] == 0
    assert queues_and_perm(broker, topic) == (6, 4, 6)


def test_queues_that_would_no_longer_be_read_are_named_and_kept_without_yes(
    broker: BrokerThread, topic: str, run: Command
) -> None:
    with PushConsumer(
        broker.namesrv, group="billing", topic=topic, consume_from=ConsumeFrom.FIRST, pull_batch=1
    ) as consumer:
        consumer.take(1)
        code, out, err = run(f"alter {topic} --queues 1")
    assert code == 2
    queues = out.partition("\nWHERE")[0].splitlines()
    rows = [line.split(maxsplit=3) for line in queues if line.startswith("broker-test")]
    assert rows == [
        ["broker-test", f"{n}", "2", "billing 2 behind (1 consumer)"] for n in (1, 2, 3)
    ]
    assert "dry run: nothing was changed\n" in out
    assert err.startswith(f"turbopump: 6 messages of {topic} could no longer be read: --yes")
    assert queues_and_perm(broker, topic) == (4, 4, 6)
    assert run(f"alter {topic} --queues 1 --yes")[0] == 0
    assert queues_and_perm(broker, topic) == (1, 1, 6)


def test_taking_away_the_permission_to_read_hides_all(
    broker: BrokerThread, topic: str, run: Command
) -> None:
    code, out, err = run(f"alter {topic} --perm 2 --output json")
    assert (code, [row["messages"] for row in json.loads(out)["unread"]]) == (2, [2, 2, 2, 2])
    assert "8 messages" in err
    assert queues_and_perm(broker, topic) == (4, 4, 6)


def test_empty_queues_go_without_yes(broker: BrokerThread, run: Command) -> None:
    broker.create_topic("empty", 4)
    code, out, err = run("alter empty --queues 1")
    assert (code, err) == (0, "")
    assert ["broker-test", "3", "0", "-"] in [line.split() for line in out.splitlines()]
    assert queues_and_perm(broker, "empty") == (1, 1, 6)


def test_the_request_of_apaches_tools_changes_a_topic_as_before(
    broker: BrokerThread, topic: str
) -> None:
    async def ask() -> None:
        client = RemotingClient()
        wanted = CreateTopic(topic=topic, read_queue_nums=1, write_queue_nums=1)
        await client.call(broker.broker_address, wanted)
        await client.close()

    broker.run(ask())
    assert queues_and_perm(broker, topic) == (1, 1, 6)


def test_a_topic_is_deleted_after_it_was_said_what_goes(
    broker: BrokerThread, topic: str, run: Command
) -> None:
    code, out, err = run(f"delete {topic}")
    assert code == 2
    assert out.partition("\nWHERE")[0].count("\nbroker-test ") == 4
    assert run(f"delete {topic} --dry-run")[:2] == (0, out)
    assert run(f"delete {topic} --yes --dry-run")[:2] == (0, out)
    assert f"{topic} with 8 messages is on {broker.broker_address}: --yes deletes it" in err
    assert queues_and_perm(broker, topic) == (4, 4, 6)
    code, out, err = run(f"delete {topic} --yes")
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [
        ["broker-test", "topic", topic],
        [broker.namesrv, "route", "of"],
    ]
    assert queues_and_perm(broker, topic) is None
    assert topic not in run("list --all")[1].split()


def test_a_name_server_that_keeps_the_route_of_a_deleted_topic_is_named(
    broker: BrokerThread, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = "127.0.0.1:1"
    assert main(["topic", "delete", topic, "--yes", "-n", f"{broker.namesrv};{silent}"]) == 1
    err = capsys.readouterr().err
    assert f"a name server still has the route of {topic}: cannot connect to {silent}" in err


@pytest.mark.parametrize("command", ["alter ordes --queues 2", "delete ordes --yes", "route ordes"])
def test_a_topic_that_is_not_there_is_answered_with_the_nearest_name(
    broker: BrokerThread, run: Command, command: str
) -> None:
    broker.create_topic("orders", 1)
    code, out, err = run(command)
    assert (code, out) == (3, "")
    assert err.startswith("turbopump: unknown topic ordes (did you mean orders?)")


def test_your_topics_are_listed_and_rocketmqs_own_when_asked_for(
    broker: BrokerThread, run: Command
) -> None:
    broker.create_topic("mine", 1)
    broker.create_topic("%RETRY%billing", 1)
    listed = run("list")[1].split()
    assert "mine" in listed
    config = BrokerConfig()
    own = {"TBW102", "broker-test", config.broker_cluster_name, "%RETRY%billing"}
    own |= {f"{config.broker_cluster_name}_REPLY_TOPIC", "rmq_sys_wheel_timer"}
    assert own.isdisjoint(listed)
    assert own | set(listed) <= set(run("list --all")[1].split())


def test_where_all_topics_are_rocketmqs_own_that_is_said(
    rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "list", "-n", rocketmq.namesrv]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "of RocketMQ itself, which --all shows" in told.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("alter orders", "give --queues, --read-queues, --write-queues or --perm"),
        ("alter orders --queues 2 --read-queues 1", "not both"),
        ("alter orders --queues 0", "0 is not in the range 1<=x<=65535"),
    ],
)
def test_an_alteration_that_says_nothing_or_two_things_is_refused(
    command: str, words: str, run: Command
) -> None:
    code, out, err = run(command)
    assert (code, out, words in err) == (2, "", True)
