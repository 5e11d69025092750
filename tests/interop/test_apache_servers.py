"""Our client and our Spark source against Apache's own name server and broker, 5.3.3 and 4.9.7."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    check,
    check_queues,
    eventually,
    large_letters,
    letters,
    numbers,
    once,
    patient_producer,
    read_all,
    send_all,
    settled,
)
from tests.interop.patient_apache import PATIENT
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import Message, PullConsumer, PushConsumer, ReceivedMessage
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.pull_consumer import PullStatus
from turbopump.protocol import fastjson
from turbopump.protocol.frame import ROCKETMQ
from turbopump.protocol.requests.namesrv import GetRouteInfo, TopicRouteData
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.client import RemotingClient

VERSIONS = (NEWEST, NEWEST_4)
COUNT = 60


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ApacheCluster]]:
    """One name server and broker of each version, started side by side and killed at the end:
    nobody reads their stores."""
    made = {
        version: ApacheCluster(
            version, directory=tmp_path_factory.mktemp("apache"), heap="384m", broker_config=PATIENT
        )
        for version in VERSIONS
    }
    with ExitStack() as stack, skipping_without_tools():
        for cluster in made.values():
            stack.callback(cluster.kill)
        with ThreadPoolExecutor() as pool:
            for future in [pool.submit(cluster.start) for cluster in made.values()]:
                future.result()
        yield made


@pytest.fixture(params=VERSIONS)
def cluster(
    request: pytest.FixtureRequest, clusters: dict[str, ApacheCluster], summary: list[str]
) -> Iterator[ApacheCluster]:
    started = time.monotonic()
    # on a busy machine it has now and then lost its name server for a while
    clusters[request.param].wait_ready()
    yield clusters[request.param]
    name = request.node.name.removeprefix("test_").partition("[")[0]
    summary.append(f"apache-{request.param:10} {time.monotonic() - started:6.2f} s  {name}")


@in_loop
async def test_sends_arrive_whole_at_apaches_broker(cluster: ApacheCluster) -> None:
    sent = letters("sends", COUNT)
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="reader") as reader,
    ):
        results = await send_all(producer, sent)
        received = await read_all(reader, "sends", len(sent))
    check(sent, received, results)
    check_queues(received, in_order=True)


@in_loop
async def test_many_sends_at_once_arrive_each_once(cluster: ApacheCluster) -> None:
    sent = letters("at-once", COUNT * 5)
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="reader") as reader,
    ):
        results = await asyncio.gather(*(producer.send(message) for message in sent))
        received = await read_all(reader, "at-once", len(sent))
    check(sent, received, results)
    check_queues(received)


@in_loop
async def test_large_bodies_arrive_whole(cluster: ApacheCluster) -> None:
    sent = large_letters("large")
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="reader") as reader,
    ):
        results = await send_all(producer, sent)
        received = await read_all(reader, "large", len(sent))
    check(sent, received, results)


@in_loop
async def test_oneway_messages_arrive(cluster: ApacheCluster) -> None:
    sent = letters("oneway", COUNT)
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="reader") as reader,
    ):
        await producer.send(sent[0])
        for message in sent[1:]:
            await producer.send_oneway(message)
        received = await read_all(reader, "oneway", COUNT)
    check(sent, received)
    check_queues(received)


@in_loop
async def test_batches_arrive_in_order(cluster: ApacheCluster) -> None:
    sent, told = letters("batches", COUNT), set[str]()
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="reader") as reader,
    ):
        for start in range(0, COUNT, 20):
            result = await producer.send_batch(sent[start : start + 20])
            assert len(result.msg_ids) == 20
            told.update(result.msg_ids)
        received = await read_all(reader, "batches", len(sent))
    assert {message.msg_id for message in received} == told, (
        "Apache's broker has left each message the id that its sender was told"
    )
    check(sent, received)
    check_queues(received, in_order=True)


@in_loop
async def test_a_chosen_queue_keeps_the_order(cluster: ApacheCluster) -> None:
    sent = letters("chosen", COUNT)
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="reader") as reader,
    ):
        first = await producer.send(sent[0])
        queues = await producer.publish_queues("chosen")
        assert len(queues) == 4
        rest = await send_all(producer, sent[1:], queue=queues[2])
        received = await read_all(reader, "chosen", len(sent))
    check(sent, received, [first, *rest])
    assert {result.queue for result in rest} == {queues[2]}
    check_queues(received, in_order=True)


@in_loop
async def test_a_tag_filter_lets_only_its_tags_through(cluster: ApacheCluster) -> None:
    sent = letters("tags", COUNT)
    wanted = [message for message in sent if message.tags in {"red", "blue"}]
    received: list[ReceivedMessage] = []
    async with patient_producer(cluster.namesrv) as producer:
        await send_all(producer, sent)
    async with PushConsumer(
        cluster.namesrv,
        group="tags",
        topic="tags",
        tags="red || blue",
        consume_from=ConsumeFrom.FIRST,
        handler=received.append,
    ):
        await eventually("all red and blue", lambda: len(received) >= len(wanted))
    check(wanted, received)


@in_loop
async def test_a_consumer_gets_what_was_there_and_what_comes_later(cluster: ApacheCluster) -> None:
    sent = letters("later", COUNT)
    received: list[ReceivedMessage] = []
    async with patient_producer(cluster.namesrv) as producer:
        await send_all(producer, sent[: COUNT // 2])
        async with PushConsumer(
            cluster.namesrv, group="later", topic="later", consume_from=ConsumeFrom.FIRST
        ) as consumer:
            async for message in consumer:
                received.append(message)
                if len(received) == COUNT // 2:
                    await send_all(producer, sent[COUNT // 2 :])
                if len(received) == COUNT:
                    break
    check(sent, received)


def seen(*boxes: list[ReceivedMessage]) -> list[ReceivedMessage]:
    return once(message for box in boxes for message in box)


def two_each(one: PushConsumer, two: PushConsumer) -> bool:
    return len(one.queues) == len(two.queues) == 2 and not set(one.queues) & set(two.queues)


@in_loop
async def test_two_consumers_share_the_queues_and_one_inherits(cluster: ApacheCluster) -> None:
    sent = letters("shared", COUNT + 20)
    boxes: tuple[list[ReceivedMessage], list[ReceivedMessage]] = ([], [])
    async with patient_producer(cluster.namesrv) as producer:
        await producer.send(sent[0])
        one, two = (
            PushConsumer(
                cluster.namesrv,
                group="shared",
                topic="shared",
                consume_from=ConsumeFrom.FIRST,
                handler=box.append,
            )
            for box in boxes
        )
        async with two:
            async with one:
                await eventually("the first message", lambda: len(seen(*boxes)) == 1)
                await settled(cluster.broker, "shared", 1, one, two)
                await eventually("two queues each", partial(two_each, one, two))
                await send_all(producer, sent[1:COUNT])
                await eventually("all so far", lambda: len(seen(*boxes)) == COUNT)
                await settled(cluster.broker, "shared", COUNT, one, two)
            share = len(boxes[0])
            await eventually("all queues", lambda: len(two.queues) == 4)
            await send_all(producer, sent[COUNT:])
            await eventually("the rest", lambda: len(seen(*boxes)) == COUNT + 20)
    assert share > 1
    assert len(boxes[0]) == share
    check(sent, seen(*boxes))


@in_loop
async def test_a_second_consumer_goes_on_where_the_first_committed(cluster: ApacheCluster) -> None:
    sent = letters("resumed", COUNT)
    async with patient_producer(cluster.namesrv) as producer:
        for part in (sent[: COUNT // 2], sent[COUNT // 2 :]):
            await send_all(producer, part)
            received: list[ReceivedMessage] = []
            async with PushConsumer(
                cluster.namesrv,
                group="resumed",
                topic="resumed",
                consume_from=ConsumeFrom.FIRST,
                handler=received.append,
            ) as consumer:
                await eventually("this half", lambda box=received, half=part: len(box) >= len(half))  # type: ignore[misc]
                await settled(
                    cluster.broker, "resumed", int(part[-1].properties["n"]) + 1, consumer
                )
            check(part, received)


@in_loop
async def test_pulls_filter_wait_and_keep_a_place(cluster: ApacheCluster) -> None:
    sent = letters("pulled", COUNT)
    async with (
        patient_producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, group="puller") as consumer,
    ):
        await producer.send(sent[0])
        queue = (await producer.publish_queues("pulled"))[1]
        await read_all(consumer, "pulled", 1)
        end = await consumer.max_offset(queue)
        waiting = asyncio.create_task(consumer.pull(queue, end, wait=CALL_SECONDS))
        before = int(time.time() * 1000)
        await producer.send(sent[1], queue=queue)
        held = await waiting
        assert held.status is PullStatus.FOUND
        assert numbers(held.messages) == [1]

        await send_all(producer, sent[2:], queue=queue)
        await read_all(consumer, "pulled", COUNT)
        green = await consumer.pull(queue, 0, tags="green")
        assert set(numbers(green.messages)) <= {n for n in range(COUNT) if n % 3 == 1}
        assert 1 in numbers(green.messages)
        last = await consumer.max_offset(queue)
        assert (await consumer.pull(queue, last)).status is PullStatus.NO_NEW_MESSAGE
        assert (await consumer.pull(queue, last + 9)).status is PullStatus.OFFSET_ILLEGAL
        assert await consumer.min_offset(queue) == 0
        assert await consumer.offset_at(queue, before - 60_000) == 0

        await consumer.commit(queue, 7)
        assert await consumer.committed(queue) == 7


@in_loop
async def test_the_binary_header_form_is_spoken_too(cluster: ApacheCluster) -> None:
    client = RemotingClient(serialize_type=ROCKETMQ)
    try:
        command = await client.exchange(
            cluster.namesrv, GetRouteInfo(topic="TBW102"), timeout=CALL_SECONDS
        )
        route = fastjson.decode(command.body, TopicRouteData)
        assert cluster.broker in {
            address for broker in route.broker_datas for address in broker.broker_addrs.values()
        }
        request = SendMessageV2(
            producer_group="binary",
            topic="binary",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=1,
            sys_flag=0,
            born_timestamp=int(time.time() * 1000),
            flag=0,
            properties="n\x010\x02größe\x01漢字\x02",
        )
        reply = await client.call(cluster.broker, request, b"in binary", timeout=CALL_SECONDS)
        assert (reply.queue_id, reply.queue_offset) == (1, 0)
        asked = time.monotonic()
        end = GetMaxOffset(topic="binary", queue_id=1)
        while (await client.call(cluster.broker, end, timeout=CALL_SECONDS)).offset != 1:
            # its queues come behind its answers
            assert time.monotonic() - asked < PATIENCE_SECONDS
    finally:
        await client.close()
    async with PullConsumer(cluster.namesrv, group="reader") as reader:
        (message,) = await read_all(reader, "binary", 1)
    assert message.body == b"in binary"
    assert message.properties["größe"] == "漢字"


def answer_of(namesrv: str, *command: str, code: int = 0) -> Any:
    """What `turbopump COMMAND` answers; again while it ends otherwise: it has three seconds for a
    name server's answer."""
    arguments = [sys.executable, "-m", "turbopump", *command, "-n", namesrv]
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        if done.returncode == code:
            return json.loads(done.stdout)
        assert time.monotonic() < end, done.stderr


def test_our_doctor_finds_what_is_wrong_with_apaches_servers(cluster: ApacheCluster) -> None:
    made = ("topic", "create", "examined", "--perm", "4", "--if-not-exists", "--output", "json")
    answer_of(cluster.namesrv, *made)
    healthy = answer_of(cluster.namesrv, "doctor", "--output", "json")
    assert {finding["level"] for finding in healthy["findings"]} <= {"ok", "note"}
    answer = answer_of(cluster.namesrv, "doctor", "--output", "json", "-t", "examined", code=1)
    (wrong,) = [one for one in answer["findings"] if one["level"] == "wrong"]
    assert wrong["message"] == "it cannot be sent to on broker-a (perm 4)"


def test_our_topic_commands_create_list_alter_delete_and_route(cluster: ApacheCluster) -> None:
    def turbopump(*arguments: str, code: int = 0) -> Any:
        return answer_of(cluster.namesrv, "topic", *arguments, "--output", "json", code=code)

    turbopump("create", "by-command", "--queues", "3", "--if-not-exists")
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Apache's broker answers before the name server knows
    while "by-command" not in turbopump("list")["topics"]:
        assert time.monotonic() < deadline, "the topic never came into the list"
    assert "by-command" in json.dumps(turbopump("route", "by-command"))
    assert asyncio.run(count_of_queues(cluster.namesrv, "by-command")) == 3
    turbopump("alter", "by-command", "--queues", "2")
    assert turbopump("delete", "by-command", code=2)["dry_run"] is True
    turbopump("delete", "by-command", "--yes")
    while "by-command" in turbopump("list")["topics"]:
        assert time.monotonic() < deadline, "the topic never left the list"


async def count_of_queues(namesrv: str, topic: str) -> int:
    async with patient_producer(namesrv) as producer:
        return len(await producer.publish_queues(topic))


async def send_and_read(namesrv: str, topic: str, messages: list[Message]) -> None:
    async with (
        patient_producer(namesrv) as producer,
        PullConsumer(namesrv, group="reader") as reader,
    ):
        await send_all(producer, messages)
        await read_all(reader, topic, len(messages))


def test_spark_reads_every_message(cluster: ApacheCluster, spark: Any) -> None:
    sent = letters("sparked", COUNT)
    asyncio.run(send_and_read(cluster.namesrv, "sparked", sent))
    reader = (
        spark.read.format("rocketmq")
        .option("nameServer", cluster.namesrv)
        .option("topic", "sparked")
    )
    rows = reader.load().collect()

    assert sorted(bytes(row.body) for row in rows) == sorted(message.body for message in sent)
    assert len({(row.queueId, row.queueOffset) for row in rows}) == COUNT
    assert {row.tags for row in rows} == {"red", "green", "blue"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from turbopump.spark.session import end_session, rocketmq_session

    session = rocketmq_session(
        "interop",
        master="local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "ERROR",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    end_session(session)
