"""Impossible numbers from a name server or broker. A read refuses them in a sentence before it
reads anything."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.spark.fake_cluster import FakeCluster
from tests.spark.stored_messages import stored_message

from turbopump.errors import BodyError, ConfigError, DataLossError, HeaderError, StoredMessageError
from turbopump.message.batch import COUNT_MAX, encode_item
from turbopump.message.message import MessageQueue
from turbopump.message.properties import SysFlag
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.offsets import QUEUE_OFFSET_MAX
from turbopump.spark import decode, inner_batches
from turbopump.spark.batch import BatchReader
from turbopump.spark.offsets import TASKS_MAX, OffsetRange, split_ranges
from turbopump.spark.options import ReadOptions, read_options
from turbopump.spark.reading import read_partition
from turbopump.spark.stream import StreamReader

MANY = 2**31 - 1
SOON_S = 5.0


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 1}) as cluster:
        cluster.fill("T", 0, 5)
        yield cluster


@contextmanager
def soon() -> Iterator[None]:
    """CPU time of this process, however busy the machine is."""
    began = time.process_time()
    yield
    assert time.process_time() - began < SOON_S


def options(fake: FakeCluster, **given: str) -> ReadOptions:
    return read_options({"nameServer": fake.address, "topic": "T", "pullTimeoutMs": "1", **given})


def route(*queues: int) -> Command:
    brokers = ",".join(
        f'{{"brokerName":"b{i}","brokerAddrs":{{0:"h:1"}}}}' for i in range(len(queues))
    )
    numbers = ",".join(
        f'{{"brokerName":"b{i}","perm":6,"readQueueNums":{count},"writeQueueNums":8}}'
        for i, count in enumerate(queues)
    )
    return Command(0, body=f'{{"brokerDatas":[{brokers}],"queueDatas":[{numbers}]}}'.encode())


@pytest.mark.parametrize(
    ("queues", "said"),
    [((8, MANY), rf"'b1' readQueueNums is {MANY}; give"), ((65_535,) * 5, "327675 queues on all")],
    ids=["of a broker", "of all"],
)
def test_a_plan_by_a_route_that_cannot_be_names_the_name_server_and_the_topic(
    fake: FakeCluster, queues: tuple[int, ...], said: str
) -> None:
    fake.answer_code(RequestCode.GET_ROUTEINFO_BY_TOPIC, route(*queues))
    with soon():
        for plan in (
            BatchReader(options(fake)).partitions,
            StreamReader(options(fake)).initialOffset,
        ):
            with pytest.raises(BodyError, match=said) as refused:
                plan()
            assert f"{fake.address}: the route of topic 'T'" in str(refused.value)


@pytest.mark.parametrize("offset", [-2, -(2**63), QUEUE_OFFSET_MAX + 1, 2**63 - 1])
@pytest.mark.parametrize(
    ("code", "given"),
    [
        (RequestCode.GET_MIN_OFFSET, {}),
        (RequestCode.GET_MAX_OFFSET, {}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"startingTimestamp": "1"}),
        (RequestCode.QUERY_CONSUMER_OFFSET, {"startingGroup": "g"}),
    ],
)
def test_an_offset_that_no_queue_can_have_is_refused_in_the_plan(
    fake: FakeCluster, code: int, given: dict[str, str], offset: int
) -> None:
    fake.answer_code(code, Command(0, ext={"offset": str(offset)}))
    with (
        soon(),
        pytest.raises(HeaderError, match=rf"T@broker-a:0 with offset {offset}, and a queue"),
    ):
        BatchReader(options(fake, **given)).partitions()


def test_the_largest_end_is_planned_in_a_moment_and_so_many_tasks_are_refused(
    fake: FakeCluster,
) -> None:
    fake.answer_code(RequestCode.GET_MAX_OFFSET, Command(0, ext={"offset": str(QUEUE_OFFSET_MAX)}))
    with soon():
        assert len(BatchReader(options(fake)).partitions()) == 1
        assert len(BatchReader(options(fake, maxPartitions="7")).partitions()) == 7
        with pytest.raises(ConfigError, match=r"maxRecordsPerPartition.* more than 1000000 tasks"):
            BatchReader(options(fake, maxRecordsPerPartition="1000")).partitions()


def test_as_many_tasks_as_may_be_are_made() -> None:
    whole = OffsetRange(MessageQueue("T", "b", 0), 0, TASKS_MAX)
    assert len(split_ranges([whole], None, None, 10)) == TASKS_MAX // 10
    with pytest.raises(ConfigError, match="1000001 messages"):
        split_ranges([OffsetRange(whole.queue, 0, TASKS_MAX + 1)], None, None, 1)


def answer_absurdly(code: int, fake: FakeCluster, reply: Any, request: Command) -> Command | None:
    if request.code == RequestCode.GET_MAX_OFFSET:
        return Command(0, ext={"offset": str(QUEUE_OFFSET_MAX)})
    if request.code == RequestCode.PULL_MESSAGE:
        return Command(code, ext=reply)
    return fake.usual_answer(request)


@pytest.mark.parametrize("following", [2**31, 2**62, 2**63 - 1])
@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_a_pull_that_leads_far_on_without_messages_is_loss_in_one_sentence(
    fake: FakeCluster, code: int, following: int
) -> None:
    fake.answer = fake.usual_answer
    reply = {
        "nextBeginOffset": str(following),
        "minOffset": "0",
        "maxOffset": str(following),
        "suggestWhichBrokerId": "0",
    }

    fake.answer = partial(answer_absurdly, code, fake, reply)
    (task,) = BatchReader(options(fake)).partitions()
    with soon(), pytest.raises(DataLossError) as lost:
        list(read_partition(task, options(fake)))
    assert "T@broker-a:0" in str(lost.value)
    assert len(str(lost.value)) < 1000


def test_lost_messages_are_named_up_to_ten(fake: FakeCluster) -> None:
    fake.queues["T", 0].entries[2] = b""
    (task,) = BatchReader(options(fake)).partitions()
    with pytest.raises(DataLossError, match=r"offsets 2 \("):
        list(read_partition(task, options(fake)))
    fake.fill("T", 0, 15)
    fake.queues["T", 0].entries[3:18] = [b""] * 15
    (task,) = BatchReader(options(fake)).partitions()
    with pytest.raises(DataLossError, match=r"offsets 2, 3, 4, .*, 11 and 6 more \("):
        list(read_partition(task, options(fake)))


def test_compressed_batches_are_inflated_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_batches, "INFLATED_SIZE_MAX", 8 << 20)
    flags = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED)
    body = zlib.compress(encode_item(0, bytes(100), b"") * COUNT_MAX, 9)
    batch = stored_message(body, topic="T", queue_id=0, queue_offset=0, sys_flag=flags)
    assert sum(len(one) for one in decode.decode(batch, "b", ("queueOffset",))) == COUNT_MAX
    with pytest.raises(StoredMessageError, match="have more than 8388608 bytes together"):
        list(decode.decode(batch * 1000, "b", ("queueOffset",)))
