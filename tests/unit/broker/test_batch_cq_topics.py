"""A broker on a store of Apache's with a BatchCQ topic: it serves the other topics, and says of
this one that it does not serve it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.broker.popping import pop_request
from tests.unit.broker.talking import Talk, batch_of, pull, talking, watched
from tests.unit.store.apache_batches import TOPIC, batch_files, make_store
from tests.unit.store.directory import Directory

from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.consumers import GetConsumeStats
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    ResetOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pop import AckMessage, PopMessage
from turbopump.protocol.requests.pull import GetEarliestMsgStoreTime, QueryMessage
from turbopump.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from turbopump.protocol.requests.statistics import QueryConsumeQueue
from turbopump.protocol.requests.topics import CreateTopic, DeleteTopic, GetTopicStatsInfo

BATCHES = [[b"%d.%d" % (number, part) for part in range(3)] for number in range(5)]
REMARK = "topic=B is a BatchCQ topic (queue.type=BatchCQ), which this broker does not serve; "
OFFSETS = '{"offsetTable":{"B@g":{0:16},"T@g":{0:99}}}'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    directory = Directory(tmp_path / "store")
    make_store(directory, BATCHES)
    directory.paths.table("consumerOffset").write_text(OFFSETS)
    return tmp_path / "store"


async def remark_of(talk: Talk, request: Request[object], body: bytes = b"") -> str:
    code, remark = await talk.client.code(request, body)
    assert code == ResponseCode.INVALID_PARAMETER, (code, remark)
    return remark


SENDS: list[tuple[Request[object], bytes]] = [
    (SendMessage(topic=TOPIC, queue_id=0), b"x"),
    (SendMessageV2(topic=TOPIC, queue_id=-1), b"x"),
    (SendMessageV2(topic=TOPIC, queue_id=0, properties="DELAY\x013\x02"), b"x"),
    (SendMessageV2(topic=TOPIC, queue_id=0, sys_flag=4), b"x"),
    (SendMessageV2(topic=TOPIC, queue_id=0, sys_flag=128, properties="INNER_NUM\x011\x02"), b"x"),
    (SendBatchMessage(topic=TOPIC, queue_id=0, batch=True), batch_of(b"a", b"b")),
    (
        SendBatchMessage(topic=TOPIC, queue_id=0, batch=True, properties="UNIQ_KEY\x01B\x02"),
        batch_of(b"a", b"b"),
    ),
]
READS: list[Request[object]] = [
    pull(0, topic=TOPIC),
    pull(16, topic=TOPIC),
    GetMaxOffset(topic=TOPIC, queue_id=0),
    GetMinOffset(topic=TOPIC, queue_id=0),
    SearchOffset(topic=TOPIC, queue_id=0, timestamp=0),
    GetEarliestMsgStoreTime(topic=TOPIC, queue_id=0),
    QueryConsumeQueue(topic=TOPIC, queue_id=0, index=0, count=1, consumer_group="g"),
    GetTopicStatsInfo(topic=TOPIC),
    QueryConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0),
    UpdateConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0, commit_offset=3),
    ResetOffset(topic=TOPIC, group="g", timestamp=0, force=True),
]


@in_loop(watched)
async def test_every_request_about_the_topic_is_refused_with_what_to_do(store: Path) -> None:
    files = batch_files(Directory(store).paths)
    async with talking(store) as talk:
        await talk.client.join("c", "g")
        end = talk.broker.store.log.end
        for request, body in [*SENDS, *((request, b"") for request in READS)]:
            assert (await remark_of(talk, request, body)).startswith(REMARK), request
        pop: PopMessage = pop_request(0, topic=TOPIC, consumer_group="g")
        assert (await remark_of(talk, pop)).startswith(REMARK)
        ack = AckMessage(
            consumer_group="g", topic=TOPIC, queue_id=0, extra_info="0 0 0 0 0 a 0 0", offset=0
        )
        assert (await remark_of(talk, ack)).startswith(REMARK)
        assert talk.broker.store.log.end == end
    assert batch_files(Directory(store).paths) == files


@in_loop(watched)
async def test_other_topics_are_served_and_offsets_of_the_topic_are_kept(store: Path) -> None:
    for _ in range(2):
        async with talking(store) as talk:
            bodies = await talk.client.all_bodies()
            assert bodies[:5] == [b"%d" % number for number in range(5)]
            await talk.client.send(b"more")
            offsets = talk.broker.tables.offsets
            assert offsets.find("g", TOPIC, 0) == 16, "Apache's broker goes on from there"
            assert offsets.find("g", "T", 0) == 5, "set back to the end of its queue"
            stats = await talk.client.ask(GetConsumeStats(consumer_group="g"))
            assert b'"topic":"T"' in stats.body
            assert b'"topic":"B"' not in stats.body


@in_loop(watched)
async def test_its_messages_are_found_by_key_as_long_as_the_log_has_them(store: Path) -> None:
    async with talking(store, message_index_enable=True) as talk:
        request = QueryMessage(
            topic=TOPIC, key="U0", max_num=8, begin_timestamp=0, end_timestamp=1 << 60
        )
        answer = await talk.client.ask(request)
        assert answer.code == ResponseCode.SUCCESS, answer


@in_loop(watched)
async def test_a_topic_whose_table_is_lost_is_still_refused(store: Path) -> None:
    Directory(store).paths.table("topics").unlink()
    async with talking(store) as talk:
        request = SendMessageV2(topic=TOPIC, queue_id=0)
        assert (await remark_of(talk, request, b"x")).startswith(REMARK)
        assert (await talk.client.all_bodies())[0] == b"0"


@in_loop(watched)
async def test_the_topic_can_be_deleted_and_made_anew_without_the_attribute(store: Path) -> None:
    async with talking(store) as talk:
        assert await talk.client.code(DeleteTopic(topic=TOPIC)) == (0, "")
        assert batch_files(Directory(store).paths) == {}
        await talk.client.create(TOPIC)
        assert (await talk.client.send(b"anew", TOPIC)).queue_offset == 0
        assert await talk.client.all_bodies(TOPIC) == [b"anew"]


@in_loop(watched)
async def test_a_topic_with_that_attribute_is_not_made(store: Path) -> None:
    async with talking(store) as talk:
        code, remark = await talk.client.code(
            CreateTopic(topic="new", attributes="+queue.type=BatchCQ")
        )
        assert code == ResponseCode.SYSTEM_ERROR
        assert remark.startswith("this broker does not serve BatchCQ topics (queue.type=BatchCQ); ")
        assert talk.broker.tables.topics.find("new") is None
        existing = CreateTopic(topic=TOPIC, read_queue_nums=2, write_queue_nums=2)
        assert await talk.client.code(existing) == (0, "")
        topic = talk.broker.tables.topics.find(TOPIC)
        assert topic is not None
        assert fastjson.encode(topic.attributes) == b'{"queue.type":"BatchCQ"}'


@in_loop(watched)
async def test_an_inner_batch_to_another_topic_is_refused(store: Path) -> None:
    async with talking(store) as talk:
        request = SendMessageV2(
            topic="T", queue_id=0, sys_flag=128 | 64, properties="INNER_NUM\x012\x02"
        )
        code, remark = await talk.client.code(request, batch_of(b"a", b"b"))
        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert "which only BatchCQ topics of Apache's broker take" in remark
        for batch in (False, True):
            false = SendMessageV2(
                topic="T", queue_id=0, batch=batch, properties="INNER_NUM\x013\x02"
            )
            code, remark = await talk.client.code(false, batch_of(b"a"))
            assert (code, "is not an inner batch" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


@in_loop(watched)
async def test_a_batch_with_an_id_of_its_own_is_stored_message_by_message(store: Path) -> None:
    async with talking(store) as talk:
        request = SendBatchMessage(
            topic="T", queue_id=0, batch=True, properties="UNIQ_KEY\x01BATCH\x02"
        )
        answer = await talk.client.ask(request, batch_of(b"a", b"b"))
        assert answer.code == 0
        assert answer.ext is not None
        assert "batchUniqId" not in answer.ext
        assert (await talk.client.all_bodies())[-2:] == [b"a", b"b"]
