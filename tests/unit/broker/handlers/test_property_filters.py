"""Consumers that filter by SQL92 get what matches and only that; a bad filter is answered with its
fault; nobody waits for a filter."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse, pull, subscription

from turbopump.message.properties import encode_properties
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.clients import (
    CheckClientConfig,
    CheckClientRequestBody,
    SubscriptionData,
)
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.queues.matching import TURN_UNITS, UNITS_MAX, PropertyText, read_matching
from turbopump.store.queues.read_result import GetResult

SQL = "SQL92"


async def send_prices(talk: Talk, count: int) -> None:
    for number in range(count):
        text = encode_properties(
            {"price": str(number), "TAGS": "even" if number % 2 == 0 else "odd"}
        )
        await talk.client.send(b"%d" % number, properties=text)


async def matching(talk: Talk, sql: str) -> tuple[list[bytes], int]:
    """Every body that a consumer with this filter gets, and how many pulls it takes."""
    bodies, offset, pulls = [], 0, 0
    while True:
        messages = await talk.client.messages(offset, tags=sql, expression_type=SQL)
        answer, header = await talk.client.pull(offset, tags=sql, expression_type=SQL)
        pulls += 1
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return bodies, pulls
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        assert header.next_begin_offset > offset
        bodies += [message.body for message in messages]
        offset = header.next_begin_offset


@in_loop(converse)
async def test_only_what_matches_is_given_and_all_of_it(talk: Talk, /) -> None:
    await send_prices(talk, 300)
    assert (await matching(talk, "price >= 250 AND TAGS = 'odd'"))[0] == [
        b"%d" % n for n in range(251, 300, 2)
    ]
    assert len((await matching(talk, "price IS NOT NULL"))[0]) == 300
    bodies, pulls = await matching(talk, "price > 1000")
    assert bodies == []
    assert pulls == 2  # 300 messages are passed in one


@in_loop(converse)
async def test_one_pull_passes_a_bounded_piece_of_the_queue(talk: Talk, /) -> None:
    await send_prices(talk, UNITS_MAX + 50)
    answer, header = await talk.client.pull(0, tags="price < 0", expression_type=SQL)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert header.next_begin_offset == UNITS_MAX


@in_loop(converse)
async def test_a_held_pull_wakes_for_a_match_and_not_for_others(talk: Talk, /) -> None:
    await talk.client.create()
    held = asyncio.ensure_future(
        talk.client.ask(pull(0, tags="price = 3", expression_type=SQL, suspend_ms=20_000))
    )
    other = talk.another()
    for number in range(3):
        await other.send(b"no", properties=encode_properties({"price": str(number)}))
        assert not held.done()
    await other.send(b"yes", properties=encode_properties({"price": "3"}))
    answer = await held
    assert answer.code == ResponseCode.SUCCESS
    assert b"yes" in answer.body
    assert b"no" not in answer.body


@in_loop(converse)
async def test_a_group_s_filter_comes_with_its_heartbeat(talk: Talk, /) -> None:
    await send_prices(talk, 10)
    await talk.client.join(
        "c", "g", subscription("T", "price BETWEEN 3 AND 5", version=1, expressionType=SQL)
    )
    assert [m.body for m in await talk.client.messages(0, tags=None, sub_version=1)] == [
        b"3",
        b"4",
        b"5",
    ]
    await talk.client.join(
        "c", "g", subscription("T", "price = 'x' AND", version=2, expressionType=SQL)
    )
    answer = await talk.client.ask(pull(0, tags=None, sub_version=2))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert (
        "at character 16: a property, a literal or a bracket should stand here, not the end"
        in str(answer.remark)
    )
    await talk.client.join(
        "c", "g", subscription("T", "price = '9'", version=3, expressionType=SQL)
    )
    assert [m.body for m in await talk.client.messages(0, tags=None, sub_version=3)] == [b"9"]


@in_loop(converse)
async def test_a_pull_s_own_bad_filter_and_an_unknown_kind_are_refused(talk: Talk, /) -> None:
    await talk.client.create()
    answer = await talk.client.ask(pull(0, tags="price >", expression_type=SQL))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    answer = await talk.client.ask(pull(0, tags="x", expression_type="XPATH"))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "there are TAG and SQL92" in str(answer.remark)


async def asked(talk: Talk, **data: str) -> tuple[int, str]:
    body = CheckClientRequestBody(
        client_id="c", group="g", subscription_data=SubscriptionData(topic="T", **data)
    )
    answer = await talk.client.ask(CheckClientConfig(), fastjson.encode(body))
    return answer.code, answer.remark or ""


@in_loop(converse)
async def test_a_consumer_can_ask_before_it_starts(talk: Talk, /) -> None:
    assert await asked(talk, sub_string="a || b", expression_type="TAG") == (0, "")
    assert await asked(talk, sub_string="a > 1", expression_type=SQL) == (0, "")
    code, remark = await asked(talk, sub_string="a >", expression_type=SQL)
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 4" in remark


@in_loop(converse, enable_property_filter=False)
async def test_a_broker_may_do_without_property_filters(talk: Talk, /) -> None:
    await talk.client.create()
    answer = await talk.client.ask(pull(0, tags="price > 1", expression_type=SQL))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(answer.remark).startswith(
        "The broker does not support consumer to filter message by SQL92"
    )


@pytest.mark.parametrize(("message_s", "most"), [(0.0, TURN_UNITS), (0.0004, 3), (0.005, 1)])
@in_loop(converse)
async def test_a_filter_over_many_messages_leaves_the_loop_to_others(
    talk: Talk, /, message_s: float, most: int
) -> None:
    """``message_s``: what judging one message takes; a turn is over with the message that makes it
    a millisecond."""
    await send_prices(talk, UNITS_MAX)
    reader = talk.broker.store.reader
    judged, now = 0, 0.0
    in_one_go: list[int] = []

    def none(_properties: PropertyText) -> bool:
        nonlocal judged, now
        judged += 1
        now += message_s
        return False

    found: list[GetResult] = []

    def steps() -> ReadSteps[None]:
        found.append(
            (
                yield from read_matching(
                    lambda at: reader.steps("T", 0, at, 32), 0, 32, none, lambda: now
                )
            )
        )

    for pieces in steps():
        assert pieces == []  # nothing to read: a pause
        in_one_go.append(judged)
        judged = 0
    assert found[0].next_offset == UNITS_MAX
    assert max(in_one_go) == most
