"""Consumers of one group of which one broadcasts, pulls, pops, keeps an order or begins elsewhere,
and another does not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import (
    Client,
    Talk,
    consumer,
    converse,
    in_virtual_time,
    subscription,
)

from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    MessageRequestMode,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.consumers import ConsumerConnection, GetConsumerConnectionList

REMEDY = "; use the same settings for all, or another group for some"
BROADCASTS = {"messageModel": "BROADCASTING"}
PULLS = {"consumeType": "CONSUME_ACTIVELY"}
POPS = {"consumeType": "CONSUME_POP"}
FIRST = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
ORDERED = {"ordered": True}
UNORDERED = {"ordered": False}


async def told(talk: Talk, one: dict[str, Any], two: dict[str, Any]) -> str | None:
    """What a group of two is told when the second has come, whose heartbeats say this beside what
    Java's say."""
    await talk.client.join("one", **one)
    return (await talk.another().join("two", **two)).remark


@pytest.mark.parametrize(
    ("one", "two", "sentence"),
    [
        (
            BROADCASTS,
            {},
            "are broadcasting and clustering, so those that are clustering miss messages: one "
            "broadcasting; two clustering",
        ),
        (
            {"messageModel": "0", "consumeType": "1"},  # by ordinal, as the C++ client says it
            {},
            "are broadcasting and clustering, so those that are clustering miss messages: one "
            "broadcasting; two clustering",
        ),
        (
            {},
            PULLS,
            "fetch messages in different ways, so messages are missed or consumed twice: two by "
            "pull; one by push",
        ),
        (
            POPS,
            {},
            "fetch messages in different ways, so messages are missed or consumed twice: two by "
            "push; one by pop",
        ),
        (
            {},
            FIRST,
            "begin at different offsets, which counts for queues in which the group has no offset "
            "yet: "
            "two from the first message; one from the last",
        ),
        (
            UNORDERED,
            ORDERED,
            "are ordered and not, so no order holds: one not in order; two in order",
        ),
    ],
)
@in_loop(converse)
async def test_what_members_do_not_do_alike_is_told_with_who_does_what_and_what_to_do(
    talk: Talk, /, one: dict[str, Any], two: dict[str, Any], sentence: str
) -> None:
    remark = await told(talk, one, two)
    assert remark == f"consumers of group g {sentence}{REMEDY}"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        # deprecated, and the same as the last
        ({}, {"consumeFromWhere": "CONSUME_FROM_MAX_OFFSET"}),
        ({}, {"consumeFromWhere": "UNKNOWN"}),
        ({}, {"consumeFromWhere": None, "consumeType": "9", "messageModel": None}),
        (PULLS, PULLS | FIRST),  # Java's lite pull says "last", whatever it is set to
        (BROADCASTS, BROADCASTS | FIRST | ORDERED),  # they share no queues
        (BROADCASTS | UNORDERED, BROADCASTS | ORDERED),
        (ORDERED, {}),  # who does not say may well be
    ],
)
@in_loop(converse)
async def test_what_does_no_harm_or_is_not_known_is_not_told(
    talk: Talk, /, one: dict[str, Any], two: dict[str, Any]
) -> None:
    assert await told(talk, one, two) is None


@in_loop(converse)
async def test_all_that_is_wrong_is_told_at_once_and_in_the_log_once_until_it_is_mended(
    talk: Talk, /, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = talk.client, talk.another()
    await one.join("one", **UNORDERED)
    settings = FIRST | ORDERED
    for _ in range(3):
        remark = (await two.join("two", "g", subscription(expression="a"), **settings)).remark or ""
        assert (await one.join("one", **UNORDERED)).remark == remark
    assert [
        remark.count(word) for word in ("subscribe differently", "ordered and not", "begin at")
    ] == [1, 1, 1]
    shown = await one.ask(GetConsumerConnectionList(consumer_group="g"))
    assert "; ".join(fastjson.decode(shown.body, ConsumerConnection).conflicts or ()) == remark
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in logged if "consumers in conflict" in line] == [
        f"consumers in conflict group=g cause={sentence}"
        for sentence in remark.replace(f"{REMEDY}; ", f"{REMEDY}\n").split("\n")
    ]
    assert (await two.join("two", "g", subscription(version=2), **UNORDERED)).remark is None
    assert b"conflicts" not in (await one.ask(GetConsumerConnectionList(consumer_group="g"))).body


async def lock(client: Client, client_id: str) -> None:
    body = LockBatchRequestBody(
        consumer_group="g", client_id=client_id, mq_set=(MessageQueue("T", "broker-a", 0),)
    )
    await client.ask(LockBatchMq(), fastjson.encode(body))


@in_loop(in_virtual_time)
async def test_who_asks_for_locks_is_ordered_and_who_does_not_is_not_accused_of_anything(
    talk: Talk, simulation: Simulation, /
) -> None:
    java, java_without_queues, ours = talk.client, talk.another(), talk.another()
    await java.join("java")
    await java_without_queues.join("without")
    await lock(java, "java")
    await lock(java, "somebody else, by the same connection")
    assert (await java.join("java")).remark is None
    remark = (await ours.join("ours", **UNORDERED)).remark
    assert (
        remark == "consumers of group g are ordered and not, so no order holds: ours not in "
        f"order; java in order{REMEDY}"
    )
    await asyncio.sleep(90)
    assert (await java.join("java")).remark is None, (
        "it has asked for no lock for long: it may have begun anew"
    )


@in_loop(converse)
async def test_who_pops_and_who_asks_the_broker_may_be_together_where_the_broker_has_them_pop(
    talk: Talk, /
) -> None:
    await talk.client.create("T")
    mode = SetMessageRequestModeRequestBody(
        topic="T", consumer_group="g", mode=MessageRequestMode.POP
    )
    remark = await told(talk, POPS, {})
    assert "two by push; one by pop" in (remark or "")
    assert await talk.client.code(SetMessageRequestMode(), fastjson.encode(mode)) == (0, "")
    assert (await talk.client.join("one", **POPS)).remark is None
    remark = (await talk.another().join("three", **PULLS)).remark
    assert "three by pull; one by pop" in (remark or ""), (
        "nobody's heartbeat says that it pulls and then pops"
    )


@in_loop(converse)
async def test_a_member_that_repeats_nothing_says_what_the_others_with_its_fingerprint_say(
    talk: Talk, /
) -> None:
    full = {
        "heartbeatFingerprint": 5,
        "consumerDataSet": [consumer("g", subscription(expression="a"), **ORDERED)],
    }
    short = {"heartbeatFingerprint": 5, "withoutSub": True, "consumerDataSet": [{"groupName": "g"}]}
    await talk.client.heartbeat({"clientID": "one", **full})
    two = talk.another()
    assert (await two.heartbeat({"clientID": "two", **short})).remark is None, (
        "it does not subscribe to nothing"
    )
    await talk.client.close()
    third = talk.another()
    await third.join("three", "g", subscription(expression="a"), **UNORDERED)
    remark = (await two.heartbeat({"clientID": "two", **full})).remark
    assert "three not in order; two in order" in (remark or "")
