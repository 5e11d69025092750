"""Queues shared out by the broker, and who pops instead of pulling."""

from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse, subscription, talking, watched

from turbopump.broker.handlers.assignment import allocate_for_pop
from turbopump.message.message import MessageQueue
from turbopump.message.queue_shares import allocate_average, allocate_by_circle
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    MessageRequestMode,
    QueryAssignment,
    QueryAssignmentResponseBody,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)

QUEUES = [MessageQueue("T", "b", number) for number in range(5)]
EVERYTHING = [MessageQueue("T", "b", -1)]
CLIENTS = ["a", "b", "c", "d"]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


def test_strategies_are_apaches() -> None:
    assert [ids(allocate_average(QUEUES, CLIENTS, client)) for client in CLIENTS] == [
        [0, 1],
        [2],
        [3],
        [4],
    ]
    assert [ids(allocate_by_circle(QUEUES, CLIENTS, client)) for client in CLIENTS] == [
        [0, 4],
        [1],
        [2],
        [3],
    ]
    assert allocate_average(QUEUES, CLIENTS, "x") == allocate_by_circle(QUEUES, CLIENTS, "x") == []


@pytest.mark.parametrize("share", [-1, 0, 3, 4])
def test_all_queues_are_for_all_where_no_share_is_set(share: int) -> None:
    assert allocate_for_pop(allocate_average, QUEUES, CLIENTS, "b", share) == EVERYTHING


def test_a_share_adds_the_queues_of_the_clients_behind() -> None:
    assert ids(allocate_for_pop(allocate_average, QUEUES, CLIENTS, "d", 1)) == [4, 0, 1]
    assert ids(allocate_for_pop(allocate_average, QUEUES, CLIENTS, "a", 2)) == [0, 1, 2, 3]


def test_each_client_has_a_queue_where_there_are_more_clients_than_queues() -> None:
    many = [f"c{number}" for number in range(8)]
    shares = [ids(allocate_for_pop(allocate_average, QUEUES, many, client, 1)) for client in many]
    assert shares == [
        [0], [1], [2], [3], [4], [0], [1], [2],
    ]  # fmt: skip


async def assigned(talk: Talk, client_id: str, **fields: Any) -> list[tuple[int, str]] | None:
    values = {
        "topic": "T",
        "consumerGroup": "g",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    answer = await talk.client.ask(QueryAssignment(), fastjson.encode({**values, **fields}))
    assert answer.code == ResponseCode.SUCCESS
    found = fastjson.decode(answer.body, QueryAssignmentResponseBody).message_queue_assignments
    return (
        None
        if found is None
        else sorted((one.message_queue.queue_id, one.mode.value) for one in found)
    )


async def set_mode(talk: Talk, **fields: Any) -> int:
    values: dict[str, Any] = {
        "topic": "T",
        "consumer_group": "g",
        "mode": MessageRequestMode.POP,
        **fields,
    }
    body = SetMessageRequestModeRequestBody(**values)
    return (await talk.client.ask(SetMessageRequestMode(), fastjson.encode(body))).code


@in_loop(converse)
async def test_consumers_that_pull_share_the_queues(talk: Talk, /) -> None:
    await talk.client.create(queues=3)
    other = talk.another()
    await talk.client.join("one", "g", subscription("T"))
    await other.join("two", "g", subscription("T"))
    assert await assigned(talk, "one") == [(0, "PULL"), (1, "PULL")]
    assert await assigned(talk, "two") == [(2, "PULL")]
    assert await assigned(talk, "one", messageModel="BROADCASTING") == [
        (0, "PULL"),
        (1, "PULL"),
        (2, "PULL"),
    ]
    assert await assigned(talk, "one", topic="none") is None
    assert await assigned(talk, "one", strategyName="OWN") is None
    assert await assigned(talk, "one", consumerGroup="nobody") is None


@in_loop(watched)
async def test_a_mode_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create(queues=3)
        await talk.client.join("one", "g", subscription("T"))
        assert await set_mode(talk) == ResponseCode.SUCCESS
        assert await assigned(talk, "one") == [(-1, "POP")]
        assert await set_mode(talk, topic="%RETRY%g") == ResponseCode.NO_PERMISSION
        assert await set_mode(talk, topic="none") == ResponseCode.TOPIC_NOT_EXIST
        assert (
            await set_mode(talk, consumer_group="no/name")
            == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        )
    async with talking(tmp_path) as talk:
        await talk.client.join("one", "g", subscription("T"))
        assert await assigned(talk, "one") == [(-1, "POP")]
        assert await assigned(talk, "one", topic="%RETRY%g") == [(0, "PULL")]


@in_loop(converse, default_message_request_mode="POP")
async def test_the_default_mode_is_the_brokers(talk: Talk, /) -> None:
    await talk.client.create(queues=3)
    await talk.client.join("one", "g", subscription("T"))
    assert await assigned(talk, "one") == [(-1, "POP")]
    assert await assigned(talk, "one", topic="%RETRY%g") == [(0, "PULL")]
