"""No request keeps the loop for longer than a turn may last, however large it is, or the tables
that it asks about (``TURN_MAX_S``).

One broker for all of them, with the tables of a large cluster: 5,000 topics with 8 queues, 1,000
groups, and a topic with as many queues as there may be.
"""

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.talking import SMALL, talking
from tests.unit.metered_loop import TURN_MAX_S, BlockingClient, Metered, metered

from turbopump.broker.broker import Broker
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendBatchMessage

TOPICS, GROUPS, QUEUES, QUEUES_MAX = 5000, 1000, 8, 65_535
WIDE, EVERYONE = "wide", "everyone"
"""The topic with ``QUEUES_MAX`` queues; the group that reads every topic."""
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
    ):
        (config / f"{name}.json").write_text(json.dumps({**table, **version}))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered[Broker]]:
    directory = tmp_path_factory.mktemp("turns")
    write_tables(directory)
    settings = {**SMALL, **LARGE_FILES}
    with metered(lambda: talking(directory, **settings)) as running:
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

    def send() -> None:
        writing = threading.Thread(target=client.write, args=(frame,))
        writing.start()
        (answer,) = client.read()
        writing.join()
        assert answer.code == code

    assert broker.longest_turn(send) <= TURN_MAX_S
