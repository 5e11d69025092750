"""Bans of a group on a topic (353, ``forbiddenTable``): pulls and pops are refused, also those that
wait, until the ban is lifted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.golden.recorded import FIVE, of_kind
from tests.loops import in_loop
from tests.unit.broker.popping import pop_request
from tests.unit.broker.talking import Talk, converse, pull, talking, watched
from tests.waits import until, until_count

from turbopump.broker.pop.group_queue import ANY_QUEUE, TopicGroup
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.groups import (
    GetAllGroups,
    GroupForbidden,
    SubscriptionGroupWrapper,
    UpdateGroupForbidden,
)
from turbopump.protocol.requests.pop import Notification, PeekMessage
from turbopump.protocol.requests.pull import PullMessageReply

SUBSCRIPTION_FORBIDDEN = 5
REFUSED = (ResponseCode.NO_PERMISSION, "the consumer group[g] is forbidden for topic[T]")


async def readable(
    talk: Talk, wanted: bool | None = None, *, topic: str = "T", group: str = "g"
) -> bool:
    answer = await talk.client.ask(UpdateGroupForbidden(group=group, topic=topic, readable=wanted))
    assert answer.code == ResponseCode.SUCCESS, answer
    body = fastjson.decode(answer.body, GroupForbidden)
    assert (body.group, body.topic) == (group, topic)
    assert body.readable is not None
    return body.readable


def said(answer: Command) -> tuple[int, str]:
    return answer.code, answer.remark or ""


async def pop_answer(talk: Talk, **fields: object) -> Command:
    return await talk.client.ask(pop_request(talk.broker.clock.now_ms(), **fields), timeout=30)


@in_loop(converse)
async def test_a_banned_group_neither_pulls_nor_pops_the_topic_and_others_do(talk: Talk, /) -> None:
    await talk.client.create()
    await talk.client.create("U")
    await talk.client.send()
    assert await readable(talk) is True
    assert await readable(talk, wanted=False) is False
    answer = await talk.client.ask(pull())
    assert said(answer) == REFUSED
    assert answer.header(PullMessageReply).forbidden_type == SUBSCRIPTION_FORBIDDEN
    assert said(await pop_answer(talk)) == REFUSED
    peek = PeekMessage(topic="T", queue_id=0, max_msg_nums=1, consumer_group="g")
    assert said(await talk.client.ask(peek)) == REFUSED
    notice = Notification(consumer_group="g", topic="T", queue_id=0, poll_time=0, born_time=0)
    assert said(await talk.client.ask(notice)) == REFUSED
    assert (await talk.client.ask(pull(consumer_group="h"))).code == ResponseCode.SUCCESS
    assert (await talk.client.ask(pull(topic="U"))).code == ResponseCode.PULL_NOT_FOUND
    assert await readable(talk, wanted=True) is True
    assert (await talk.client.ask(pull())).code == ResponseCode.SUCCESS
    assert (await pop_answer(talk)).code == ResponseCode.SUCCESS


@in_loop(converse)
async def test_who_waits_hears_of_the_ban_at_once(talk: Talk, /) -> None:
    await talk.client.create()
    popper = asyncio.ensure_future(pop_answer(talk, poll_ms=20_000))
    puller = asyncio.ensure_future(talk.another().ask(pull(suspend_ms=20_000), timeout=30))
    broker = talk.broker
    await until_count(broker.parts.delivering.held_pulls, 1)
    await until(
        lambda: broker.parts.delivering.pop.held.count_waiting(TopicGroup("T", "g"), ANY_QUEUE) == 1
    )
    await readable(talk, wanted=False)
    assert said(await popper) == REFUSED
    assert (await puller).code == ResponseCode.PULL_NOT_FOUND
    assert said(await talk.client.ask(pull(suspend_ms=20_000))) == REFUSED


@in_loop(watched)
async def test_bans_are_kept_and_lifted_one_by_one(tmp_path: Path) -> None:
    """RocketMQ: to lift one lifts all of the group."""
    async with talking(tmp_path) as talk:
        await readable(talk, wanted=False)
        await readable(talk, wanted=False, topic="U")
        await readable(talk, wanted=True, topic="U")
    async with talking(tmp_path) as talk:
        assert await readable(talk) is False
        assert await readable(talk, topic="U") is True
        answer = await talk.client.ask(GetAllGroups())
        table = fastjson.decode(answer.body, SubscriptionGroupWrapper).forbidden_table
        assert table == {"g": {"T": 4}}


@in_loop(watched)
async def test_the_bans_of_a_directory_of_apaches_hold(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (recorded,) = [
        each.values[0]
        for each in of_kind("config", apache=FIVE)
        if each.values[0].name == "subscriptionGroup.json"
    ]
    text = recorded.bytes.replace(b'"TopicTest":2', b'"TopicTest":6')  # that of reading as well
    (config / "subscriptionGroup.json").write_bytes(text)
    async with talking(tmp_path) as talk:
        await talk.client.create("TopicTest")
        answer = await talk.client.ask(pull(topic="TopicTest", consumer_group="consumers"))
        assert answer.header(PullMessageReply).forbidden_type == SUBSCRIPTION_FORBIDDEN
        assert await readable(talk, wanted=True, topic="TopicTest", group="consumers")
        answer = await talk.client.ask(GetAllGroups())
        table = fastjson.decode(answer.body, SubscriptionGroupWrapper).forbidden_table
        assert table == {"consumers": {"TopicTest": 2}}, "other bits are kept"


@in_loop(converse)
async def test_names_that_cannot_be_are_not_kept(talk: Talk, /) -> None:
    for group, topic in (("no/good", "T"), ("g", "../x")):
        request = UpdateGroupForbidden(group=group, topic=topic, readable=False)
        code, _ = await talk.client.code(request)
        assert code == ResponseCode.INVALID_PARAMETER
    assert talk.broker.tables.groups.bans == {}
