"""Positions of groups, translated to the target."""

from __future__ import annotations

from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.admin.mirror.two_clusters import TOPIC, Cluster, TwoClusters, with_two_clusters
from tests.waits import until

from turbopump.protocol import fastjson
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.offsets import UpdateConsumerOffset


async def commit(cluster: Cluster, offset: int, queue_id: int = 0, topic: str = TOPIC) -> None:
    request = UpdateConsumerOffset(
        consumer_group="billing", topic=topic, queue_id=queue_id, commit_offset=offset
    )
    assert (await cluster.client.ask(request)).code == 0


async def create_group(cluster: Cluster, **settings: Any) -> None:
    config = SubscriptionGroupConfig(group_name="billing", **settings)
    assert (await cluster.client.ask(CreateGroup(), fastjson.encode(config))).code == 0


def position(world: TwoClusters, queue_id: int = 0) -> int | None:
    return world.target.broker.tables.offsets.find("billing", TOPIC, queue_id)


async def next_body(world: TwoClusters, queue_id: int = 0) -> bytes:
    """Body of the message with which the group continues in the target."""
    at = position(world, queue_id)
    assert at is not None
    return (await world.target.bodies(queue_id))[at]


@in_loop(with_two_clusters)
async def test_a_group_continues_where_it_was_with_the_same_settings(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC, 2)
    await create_group(world.source, retry_max_times=3)
    await world.source.fill(100, queues=2)
    await commit(world.source, 20)
    await commit(world.source, 50, queue_id=1)
    # The copies have other offsets than their originals: the target has older messages.
    await world.target.client.create(TOPIC, 2)
    await world.target.fill(14, begin=1000, queues=2)
    report = await world.mirror(groups=True)
    assert (report.positions, report.notes) == (2, [])
    assert await next_body(world) == b"40"
    assert position(world, 1) == 57
    async with world.admins() as (_, target):
        (settings,) = (await target.groups.settings("billing")).values()
    assert settings.retry_max_times == 3


@in_loop(with_two_clusters)
async def test_a_position_that_moves_is_followed_and_never_goes_back(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await create_group(world.source)
    await world.source.fill(50)
    await commit(world.source, 10)
    async with world.following(groups=True):
        await until(lambda: position(world) == 10)
        await commit(world.source, 30)
        await until(lambda: position(world) == 30)
    await commit(world.source, 20)
    assert (await world.mirror(groups=True)).positions == 0
    assert position(world) == 30


@pytest.mark.parametrize("restarted", [False, True])
@in_loop(with_two_clusters)
async def test_a_position_stays_before_the_messages_of_other_producers(
    world: TwoClusters, /, restarted: bool
) -> None:
    await world.source.client.create(TOPIC)
    await create_group(world.source)
    await world.source.fill(30)
    await world.mirror()
    await world.target.fill(5, begin=1000)
    await world.source.fill(400, begin=30)
    await commit(world.source, 410)
    if restarted:  # the marks of the first run tell the second one
        await world.mirror()
    report = await world.mirror(groups=True)
    assert position(world) == 30
    assert report.notes == [
        "group billing: orders@broker-a:0 has messages of other producers from offset 30 on, and "
        "its position stays before them"
    ]


@in_loop(with_two_clusters)
async def test_a_group_that_consumes_in_the_target_is_left_alone(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await create_group(world.source)
    await world.source.fill(30)
    await commit(world.source, 20)
    await world.target.client.join("a consumer", "billing")
    report = await world.mirror(groups=True)
    assert report.positions == 0
    assert report.notes == ["group billing consumes in the target: its positions stay"]


@in_loop(with_two_clusters)
async def test_messages_that_wait_for_a_retry_are_reported(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await create_group(world.source)
    await world.source.fill(3)
    await commit(world.source, 3)
    await world.source.client.create("%RETRY%billing")
    await world.source.send(b"again", topic="%RETRY%billing")
    await world.source.send(b"again 2", topic="%RETRY%billing")
    await commit(world.source, 1, topic="%RETRY%billing")
    report = await world.mirror(groups=True)
    assert position(world) == 3
    assert report.notes == [
        "group billing has 1 message for a retry at the source, and retries are not copied"
    ]


@in_loop(with_two_clusters)
async def test_a_position_is_right_after_repeated_copies(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await create_group(world.source)
    await world.source.fill(60)
    await world.mirror()
    # As after a kill: originals 50 to 59 are there twice.
    for number in range(50, 60):
        mark = f"source/broker-a/0/{number}/{number - 50}"
        await world.target.send(b"%d" % number, MIRRORED_FROM=mark)
    await world.source.fill(40, begin=60)
    await commit(world.source, 55)
    await world.mirror(groups=True)
    at = position(world)
    assert at is not None
    bodies = await world.target.bodies()
    assert bodies[at] == b"55"
    assert {int(body) for body in bodies[at:]} >= set(range(55, 100))
