"""What an operator changes is on the disk when the broker says so: a power cut right after the
answer takes none of it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.one_broker import HOST, OneBroker, with_one_broker

from turbopump.broker.tables import Tables
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import SetMessageRequestMode
from turbopump.protocol.requests.groups import (
    CreateGroup,
    CreateGroupList,
    DeleteGroup,
    UpdateGroupForbidden,
)
from turbopump.protocol.requests.offsets import CloneGroupOffset, ResetOffset, UpdateConsumerOffset
from turbopump.protocol.requests.topics import CreateTopic, CreateTopicList, DeleteTopic

OK = (ResponseCode.SUCCESS, "")


def has_topics(tables: Tables, *names: str) -> bool:
    return all(tables.topics.find(name) is not None for name in names)


CHANGES: dict[str, tuple[Request[Any], Any, Callable[[Tables], bool]]] = {
    "a topic made": (CreateTopic(topic="new"), None, lambda tables: has_topics(tables, "new")),
    "a topic changed": (
        CreateTopic(topic="T", read_queue_nums=7, write_queue_nums=7),
        None,
        lambda tables: tables.topics.find("T").read_queue_nums == 7,  # type: ignore[union-attr]
    ),
    "topics made": (
        CreateTopicList(),
        {"topicConfigList": [{"topicName": name, "attributes": {}} for name in ("n", "m")]},
        lambda tables: has_topics(tables, "n", "m"),
    ),
    "a topic deleted": (
        DeleteTopic(topic="T"),
        None,
        lambda tables: not has_topics(tables, "T") and tables.offsets.find("g", "T", 0) is None,
    ),
    "a group made": (CreateGroup(), {"groupName": "n"}, lambda tables: tables.groups.get("n")),
    "groups made": (
        CreateGroupList(),
        {"groupConfigList": [{"groupName": "n"}, {"groupName": "m"}]},
        lambda tables: tables.groups.get("n") and tables.groups.get("m"),
    ),
    "a group deleted": (
        DeleteGroup(group_name="g", clean_offset=True),
        None,
        lambda tables: tables.groups.get("g") is None and tables.offsets.find("g", "T", 0) is None,
    ),
    "a group banned from a topic": (
        UpdateGroupForbidden(group="g", topic="T", readable=False),
        None,
        lambda tables: tables.groups.is_banned("g", "T"),
    ),
    "offsets reset": (
        ResetOffset(group="g", topic="T", timestamp=-1, queue_id=0, offset=1),
        None,
        lambda tables: tables.offsets.find("g", "T", 0) == 1,
    ),
    "offsets cloned": (
        CloneGroupOffset(src_group="g", dest_group="h", topic="T", offline=True),
        None,
        lambda tables: tables.offsets.find("h", "T", 0) == 2,
    ),
}


async def prepare(world: OneBroker) -> None:
    """Groups g and h, and two messages, behind which g stands."""
    for group in ("g", "h"):
        assert await world.client.code(CreateGroup(), fastjson.encode({"groupName": group})) == OK
    for body in (b"one", b"two"):
        await world.client.send(body)
    commit = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=2)
    assert await world.client.code(commit) == OK
    assert await world.broker.tables.offsets.saved()
    await asyncio.sleep(2)  # the messages are on the disk too


@pytest.mark.parametrize("kind", CHANGES)
@in_loop(with_one_broker, flush_consumer_offset_interval=10**6)
async def test_a_power_cut_after_the_answer_takes_no_change_back(
    world: OneBroker, /, kind: str
) -> None:
    request, body, made = CHANGES[kind]
    await prepare(world)
    assert not made(world.broker.tables)
    answer = await world.client.ask(request, b"" if body is None else fastjson.encode(body))
    world.kill(power_cut=True)
    assert answer.code == ResponseCode.SUCCESS
    await world.up()
    assert made(world.broker.tables)


@in_loop(with_one_broker)
async def test_the_way_in_which_a_group_reads_is_on_the_disk_when_it_is_answered(
    world: OneBroker, /
) -> None:
    await prepare(world)
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    answer = await world.client.ask(SetMessageRequestMode(), fastjson.encode(mode))
    world.kill(power_cut=True)
    assert answer.code == ResponseCode.SUCCESS
    await world.up()
    assert b'"POP"' in world.table("messageRequestMode")


@pytest.mark.parametrize("kind", [kind for kind in CHANGES if kind != "a topic deleted"])
@in_loop(with_one_broker, flush_consumer_offset_interval=10**6)
async def test_a_change_that_the_disk_does_not_take_is_answered_so_and_saved_when_it_does(
    world: OneBroker, /, kind: str
) -> None:
    request, body, made = CHANGES[kind]
    await prepare(world)
    disk = world.simulation.disk(HOST)
    disk.fail("rename", times=10**6)
    answer = await world.client.ask(request, b"" if body is None else fastjson.encode(body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is made but not on the disk yet" in (answer.remark or "")
    assert made(world.broker.tables)
    disk.clear_faults()
    tables = world.broker.tables
    for table in (tables.topics, tables.groups, tables.offsets):
        while not await table.saved():
            await asyncio.sleep(0.1)
    world.kill(power_cut=True)
    await world.up()
    assert made(world.broker.tables)
