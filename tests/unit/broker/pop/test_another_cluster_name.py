"""What was popped under one ``brokerClusterName`` belongs to its group under the next one too."""

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.popping import Popper
from tests.unit.broker.transacting import BROKER, World, in_a_world


def popper(world: World) -> Popper:
    return Popper(world.client(), world.simulation.clock(BROKER).now_ms)


async def restart(world: World, how: str, **config: Any) -> Popper:
    if how == "stop":
        await world.stop()
    else:
        world.kill(power_cut=how == "power cut")
    world.configure(**config)
    await world.start()
    return popper(world)


@pytest.mark.parametrize("how", ["stop", "kill", "power cut"])
@in_loop(in_a_world, flush_disk_type="SYNC_FLUSH")
async def test_messages_popped_before_a_rename_come_again_unless_they_are_acknowledged(
    world: World, /, how: str
) -> None:
    before = popper(world)
    await before.client.create(queues=2)
    for number in range(12):
        await before.client.send(b"%02d" % number, queue_id=number % 2)
    taken = {one.body: one for one in await before.pop(invisible_ms=30_000)}
    assert len(taken) == 12
    assert await before.ack(taken[b"00"]) == 0
    assert (await before.change(taken[b"01"], 40_000)).code == 0
    await asyncio.sleep(12)  # until offsets are saved: a kill before repeats what was popped

    after = await restart(world, how, broker_cluster_name="Renamed")
    assert await after.ack(taken[b"02"]) == 0, "a receipt of before still acknowledges"
    assert await after.ack(taken[b"01"]) == 0
    again = await after.until(9, 90, invisible_ms=60_000)
    assert sorted(one.body for one in again) == [b"%02d" % number for number in range(3, 12)]
    assert {one.attempt for one in again} == {1}
    for one in again[:8]:
        assert await after.ack(one) == 0

    back = await restart(world, how, broker_cluster_name="DefaultCluster")
    (last,) = await back.until(1, 120, invisible_ms=60_000)
    assert last.body == again[8].body
    assert await back.ack(last) == 0
    assert await back.until(1, 120) == []
