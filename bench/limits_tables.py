"""Thousands of new topics and groups, by every way on which one client can make them; and a group
that thousands join."""

import json
import os
import selectors
import socket
import time
from collections.abc import Iterable, Mapping

from bench import wire
from bench.brokers import RunningBroker
from bench.limits_requests import PATIENCE_S, Client, codes_of
from bench.remote import SEND_MESSAGE_V2, UPDATE_AND_CREATE_TOPIC
from bench.stalls import Answered, Figure, Load, Scenario

UPDATE_AND_CREATE_TOPIC_LIST, UPDATE_AND_CREATE_GROUP_LIST = 18, 225
GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED = 38, 40
COUNT = 5_000
JOINS, JOINING = 1_500, 50
JOIN_MS = 2.0
"""The goal: CPU of the broker."""
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
    """Send requests with a different name in ``field`` each, 100 of them at a time."""
    answers: list[wire.Answer] = []
    with Client(broker) as client:
        for first in range(0, COUNT, 100):
            names = [f"limits-{number}" for number in range(first, first + 100)]
            client.send(client.request(code, {**fields, field: name}, body) for name in names)
            answers += client.receive(len(names))
    return codes_of(answers)


class Member:
    """Member of a group, on its own connection. As Apache's clients do, it asks for the list of
    members on each notice of a change."""

    def __init__(self, broker: RunningBroker, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)
        self.answered = False
        self._join = wire.request(
            wire.HEART_BEAT, 1, {}, heartbeat_of(f"c{number}", ["limits-joins"])
        )
        self._list = wire.request(GET_CONSUMER_LIST_BY_GROUP, 2, {"consumerGroup": "limits-joins"})
        self._buffer = bytearray()

    def join(self) -> None:
        self.socket.sendall(self._join)

    def receive(self) -> None:
        """Take what is there, once the socket is readable."""
        buffer = self._buffer
        buffer += self.socket.recv(1 << 20)
        while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4], "big"):
            size = 4 + int.from_bytes(buffer[:4], "big")
            header = json.loads(buffer[8 : 8 + int.from_bytes(buffer[5:8], "big")])
            del buffer[:size]
            self.answered |= header["opaque"] == 1 and bool(header["flag"] & 1)
            if header["code"] == NOTIFY_CONSUMER_IDS_CHANGED and not header["flag"] & 1:
                self.socket.sendall(self._list)


def joins(broker: RunningBroker) -> Answered:
    """Let members join in batches, as fast as the broker answers."""
    with selectors.DefaultSelector() as selector:
        members = [Member(broker, number) for number in range(JOINS)]
        for member in members:
            selector.register(member.socket, selectors.EVENT_READ, member)
        before = cpu_seconds(broker.pid)
        for first in range(0, JOINS, JOINING):
            joining = members[first : first + JOINING]
            for member in joining:
                member.join()
            while not all(member.answered for member in joining):
                for key, _ in selector.select(PATIENCE_S):
                    key.data.receive()
        spent = cpu_seconds(broker.pid) - before
        for member in members:
            member.socket.close()
    each_ms = spent / JOINS * 1000
    return Answered(
        f"{each_ms:.2f} ms of CPU a join", (Figure("ms of CPU a join", each_ms, JOIN_MS),)
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
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
