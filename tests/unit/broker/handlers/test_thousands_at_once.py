"""Requests that make thousands of groups or topics: others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Client, Talk, consumer, converse, in_virtual_time, talking
from tests.unit.metered_loop import TURN_MAX_S, BlockingClient, Metered, metered
from tests.waits import until, until_some

from turbopump.broker.broker import Broker
from turbopump.broker.membership import NOTICE_PAUSE_S
from turbopump.protocol import fastjson
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.groups import CreateGroupList, GetAllGroups
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, CreateTopicList, GetAllTopicConfig

COUNT = 2_000

Frames = Callable[[list[str]], list[tuple[Request[Any], bytes]]]

REQUESTS: dict[str, Frames] = {
    "a heartbeat": lambda names: [
        (
            Heartbeat(),
            fastjson.encode({"clientID": "c", "consumerDataSet": [consumer(n) for n in names]}),
        )
    ],
    "heartbeats": lambda names: [
        (Heartbeat(), fastjson.encode({"clientID": "c", "consumerDataSet": [consumer(n)]}))
        for n in names
    ],
    "a list of groups": lambda names: [
        (CreateGroupList(), fastjson.encode({"groupConfigList": [{"groupName": n} for n in names]}))
    ],
    "a list of topics": lambda names: [
        (CreateTopicList(), fastjson.encode({"topicConfigList": [{"topicName": n} for n in names]}))
    ],
    "topics": lambda names: [(CreateTopic(topic=n), b"") for n in names[:500]],
    "first sends": lambda names: [
        (SendMessageV2(topic=n, queue_id=0), b"one") for n in names[:1000]
    ],
}
"""What makes things of these names."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered[Broker]]:
    directory = tmp_path_factory.mktemp("thousands")
    settings = {"broker_fast_failure_enable": False}  # a slow machine refuses no send
    with metered(partial(talking, directory, **settings)) as running:
        yield Metered(running.loop, running.server.broker)


def make(attempts: Any, broker: Metered[Broker], kind: str) -> None:
    names = [f"{kind.replace(' ', '-')}-{next(attempts)}-{number}" for number in range(COUNT)]
    with BlockingClient(broker.do(lambda server: server.port)) as client:
        frames = [client.frame(request, body) for request, body in REQUESTS[kind](names)]
        writing = threading.Thread(target=client.write, args=(b"".join(frames),))
        writing.start()
        answers: list[Command] = []
        while len(answers) < len(frames):  # notices come between them
            answers += [one for one in client.read() if one.is_response]
        writing.join()
    assert [answer.remark for answer in answers if answer.code] == []
    made = broker.do(lambda server: server.tables.topics.names() + server.tables.groups.names())
    assert set(made) >= set(names[: len(frames)] if len(frames) > 1 else names)


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_turn_of_the_loop_is_long_while_thousands_are_made(
    broker: Metered[Broker], kind: str
) -> None:
    attempts = count()

    assert broker.longest_turn(partial(make, attempts, broker, kind)) <= TURN_MAX_S


def test_no_turn_of_the_loop_is_long_while_thousands_are_listed(broker: Metered[Broker]) -> None:
    with BlockingClient(broker.do(lambda server: server.port)) as client:
        names = [f"listed-{number}" for number in range(COUNT)]
        for kind in ("a list of groups", "a list of topics"):
            ((request, body),) = REQUESTS[kind](names)
            assert client.ask(request, body).code == 0
        for request in (GetAllGroups(), GetAllTopicConfig()):
            assert broker.longest_turn(lambda r=request: client.ask(r)) <= TURN_MAX_S


@in_loop(in_virtual_time)
async def test_another_client_is_answered_while_a_large_heartbeat_is_looked_at(
    talk: Talk, simulation: Simulation, /
) -> None:
    other = talk.another()
    await other.create()
    ((request, body),) = REQUESTS["a heartbeat"]([f"g{number}" for number in range(COUNT)])
    beat = asyncio.ensure_future(talk.client.ask(request, body))
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
    ((request, body),) = REQUESTS["a heartbeat"]([f"g{number}" for number in range(COUNT)])
    client, clients = talk.another(), talk.broker.parts.stored.clients
    await client.remoting.send_oneway(client.address, request, body)
    await until_some(clients.groups)
    await client.close()
    assert 0 < len(clients.groups) < COUNT
    await until(lambda: not clients.groups and not talk.broker.parts.listening.server.connections)
    assert await talk.client.members("g0") == []
    assert clients.groups == {}
    assert talk.broker.tables.groups.get(f"g{COUNT - 1}") is None, "the rest was not looked at"


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
