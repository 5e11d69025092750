"""Requests that make thousands of groups or topics: others have their turn meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Client, Talk, consumer, converse, in_virtual_time, until
from tests.unit.broker.turns import LONGEST_MS, Turns

from turbopump.broker.handlers.clients import NOTICE_PAUSE_S
from turbopump.protocol import fastjson
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.groups import CreateGroupList, GetAllGroups
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.topics import CreateTopicList, GetAllTopicConfig
from turbopump.testing.simulation import Simulation

COUNT = 2_000

REQUESTS: dict[str, tuple[Request[Any], dict[str, Any]]] = {
    "a heartbeat": (
        Heartbeat(),
        {"clientID": "c", "consumerDataSet": [consumer(f"g{number}") for number in range(COUNT)]},
    ),
    "a list of groups": (
        CreateGroupList(),
        {"groupConfigList": [{"groupName": f"g{number}"} for number in range(COUNT)]},
    ),
    "a list of topics": (
        CreateTopicList(),
        {"topicConfigList": [{"topicName": f"g{number}"} for number in range(COUNT)]},
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
@in_loop(converse)
async def test_no_turn_of_the_loop_is_long_while_thousands_are_made_and_listed(
    talk: Talk, /, kind: str
) -> None:
    request, body = REQUESTS[kind]
    frame = fastjson.encode(body)
    with Turns() as turns:
        answer = await talk.client.ask(request, frame)
        assert (answer.code, answer.remark) == (0, None)
        tables = talk.broker.tables
        assert await tables.groups.saved()
        assert await tables.topics.saved()
        for listing in (GetAllGroups(), GetAllTopicConfig()):
            assert (await talk.client.ask(listing)).code == 0
        for client in talk.clients:
            await client.close()
        await until(lambda: not talk.broker.clients_handler.clients.groups)
    assert turns.longest_ms < LONGEST_MS
    made = tables.topics if kind == "a list of topics" else tables.groups
    assert set(made.names()) >= {f"g{number}" for number in range(COUNT)}


@in_loop(in_virtual_time)
async def test_another_client_is_answered_while_a_large_heartbeat_is_looked_at(
    talk: Talk, simulation: Simulation, /
) -> None:
    other = talk.another()
    await other.create()
    request, body = REQUESTS["a heartbeat"]
    beat = asyncio.ensure_future(talk.client.ask(request, fastjson.encode(body)))
    answered = 0
    while not beat.done():
        assert (await other.ask(GetMaxOffset(topic="T", queue_id=0))).code == 0
        answered += 1
    assert answered > 3
    assert await other.members("g1999") == ["c"]


@in_loop(converse)
async def test_of_a_client_that_goes_away_within_its_heartbeat_nothing_is_left(
    talk: Talk, /
) -> None:
    request, body = REQUESTS["a heartbeat"]
    client, clients = talk.another(), talk.broker.clients_handler.clients
    await client.remoting.send_oneway(client.address, request, fastjson.encode(body))
    await until(lambda: clients.groups)
    await client.close()
    assert 0 < len(clients.groups) < COUNT
    await until(lambda: not clients.groups and not talk.broker.server.connections)
    assert await talk.client.members("g0") == []
    assert clients.groups == {}
    assert not talk.broker.tables.groups.knows(f"g{COUNT - 1}"), "the rest was not looked at"


async def join_one_by_one(members: list[Client], first: int = 0) -> None:
    for number, member in enumerate(members, first):
        assert (await member.join(f"c{number}")).remark is None


@in_loop(in_virtual_time)
async def test_members_of_a_large_group_are_told_once_of_many_that_join(
    talk: Talk, simulation: Simulation, /
) -> None:
    members = [talk.another() for _ in range(200)]
    await join_one_by_one(members[:120])
    await asyncio.sleep(1)
    before = len(members[0].noticed)
    await join_one_by_one(members[120:], 120)
    await asyncio.sleep(200 * NOTICE_PAUSE_S + 0.1)
    assert members[-1].noticed, "soon"
    assert 1 <= len(members[0].noticed) - before <= 8
    assert await members[0].members() == [f"c{number}" for number in range(200)]
    await members[7].close()
    await asyncio.sleep(1)
    assert "c7" not in await members[0].members()
