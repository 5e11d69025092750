"""No request keeps the loop for longer than a turn may last, however large it is, or the tables
that it asks about (``TURN_MAX_S``).

One broker for all of them, with the tables of a large cluster: 2,000 topics with 8 queues, 500
groups, and a topic with 20,000 queues. (`bench/limits_requests.py` asks about larger ones.)
"""

import base64
import itertools
import json
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.talking import SMALL, consumer, subscription, talking
from tests.unit.metered_loop import TURN_MAX_S, BlockingClient, Metered, metered, metered_uvloop

from turbopump.broker.broker import Broker
from turbopump.config.running import CHANGE_SIZE_MAX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import frame_head
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import LockBatchMq, QueryAssignment, UnlockBatchMq
from turbopump.protocol.requests.clients import CheckClientConfig, Heartbeat
from turbopump.protocol.requests.configuration import UpdateBrokerConfig
from turbopump.protocol.requests.consumers import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from turbopump.protocol.requests.groups import CreateGroupList, DeleteGroup, GetAllGroups
from turbopump.protocol.requests.offsets import (
    CloneGroupOffset,
    GetMaxOffset,
    QueryCorrectionOffset,
    ResetOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pop import BatchAckMessage, Notification, PeekMessage, PopMessage
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.protocol.requests.replication import GetAllConsumerOffset
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2
from turbopump.protocol.requests.topics import (
    CreateTopic,
    DeleteTopic,
    GetAllTopicConfig,
    GetTopicStatsInfo,
)

TOPICS, GROUPS, QUEUES, QUEUES_MAX = 2000, 500, 8, 20_000
WIDE, EVERYONE = "wide", "everyone"
"""The topic with ``QUEUES_MAX`` queues, and the group that reads every topic."""
LARGE_FILES = {
    "mapped_file_size_commit_log": 1 << 26,
    "mapped_file_size_consume_queue": 20 * 100_000,
    "max_hash_slot_num": 500_000,
    "max_index_num": 2_000_000,
}


def write_tables(directory: Path) -> None:
    """The files that a broker finds at its start."""
    config = directory / "config"
    config.mkdir(parents=True)
    names = [f"topic-number-{number}" for number in range(TOPICS)]
    topics = {name: {"topicName": name, "perm": 6} for name in names}
    for topic in topics.values():
        topic |= {"readQueueNums": QUEUES, "writeQueueNums": QUEUES}
    topics[WIDE] = {"topicName": WIDE, "perm": 6}
    topics[WIDE] |= {"readQueueNums": QUEUES_MAX, "writeQueueNums": QUEUES_MAX}
    groups = [*(f"group-number-{number}" for number in range(GROUPS)), EVERYONE]
    queues = {str(queue_id): 0 for queue_id in range(QUEUES)}
    offsets = {f"{name}@{groups[number % GROUPS]}": queues for number, name in enumerate(names)}
    offsets |= {f"{name}@{EVERYONE}": queues for name in names}
    offsets |= {f"{names[0]}@{group}": queues for group in groups}
    offsets[f"{WIDE}@{EVERYONE}"] = {str(queue_id): 0 for queue_id in range(QUEUES_MAX)}
    version = {"dataVersion": {"counter": 1, "timestamp": 1}}
    for name, table in (
        ("topics", {"topicConfigTable": topics}),
        ("subscriptionGroup", {"subscriptionGroupTable": {g: {"groupName": g} for g in groups}}),
        ("consumerOffset", {"offsetTable": offsets}),
        ("queueLocks", {"locks": {}}),
    ):
        (config / f"{name}.json").write_text(json.dumps({**table, **version}))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered[Broker]]:
    directory = tmp_path_factory.mktemp("turns")
    write_tables(directory)
    settings = {**SMALL, **LARGE_FILES, "enable_property_filter": True}
    with metered(partial(talking, directory, **settings)) as running:
        yield Metered(running.loop, running.server.broker)


@pytest.fixture
def client(broker: Metered[Broker]) -> Iterator[BlockingClient]:
    with BlockingClient(broker.do(lambda server: server.port)) as client:
        yield client


def item(body: bytes, properties: bytes = b"") -> bytes:
    """One message of a batch."""
    head = struct.pack(">5i", 22 + len(body) + len(properties), 0, 0, 0, len(body))
    return head + body + struct.pack(">H", len(properties)) + properties


def identified(number: int, more: bytes = b"") -> bytes:
    return item(b"b", b"UNIQ_KEY\x01%032X\x02" % number + more)


BATCH = SendBatchMessage(topic="topic-number-1", queue_id=0, batch=True)


def send_frame(client: BlockingClient, code: int, frame: Any) -> None:
    writing = threading.Thread(target=client.write, args=(frame,))
    writing.start()
    (answer,) = client.read()
    writing.join()
    assert answer.code == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (item(b"b") * 32_767, ResponseCode.SUCCESS),
        (b"".join(map(identified, range(32_767))), ResponseCode.SUCCESS),
        (item(b"b") * 180_000, ResponseCode.MESSAGE_ILLEGAL),
        (item(b"b", b"KEYS\x01" + b"k " * 64 + b"\x02") * 1000, ResponseCode.SUCCESS),
        (item(b"b", b"KEYS\x01" + b"k " * 16_000 + b"\x02") * 130, ResponseCode.MESSAGE_ILLEGAL),
    ],
    ids=["most", "identified", "too many", "keys", "too many keys"],
)
def test_a_batch(broker: Metered[Broker], client: BlockingClient, body: bytes, code: int) -> None:
    frame = client.frame(BATCH, body)

    assert broker.longest_turn(partial(send_frame, client, code, frame)) <= TURN_MAX_S


def send_eight_batches(client: BlockingClient) -> None:
    """They are written together, and each has too many messages."""
    frames = client.frame(BATCH, item(b"b") * 180_000) * 8
    writing = threading.Thread(target=client.write, args=(frames,))
    writing.start()
    answers = client.read(8)
    writing.join()
    assert {answer.code for answer in answers} == {ResponseCode.MESSAGE_ILLEGAL}


def test_eight_batches_with_too_many_messages(
    broker: Metered[Broker], client: BlockingClient
) -> None:
    assert broker.longest_turn(partial(send_eight_batches, client)) <= TURN_MAX_S


def test_eight_batches_on_uvloop(tmp_path: Path) -> None:
    """It reads many times in a row from a peer that sends faster than it is read."""
    pytest.importorskip("uvloop")
    settings = {**SMALL, **LARGE_FILES, "broker_fast_failure_enable": False}
    with (
        metered(partial(talking, tmp_path, **settings), metered_uvloop) as running,
        BlockingClient(running.do(lambda talk: talk.broker.port)) as client,
    ):
        client.ask(CreateTopic(topic=BATCH.topic, read_queue_nums=1, write_queue_nums=1))
        assert running.longest_turn(partial(send_eight_batches, client)) <= TURN_MAX_S


def locks(queues: int) -> bytes:
    wanted = [
        {"brokerName": "broker-a", "queueId": queue_id, "topic": WIDE} for queue_id in range(queues)
    ]
    return json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": wanted}).encode()


def heartbeat(*subscriptions: dict[str, Any]) -> bytes:
    return json.dumps(
        {"clientID": "c", "consumerDataSet": [consumer(EVERYONE, *subscriptions)]}
    ).encode()


def acks(count: int, bits: bytes) -> bytes:
    ack = {"c": EVERYONE, "t": "topic-number-0", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1}
    ack |= {"it": 60_000, "b": base64.b64encode(bits).decode()}
    return json.dumps({"brokerName": "broker-a", "acks": [ack] * count}).encode()


def pulling(topic: str, subscription: str = "*", hold_ms: int = 0, offset: int = 0) -> PullMessage:
    return PullMessage(
        consumer_group=EVERYONE,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_ms else 0),
        suspend_timeout_millis=hold_ms,
        subscription=subscription,
    )


def popping(topic: str) -> PopMessage:
    """From all queues; it is not held."""
    return PopMessage(
        consumer_group=EVERYONE,
        topic=topic,
        queue_id=-1,
        max_msg_nums=32,
        invisible_time=60_000,
        poll_time=0,
        born_time=0,
        init_mode=0,
    )


ASSIGNMENT = json.dumps(
    {"topic": WIDE, "consumerGroup": EVERYONE, "clientId": "c", "strategyName": "AVG"}
).encode()
GROUP_LIST = json.dumps(
    {"groupConfigList": [{"groupName": f"listed-{number}"} for number in range(10_000)]}
).encode()
SUBSCRIPTIONS = [subscription(topic=f"topic-number-{number}") for number in range(TOPICS)]
FILTERS = [
    subscription(
        topic=f"topic-number-{number}",
        expression=" OR ".join(f"a = '{number}-{value}'" for value in range(900)),
        expressionType="SQL92",
    )
    for number in range(20)
]

CHECKED_FILTER = json.dumps(
    {"clientId": "c", "group": EVERYONE, "subscriptionData": FILTERS[0]}
).encode()
LONGEST_CHANGE = b"a=b\\\n" * (CHANGE_SIZE_MAX // 5)
"""One key, whose value goes on over thousands of lines."""

REQUESTS: dict[str, tuple[Request[Any], bytes, int]] = {
    "lock many queues": (LockBatchMq(), locks(QUEUES_MAX), ResponseCode.SUCCESS),
    "unlock many queues": (UnlockBatchMq(), locks(QUEUES_MAX), ResponseCode.SUCCESS),
    "lock too many queues": (LockBatchMq(), locks(100_000), ResponseCode.SYSTEM_ERROR),
    "a torn body": (LockBatchMq(), locks(60_000)[:-1], ResponseCode.SYSTEM_ERROR),
    "a body in the dialect": (
        LockBatchMq(),
        b'{"mqSet":[' + b"{{a:1}:2}," * 6000 + b"]}",
        ResponseCode.SYSTEM_ERROR,
    ),
    "many subscriptions": (Heartbeat(), heartbeat(*SUBSCRIPTIONS), ResponseCode.SUCCESS),
    "many filters": (Heartbeat(), heartbeat(*FILTERS), ResponseCode.SUCCESS),
    "acknowledgements": (BatchAckMessage(), acks(5000, b"\x01"), ResponseCode.SUCCESS),
    "millions in one acknowledgement": (
        BatchAckMessage(),
        acks(1, b"\xff" * 3_000_000),
        ResponseCode.SUCCESS,  # the queue has no message
    ),
    "many tags": (
        pulling("topic-number-4", " || ".join(f"tag-{number}" for number in range(5000))),
        b"",
        ResponseCode.PULL_NOT_FOUND,
    ),
    "every topic": (GetAllTopicConfig(), b"", ResponseCode.SUCCESS),
    "every group": (GetAllGroups(), b"", ResponseCode.SUCCESS),
    "queues of a topic": (GetTopicStatsInfo(topic=WIDE), b"", ResponseCode.SUCCESS),
    "how far in a topic": (
        GetConsumeStats(consumer_group=EVERYONE, topic=WIDE),
        b"",
        ResponseCode.SUCCESS,
    ),
    "how far in all topics": (
        GetConsumeStats(consumer_group=EVERYONE, topic=""),
        b"",
        ResponseCode.SUCCESS,
    ),
    "time spans": (QueryConsumeTimeSpan(group=EVERYONE, topic=WIDE), b"", ResponseCode.SUCCESS),
    "how far all groups are": (GetBrokerConsumeStats(is_order=False), b"", ResponseCode.SUCCESS),
    "groups of a topic": (QueryTopicConsumeByWho(topic="topic-number-0"), b"", 0),
    "topics of a group": (QueryTopicsByConsumer(group=EVERYONE), b"", ResponseCode.SUCCESS),
    "offsets compared": (
        QueryCorrectionOffset(topic=WIDE, compare_group=EVERYONE),
        b"",
        ResponseCode.SUCCESS,
    ),
    "offsets reset": (
        ResetOffset(group=EVERYONE, topic=WIDE, timestamp=1),
        b"",
        ResponseCode.SUCCESS,
    ),
    "offsets cloned": (
        CloneGroupOffset(src_group=EVERYONE, dest_group="group-number-1"),
        b"",
        ResponseCode.SUCCESS,
    ),
    "every offset": (GetAllConsumerOffset(), b"", ResponseCode.SUCCESS),
    "queues for a member": (QueryAssignment(), ASSIGNMENT, ResponseCode.SUCCESS),
    "a pop of many queues": (popping(WIDE), b"", ResponseCode.POLLING_TIMEOUT),
    "a look at many queues": (
        PeekMessage(topic=WIDE, queue_id=-1, max_msg_nums=32, consumer_group=EVERYONE),
        b"",
        ResponseCode.PULL_NOT_FOUND,
    ),
    "whether many queues have something": (
        Notification(consumer_group=EVERYONE, topic=WIDE, queue_id=-1, poll_time=0, born_time=0),
        b"",
        ResponseCode.SUCCESS,
    ),
    "many groups": (CreateGroupList(), GROUP_LIST, ResponseCode.SUCCESS),
    "a long change of the configuration": (
        UpdateBrokerConfig(),
        LONGEST_CHANGE,
        ResponseCode.SYSTEM_ERROR,
    ),
    "a change that is too long": (
        UpdateBrokerConfig(),
        LONGEST_CHANGE * 100,
        ResponseCode.SYSTEM_ERROR,
    ),
    "a filter checked": (CheckClientConfig(), CHECKED_FILTER, ResponseCode.SUCCESS),
}
"""A request whose work grows with a body or a table has a row here: one that is new gets one."""


@pytest.mark.parametrize("name", REQUESTS)
def test_one_request(broker: Metered[Broker], client: BlockingClient, name: str) -> None:
    request, body, code = REQUESTS[name]

    def ask() -> None:
        answer = client.ask(request, body)
        assert answer.code == code, answer

    assert broker.longest_turn(ask) <= TURN_MAX_S


def ask_frame(broker: Metered[Broker], frame: Any) -> None:
    with BlockingClient(broker.do(lambda server: server.port)) as peer:
        peer.write(frame)
        assert peer.read() == []


def test_a_header_of_half_a_million_fields(broker: Metered[Broker]) -> None:
    """Its connection is closed, before the fields are read."""
    header = b'{"code":202,"extFields":{%b"topic":"wide"},"flag":0,"opaque":1}' % (
        b'"a":"",' * 500_000
    )
    frame = frame_head(len(header), 0) + header

    assert broker.longest_turn(partial(ask_frame, broker, frame)) <= TURN_MAX_S


COMMITS = 5000


def commit(client: BlockingClient, frames: Any) -> None:
    writing = threading.Thread(target=client.write, args=(frames,))
    writing.start()
    answers = client.read(COMMITS)
    writing.join()
    assert {answer.code for answer in answers} == {ResponseCode.INVALID_PARAMETER}


def test_commits_of_queues_that_do_not_exist(
    broker: Metered[Broker], client: BlockingClient
) -> None:
    commits = (
        UpdateConsumerOffset(
            consumer_group=EVERYONE, topic="topic-number-6", queue_id=number, commit_offset=0
        )
        for number in range(QUEUES, QUEUES + COMMITS)
    )
    frames = b"".join(map(client.frame, commits))

    assert broker.longest_turn(partial(commit, client, frames)) <= TURN_MAX_S


def test_pulls_that_one_message_wakes(broker: Metered[Broker], client: BlockingClient) -> None:
    """They are answered in order, none is lost."""
    topic, count = "topic-number-3", 5000
    offsets = itertools.count()

    def send() -> None:
        pull = pulling(topic, hold_ms=60_000, offset=next(offsets))
        frames = [client.frame(pull) for _ in range(count)]
        client.write(b"".join(frames))
        client.ask(GetMaxOffset(topic=topic, queue_id=0))
        assert broker.do(lambda server: len(server.parts.delivering.held_pulls)) == count
        broker.loop.longest = 0.0
        with BlockingClient(broker.do(lambda server: server.port)) as producer:
            producer.ask(SendMessageV2(topic=topic, queue_id=0), b"one")
        answers = client.read(count)
        opaques = [answer.opaque for answer in answers]
        assert opaques == list(range(opaques[0], opaques[0] + count))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}

    assert broker.longest_turn(send) <= TURN_MAX_S


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pulling("topic-number-5"), ResponseCode.PULL_NOT_FOUND),
        (popping("topic-number-5"), ResponseCode.POLLING_TIMEOUT),
    ],
    ids=["pulls", "pops"],
)
def test_many_requests_of_many_connections(
    broker: Metered[Broker], request_: Request[Any], code: int
) -> None:
    port, count = broker.do(lambda server: server.port), 300
    clients = [BlockingClient(port) for _ in range(10)]
    frames = [b"".join(client.frame(request_) for _ in range(count)) for client in clients]

    def ask() -> None:
        for client, many in zip(clients, frames, strict=True):
            client.write(many)
        answers = [answer for client in clients for answer in client.read(count)]
        assert {answer.code for answer in answers} == {code}

    assert broker.longest_turn(ask) <= TURN_MAX_S
    for client in clients:
        client.close()


def test_a_group_and_a_topic_that_are_deleted(
    broker: Metered[Broker], client: BlockingClient
) -> None:
    """The last of these tests, since others need both."""
    for request in (DeleteGroup(group_name=EVERYONE, clean_offset=True), DeleteTopic(topic=WIDE)):
        turn = broker.longest_turn(lambda request=request: client.ask(request))  # type: ignore[misc]
        assert turn <= TURN_MAX_S, request
