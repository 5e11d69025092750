"""Batches to topics with ``queue.type=BatchCQ``: one entry each, read by our clients message by
message."""

from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import (
    HEADER,
    Talk,
    batch_of,
    converse,
    pull,
    send_inner,
    talking,
    watched,
)
from tests.unit.store.looked_up import message_in_queue, offset_at_time

from turbopump.client.consumer.pull import pulled_messages
from turbopump.message.batch import decode_batch, encode_batch, inner_entries
from turbopump.message.message import Message, MessageQueue, ReceivedMessage
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessageReply
from turbopump.protocol.requests.send import (
    ConsumerSendMsgBack,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
)
from turbopump.store.queues.consume_queue import UNIT_SIZE

QUEUE = MessageQueue("B", "broker-a", 0)


async def make_topic(talk: Talk) -> None:
    await talk.client.create("B", attributes="+queue.type=BatchCQ")


async def pulled(talk: Talk, offset: int, **fields: Any) -> list[ReceivedMessage]:
    """What our clients make of a pull from ``offset`` on."""
    answer = await talk.client.ask(pull(offset, topic="B", **fields))
    reply = answer.header(PullMessageReply)
    messages, damaged = pulled_messages(
        answer.body, QUEUE, offset, reply.next_begin_offset, ReceivedMessage
    )
    assert not damaged
    return messages


@pytest.mark.parametrize("form", [SendMessageV2, SendMessage, SendBatchMessage])
@pytest.mark.parametrize("crc", [True, False])
@in_loop(watched)
async def test_a_batch_with_an_id_of_its_own_is_one_entry(
    tmp_path: Path, form: type[Any], crc: bool
) -> None:
    async with talking(tmp_path, enabled_append_prop_crc=crc) as talk:
        await make_topic(talk)
        await talk.client.send(b"before", "B")
        body = batch_of(b"1", b"2", b"3")
        answer = await talk.client.ask(
            form(topic="B", queue_id=0, batch=True, properties=HEADER), body
        )
        assert answer.code == 0
        assert answer.ext is not None
        (entry,) = await talk.client.messages(1, topic="B")
        assert answer.ext == {
            "msgId": entry.offset_msg_id,
            "queueId": "0",
            "queueOffset": "1",
            "transactionId": "BATCH",
            "batchUniqId": "BATCH",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert (entry.queue_offset, entry.sys_flag, entry.body) == (1, 64 | 128, body)
        assert entry.properties == {
            "UNIQ_KEY": "BATCH",
            "WAIT": "true",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
            "INNER_NUM": "3",
            "INNER_BASE": "1",
        }
        assert ("__CRC32#" in entry.properties_text) == crc
        assert talk.broker.store.max_offset("B", 0) == 4


@in_loop(converse)
async def test_our_clients_take_it_apart_and_leave_out_what_was_not_asked_for(
    talk: Talk, /
) -> None:
    await make_topic(talk)
    await send_inner(talk, b"a", b"b", b"c")
    await talk.client.send(b"d", "B")
    assert (await send_inner(talk, b"e"))["queueOffset"] == "4"
    messages = await pulled(talk, 0)
    assert [(one.queue_offset, one.body, one.flag) for one in messages] == [
        *((0, b"a", 0), (1, b"b", 1), (2, b"c", 2), (3, b"d", 0), (4, b"e", 0))
    ]
    assert [one.msg_id for one in messages[:3]] == ["ID-a", "ID-b", "ID-c"]
    assert [one.tags for one in messages[:3]] == ["a", "b", "a"]
    assert {one.commit_log_offset for one in messages[:3]} == {messages[0].commit_log_offset}
    assert [one.body for one in await pulled(talk, 2)] == [b"c", b"d", b"e"]
    tagged = [one.body for one in await pulled(talk, 0, tags="b")]
    assert tagged == [b"a", b"b", b"c", b"d", b"e"], "the tags inside are for the client to look at"


@in_loop(converse)
async def test_a_batch_without_an_id_is_stored_message_by_message(talk: Talk, /) -> None:
    await make_topic(talk)
    answer = await send_inner(talk, b"a", b"b", properties="")
    assert "batchUniqId" not in answer
    entries = await talk.client.messages(topic="B")
    assert [(one.queue_offset, one.body, one.sys_flag) for one in entries] == [
        (0, b"a", 0),
        (1, b"b", 0),
    ]


@in_loop(converse)
async def test_a_plain_topic_unpacks_the_same_batch(talk: Talk, /) -> None:
    await talk.client.create("B")
    assert "batchUniqId" not in await send_inner(talk, b"a", b"b")
    assert [one.body for one in await talk.client.messages(topic="B")] == [b"a", b"b"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@in_loop(watched)
async def test_batches_are_there_after_a_restart(tmp_path: Path, flush: str) -> None:
    async with talking(tmp_path, flush_disk_type=flush) as talk:
        await make_topic(talk)
        for number in range(5):
            await send_inner(talk, *[b"%d.%d" % (number, part) for part in range(number + 1)])
    async with talking(tmp_path, flush_disk_type=flush) as talk:
        assert [one.queue_offset for one in await pulled(talk, 0)] == list(range(15))
        assert (await send_inner(talk, b"more", b"and more"))["queueOffset"] == "15"
        assert [one.body for one in await pulled(talk, 15)] == [b"more", b"and more"]


@pytest.mark.parametrize(
    ("fields", "body", "said"),
    [
        ({"properties": "INNER_NUM\x013\x02"}, b"x", "is not an inner batch"),
        (
            {"properties": "INNER_NUM\x013\x02", "batch": True},
            batch_of(b"a"),
            "is not an inner batch",
        ),
        (
            {"sys_flag": 128 | 64, "properties": "INNER_NUM\x013\x02"},
            batch_of(b"a"),
            "but it has 1 messages",
        ),
        ({"sys_flag": 128, "properties": "INNER_NUM\x01x\x02"}, b"x", "is no number"),
        ({"sys_flag": 128, "properties": "INNER_NUM\x0140000\x02"}, b"x", "1 to 32767 messages"),
        ({"batch": True, "properties": HEADER}, b"no batch", "cut off"),
        (
            {"batch": True, "properties": HEADER + "DELAY\x013\x02"},
            batch_of(b"a"),
            "cannot be part of a batch",
        ),
        (
            {"batch": True, "properties": HEADER},
            encode_batch([Message("B", b"x", delay_level=3)]),
            "cannot be part of a batch",
        ),
    ],
)
@in_loop(converse)
async def test_what_is_no_inner_batch_is_refused(
    talk: Talk, /, fields: dict[str, Any], body: bytes, said: str
) -> None:
    await make_topic(talk)
    code, remark = await talk.client.code(SendMessageV2(topic="B", queue_id=0, **fields), body)
    assert (code, said in remark) == (ResponseCode.MESSAGE_ILLEGAL, True), remark
    assert talk.broker.store.max_offset("B", 0) == 0


@in_loop(converse)
async def test_an_inner_batch_that_a_client_has_made_is_stored_as_it_says(talk: Talk, /) -> None:
    await make_topic(talk)
    request = SendMessageV2(
        topic="B", queue_id=0, sys_flag=128 | 64, properties="INNER_NUM\x012\x02"
    )
    assert (await talk.client.code(request, batch_of(b"a", b"b")))[0] == 0
    assert [(one.queue_offset, one.body) for one in await pulled(talk, 0)] == [(0, b"a"), (1, b"b")]


@in_loop(converse)
async def test_an_inner_batch_is_not_taken_back_whole(talk: Talk, /) -> None:
    await make_topic(talk)
    await talk.client.join("c", "g")
    await send_inner(talk, b"a", b"b")
    (entry,) = await talk.client.messages(topic="B")
    request = ConsumerSendMsgBack(offset=entry.commit_log_offset, group="g", delay_level=1)
    code, remark = await talk.client.code(request)
    assert (code, "is an inner batch" in remark) == (ResponseCode.SYSTEM_ERROR, True), remark


@in_loop(converse)
async def test_offsets_by_time_statistics_and_the_topic_s_deletion_know_such_queues(
    talk: Talk, /
) -> None:
    await make_topic(talk)
    await send_inner(talk, b"a", b"b", b"c")
    store = talk.broker.store
    (entry,) = await talk.client.messages(topic="B")
    stored = entry.store_timestamp
    assert offset_at_time(store.lookup, "B", 0, stored) == 0
    assert offset_at_time(store.lookup, "B", 0, stored + 1) == 3
    assert offset_at_time(store.lookup, "B", 0, stored, upper=True) == 2
    found = message_in_queue(store.lookup, "B", 0, 1)
    assert found is not None
    assert found.queue_offset == 0
    queue = store.queue("B", 0)
    assert queue is not None
    assert len(queue.units(0, 10)) == 3 * UNIT_SIZE
    assert store.queues.delete("B") == 1


@in_loop(converse)
async def test_what_is_taken_apart_can_be_put_together(talk: Talk, /) -> None:
    await make_topic(talk)
    await send_inner(talk, b"a", b"b")
    answer, _ = await talk.client.pull(topic="B")
    parts = inner_entries(answer.body)
    assert len(parts) == 2
    (entry,) = await talk.client.messages(topic="B")
    assert [item.body for item in decode_batch(entry.body)] == [b"a", b"b"]
