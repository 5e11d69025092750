"""Single requests whose work grows with their body, or with a table of the broker."""

import json
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count

from bench import wire
from bench.brokers import RunningBroker
from bench.remote import SEND_MESSAGE_V2, create_topic
from bench.stalls import Load, Scenario

GET_BROKER_CONSUME_STATS, GET_TOPIC_STATS_INFO = 317, 202
UPDATE_CONSUMER_OFFSET, LOCK_BATCH_MQ, CREATE_GROUP = 15, 41, 200
QUEUES_MAX = 65_535
TOPIC = "limits"
PATIENCE_S = 120.0
ABSURD_S = 20.0
"""Maximum seconds for the answer to a request that counts to two billion."""
SQL = {"enablePropertyFilter": True}


class Client:
    """One connection; ``ask`` writes frames and waits for an answer to each."""

    def __init__(self, broker: RunningBroker) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)
        self._answers = wire.Answers()
        self.opaques = count(1)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def request(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
        return wire.request(code, next(self.opaques), fields, body)

    def send(self, frames: Iterable[bytes]) -> None:
        """Write frames; the answers are left to ``receive``. Raises OSError."""
        for frame in frames:
            self.socket.sendall(frame)

    def receive(self, wanted: int) -> list[wire.Answer]:
        """Return ``wanted`` answers. Raises ConnectionError if the broker closes the connection
        first."""
        answers: list[wire.Answer] = []
        while len(answers) < wanted:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker closed the connection")
            answers += self._answers.feed(data)
        return answers

    def ask(self, *frames: bytes) -> str:
        """The codes that answered, or that the connection was closed."""
        sending = threading.Thread(target=self._send_quietly, args=(frames,))
        sending.start()
        try:
            return codes_of(self.receive(len(frames)))
        except ConnectionError:
            return "closed"
        finally:
            sending.join()

    def _send_quietly(self, frames: Iterable[bytes]) -> None:
        with suppress(OSError):  # who receives is told of it
            self.send(frames)


def codes_of(answers: Iterable[wire.Answer]) -> str:
    return "code " + ", ".join(str(code) for code in sorted({answer.code for answer in answers}))


def once(code: int, fields: Mapping[str, str], body: bytes = b"") -> Load:
    """A load of one request."""

    def load(broker: RunningBroker) -> str:
        with Client(broker) as client:
            return client.ask(client.request(code, fields, body))

    return load


def sql(term: str, between: str, times: int, form: str = "{}") -> Load:
    """Return a load of one heartbeat of a consumer whose filter has ``times`` terms."""

    def load(broker: RunningBroker) -> str:
        expression = form.format(between.join(term.format(number) for number in range(times)))
        subscription = {"topic": TOPIC, "subString": expression, "expressionType": "SQL92"}
        body = wire.heartbeat("10.0.0.1@1", "limits-sql", subscription)
        return once(wire.HEART_BEAT, {}, body)(broker)

    return load


def one_topic(broker: RunningBroker) -> None:
    create_topic(broker.port, TOPIC, 8)


def many_queues(broker: RunningBroker) -> None:
    create_topic(broker.port, TOPIC, QUEUES_MAX)


def batches(broker: RunningBroker) -> str:
    item = struct.pack(">5i", 23, 0, 0, 0, 1) + b"b" + struct.pack(">h", 0)
    fields = {"a": "limits", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
    fields |= {"g": "1700000000000", "i": "", "j": "0", "k": "false", "m": "true"}
    with Client(broker) as client:
        frames = [client.request(wire.SEND_BATCH_MESSAGE, fields, item * 180_000) for _ in range(8)]
        return client.ask(*frames)


def many_fields(broker: RunningBroker) -> str:
    with Client(broker) as client:
        fields = {f"f{number}": "" for number in range(1_000_000)}
        return client.ask(client.request(GET_TOPIC_STATS_INFO, {"topic": TOPIC, **fields}))


def locks(broker: RunningBroker) -> str:
    queues = [
        {"brokerName": "broker-a", "queueId": number, "topic": TOPIC} for number in range(100_000)
    ]
    body = {"clientId": "10.0.0.1@1", "consumerGroup": "limits-locks", "mqSet": queues}
    with Client(broker) as client:
        return client.ask(client.request(LOCK_BATCH_MQ, {}, json.dumps(body).encode()))


def offsets(broker: RunningBroker) -> str:
    with Client(broker) as client:
        subscription = {"topic": TOPIC, "subString": "*", "expressionType": "TAG"}
        body = wire.heartbeat("10.0.0.1@1", "limits-offsets", subscription)
        client.ask(client.request(wire.HEART_BEAT, {}, body))
        fields = {"consumerGroup": "limits-offsets", "topic": TOPIC, "commitOffset": "0"}
        every = [
            client.request(UPDATE_CONSUMER_OFFSET, {**fields, "queueId": str(number)})
            for number in range(100_000)
        ]
        return client.ask(*every)


def retry_queues(broker: RunningBroker) -> str:
    """A group with more retry queues than can be, a member, and the statistics of that topic."""
    group = {"groupName": "limits-retries", "retryQueueNums": 2**31 - 1}
    subscription = {"topic": TOPIC, "subString": "*", "expressionType": "TAG"}
    beat = wire.heartbeat("10.0.0.1@1", "limits-retries", subscription)
    with Client(broker) as client:
        client.socket.settimeout(ABSURD_S)
        made = client.ask(client.request(CREATE_GROUP, {}, json.dumps(group).encode()))
        client.ask(client.request(wire.HEART_BEAT, {}, beat))
        try:
            topic = {"topic": "%RETRY%limits-retries"}
            asked = client.ask(client.request(GET_TOPIC_STATS_INFO, topic))
        except TimeoutError:
            asked = f"no answer in {ABSURD_S:.0f} s"
    return f"{made}; 202: {asked}"


def woken(broker: RunningBroker) -> str:
    """50 connections hold 1,000 pulls of one queue each, then a message comes."""
    clients = [Client(broker) for _ in range(50)]
    fields = wire.pull_fields(
        "limits-woken", TOPIC, 0, 0, sys_flag=wire.SUSPEND | wire.SUBSCRIPTION, hold_ms=60_000
    )
    fields |= {"subscription": "*", "expressionType": "TAG"}
    for client in clients:
        client.send(client.request(wire.PULL_MESSAGE, fields) for _ in range(1000))
        client.ask(client.request(30, {"topic": TOPIC, "queueId": "0"}))  # behind all of them
    send = {"a": "limits", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
    send |= {"g": "1700000000000", "i": "", "j": "0", "k": "false", "m": "false"}
    clients[0].send([clients[0].request(SEND_MESSAGE_V2, send, b"one")])
    wanted = [1001, *(1000 for _ in clients[1:])]
    found = [client.receive(number) for client, number in zip(clients, wanted, strict=True)]
    return codes_of(answer for answers in found for answer in answers)


SCENARIOS = (
    Scenario(
        "sql-in",
        "a filter: SQL `IN` of 500,000 values",
        sql("'{}'", ", ", 500_000, "a IN ({})"),
        prepare=one_topic,
        settings=SQL,
    ),
    Scenario(
        "sql-or",
        "a filter: 20,000 ORs in SQL",
        sql("a = {}", " OR ", 20_000),
        prepare=one_topic,
        settings=SQL,
    ),
    Scenario("batch", "8 batches of 180,000 messages of one byte", batches, prepare=one_topic),
    Scenario("ext-fields", "a header with 1,000,000 fields", many_fields, prepare=one_topic),
    Scenario("locks", "a lock of 100,000 queues that do not exist", locks, prepare=one_topic),
    Scenario("offsets", "offsets of 100,000 queues that do not exist", offsets, prepare=one_topic),
    Scenario(
        "topic-stats",
        "statistics (202) of a topic with 65,535 queues",
        once(GET_TOPIC_STATS_INFO, {"topic": TOPIC}),
        prepare=many_queues,
    ),
    Scenario(
        "retry-queues",
        "a group with 2³¹−1 retry queues, and their statistics (202)",
        retry_queues,
        prepare=one_topic,
        grown_mib=50.0,
    ),
    Scenario("woken", "50,000 held pulls woken by one message", woken, prepare=one_topic),
)
