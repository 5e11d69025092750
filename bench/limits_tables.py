"""Thousands of new topics and groups, by every way on which one client can make them; and a group
that thousands join."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from bench import wire
from bench.brokers import RunningBroker
from bench.limits_requests import Client, codes_of
from bench.remote import SEND_MESSAGE_V2, UPDATE_AND_CREATE_TOPIC
from bench.stalls import Load, Scenario

UPDATE_AND_CREATE_TOPIC_LIST, UPDATE_AND_CREATE_GROUP_LIST = 18, 225
COUNT = 5_000
JOINS = 1_500
TOPIC = "limits-tables"


def heartbeat_of(client_id: str, groups: Iterable[str]) -> bytes:
    """The body of a heartbeat of a client with a consumer in each of these groups."""
    consumers = [
        {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "expressionType": "TAG"}],
        }
        for group in groups
    ]
    return json.dumps({"clientID": client_id, "consumerDataSet": consumers}).encode()


def groups_in_one_heartbeat(count: int) -> Load:
    def load(broker: RunningBroker) -> str:
        body = heartbeat_of("10.0.0.1@1", (f"limits-{number}" for number in range(count)))
        with Client(broker) as client:
            return client.ask(client.request(wire.HEART_BEAT, {}, body))

    return load


def groups_one_by_one(broker: RunningBroker) -> str:
    with Client(broker) as client:
        return client.ask(
            *(
                client.request(
                    wire.HEART_BEAT, {}, heartbeat_of("10.0.0.1@1", [f"limits-{number}"])
                )
                for number in range(COUNT)
            )
        )


def topic_list(broker: RunningBroker) -> str:
    topics = [
        {"topicName": f"limits-{number}", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
        for number in range(COUNT)
    ]
    body = json.dumps({"topicConfigList": topics}).encode()
    with Client(broker) as client:
        return client.ask(client.request(UPDATE_AND_CREATE_TOPIC_LIST, {}, body))


def group_list(broker: RunningBroker) -> str:
    groups = [{"groupName": f"limits-{number}"} for number in range(COUNT)]
    body = json.dumps({"groupConfigList": groups}).encode()
    with Client(broker) as client:
        return client.ask(client.request(UPDATE_AND_CREATE_GROUP_LIST, {}, body))


def topics_one_by_one(broker: RunningBroker) -> str:
    fields = {"defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return one_by_one(broker, UPDATE_AND_CREATE_TOPIC, "topic", fields)


def first_sends(broker: RunningBroker) -> str:
    fields = {"a": "limits", "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0", "j": "0"}
    fields |= {"g": str(time.time_ns() // 1_000_000), "i": "", "k": "false", "m": "false"}
    return one_by_one(broker, SEND_MESSAGE_V2, "b", fields, b"one")


def one_by_one(
    broker: RunningBroker, code: int, field: str, fields: Mapping[str, str], body: bytes = b""
) -> str:
    """So many requests, each with another name in ``field``, 100 of them under way."""
    answers: list[wire.Answer] = []
    with Client(broker) as client:
        for first in range(0, COUNT, 100):
            names = [f"limits-{number}" for number in range(first, first + 100)]
            client.send(client.request(code, {**fields, field: name}, body) for name in names)
            answers += client.receive(len(names))
    return codes_of(answers)


def joins(broker: RunningBroker) -> str:
    """Each on its own connection; each asks for the members when it is told that they changed."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(JOINS)]
        before = cpu_seconds(broker.pid)
        for number, client in enumerate(clients):
            client.ask(client.request(wire.HEART_BEAT, {}, heartbeat_of(f"c{number}", ["limits"])))
        spent = cpu_seconds(broker.pid) - before
    return f"{spent / JOINS * 1000:.2f} ms of CPU a join"


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


SCENARIOS = (
    Scenario("groups-at-once", "a heartbeat with 5,000 new groups", groups_in_one_heartbeat(COUNT)),
    Scenario(
        "groups-far-too-many", "a heartbeat with 50,000 new groups", groups_in_one_heartbeat(50_000)
    ),
    Scenario("groups-one-by-one", "5,000 heartbeats, each with a new group", groups_one_by_one),
    Scenario("group-list", "a list (225) of 5,000 new groups", group_list),
    Scenario("topic-list", "a list (18) of 5,000 new topics", topic_list),
    Scenario("topics-one-by-one", "5,000 new topics, a request (17) each", topics_one_by_one),
    Scenario("first-sends", "5,000 first sends to new topics", first_sends),
    Scenario("joins", "1,500 members join one group", joins),
)
