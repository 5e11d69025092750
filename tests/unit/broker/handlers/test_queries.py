"""Single messages over the wire: by key and unique id (12), by place in the log (33), the age of a
queue (32), its units (321)."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import (
    Client,
    Talk,
    converse,
    in_virtual_time,
    subscription,
    talking,
    watched,
)
from tests.unit.store.segments import forget_all
from tests.waits import until

from turbopump.errors import RemotingError
from turbopump.message.codec import decode_entries, encode_host
from turbopump.message.message import ReceivedMessage
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import QueryConsumeTimeSpan
from turbopump.protocol.requests.offsets import OffsetReply, SearchOffset
from turbopump.protocol.requests.pull import (
    EarliestStoreTimeReply,
    GetEarliestMsgStoreTime,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from turbopump.protocol.requests.statistics import QueryConsumeQueue, QueryConsumeQueueResponseBody
from turbopump.store.index.key_index import KeyWalk
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.message_store import NewMessage

LONG_MAX = 2**63 - 1


def named(unique: str, keys: str = "") -> str:
    return f"UNIQ_KEY\x01{unique}\x02" + (f"KEYS\x01{keys}\x02" if keys else "")


def by_key(
    key: str, topic: str = "T", *, count: int = 64, begin: int = 0, end: int = LONG_MAX, **more: Any
) -> QueryMessage:
    return QueryMessage(
        topic=topic, key=key, max_num=count, begin_timestamp=begin, end_timestamp=end, **more
    )


def fill(talk: Talk, count: int) -> None:
    """So many messages of the key ``k``, put into the store itself: by sends, a busy machine would
    refuse some."""
    message = NewMessage(b"x", named("SAME", "k").encode(), 0, 0, "SAME", "k")
    host = encode_host("127.0.0.1", 1)
    for _ in range(count):
        talk.broker.store.put(
            "T", 0, message, sys_flag=0, born_timestamp=0, born_host=host, store_host=host
        )


async def found(client: Client, request: QueryMessage) -> list[ReceivedMessage]:
    answer = await client.ask(request)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        assert answer.body == b""
        return []
    assert answer.code == ResponseCode.SUCCESS, answer
    return list(decode_entries(answer.body))


async def bodies(client: Client, request: QueryMessage) -> list[bytes]:
    return [message.body for message in await found(client, request)]


@in_loop(converse)
async def test_a_message_is_found_by_each_of_its_keys_and_by_its_unique_id(talk: Talk, /) -> None:
    client = talk.client
    await client.send(b"1", properties=named("ID1", "red green"))
    await client.send(b"2", properties=named("ID2", "green a#b"))
    await client.send(b"3", topic="U", properties=named("ID3", "green"))
    assert await bodies(client, by_key("red")) == [b"1"]
    assert await bodies(client, by_key("green")) == [b"1", b"2"], "oldest first, as Apache's broker"
    assert await bodies(client, by_key("green", topic="U")) == [b"3"]
    assert await bodies(client, by_key("a#b")) == [b"2"]
    assert await bodies(client, by_key("b", topic="T#a")) == [], (
        "the same text in the index, but another topic"
    )
    assert await bodies(client, by_key("ID1")) == [b"1"]
    assert await bodies(client, by_key("ID1", unique_key=True)) == [b"1"]
    assert await bodies(client, by_key("red", unique_key=True)) == [], "a key is no unique id"
    assert await bodies(client, by_key("gre")) == []


@in_loop(converse)
async def test_keys_of_one_hash_are_told_apart(talk: Talk, /) -> None:
    await talk.client.send(b"1", properties=named("ID1", "Aa"))
    await talk.client.send(b"2", properties=named("ID2", "BB"))
    assert await bodies(talk.client, by_key("Aa")) == [b"1"]
    assert await bodies(talk.client, by_key("BB")) == [b"2"]


@in_loop(converse, max_msgs_num_batch=10, default_query_max_num=4)
async def test_the_newest_are_given_where_there_are_more_than_wanted(talk: Talk, /) -> None:
    for number in range(12):
        await talk.client.send(b"%d" % number, properties=named("SAME", "k k"))
    assert await bodies(talk.client, by_key("k", count=3)) == [b"9", b"10", b"11"]
    assert len(await found(talk.client, by_key("k", count=1000))) == 10, "maxMsgsNumBatch"
    assert len(await found(talk.client, by_key("SAME", count=1, unique_key=True))) == 4, (
        "defaultQueryMaxNum"
    )
    assert await found(talk.client, by_key("k", count=0)) == []
    assert await found(talk.client, by_key("k", count=-1)) == []


@in_loop(in_virtual_time)
async def test_times_count_to_the_millisecond_whatever_the_clock_did(
    talk: Talk, simulation: Simulation, /
) -> None:
    clock = simulation.clock("10.0.0.1")
    times = []
    for number in range(4):
        await talk.client.send(b"%d" % number, properties=named(f"ID{number}", "k"))
        (message,) = await found(talk.client, by_key(f"ID{number}"))
        times.append(message.store_timestamp)
        await asyncio.sleep(1.5)
        if number == 1:
            clock.jump(-3_600_000)
    assert times[2] < times[0]
    for number, time in enumerate(times):
        assert await bodies(talk.client, by_key("k", begin=time, end=time)) == [b"%d" % number]
        assert await bodies(talk.client, by_key("k", begin=time + 1, end=time + 1)) == []
    assert await bodies(talk.client, by_key("k", begin=times[2], end=times[0])) == [
        b"0",
        b"2",
        b"3",
    ]
    assert await bodies(talk.client, by_key("k", begin=times[0], end=times[2])) == []
    assert len(await bodies(talk.client, by_key("k", begin=-(2**63), end=LONG_MAX))) == 4


@in_loop(converse)
async def test_an_answer_says_how_far_the_index_goes(talk: Talk, /) -> None:
    answer = await talk.client.ask(by_key("k"))
    assert (answer.code, answer.remark) == (
        22,
        "can not find message, maybe time range not correct",
    )
    reply = answer.header(QueryMessageReply)
    assert (reply.index_last_update_phyoffset, reply.index_last_update_timestamp) == (0, 0)
    await talk.client.send(b"1", properties=named("ID1", "k"))
    await talk.client.send(b"2", properties=named("ID2"))
    last = (await found(talk.client, by_key("ID2")))[0]
    reply = (await talk.client.ask(by_key("k"))).header(QueryMessageReply)
    assert reply.index_last_update_phyoffset == last.commit_log_offset
    assert reply.index_last_update_timestamp == last.store_timestamp


@in_loop(converse, message_index_enable=False)
async def test_a_broker_without_an_index_says_so(talk: Talk, /) -> None:
    await talk.client.send(properties=named("ID1", "k"))
    code, remark = await talk.client.code(by_key("k"))
    assert code == ResponseCode.QUERY_NOT_FOUND
    assert "messageIndexEnable=false" in remark


@in_loop(converse)
async def test_a_message_is_viewed_at_its_offset_as_it_is_stored(talk: Talk, /) -> None:
    for number in range(3):
        await talk.client.send(b"%d" % number)
    for message in await talk.client.messages():
        answer = await talk.client.ask(ViewMessageById(topic="T", offset=message.commit_log_offset))
        assert (answer.code, answer.ext or {}) == (0, {})
        (same,) = decode_entries(answer.body)
        assert (same.body, same.offset_msg_id) == (message.body, message.offset_msg_id)
        assert (
            await talk.client.ask(ViewMessageById(offset=message.commit_log_offset))
        ).body == answer.body


@in_loop(in_virtual_time)
async def test_places_in_time_are_found_in_what_is_not_in_memory(
    talk: Talk, simulation: Simulation, /
) -> None:
    for number in range(40):
        await talk.client.send(b"%d" % number)
        await asyncio.sleep(0.1)
    for message in [message for start in (0, 32) for message in await talk.client.messages(start)]:
        for boundary in ("LOWER", "UPPER", None):
            request = SearchOffset(
                topic="T", queue_id=0, timestamp=message.store_timestamp, boundary_type=boundary
            )
            answer = await talk.client.ask(request)
            assert answer.header(OffsetReply).offset == message.queue_offset


@pytest.mark.parametrize("offset", [-1, 1, 100, 1 << 20, LONG_MAX, -(2**63)])
@in_loop(converse)
async def test_where_no_message_begins_none_is_viewed(talk: Talk, /, offset: int) -> None:
    await talk.client.send()
    code, remark = await talk.client.code(ViewMessageById(topic="T", offset=offset))
    assert (code, remark) == (1, f"can not find message by the offset, {offset}")


@in_loop(converse)
async def test_a_damaged_message_is_not_given_and_the_answer_says_why(talk: Talk, /) -> None:
    await talk.client.send(b"good one", properties=named("ID1", "k"))
    await talk.client.send(b"bad one", properties=named("ID2", "k"))
    messages = await talk.client.messages()
    bad = messages[1].commit_log_offset
    file = talk.broker.store.log.files.at(bad)
    assert file is not None
    file.buffer[bad + 90] ^= 1
    code, remark = await talk.client.code(ViewMessageById(topic="T", offset=bad))
    assert code == ResponseCode.SYSTEM_ERROR
    assert "damaged" in remark
    assert "CRC" in remark
    assert await bodies(talk.client, by_key("k")) == [b"good one"]
    code, remark = await talk.client.code(by_key("ID2"))
    assert code == ResponseCode.QUERY_NOT_FOUND
    assert "1 messages that may be meant are damaged" in remark


@in_loop(in_virtual_time, flush_disk_type="SYNC_FLUSH")
async def test_an_unflushed_message_is_not_found_where_only_flushed_ones_are_seen(
    talk: Talk, simulation: Simulation, /
) -> None:
    disk = simulation.disk("10.0.0.1")
    await talk.client.send(b"1", properties=named("ID1", "k"))
    usual, disk.sync_seconds = disk.sync_seconds, (4.0, 4.0)
    sending = asyncio.ensure_future(talk.client.send(b"2", properties=named("ID2", "k")))
    await asyncio.sleep(1)
    disk.sync_seconds = usual  # reads are quick, the sync is under way
    assert not sending.done()
    assert await bodies(talk.client, by_key("k")) == [b"1"]
    end = talk.broker.store.durable.value
    assert (await talk.client.code(ViewMessageById(topic="T", offset=end)))[0] == 1
    await sending
    assert await bodies(talk.client, by_key("k")) == [b"1", b"2"]
    assert (await talk.client.code(ViewMessageById(topic="T", offset=end)))[0] == 0


@in_loop(in_virtual_time)
async def test_what_the_disk_cannot_read_is_not_taken_for_absent(
    talk: Talk, simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    await talk.client.send(b"1", properties=named("ID1", "k"))
    offset = (await found(talk.client, by_key("k")))[0].commit_log_offset
    disk = simulation.disk("10.0.0.1")
    for _ in range(20):  # about half of what is asked for is in memory
        disk.fail("pread", errno.EIO)
        code, remark = await talk.client.code(ViewMessageById(topic="T", offset=offset))
        if code:
            assert "cannot be read" in remark
            break
    else:
        raise AssertionError("every read was from memory")
    disk.clear_faults()
    disk.fail("pread", errno.EIO, times=1000)
    for _ in range(20):
        code, remark = await talk.client.code(by_key("k"))
        assert code == 0 or "damaged" in remark or "index cannot be read now" in remark
    assert "cannot be read" in caplog.text
    refused = 0
    for _ in range(20):
        search = SearchOffset(topic="T", queue_id=0, timestamp=0)
        code, remark = await talk.client.code(search)
        refused += (
            code == ResponseCode.SYSTEM_ERROR
            and ("times of topic=T queue=0 cannot be read now") in remark
        )
        assert code == 0 or refused
    assert refused
    disk.clear_faults()
    assert await bodies(talk.client, by_key("k")) == [b"1"]


@in_loop(watched)
async def test_others_are_served_while_a_long_chain_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 messages of one key, and a question about a time before them all."""
    monkeypatch.setattr("turbopump.store.index.key_index.PAUSE_EVERY", 20)

    async with talking(tmp_path, max_hash_slot_num=100, max_index_num=20_000) as talk:
        other = talk.another()
        fill(talk, 2000)
        query = asyncio.ensure_future(talk.client.code(by_key("k", begin=1, end=2)))
        served = 0
        while not query.done():
            await other.code(ViewMessageById(offset=0))
            served += 1
        assert (await query)[0] == ResponseCode.QUERY_NOT_FOUND
        assert served >= 5


@in_loop(watched)
async def test_a_question_whose_asker_has_gone_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    walk_on = KeyWalk.next_offset

    def counted(walk: KeyWalk) -> ReadSteps[int | None]:
        nonlocal steps
        rest = walk_on(walk)
        try:
            wanted = next(rest)
            while True:
                steps += 1
                wanted = rest.send((yield wanted))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    monkeypatch.setattr(KeyWalk, "next_offset", counted)
    monkeypatch.setattr("turbopump.store.index.key_index.PAUSE_EVERY", 10)

    async with talking(tmp_path, max_hash_slot_num=100, max_index_num=20_000) as talk:
        fill(talk, 2500)
        other = talk.another()
        asking = asyncio.ensure_future(other.ask(by_key("k", begin=1, end=2)))
        await until(lambda: steps > 0)
        await other.close()
        with pytest.raises(RemotingError):
            await asking
        for _ in range(20):
            await talk.client.code(ViewMessageById(offset=0))
        assert 0 < steps < 250
        dropped_at = steps
        for _ in range(20):
            await talk.client.code(ViewMessageById(offset=0))
        assert steps == dropped_at
        assert await bodies(talk.client, by_key("SAME", count=1)) == [b"x"]


@in_loop(converse)
async def test_a_question_is_refused_where_too_many_reads_wait(
    talk: Talk, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.client.send(properties=named("ID1", "k"))
    forget_all(monkeypatch)
    monkeypatch.setattr("turbopump.store.log.cold_reads.AT_ONCE", 0)
    monkeypatch.setattr("turbopump.store.log.cold_reads.WAITING_MAX", 0)
    time_span = QueryConsumeTimeSpan(topic="T", group="g")
    for question in (by_key("k"), time_span):  # by a callback, and by a handler that awaits
        code, remark = await talk.client.code(question)
        assert code == ResponseCode.SYSTEM_BUSY
        assert "too many reads wait" in remark


@in_loop(converse)
async def test_the_age_of_a_queue_is_that_of_its_first_message(talk: Talk, /) -> None:
    async def earliest(talk: Talk, queue_id: int = 0, topic: str = "T") -> int:
        answer = await talk.client.ask(GetEarliestMsgStoreTime(topic=topic, queue_id=queue_id))
        return answer.header(EarliestStoreTimeReply).timestamp

    await talk.client.create(queues=2)
    assert await earliest(talk) == -1
    await talk.client.send()
    await talk.client.send()
    messages = await talk.client.messages()
    assert await earliest(talk) == messages[0].store_timestamp
    assert await earliest(talk, queue_id=1) == await earliest(talk, topic="unknown") == -1
    queue = talk.broker.store.queue("T", 0)
    assert queue is not None
    queue.raise_min(messages[1].commit_log_offset)
    assert await earliest(talk) == messages[1].store_timestamp


async def units(client: Client, **fields: Any) -> tuple[QueryConsumeQueueResponseBody, str]:
    request = QueryConsumeQueue(**{"topic": "T", "queue_id": 0, "count": 10, **fields})
    answer = await client.ask(request)
    assert answer.code == ResponseCode.SUCCESS, answer
    return fastjson.decode(answer.body, QueryConsumeQueueResponseBody), answer.remark or ""


@in_loop(converse)
async def test_the_units_of_a_queue_are_shown_as_they_lie_there(talk: Talk, /) -> None:
    await talk.client.create()
    first = await talk.client.send(properties="TAGS\x01a\x02")
    await talk.client.send(b"longer", properties="TAGS\x01b\x02")
    await talk.client.send()
    body, remark = await units(talk.client, index=0, count=2)
    assert (body.min_queue_index, body.max_queue_index, remark) == (0, 3, "")
    assert body.queue_data is not None
    assert [unit.physic_offset for unit in body.queue_data] == [0, body.queue_data[0].physic_size]
    assert [unit.tags_code for unit in body.queue_data] == [ord("a"), ord("b")]
    assert (body.subscription_data, body.filter_data) == (None, None)
    assert first.queue_offset == 0
    body, _ = await units(talk.client, index=2)
    assert body.queue_data is not None
    assert len(body.queue_data) == 1


@in_loop(converse)
async def test_what_a_group_wants_of_the_topic_is_shown_beside_its_units(talk: Talk, /) -> None:
    await talk.client.create()
    await talk.client.send()
    body, _ = await units(talk.client, consumer_group="g")
    assert (body.subscription_data, body.filter_data) == (None, "g@T is not online!")
    await talk.client.join("one", "g", subscription(expression="a || b"))
    body, _ = await units(talk.client, consumer_group="g")
    assert body.subscription_data is not None
    assert body.subscription_data.sub_string == "a || b"


@in_loop(converse)
async def test_a_queue_has_no_units_where_it_has_no_messages(talk: Talk, /) -> None:
    await talk.client.create()
    question = QueryConsumeQueue(topic="T", queue_id=0, index=0, count=1)
    assert await talk.client.code(question) == (ResponseCode.SYSTEM_ERROR, "0@T is not exist!")
    await talk.client.send()
    for index in (1, 99, -1):
        body, remark = await units(talk.client, index=index)
        assert (body.queue_data, body.max_queue_index) == (None, 1)
        assert remark == f"Index {index} of 0@T is not exist!"
    body, _ = await units(talk.client, count=-5)
    assert body.queue_data == []
