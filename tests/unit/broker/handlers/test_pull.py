"""Pulls over the wire: every refusal in Apache's order, every outcome, and pulls that wait."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import (
    Talk,
    converse,
    in_virtual_time,
    pull,
    simulated_broker,
    subscription,
)
from tests.waits import until_count, until_some

from turbopump.broker.handlers import pull as pulls
from turbopump.message.batch import encode_batch
from turbopump.message.codec import decode_entries
from turbopump.message.message import Message
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.protocol.requests.offsets import QueryConsumerOffset
from turbopump.protocol.requests.pull import (
    LitePullMessage,
    PullMessage,
    PullMessageReply,
    PullSysFlag,
)
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.response import encode_response
from turbopump.store.queues.read_result import GetResult, GetStatus

LONG_MS = 60_000


async def answered(talk: Talk, request: PullMessage) -> tuple[int, str, str | None]:
    """Code, remark and forbiddenType."""
    answer = await talk.client.ask(request)
    return answer.code, answer.remark or "", (answer.ext or {}).get("forbiddenType")


@in_loop(converse)
async def test_a_reader_that_asks_for_more_bytes_than_the_usual_limit_gets_a_large_pull(
    talk: Talk, /
) -> None:
    for number in range(100):
        await talk.client.send(b"%d" % number)
    usual, header = await talk.client.pull(0, max_msg_nums=90, max_msg_bytes=256 * 1024)
    assert (header.next_begin_offset, len(list(decode_entries(usual.body)))) == (32, 32)
    large, header = await talk.client.pull(0, max_msg_nums=90, max_msg_bytes=1 << 20)
    assert [message.body for message in decode_entries(large.body)] == [
        b"%d" % number for number in range(90)
    ]
    assert (header.next_begin_offset, header.max_offset) == (90, 100)
    tagged, header = await talk.client.pull(90, max_msg_nums=90, max_msg_bytes=1 << 20, tags="no")
    assert (tagged.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 100)


@in_loop(converse)
async def test_javas_clients_ask_for_all_bytes_and_few_messages_and_get_the_usual_pull(
    talk: Talk, /
) -> None:
    for _ in range(32):
        await talk.client.send(b"x" * 10_000)
    _, header = await talk.client.pull(0, max_msg_nums=32, max_msg_bytes=(1 << 31) - 1)
    assert header.next_begin_offset == 25
    _, header = await talk.client.pull(0, max_msg_nums=33, max_msg_bytes=(1 << 31) - 1)
    assert header.next_begin_offset == 32


@in_loop(converse)
async def test_messages_come_as_they_are_stored_with_the_ends_of_the_queue(talk: Talk, /) -> None:
    for number in range(5):
        await talk.client.send(b"%d" % number)
    answer, header = await talk.client.pull(1, max_msg_nums=3)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert (header.next_begin_offset, header.min_offset, header.max_offset) == (4, 0, 5)
    assert (header.suggest_which_broker_id, header.topic_sys_flag, header.group_sys_flag) == (
        0,
        0,
        0,
    )
    unit = talk.broker.store.queue("T", 0)
    assert unit is not None
    offset, _, _ = unit.unit(1) or (0, 0, 0)
    assert answer.body == talk.broker.store.log.read(offset, len(answer.body))
    lite = await talk.client.ask(
        LitePullMessage(
            consumer_group="g",
            topic="T",
            queue_id=0,
            queue_offset=0,
            sys_flag=PullSysFlag.SUBSCRIPTION,
        )
    )
    assert len(list(decode_entries(lite.body))) == 5


@in_loop(converse, auto_create_subscription_group=False, lite_pull_message_enable=False)
async def test_the_refusals_of_a_pull_come_in_apache_s_order(talk: Talk, /) -> None:
    topics, groups = talk.broker.tables.topics, talk.broker.tables.groups
    bad: dict[str, Any] = {
        "consumer_group": "new",
        "topic": "new",
        "queue_id": 7,
        "tags": None,
        "sub_version": 5,
    }
    lite = PullSysFlag.LITE_PULL

    code, remark, kind = await answered(talk, pull(flags=lite, **bad))
    assert (code, kind) == (ResponseCode.NO_PERMISSION, "1")
    assert "for lite pull consumer is forbidden" in remark

    code, remark, _ = await answered(talk, pull(**bad))
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    groups.put(
        SubscriptionGroupConfig(
            group_name="new", consume_enable=False, consume_broadcast_enable=False
        )
    )
    code, remark, kind = await answered(talk, pull(**bad))
    assert (code, kind) == (ResponseCode.NO_PERMISSION, "2")

    groups.put(SubscriptionGroupConfig(group_name="new", consume_broadcast_enable=False))
    code, remark, _ = await answered(talk, pull(**bad))
    assert code == ResponseCode.TOPIC_NOT_EXIST

    await talk.client.create("new", perm=2)
    code, remark, kind = await answered(talk, pull(**bad))
    assert (code, kind) == (ResponseCode.NO_PERMISSION, "3")

    await talk.client.create("new", perm=6)
    for queue_id in (7, -1, 1):
        code, remark, _ = await answered(talk, pull(**{**bad, "queue_id": queue_id}))
        assert code == ResponseCode.INVALID_PARAMETER
        assert f"queueId[{queue_id}] is illegal" in remark

    good = {**bad, "queue_id": 0}
    code, remark, _ = await answered(talk, pull(**{**good, "tags": "||"}))
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    code, remark, _ = await answered(talk, pull(**good))
    assert (code, "send a heartbeat first" in remark) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, True)

    await talk.client.join("c", "new", subscription("other"), messageModel="BROADCASTING")
    code, remark, kind = await answered(talk, pull(**good))
    assert (code, kind) == (ResponseCode.NO_PERMISSION, "4")

    await talk.client.join("c", "new", subscription("other"), messageModel="CLUSTERING")
    code, remark, _ = await answered(talk, pull(**good))
    assert (code, "group new, topic new" in remark) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, True)

    await talk.client.join("c", "new", subscription("new", version=4))
    code, remark, _ = await answered(talk, pull(**good))
    assert code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    await talk.client.join(
        "c", "new", subscription("new", "a = ", version=5, expressionType="SQL92")
    )
    code, remark, _ = await answered(talk, pull(**good))
    assert (code, "at character 5" in remark) == (ResponseCode.FILTER_DATA_NOT_EXIST, True)

    await talk.client.join("c", "new", subscription("new", version=6))
    code, remark, _ = await answered(talk, pull(**good))
    assert code == ResponseCode.PULL_NOT_FOUND
    assert topics.find("new") is not None


@in_loop(converse, broker_permission=2)
async def test_a_broker_that_may_not_be_read_refuses_pulls_before_anything_else(
    talk: Talk, /
) -> None:
    code, _, kind = await answered(talk, pull(topic="unknown", consumer_group="bad group"))
    assert (code, kind) == (ResponseCode.NO_PERMISSION, "1")


@in_loop(converse)
async def test_an_illegal_group_is_not_made(talk: Talk, /) -> None:
    await talk.client.create()
    for group in ("a b", "../g", "g" * 121, ""):
        code, _, _ = await answered(talk, pull(consumer_group=group))
        assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert talk.broker.tables.groups.get(group) is None
    await talk.client.pull(consumer_group="fine")
    assert talk.broker.tables.groups.get("fine")


@pytest.mark.parametrize(
    ("offset", "code", "status", "following"),
    [
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (0, ResponseCode.SUCCESS, "FOUND", 3),
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (2**62, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    ],
)
@in_loop(converse)
async def test_an_offset_outside_the_queue_has_its_code_and_says_where_to_go_on(
    talk: Talk, /, offset: int, code: int, status: str, following: int
) -> None:
    for _ in range(3):
        await talk.client.send()
    answer, header = await talk.client.pull(offset)
    assert (answer.code, answer.remark, header.next_begin_offset) == (code, status, following)
    assert (header.min_offset, header.max_offset) == (0, 3)


@in_loop(converse)
async def test_a_queue_without_messages_is_not_found_at_zero_and_moved_elsewhere(
    talk: Talk, /
) -> None:
    await talk.client.create()
    at_zero, header = await talk.client.pull(0)
    assert (at_zero.code, at_zero.remark, header.next_begin_offset) == (
        19,
        "NO_MATCHED_LOGIC_QUEUE",
        0,
    )
    elsewhere, header = await talk.client.pull(5)
    assert (elsewhere.code, header.next_begin_offset) == (21, 0)


@in_loop(converse)
async def test_tags_choose_messages_and_nothing_wanted_means_try_again_further_on(
    talk: Talk, /
) -> None:
    for tag in "abcab":
        await talk.client.send(tag.encode(), properties=f"TAGS\x01{tag}\x02")
    assert [message.body for message in await talk.client.messages(tags="a || c")] == [
        b"a",
        b"c",
        b"a",
    ]
    answer, header = await talk.client.pull(0, tags="z", suspend_ms=LONG_MS)
    assert (answer.code, answer.remark, header.next_begin_offset) == (20, "NO_MATCHED_MESSAGE", 5)
    await talk.client.join("c", "g", subscription(expression="b", tagsSet=["b"], codeSet=[98]))
    assert [message.body for message in await talk.client.messages(tags=None)] == [b"b", b"b"]


@pytest.mark.parametrize(
    "flags", [PullSysFlag.COMMIT_OFFSET, PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND]
)
@in_loop(converse)
async def test_a_pull_may_commit_its_group_s_place(talk: Talk, /, flags: int) -> None:
    await talk.client.send()
    await talk.client.pull(0, flags=flags, commit_offset=7)
    query = QueryConsumerOffset(consumer_group="g", topic="T", queue_id=0)
    assert (await talk.client.ask(query)).ext == {"offset": "7"}
    await talk.client.pull(0, commit_offset=9)
    assert (await talk.client.ask(query)).ext == {"offset": "7"}, "only with the flag"


# --- pulls that wait ---


@in_loop(converse)
async def test_a_held_pull_wakes_when_its_queue_grows(talk: Talk, /) -> None:
    await talk.client.send(b"old")
    waiting = asyncio.ensure_future(talk.another().pull(1, suspend_ms=LONG_MS))
    await until_some(talk.broker.parts.delivering.held_pulls)
    await talk.client.send(b"other topic", "U")
    assert not waiting.done()
    await talk.client.send(b"new")
    answer, header = await waiting
    assert [message.body for message in decode_entries(answer.body)] == [b"new"]
    assert (answer.code, header.next_begin_offset) == (0, 2)
    assert len(talk.broker.parts.delivering.held_pulls) == 0


@in_loop(converse)
async def test_a_held_pull_gets_all_that_came_in_the_same_moment(talk: Talk, /) -> None:
    await talk.client.create()
    waiting = asyncio.ensure_future(talk.another().pull(0, suspend_ms=LONG_MS))
    await until_some(talk.broker.parts.delivering.held_pulls)
    batch = encode_batch([Message("T", b"%d" % number) for number in range(5)])
    await talk.client.ask(SendMessageV2(topic="T", queue_id=0, batch=True), batch)
    answer, _ = await waiting
    assert len(list(decode_entries(answer.body))) == 5


@in_loop(converse)
async def test_a_pull_is_held_on_a_queue_that_does_not_exist_yet(
    talk: Talk, /, tmp_path: Path
) -> None:
    await talk.client.create(queues=4)
    clients = [talk.another() for _ in range(3)]
    waiting = [
        asyncio.ensure_future(client.pull(0, queue_id=3, suspend_ms=LONG_MS)) for client in clients
    ]
    await until_count(talk.broker.parts.delivering.held_pulls, 3)
    assert not (tmp_path / "consumequeue" / "T").exists(), "waiting makes no files"
    await talk.client.send(b"first", queue_id=3)
    for answer, header in await asyncio.gather(*waiting):
        assert [message.body for message in decode_entries(answer.body)] == [b"first"]
        assert header.next_begin_offset == 1


@in_loop(converse)
async def test_a_held_pull_goes_by_the_tags_that_its_group_wants_when_messages_come(
    talk: Talk, /
) -> None:
    await talk.client.create()
    reader = talk.another()
    await reader.join("reader", "g", subscription(expression="A", version=1))
    waiting = asyncio.ensure_future(reader.pull(0, tags=None, sub_version=1, suspend_ms=LONG_MS))
    await until_some(talk.broker.parts.delivering.held_pulls)
    await reader.join("reader", "g", subscription(expression="B", version=2))
    for tag in "AB":
        await talk.client.send(tag.encode(), properties=f"TAGS\x01{tag}\x02")
    answer, header = await waiting
    assert [message.body for message in decode_entries(answer.body)] == [b"B"]
    assert header.next_begin_offset == 2


@in_loop(converse, mapped_file_size_commit_log=4 << 20)
async def test_messages_that_a_held_pull_does_not_want_move_it_on_without_waking_its_client(
    talk: Talk, /
) -> None:
    await talk.client.create()
    waiting = asyncio.ensure_future(talk.another().pull(0, tags="wanted", suspend_ms=LONG_MS))
    await until_some(talk.broker.parts.delivering.held_pulls)
    for _ in range(3):
        await talk.client.send(b"no", properties="TAGS\x01unwanted\x02")
    nothing = encode_batch([Message("T", b"no")] * 2000)  # more than one look takes in
    await talk.client.ask(SendMessageV2(topic="T", queue_id=0, batch=True), nothing)
    assert not waiting.done()
    await talk.client.send(b"yes", properties="TAGS\x01wanted\x02")
    answer, header = await waiting
    assert [(message.body, message.queue_offset) for message in decode_entries(answer.body)] == [
        (b"yes", 2003)
    ]
    assert header.next_begin_offset == 2004


@pytest.mark.parametrize(
    ("config", "asked_ms", "held_s"),
    [
        ({}, 15_000, 15),
        ({}, 3_600_000, 120),
        ({"long_polling_enable": False}, 15_000, 1),
        ({"long_polling_enable": False, "short_polling_time_mills": 300}, 15_000, 0.3),
    ],
)
@in_loop(on_a_client_s_host)
async def test_a_held_pull_is_answered_when_its_time_is_up(
    simulation: Simulation, /, config: dict[str, Any], asked_ms: int, held_s: float
) -> None:
    async with simulated_broker(
        simulation,
        server_channel_max_idle_time_seconds=1000,
        channel_expired_timeout=1_000_000,
        **config,
    ) as talk:
        await talk.client.send()
        begun = simulation.loop.time()
        answer = await talk.client.ask(pull(1, suspend_ms=asked_ms), timeout=200)
        assert simulation.loop.time() - begun == pytest.approx(held_s, abs=0.2)
        header = answer.header(PullMessageReply)
        assert (answer.code, header.next_begin_offset, header.max_offset) == (19, 1, 1)


@in_loop(in_virtual_time)
async def test_a_held_pull_whose_time_is_up_says_how_far_its_filter_came(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    waiting = asyncio.ensure_future(
        talk.client.ask(pull(0, tags="wanted", suspend_ms=20_000), timeout=60)
    )
    begun = simulation.loop.time()
    for _ in range(10):
        await asyncio.sleep(1)
        await talk.client.send(b"no")
    answer = await waiting
    assert simulation.loop.time() - begun == pytest.approx(20, abs=0.5), (
        "its deadline stays where it was"
    )
    assert (answer.code, answer.header(PullMessageReply).next_begin_offset) == (19, 10)


@in_loop(in_virtual_time)
async def test_pulls_that_come_and_go_on_a_quiet_queue_leave_nothing_behind(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    for _ in range(300):
        await talk.client.ask(pull(0, suspend_ms=1000))
    queue = talk.broker.store.queue("T", 0)
    assert queue is not None
    assert queue.end.waiting < 50
    assert len(talk.broker.parts.delivering.held_pulls) == 0


@in_loop(converse)
async def test_a_closing_broker_answers_its_held_pulls(talk: Talk, /) -> None:
    await talk.client.create()
    waiting = asyncio.ensure_future(talk.client.pull(0, suspend_ms=LONG_MS))
    await until_some(talk.broker.parts.delivering.held_pulls)
    await talk.broker.close()
    answer, _ = await waiting
    assert answer.code == 19


@in_loop(converse)
async def test_a_client_that_is_gone_does_not_hinder_the_others(talk: Talk, /) -> None:
    await talk.client.create()
    gone, there = talk.another(), talk.another()
    lost = asyncio.ensure_future(gone.pull(0, suspend_ms=LONG_MS))
    waiting = asyncio.ensure_future(there.pull(0, suspend_ms=LONG_MS))
    await until_count(talk.broker.parts.delivering.held_pulls, 2)
    await gone.close()
    await asyncio.wait([lost])
    assert lost.exception() is not None
    await talk.client.send(b"x")
    answer, _ = await waiting
    assert answer.code == 0


@given(
    st.integers(0, (1 << 31) - 1),
    *(st.integers(0, (1 << 63) - 1) for _ in range(3)),
    st.binary(max_size=50),
)
def test_the_short_way_of_an_answer_gives_the_same_frame(
    opaque: int, begin: int, low: int, high: int, data: bytes
) -> None:
    result = GetResult(GetStatus.FOUND, begin, low, high, data, 1)
    response = pulls._response(result, ResponseCode.SUCCESS)
    assert pulls._found(opaque, result) == encode_response(opaque, response)
