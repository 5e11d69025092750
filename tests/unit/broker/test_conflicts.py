"""Consumers of one group that subscribe differently, or share a client id, are noticed at the
heartbeat."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import (
    Talk,
    consumer,
    in_virtual_time,
    simulated_broker,
    subscription,
)

from turbopump.broker.client_table import ClientTable
from turbopump.broker.conflicts import find_conflicts
from turbopump.broker.membership import CHECK_PAUSE_S, SMALL_GROUP
from turbopump.protocol import fastjson
from turbopump.protocol.requests.clients import (
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from turbopump.protocol.requests.consumers import ConsumerConnection, GetConsumerConnectionList

DIFFERENT = (
    "consumers of group g subscribe differently, so messages are missed: one to T (a || b); two "
    "to T (*); use the same settings "
)


def data(*expressions: str, kind: str = "TAG", **more: object) -> ConsumerData:
    topics = [(f"T{i}", expression) for i, expression in enumerate(expressions)] + [
        ("%RETRY%g", "*")
    ]
    subscriptions = tuple(
        SubscriptionData(topic=topic, sub_string=text, expression_type=kind)
        for topic, text in topics
    )
    return ConsumerData(group_name="g", subscription_data_set=subscriptions, **more)  # type: ignore[arg-type]


def found(*heartbeats: tuple[str, str, ConsumerData, float]) -> tuple[str, ...]:
    """The conflicts after heartbeats of (connection, client id, …, time)."""
    clients: ClientTable[str] = ClientTable()
    for peer, client_id, told, now in heartbeats:
        clients.add_consumer(peer, client_id, 0, told, {}, now)
    return find_conflicts("g", clients.groups["g"].members.values())


def test_the_same_subscription_may_be_written_in_several_ways() -> None:
    assert found(("p", "one", data("a || b", "*"), 1), ("q", "two", data("b||a", ""), 2)) == ()
    (sentence,) = found(
        ("p", "one", data("a", "x"), 1),
        ("q", "two", data("a", "y"), 2),
        ("r", "three", data("a", "x"), 3),
    )
    assert "one, three to T1 (x); two to T1 (y);" in sentence
    (sentence,) = found(
        ("p", "one", data("a > 1", kind="SQL92"), 1),
        ("q", "two", data("a > 1", "*", kind="SQL92"), 2),
    )
    assert "one to nothing else; two to T1 (*);" in sentence


def test_who_pulls_by_himself_may_read_what_he_likes() -> None:
    kind = ConsumeType.CONSUME_ACTIVELY
    assert (
        found(
            ("p", "one", data("a", consume_type=kind), 1),
            ("q", "two", data("b", consume_type=kind), 2),
        )
        == ()
    )


def test_a_dead_connection_of_a_client_that_came_back_is_no_second_client() -> None:
    came_back = [
        ("p", "one", data("a"), 1.0),
        ("q", "one", data("b"), 40.0),
        ("q", "one", data("b"), 70.0),
    ]
    assert found(*came_back) == (), "nor is what it subscribed then"
    (sentence,) = found(*came_back, ("p", "one", data("b"), 71.0))
    assert sentence.startswith(
        "client id one is used by 2 consumers of group g, which therefore get the same queues;"
    )
    shared = [
        (peer, "one", data("a", message_model=MessageModel.BROADCASTING), now)
        for peer, now in (("p", 1.0), ("q", 2.0), ("p", 3.0))
    ]
    assert found(*shared) == (), "broadcasting clients of a host are all named alike"


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().removeprefix("consumers in conflict group=g cause=")[: len(DIFFERENT)]
        for record in caplog.records
        if record.levelno == logging.WARNING and "consumers in conflict" in record.getMessage()
    ]


@in_loop(in_virtual_time)
async def test_a_conflict_is_logged_once_told_to_the_clients_and_to_admins_and_ends(
    talk: Talk, simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = talk.client, talk.another()
    await one.join("one", "g", subscription(expression="a || b"))
    answer = await two.join("two")
    assert answer.code == 0
    assert (answer.remark or "").startswith(DIFFERENT)
    for _ in range(3):
        answer = await one.join("one", "g", subscription(expression="a || b"))
        assert (answer.remark or "").startswith(DIFFERENT)
    assert logged(caplog) == [DIFFERENT]
    shown = await one.ask(GetConsumerConnectionList(consumer_group="g"))
    (told,) = fastjson.decode(shown.body, ConsumerConnection).conflicts or ()
    assert told.startswith(DIFFERENT)
    assert (await two.join("two", "g", subscription(expression="b||a", version=2))).remark is None
    assert b"conflicts" not in (await one.ask(GetConsumerConnectionList(consumer_group="g"))).body
    await two.join("two", "g", subscription(expression="*", version=3))
    assert logged(caplog) == [DIFFERENT, DIFFERENT], "it began anew"
    await two.close()


@in_loop(in_virtual_time)
async def test_a_large_group_is_compared_now_and_then_and_told_the_same_meanwhile(
    talk: Talk, simulation: Simulation, /
) -> None:
    others = [talk.another() for _ in range(SMALL_GROUP)]
    for i, other in enumerate(others):
        assert (await other.join(f"c{i}")).remark is None
    answer = await talk.client.join("odd", "g", subscription(expression="a"))
    assert "subscribe differently" in (answer.remark or ""), "who comes is compared at once"
    assert (await others[0].join("c0")).remark == answer.remark
    alike = subscription(expression="*", version=2)
    assert (await talk.client.join("odd", "g", alike)).remark == answer.remark, (
        "not looked at again yet"
    )
    await asyncio.sleep(CHECK_PAUSE_S * (SMALL_GROUP + 1))
    assert (await talk.client.join("odd", "g", alike)).remark is None


@in_loop(on_a_client_s_host)
async def test_two_programs_of_one_name_are_warned_each_once(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with simulated_broker(simulation) as talk:
        answers = []
        for client in (talk.client, talk.another(), talk.client):
            answers.append(
                await client.heartbeat({"clientID": "same", "consumerDataSet": [consumer("g")]})
            )
            await asyncio.sleep(1)
        assert [bool(answer.remark) for answer in answers] == [False, False, True]
    assert caplog.text.count("client id same is used by 2 consumers of group g") == 1
