"""Reading only some messages: tags and SQL at the broker. The range is complete all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import pytest
from tests.spark.fake_cluster import FakeCluster

from turbopump import Message, Producer
from turbopump.errors import DataLossError, ResponseError
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command
from turbopump.spark.batch import BatchReader
from turbopump.spark.options import read_options
from turbopump.testing import BrokerThread


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Queue 0 has tags A, B and none in turn; then BB 300 times, whose hash is that of Aa."""
    with FakeCluster({"T": 1}) as cluster:
        for number in range(30):
            cluster.fill("T", 0, 1, tag=("A", "B", None)[number % 3])
        cluster.fill("T", 0, 300, tag="BB")
        cluster.fill("T", 0, 1, tag="A")
        yield cluster


def read(address: str, topic: str = "T", **given: str) -> list[int]:
    """The offsets read, by all tasks in their order."""
    options = read_options(
        {"nameServer": address, "topic": topic, "columns": "queueOffset", **given}
    )
    reader = BatchReader(options)
    found: list[int] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            assert batch.schema.names == ["queueOffset"]
            found += batch.column(0).to_pylist()
    return found


def pulls(fake: FakeCluster) -> list[dict[str, str]]:
    return [
        request.ext or {} for request in fake.requests if request.code == RequestCode.PULL_MESSAGE
    ]


def test_the_broker_leaves_out_what_has_other_tags(fake: FakeCluster) -> None:
    assert read(fake.address, tags="A") == [*range(0, 30, 3), 330]
    assert {pull["subscription"] for pull in pulls(fake)} == {"A"}
    both = read(fake.address, tags="A || B")
    assert both == [offset for offset in range(30) if offset % 3 < 2] + [330]


def test_a_tag_of_the_same_hash_is_left_out_here(fake: FakeCluster) -> None:
    assert read(fake.address, tags="Aa") == []
    assert read(fake.address, tags="BB") == list(range(30, 330))


def test_matching_messages_beyond_the_range_are_left_out(fake: FakeCluster) -> None:
    end = '{"T":{"broker-a":{"0":7}}}'
    assert read(fake.address, tags="A", endingOffsets=end) == [0, 3, 6]


def test_a_pull_goes_on_where_the_broker_stopped_looking(fake: FakeCluster) -> None:
    fake.scan_max = 7
    assert read(fake.address, tags="A") == [*range(0, 30, 3), 330]
    assert [int(pull["queueOffset"]) for pull in pulls(fake)] == list(range(0, 331, 7))


def removing(fake: FakeCluster, request: Command) -> Command:
    answer = fake.usual_answer(request)
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        answer.remark = "MESSAGE_WAS_REMOVING"
    return answer


def test_messages_that_are_being_deleted_are_not_taken_for_filtered_ones(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answer = partial(removing, fake)
    with pytest.raises(DataLossError, match="messages 100 to 199 of the asked 0 to 330"):
        read(fake.address, tags="A")
    with caplog.at_level(logging.WARNING):
        assert read(fake.address, tags="A", failOnDataLoss="false")[-1] == 330
    assert "messages 100 to 199" in caplog.text


def test_a_damaged_message_that_matches_is_loss(fake: FakeCluster) -> None:
    entry = fake.queues["T", 0].entries[3]
    fake.queues["T", 0].entries[3] = entry[:88] + b"?" + entry[89:]
    with pytest.raises(DataLossError, match="damaged in the broker's store: offset 3 or near it"):
        read(fake.address, tags="A")
    assert read(fake.address, tags="A", failOnDataLoss="false")[:3] == [0, 6, 9]


async def produce(name_server: str) -> None:
    async with Producer(name_server) as producer:
        for number in range(40):
            tags = "even" if number % 2 == 0 else "odd"
            await producer.send(Message("T", b"x", tags=tags, properties={"price": str(number)}))


def test_our_broker_filters_by_tags_and_by_sql() -> None:
    with BrokerThread() as rocketmq:
        rocketmq.create_topic("T", 1)
        rocketmq.run(produce(rocketmq.namesrv))
        assert read(rocketmq.namesrv, tags="odd") == list(range(1, 40, 2))
        assert read(rocketmq.namesrv, subExpression="*") == list(range(40))
        sql = "price BETWEEN 10 AND 19 AND TAGS = 'even'"
        assert read(rocketmq.namesrv, sqlFilter=sql) == list(range(10, 20, 2))


def test_a_broker_without_sql_filters_says_so() -> None:
    with BrokerThread(enable_property_filter=False) as rocketmq:
        rocketmq.create_topic("T", 1)
        rocketmq.run(_one(rocketmq.namesrv))
        with pytest.raises(ResponseError, match="enablePropertyFilter"):
            read(rocketmq.namesrv, sqlFilter="a = 1")


async def _one(name_server: str) -> None:
    async with Producer(name_server) as producer:
        await producer.send(Message("T", b"x"))
