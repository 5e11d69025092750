"""Numbers of queues that cannot be, in what brokers and operators register: the topic is left out
with a line in the log, and all else of the registration holds."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.namesrv.world import World, play
from tests.unit.protocol.compressed_registration import encode_compressed

from turbopump.protocol import fastjson
from turbopump.protocol.codes import V5_0_0, ResponseCode
from turbopump.protocol.requests.namesrv import (
    ROUTE_QUEUES_MAX,
    GetAllTopicList,
    QueueData,
    RegisterBrokerBody,
    RegisterTopicInNamesrv,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import QUEUES_MAX, DataVersion, TopicConfig, TopicList

ABSURD = [
    {"read_queue_nums": 2**31 - 1},
    {"write_queue_nums": 2**31 - 1},
    {"read_queue_nums": QUEUES_MAX + 1, "write_queue_nums": QUEUES_MAX + 1},
    {"read_queue_nums": -1},
    {"write_queue_nums": -(2**31)},
]


def body_of(counter: int = 1, **topics: dict[str, int]) -> RegisterBrokerBody:
    body = RegisterBrokerBody()
    wrapper = body.topic_config_serialize_wrapper
    wrapper.data_version = DataVersion(counter=counter)
    wrapper.topic_config_table = {
        name: TopicConfig(topic_name=name, **numbers) for name, numbers in topics.items()
    }
    return body


async def register(broker: Any, compressed: bool, counter: int, **topics: dict[str, int]) -> int:
    body = body_of(counter, **topics)
    answer = await broker.ask(
        broker.registration(compressed=compressed),
        encode_compressed(body) if compressed else body.encode(),
        version=V5_0_0,
    )
    return answer.code


@pytest.mark.parametrize("numbers", ABSURD, ids=str)
@pytest.mark.parametrize("compressed", [False, True])
@in_loop(play)
async def test_a_topic_of_absurd_size_is_left_out_and_the_others_are_routed(
    world: World, /, numbers: dict[str, int], compressed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = world.peer()
    most = {"read_queue_nums": QUEUES_MAX, "write_queue_nums": QUEUES_MAX}
    assert (
        await register(broker, compressed, 1, T={}, largest=most, absurd=numbers)
        == ResponseCode.SUCCESS
    )
    assert await broker.route("absurd") is None
    route = await broker.route("largest")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == QUEUES_MAX
    names = fastjson.decode((await broker.ask(GetAllTopicList())).body, TopicList).topic_list
    assert set(names) == {"T", "largest"}
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    (name, number) = next((k, v) for k, v in numbers.items() if not 0 <= v <= QUEUES_MAX)
    wire = {"read_queue_nums": "readQueueNums", "write_queue_nums": "writeQueueNums"}[name]
    assert broker.address in said
    assert f"topic=absurd cause={wire} is {number}; give a number from 0 to 65535" in said

    # it is routed once its numbers are good, and stays as it was if they are absurd again
    assert await register(broker, compressed, 2, T={}, absurd={}) == ResponseCode.SUCCESS
    assert await register(broker, compressed, 3, T={}, U={}, absurd=numbers) == ResponseCode.SUCCESS
    route = await broker.route("absurd")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 16


@pytest.mark.parametrize("numbers", ABSURD, ids=str)
@in_loop(play)
async def test_an_operator_who_gives_a_topic_absurd_numbers_is_told_and_nothing_changes(
    world: World, /, numbers: dict[str, int]
) -> None:
    broker = world.peer()
    await broker.register()
    body = TopicRouteData(queue_datas=[QueueData(broker_name="broker-a", **numbers)])
    refused = await broker.ask(RegisterTopicInNamesrv(topic="new"), fastjson.encode(body))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "give a number from 0 to 65535" in (refused.remark or "")
    assert await broker.route("new") is None


@in_loop(play)
async def test_an_operator_cannot_give_a_topic_more_queues_than_clients_take(
    world: World, /
) -> None:
    broker = world.peer()
    await broker.register()
    queues = [QueueData(broker_name="broker-a", read_queue_nums=QUEUES_MAX) for _ in range(5)]
    body = fastjson.encode(TopicRouteData(queue_datas=queues))
    refused = await broker.ask(RegisterTopicInNamesrv(topic="new"), body)
    assert f"and may have {ROUTE_QUEUES_MAX}" in (refused.remark or "")
