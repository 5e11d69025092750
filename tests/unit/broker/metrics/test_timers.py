"""Metrics of timer messages: entered, waiting by topic and by time, late, left; over a restart."""

import asyncio

from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.reading import distribution, series, value
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time, simulated_broker

from turbopump.broker.counters.labels import LOCAL_DISK
from turbopump.broker.counters.timers import DELAY_LATENCY
from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.broker.metrics.timers import (
    DEQUEUE_LAG,
    DEQUEUE_LATENCY,
    ENQUEUE_LAG,
    ENQUEUE_LATENCY,
    ENTERED,
    LEFT,
    SNAPSHOT,
    WAITING,
)
from turbopump.message.properties import encode_properties
from turbopump.metrics.family import Family
from turbopump.protocol.requests.send import RecallMessage
from turbopump.protocol.requests.topics import DeleteTopic


async def send_later(talk: Talk, delay_ms: int, topic: str = "T", unique: str = "U") -> str:
    """Send a timer message. Return its handle for a recall."""
    text = encode_properties({"UNIQ_KEY": unique, "TIMER_DELAY_MS": str(delay_ms)})
    now = talk.broker.clock.now_ms()
    reply = await talk.client.send(topic=topic, properties=text, born_timestamp=now)
    return reply.recall_handle or ""


def by_topic(talk: Talk, family: Family) -> dict[str, object]:
    return {labels[-1]: found for labels, found in series(talk.broker, family).items()}


@in_loop(in_virtual_time)
async def test_a_timer_message_enters_waits_and_leaves(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.create("U")
    for delay_s in 3, 70, 4000:
        await send_later(talk, delay_s * 1000)
    await send_later(talk, 70_000, "U")
    await asyncio.sleep(1)
    assert by_topic(talk, ENTERED) == {"T": 3, "U": 1}
    assert by_topic(talk, WAITING) == {"T": 3, "U": 1}
    assert by_topic(talk, LEFT) == {}
    assert value(talk.broker, DEQUEUE_LAG) == 4
    snapshot = by_topic(talk, SNAPSHOT)
    expected = {"5": 1, "60": 0, "300": 2, "900": 0, "3600": 0, "14400": 1, "28800": 0, "86400": 0}
    assert snapshot == expected
    delays = series(talk.broker, DELAY_LATENCY)
    assert distribution(delays[*LOCAL_DISK, "T"]).counts == (1, 1, 0, 1, 0, 0, 0)
    await asyncio.sleep(100)
    assert by_topic(talk, WAITING) == {"T": 1, "U": 0}
    assert by_topic(talk, LEFT) == {"T": 2, "U": 1}
    assert value(talk.broker, DEQUEUE_LATENCY) == 0


@in_loop(in_virtual_time)
async def test_messages_that_are_not_in_slots_yet_are_the_lag_of_entering(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await send_later(talk, 60_000)
    assert value(talk.broker, ENQUEUE_LAG) == 1
    await asyncio.sleep(1)
    assert value(talk.broker, ENQUEUE_LAG) == 0
    assert 900 <= value(talk.broker, ENQUEUE_LATENCY) <= 1100
    await asyncio.sleep(2)
    assert value(talk.broker, ENQUEUE_LATENCY) == 0


@in_loop(in_virtual_time)
async def test_a_recalled_message_waits_no_more_after_its_time(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    handle = await send_later(talk, 20_000)
    await send_later(talk, 20_000, unique="V")
    recall = RecallMessage(topic="T", recall_handle=handle, producer_group="p")
    assert (await talk.client.code(recall))[0] == 0
    await asyncio.sleep(1)
    assert by_topic(talk, WAITING) == {"T": 2}
    await asyncio.sleep(30)
    assert by_topic(talk, WAITING) == {"T": 0}
    assert by_topic(talk, LEFT) == {"T": 1}


@in_loop(in_virtual_time)
async def test_a_deleted_topic_has_no_series(talk: Talk, simulation: Simulation, /) -> None:
    await talk.client.create()
    await send_later(talk, 3000)
    await asyncio.sleep(1)
    families = ENTERED, WAITING, DELAY_LATENCY
    assert all(by_topic(talk, family) for family in families)
    assert (await talk.client.code(DeleteTopic(topic="T")))[0] == 0
    assert not any(by_topic(talk, family) for family in families)


@in_loop(on_a_client_s_host)
async def test_messages_of_before_a_restart_are_counted_by_topic(simulation: Simulation, /) -> None:
    async with simulated_broker(simulation) as talk:
        await talk.client.create()
        await talk.client.create("U")
        for number in range(3):
            await send_later(talk, 60_000 + number * 1000)
        await send_later(talk, 60_000, "U")
        await asyncio.sleep(2)
    simulation.end(SERVER, power_cut=False)
    async with simulated_broker(simulation) as talk:
        await send_later(talk, 60_000, "U")
        await asyncio.sleep(1)
        metrics = metrics_of(talk.broker.parts)
        (read,) = dict(metrics.families())[WAITING]
        while not (found := [sample for sample in read() if sample is not None]):
            await asyncio.sleep(0.01)
        while len(found) < 2:
            await asyncio.sleep(0.01)
            found = [sample for sample in read() if sample is not None]
        assert {labels[-1]: count for labels, count in found} == {"T": 3, "U": 2}
        await asyncio.sleep(100)
        found = [sample for sample in read() if sample is not None]
        assert all(count == 0 for _, count in found)
