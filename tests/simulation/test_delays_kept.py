"""Delayed messages through stops, kills, full disks, damage and clocks that are set: never early,
never lost, and when they come twice."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.one_broker import HOST, OneBroker, full_after, one_broker, with_one_broker
from tests.simulation.world.simulation import Simulation

from turbopump.config.broker_config import FlushDiskType
from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.repeated_line import PERIOD_S

LEVELS = "1s 5s 30s"


def saved_offsets(world: OneBroker) -> dict[str, int]:
    text = re.sub(r"(\d+):", r'"\1":', world.table("delayOffset").decode())
    offsets: dict[str, int] = json.loads(text)["offsetTable"]
    return offsets


@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_after_a_clean_stop_nothing_comes_twice_and_what_waits_comes_when_it_is_due(
    world: OneBroker, /
) -> None:
    loop = asyncio.get_running_loop()
    for number in range(3):
        await world.delay(b"first %d" % number, 1)
    await world.delay(b"last", 3)
    due = loop.time() + 30
    await asyncio.sleep(1.1)
    await world.stop()
    await asyncio.sleep(5)
    await world.up()
    assert saved_offsets(world) == {"1": 3, "3": 0}
    await asyncio.sleep(due - 0.1 - loop.time())
    assert await world.delivered() == [b"first 0", b"first 1", b"first 2"]
    await asyncio.sleep(0.2)
    assert (await world.delivered())[3:] == [b"last"]
    await world.stop()
    await world.up()
    await asyncio.sleep(40)
    assert len(await world.delivered()) == 4
    assert saved_offsets(world) == {"1": 3, "3": 1}


@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_what_was_due_while_the_broker_was_down_comes_at_its_start(
    world: OneBroker, /
) -> None:
    for number in range(100):
        await world.delay(b"%d" % number, 2)
    await world.stop()
    await asyncio.sleep(60)
    await world.up()
    await asyncio.sleep(0.1)
    assert await world.delivered() == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("flush", list(FlushDiskType))
@in_loop(on_a_client_s_host)
async def test_after_a_kill_messages_come_again_from_the_saved_position_on(
    simulation: Simulation, /, flush: FlushDiskType
) -> None:
    async with one_broker(
        simulation,
        message_delay_level=LEVELS,
        flush_disk_type=flush,
        flush_delay_offset_interval=10_000,
    ) as world:
        for number in range(4):
            await world.delay(b"%d" % number, 1)
        await asyncio.sleep(12)
        assert saved_offsets(world) == {"1": 4}
        for number in range(4, 7):
            await world.delay(b"%d" % number, 1)
        await asyncio.sleep(1.5)
        assert len(await world.delivered()) == 7
        world.kill()
        await world.up()
        await asyncio.sleep(1)
        delivered = await world.delivered()
        assert delivered == [b"%d" % number for number in (*range(7), 4, 5, 6)]


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("flush", list(FlushDiskType))
@in_loop(on_a_client_s_host)
async def test_of_two_hundred_messages_five_kills_a_second_after_each_start_repeat_none(
    simulation: Simulation, /, flush: FlushDiskType, power_cut: bool
) -> None:
    async with one_broker(simulation, message_delay_level=LEVELS, flush_disk_type=flush) as world:
        await asyncio.gather(*(world.delay(b"%d" % number, 1) for number in range(200)))
        await asyncio.sleep(2)
        for _ in range(5):
            world.kill(power_cut=power_cut)
            await world.up()
            await asyncio.sleep(1)
        assert len(await world.delivered()) == 200


@pytest.mark.parametrize("seed", range(1, 4))
@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_kills_at_any_moment_repeat_what_was_delivered_in_the_last_second_at_most(
    world: OneBroker, /, seed: int
) -> None:
    random, loop = world.simulation.source(f"kills {seed}"), asyncio.get_running_loop()
    due: dict[bytes, float] = {}
    for kill in range(5):
        for number in range(20):
            body = b"%d of %d" % (number, kill)
            await world.delay(body, 1)
            due[body] = loop.time() + 1
            await asyncio.sleep(random.uniform(0, 0.2))
        before, second_before = len(await world.delivered()), loop.time() - 1
        world.kill()
        await world.up()
        await asyncio.sleep(0.5)
        came = (await world.delivered())[before:]
        assert [body for body in came if due[body] < second_before] == []
    await asyncio.sleep(2)
    assert set(await world.delivered()) == set(due)


@pytest.mark.parametrize("seed", range(1, 9))
@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_a_position_is_saved_only_as_far_as_the_copies_are_on_the_disk(
    world: OneBroker, /, seed: int
) -> None:
    await world.delay(b"first", 1)
    await asyncio.sleep(11)
    assert saved_offsets(world) == {"1": 1}
    world.broker.store.flusher.log_busy = True  # as if a sync took for ever
    await world.delay(b"second", 1)
    await asyncio.sleep(15)
    assert await world.delivered() == [b"first", b"second"]
    assert saved_offsets(world) == {"1": 1}
    world.kill(power_cut=True)
    await world.up()
    await asyncio.sleep(5)
    assert set(await world.delivered()) <= {b"first", b"second"}
    queue = world.broker.store.queues.find(SCHEDULE_TOPIC, 0)
    assert queue is not None
    if queue.max_index == 2:  # the disk had the delayed message after all: then its copy comes
        assert b"second" in await world.delivered()


@in_loop(on_a_client_s_host)
async def test_while_the_store_refuses_nothing_is_skipped_and_one_line_says_why(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.broker.schedule.delays"):
        async with one_broker(simulation, message_delay_level=LEVELS) as world:
            for number in range(40):
                await world.delay(b"%d" % number, 1)
            with full_after(world.broker.store, 10):
                await asyncio.sleep(20)
                assert len(await world.delivered()) == 10
            await asyncio.sleep(1.1)
            assert await world.delivered() == [b"%d" % number for number in range(40)]
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name == "turbopump.broker.schedule.delays"
    ]
    assert lines == [
        "delayed messages wait, trying again delay_level=1 cause=the disk is full",
        "delayed messages are delivered again delay_level=1",
    ]


@pytest.mark.parametrize("restarted", [False, True])
@in_loop(on_a_client_s_host)
async def test_damaged_messages_are_passed_over_with_a_line(
    simulation: Simulation, /, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, message_delay_level=LEVELS) as world:
        for number in range(5):
            await world.delay(b"body %d" % number, 2)
        log = world.broker.store.log
        for damaged in (b"body 2", b"body 3"):
            at = bytes(log.files.files[0].buffer).index(damaged)
            log.files.files[0].buffer[at] ^= 1
        if restarted:
            await world.stop()
            await world.up()
        await asyncio.sleep(6)
        assert await world.delivered() == [b"body %d" % number for number in (0, 1, 4)]
    lines = [
        record.getMessage()
        for record in caplog.records
        if "delayed message not delivered" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "level=2 queue_offset=2" in lines[0]


@in_loop(on_a_client_s_host)
async def test_a_message_without_a_place_to_go_is_passed_over(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, message_delay_level=LEVELS) as world:
        forwarding = world.broker.parts.delivering.forwarding
        await forwarding.append(SCHEDULE_TOPIC, 0, b"no queue", "DELAY\x011\x02")
        await forwarding.append(
            SCHEDULE_TOPIC, 0, b"no queue", "DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01x\x02"
        )
        await forwarding.append(
            SCHEDULE_TOPIC,
            0,
            b"half",
            "DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        )
        await world.delay(b"good", 1)
        await asyncio.sleep(1.1)
        assert await world.delivered() == [b"good"]
        await asyncio.sleep(PERIOD_S)
    lines = [record.getMessage() for record in caplog.records]
    first, more = [line for line in lines if "does not name a queue" in line]
    assert "level=1 queue_offset=0" in first
    assert "level=1 queue_offset=2" in more
    assert "2" in more.partition("cause=")[2]


@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_a_clock_that_is_set_back_or_forth_makes_nobody_wait_longer_than_the_level(
    world: OneBroker, /
) -> None:
    clock, loop = world.simulation.clock(HOST), asyncio.get_running_loop()
    for number in range(50):
        await world.delay(b"%d" % number, 2)
    clock.jump(-3_600_000)
    await world.delay(b"stored before the hour", 2)
    began = loop.time()
    await world.stop()
    await world.up()
    await asyncio.sleep(4.9 - (loop.time() - began))
    assert await world.delivered() == []
    await asyncio.sleep(0.3)
    assert len(await world.delivered()) == 51, (
        "all of them after one delay, not one after the other"
    )
    await world.delay(b"soon", 3)
    clock.jump(29_000)
    await asyncio.sleep(30.1)
    assert (await world.delivered())[51:] == [b"soon"]


@in_loop(with_one_broker, message_delay_level="2h")
async def test_a_clock_that_is_set_forth_is_noticed_within_a_minute(world: OneBroker, /) -> None:
    await world.delay(b"x", 1)
    await asyncio.sleep(1)
    world.simulation.clock(HOST).jump(7_200_000)
    await asyncio.sleep(61)
    assert await world.delivered() == [b"x"]


@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_levels_that_are_gone_from_the_table_are_delivered_all_the_same(
    world: OneBroker, /
) -> None:
    await world.delay(b"level 3", 3)
    await world.stop()
    world.config["message_delay_level"] = "1s"
    await world.up()
    await asyncio.sleep(1.5)
    assert await world.delivered() == [b"level 3"], (
        "a second after the start: the longest delay there is now"
    )


@pytest.mark.parametrize("text", [b'{"offsetTable":{1:99,2:1}}', b"{", b""])
@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_a_table_of_positions_that_cannot_be_right_stops_nothing(
    world: OneBroker, /, text: bytes
) -> None:
    await world.delay(b"first", 1)
    await world.stop()
    mount = world.simulation.disk(HOST).mount()
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        mount.write_file(Path("/store/config") / name, text)
    mount.close()
    world.simulation.disk(HOST).kill()
    await world.up()
    await world.delay(b"second", 1)
    await asyncio.sleep(1.5)
    assert b"second" in await world.delivered()


@pytest.mark.parametrize("left", [None, b'{"offsetTable":null}', b'{"offsetTable":{}}'])
@in_loop(on_a_client_s_host)
async def test_where_no_positions_are_left_delivered_messages_come_again_and_a_line_says_so(
    simulation: Simulation, /, left: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, message_delay_level=LEVELS) as world:
        await world.delay(b"first", 1)
        await world.delay(b"second", 3)
        await asyncio.sleep(1.5)
        await world.stop()
        mount = world.simulation.disk(HOST).mount()
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            mount.remove(Path("/store/config") / name)
            if left is not None:
                mount.write_file(Path("/store/config") / name, left)
        mount.close()
        world.simulation.disk(HOST).kill()
        for _ in range(2):
            await world.up()
            await asyncio.sleep(1.5)
            assert await world.delivered() == [b"first", b"first"]
            await world.stop()
        await world.up()
    (line,) = [record for record in caplog.records if "delayOffset.json" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "delivered before messages=2" in line.getMessage()


@in_loop(on_a_client_s_host)
async def test_a_directory_in_which_delayed_messages_only_wait_starts_without_a_complaint(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, message_delay_level=LEVELS) as world:
        await world.stop()
        await world.up()
        await world.delay(b"later", 3)
        await world.stop()
        await world.up()
        await asyncio.sleep(31)
        assert await world.delivered() == [b"later"]
    assert not [record for record in caplog.records if "delayOffset" in record.getMessage()]


@in_loop(with_one_broker, message_delay_level=LEVELS, flush_disk_type=FlushDiskType.SYNC_FLUSH)
async def test_a_position_beyond_the_end_of_its_queue_is_set_back_for_good(
    world: OneBroker, /
) -> None:
    await world.stop()
    mount = world.simulation.disk(HOST).mount()
    mount.write_file(Path("/store/config/delayOffset.json"), b'{"offsetTable":{1:2,2:1}}')
    mount.close()
    world.simulation.disk(HOST).kill()
    await world.up()
    assert saved_offsets(world) == {"1": 0, "2": 0}
    for number in range(3):
        await world.delay(b"%d" % number, 1)
    world.kill()
    await world.up()
    await asyncio.sleep(1.5)
    assert await world.delivered() == [b"0", b"1", b"2"], (
        "they have the offsets that were saved as delivered"
    )


@in_loop(with_one_broker, message_delay_level=LEVELS)
async def test_sends_are_served_while_a_crowd_is_due_and_levels_share_the_turns(
    world: OneBroker, /
) -> None:
    client, store = world.client, world.broker.store
    for topic in ("A", "B", "sent"):
        await client.create(topic)
    for _ in range(20):
        await asyncio.gather(*(world.delay(b"x" * 100, 2, topic="A") for _ in range(100)))
    for _ in range(20):
        await asyncio.gather(*(world.delay(b"x" * 100, 1, topic="B") for _ in range(100)))
    await world.stop()
    await asyncio.sleep(10)
    counts: list[tuple[int, int]] = []
    await world.up()
    store = world.broker.store
    while not counts or max(counts[-1]) < 1000:
        await world.client.send(b"now", topic="sent")
        counts.append((store.max_offset("A", 0), store.max_offset("B", 0)))
    assert len(counts) > 5
    assert max(counts[0]) < 500
    assert min(counts[-1]) > 500
    await asyncio.sleep(1)
    assert (store.max_offset("A", 0), store.max_offset("B", 0)) == (2000, 2000)
