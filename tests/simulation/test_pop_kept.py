"""What a broker knows of pops after it was stopped, killed or lost its power."""

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.handed_out import REVIVE_QUEUES, REVIVE_TOPIC
from tests.simulation.one_broker import HOST, OneBroker, one_broker, with_one_broker
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popper
from tests.unit.store.looked_up import message_in_queue

from turbopump.broker.pop.records import ACK_TAG
from turbopump.message.codec import decode_entries
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.store.timers.pending_timers import TIMER_TOPIC

SYNC = {"flush_disk_type": "SYNC_FLUSH"}


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
@in_loop(with_one_broker, **SYNC)
async def test_what_was_acknowledged_does_not_come_again_and_the_rest_does_at_its_time(
    world: OneBroker, /, how: str
) -> None:
    now_ms = world.simulation.clock(HOST).now_ms
    popper = Popper(world.client, now_ms)
    await world.client.send(b"first")
    for one in await popper.pop():
        await popper.ack(one)
    await asyncio.sleep(20)
    for number in range(10):
        await world.client.send(b"%d" % number)
        found = await popper.pop(invisible_ms=20_000)
        if number != 7:
            assert await popper.ack(found[0]) == 0
        else:
            visible_at = found[0].handle.visible_at_ms
    if how == "stop":
        await world.stop()
    else:
        world.kill(power_cut=how == "power")
    await asyncio.sleep(1)
    await world.up()
    popper = Popper(world.client, now_ms)
    again = await popper.until(1, 60, invisible_ms=60_000)
    assert [(one.body, one.attempt) for one in again] == [(b"7", 1)]
    assert visible_at <= now_ms() <= visible_at + 2000
    assert await popper.until(1, 30) == []


def written_down(store: Any) -> bool:
    places = [(TIMER_TOPIC, 0), *((REVIVE_TOPIC, queue_id) for queue_id in range(REVIVE_QUEUES))]
    data = b"".join(store.get(topic, queue_id, 0, 32).data for topic, queue_id in places)
    return any(record.tags == ACK_TAG for record in decode_entries(data))


@in_loop(with_one_broker, flush_disk_type="ASYNC_FLUSH")
async def test_a_returned_message_is_noted_when_its_copy_is_on_the_disk_and_not_before(
    world: OneBroker, /
) -> None:
    popper = Popper(world.client, world.simulation.clock(HOST).now_ms)
    await world.client.send(b"once")
    await popper.pop(invisible_ms=5000)
    (again,) = await popper.until(1, 20, invisible_ms=60_000)
    store = world.broker.store
    assert store.durable.value <= again.message.commit_log_offset, (
        "the disk has not got the copy yet"
    )

    while store.durable.value <= again.message.commit_log_offset:
        assert not written_down(store)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        while not written_down(store):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("crc_before", [True, False])
@in_loop(on_a_client_s_host)
async def test_a_message_whose_properties_are_full_comes_again_too_up_to_the_dead_letters(
    simulation: Simulation, /, crc_before: bool
) -> None:
    async with one_broker(simulation, **SYNC, enabled_append_prop_crc=crc_before) as world:
        full = b"UNIQ_KEY\x01U\x02a\x01"
        await world.client.send(b"measured", properties=full.decode() + "x\x02")
        measured = message_in_queue(world.broker.store.lookup, "T", 0, 0)
        assert measured is not None
        size = len(measured.properties_text.split("__CRC32#")[0])
        filler = "x" * (1 + world.broker.store.properties_size_max - size)
        await world.client.send(b"full", properties=f"{full.decode()}{filler}\x02")
        await world.stop()
        world.config["enabled_append_prop_crc"] = True
        await world.up()
        world.broker.tables.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
        popper = Popper(world.client, world.simulation.clock(HOST).now_ms)
        assert len(await popper.until(2, 20, invisible_ms=5000)) == 2
        for attempt in (1, 2):
            again = await popper.until(2, 60, invisible_ms=5000)
            assert sorted((one.body, one.attempt) for one in again) == [
                (b"full", attempt),
                (b"measured", attempt),
            ]
        await asyncio.sleep(30)
        dead = await world.client.messages(topic="%DLQ%g")
        assert sorted(message.body for message in dead) == [b"full", b"measured"]
