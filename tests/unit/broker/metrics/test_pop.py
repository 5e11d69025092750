"""Metrics of POP: records put and read, messages that come again, and what is open."""

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.reading import distribution, series, value
from tests.unit.broker.popping import Popper
from tests.unit.broker.replicas import eventually
from tests.unit.broker.talking import Talk, in_virtual_time

from turbopump.broker.counters.pop import REVIVE_IN, REVIVE_OUT, REVIVE_RETRY, SCAN_TIME
from turbopump.broker.metrics.pop import CHECKPOINTS, OFFSETS, REVIVE_LAG, REVIVE_LATENCY
from turbopump.protocol.requests.topics import DeleteTopic


@in_loop(in_virtual_time, revive_queue_num=2)
async def test_records_of_pops_are_counted_until_their_topic_is_deleted(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    popper = Popper(talk.client, talk.broker.clock.now_ms)
    for number in range(3):
        await talk.client.send(b"%d" % number)
    one, *_ = await popper.pop(invisible_ms=10_000)
    assert await popper.ack(one) == 0
    put = series(talk.broker, REVIVE_IN)
    assert put == {("g", "T", "CK", "PUT_OK"): 1, ("g", "T", "ACK", "PUT_OK"): 1}
    assert series(talk.broker, REVIVE_OUT) == {}
    await eventually(lambda: value(talk.broker, CHECKPOINTS) == 1)
    assert sum(series(talk.broker, REVIVE_LAG).values()) == 1
    await asyncio.sleep(5)
    read = series(talk.broker, REVIVE_OUT)
    assert {labels[:2] + labels[3:] for labels in read} == {("g", "T", "CK"), ("g", "T", "ACK")}
    assert {labels[2] for labels in read} <= {"0", "1"}
    assert series(talk.broker, REVIVE_RETRY) == {("g", "T", "PUT_OK"): 2}
    assert value(talk.broker, CHECKPOINTS) == 0
    assert series(talk.broker, REVIVE_LATENCY) == {("0",): 0, ("1",): 0}
    assert series(talk.broker, REVIVE_LAG) == {("0",): 0, ("1",): 0}
    assert value(talk.broker, OFFSETS) == 0
    ((_, scans),) = series(talk.broker, SCAN_TIME).items()
    assert sum(distribution(scans).counts) > 0
    assert (await talk.client.code(DeleteTopic(topic="T")))[0] == 0
    for family in REVIVE_IN, REVIVE_OUT, REVIVE_RETRY:
        assert series(talk.broker, family) == {}


@in_loop(in_virtual_time)
async def test_an_offset_is_in_the_buffer_until_its_checkpoint_is_on_the_disk(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send()
    await Popper(talk.client, talk.broker.clock.now_ms).pop()
    assert value(talk.broker, OFFSETS) == 1
    await asyncio.sleep(2)
    assert value(talk.broker, OFFSETS) == 0
