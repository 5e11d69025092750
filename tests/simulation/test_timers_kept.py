"""Timer messages through stops, kills, full disks, damage, lost files and clocks that are set:
never early, never lost."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuzzing import crossed
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.kept_timers import SMALL, damage_timer_log, files, now_ms, send
from tests.simulation.one_broker import HOST, OneBroker, full_after, one_broker, with_one_broker
from tests.simulation.world.mount import SimulatedMount
from tests.simulation.world.simulation import Simulation
from tests.unit.store.looked_up import message_in_queue

from turbopump.cli.log_lines import line_of
from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import RecallMessage
from turbopump.store.retention import NextStep, Retention
from turbopump.store.timers.pending_timers import TIMER_TOPIC
from turbopump.store.timers.timer_wheel import WHEEL_SLOT_SIZE


async def send_many(world: OneBroker, count: int, ahead_s: float) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        await send(world, body, ahead_s)
    return bodies


def remove_timer_log(mount: SimulatedMount) -> None:
    for name in mount.list_directory(Path("/store/timerlog")):
        mount.remove(Path("/store/timerlog") / name)


def remove_wheel(mount: SimulatedMount) -> None:
    mount.remove(Path("/store/timerwheel"))


def flip_in_wheel(mount: SimulatedMount) -> None:
    segment = mount.open_segment(Path("/store/timerwheel"))
    segment.buffer[_used_slot(segment.buffer) + 6] ^= 1
    segment.sync()


def zeros_in_wheel(mount: SimulatedMount) -> None:
    segment = mount.open_segment(Path("/store/timerwheel"))
    at = _used_slot(segment.buffer) // 512 * 512
    segment.buffer[at : at + 512] = bytes(512)
    segment.sync()


def _used_slot(wheel: memoryview) -> int:
    """Where in the file the last slot is that something was put into."""
    return len(bytes(wheel).rstrip(b"\0")) // WHEEL_SLOT_SIZE * WHEEL_SLOT_SIZE


def remove_checkpoints(mount: SimulatedMount) -> None:
    for name in ("timercheck", "timercheck.bak"):
        mount.remove(Path("/store/config") / name)


@in_loop(with_one_broker, **SMALL)
async def test_after_a_clean_stop_nothing_comes_twice_and_what_waits_comes_when_it_is_due(
    world: OneBroker, /
) -> None:
    await send_many(world, 50, 3)
    await send(world, b"last", 60)
    await asyncio.sleep(5)
    assert len(await world.delivered()) == 50
    await world.stop()
    await asyncio.sleep(5)
    await world.up()
    await asyncio.sleep(60)
    assert len(await world.delivered()) == 51
    assert (await world.delivered())[50:] == [b"last"]
    assert world.broker.parts.delivering.timers.numbers.received == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
@in_loop(with_one_broker, **SMALL)
async def test_what_was_due_while_the_broker_was_down_comes_at_its_start(
    world: OneBroker, /, power_cut: bool, seed: int
) -> None:
    sent = await send_many(world, 250, 30)
    world.kill(power_cut=power_cut)
    await asyncio.sleep(3600 * 24 * 40)  # longer than the wheel goes round
    await world.up()
    await asyncio.sleep(0.5)
    assert await world.delivered() == sent


@in_loop(with_one_broker, timer_flush_interval_ms=10, **SMALL)
async def test_a_kill_within_a_slot_repeats_only_deliveries_since_the_last_note(
    world: OneBroker, /
) -> None:
    sent = await send_many(world, 600, 30)
    timers = world.broker.parts.delivering.timers
    assert timers is not None
    while not timers.pending.saved.delivered:
        await asyncio.sleep(0.001)
    noted = timers.pending.saved.delivered
    world.kill()
    await world.up()
    await asyncio.sleep(10)
    came = Counter(await world.delivered())
    assert set(came) == set(sent)
    assert {body for body, count in came.items() if count > 1}.isdisjoint(sent[:noted])


@pytest.mark.parametrize(
    ("lose", "window"),
    crossed(
        [remove_timer_log, damage_timer_log, remove_wheel, flip_in_wheel, zeros_in_wheel],
        [172_800, 20],
    ),
)
@in_loop(on_a_client_s_host)
async def test_lost_or_damaged_files_are_made_again(
    simulation: Simulation,
    /,
    lose: Callable[[SimulatedMount], None],
    window: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with one_broker(simulation, timer_roll_window_slot=window, **SMALL) as world:
        await send_many(world, 30, 5)
        handles = [await send(world, b"far %d" % number, 60 + number) for number in range(50)]
        await world.client.ask(RecallMessage(topic="T", recall_handle=handles[7] or ""))
        await asyncio.sleep(30)
        assert len(await world.delivered()) == 30
        await world.stop()
        files(world, lose)
        if lose is damage_timer_log:
            files(world, remove_wheel)
        await world.up()
        answer = await world.client.ask(RecallMessage(topic="T", recall_handle=handles[9] or ""))
        assert answer.code == ResponseCode.SUCCESS
        await asyncio.sleep(100)
        came = await world.delivered()
        assert Counter(came[30:]) == Counter(
            b"far %d" % number for number in range(50) if number not in (7, 9)
        )
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "made again from" in line or "rebuilt from" in line]


@in_loop(on_a_client_s_host)
async def test_damage_that_is_found_at_delivery_is_repaired_while_the_broker_runs(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, timer_roll_window_slot=20, **SMALL) as world:
        await send_many(world, 30, 5)
        for number in range(50):
            await send(world, b"far %d" % number, 60)
        await asyncio.sleep(30)
        timers = world.broker.parts.delivering.timers
        assert timers is not None
        for file in timers.pending.log.files.files:
            file.buffer[: 52 * 90] = b"\x33" * (52 * 90)
        await asyncio.sleep(60)
        came = await world.delivered()
        assert came[30:] == [b"far %d" % number for number in range(50)]
        assert timers.pending.redo_before == 0
        await world.stop()
        await world.up()
        await asyncio.sleep(5)
        assert len(await world.delivered()) == 80
    assert [
        record for record in caplog.records if "made again from the queue" in record.getMessage()
    ]


@in_loop(with_one_broker, **SMALL)
async def test_a_kill_while_everything_is_made_again_makes_it_begin_anew(
    world: OneBroker, /
) -> None:
    await send_many(world, 30, 5)
    for number in range(300):
        await send(world, b"far %d" % number, 90)
    await asyncio.sleep(30)
    await world.stop()
    files(world, remove_timer_log)
    for _ in range(3):
        await world.up()
        timers = world.broker.parts.delivering.timers
        assert timers is not None
        while timers.pending.queue_offset < 100:
            await asyncio.sleep(0.001)
        assert timers.pending.redo_before == 330
        world.kill(power_cut=True)
    await world.up()
    await asyncio.sleep(70)
    assert Counter((await world.delivered())[30:]) == Counter(
        b"far %d" % number for number in range(300)
    )


@in_loop(on_a_client_s_host)
async def test_without_its_checkpoint_everything_comes_again_and_nothing_is_lost(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, **SMALL) as world:
        sent = await send_many(world, 30, 5)
        await send(world, b"far", 60)
        await asyncio.sleep(10)
        await world.stop()
        files(world, remove_checkpoints)
        await world.up()
        await asyncio.sleep(60)
        assert Counter(await world.delivered()) == Counter([*sent, *sent, b"far"])
    assert [record for record in caplog.records if "will be so again" in record.getMessage()]


@in_loop(on_a_client_s_host)
async def test_while_the_store_refuses_nothing_is_skipped_and_one_line_says_why(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.broker.schedule.timers"):
        async with one_broker(simulation, **SMALL) as world:
            sent = await send_many(world, 100, 10)
            with full_after(world.broker.store, 40):
                await asyncio.sleep(30)
                assert len(await world.delivered()) == 40
            await asyncio.sleep(1.5)
            assert await world.delivered() == sent
    lines = [
        line_of(record)
        for record in caplog.records
        if record.name == "turbopump.broker.schedule.timers"
    ]
    assert lines == [
        ("timer messages wait, trying again", {"cause": "the disk is full"}),
        ("timer messages are delivered again", {}),
    ]


@pytest.mark.parametrize("restarted", [False, True])
@in_loop(on_a_client_s_host)
async def test_damaged_messages_are_passed_over_with_a_line(
    simulation: Simulation, /, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, **SMALL) as world:
        for number in range(5):
            await send(world, b"body %d" % number, 10)
        await asyncio.sleep(3)
        log = world.broker.store.log
        at = bytes(log.files.files[0].buffer).index(b"body 2")
        log.files.files[0].buffer[at] ^= 1
        if restarted:
            await world.stop()
            await world.up()
        await asyncio.sleep(10)
        assert await world.delivered() == [b"body %d" % number for number in (0, 1, 3, 4)]
    lines = [
        record.getMessage()
        for record in caplog.records
        if "timer message not delivered" in record.getMessage()
    ]
    assert len(lines) == 1


@in_loop(on_a_client_s_host)
async def test_a_message_without_a_time_or_a_place_is_passed_over(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, **SMALL) as world:
        half = "RMQ_SYS_TRANS_HALF_TOPIC"
        for text in (
            "",
            f"TIMER_OUT_MS\x015\x02REAL_TOPIC\x01{half}\x02REAL_QID\x010\x02",
            "TIMER_OUT_MS\x015\x02",
            "TIMER_OUT_MS\x01soon\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
        ):
            await world.client.send(
                b"odd", topic=TIMER_TOPIC, properties=text + "UNIQ_KEY\x01U\x02"
            )
        await send(world, b"good", 2)
        await asyncio.sleep(4)
        assert await world.delivered() == [b"good"]
    assert (
        len(
            [
                record
                for record in caplog.records
                if "timer message not delivered" in record.getMessage()
            ]
        )
        == 4
    )


@in_loop(with_one_broker, **SMALL)
async def test_a_copy_that_has_no_room_for_more_properties_goes_without_them(
    world: OneBroker, /
) -> None:
    await send(world, b"1", 2)
    await asyncio.sleep(1)
    stored = message_in_queue(world.broker.store.lookup, TIMER_TOPIC, 0, 0)
    assert stored is not None
    room = (
        world.broker.store.properties_size_max
        - len(stored.properties_text.split("__CRC32#")[0])
        - len("filler")
        - 2
    )
    await send(world, b"2", 2, filler="x" * room)
    await asyncio.sleep(4)
    one, message = decode_entries(world.broker.store.get("T", 0, 0, 2).data)
    assert "TIMER_DEQUEUE_MS" in one.properties
    assert message.body == b"2"
    assert "TIMER_DEQUEUE_MS" not in message.properties


@in_loop(with_one_broker, **SMALL)
async def test_a_clock_that_is_set_back_makes_nobody_wait_and_nothing_come_twice(
    world: OneBroker, /
) -> None:
    clock = world.simulation.clock(HOST)
    await send_many(world, 20, 5)
    await asyncio.sleep(8)
    assert len(await world.delivered()) == 20
    clock.jump(-3_600_000)
    await send(world, b"soon", 10)
    await asyncio.sleep(9.5)
    assert len(await world.delivered()) == 20
    await asyncio.sleep(3)
    assert (await world.delivered())[20:] == [b"soon"]
    await world.stop()
    await world.up()
    await asyncio.sleep(3700)
    assert len(await world.delivered()) == 21


@in_loop(with_one_broker, **SMALL)
async def test_a_clock_that_is_set_forth_is_noticed_within_a_minute(world: OneBroker, /) -> None:
    await send(world, b"x", 7200)
    await asyncio.sleep(1)
    world.simulation.clock(HOST).jump(7_200_000)
    await asyncio.sleep(61)
    assert await world.delivered() == [b"x"]


async def delete(retention: Retention) -> bool:
    done: asyncio.Future[NextStep] = asyncio.get_running_loop().create_future()
    retention.request_deletion()
    assert retention.begin_round()
    retention.delete_next(lambda following: done.set_result(following))
    return await done is not NextStep.NOTHING


@in_loop(
    with_one_broker,
    mapped_file_size_commit_log=64 << 10,
    max_message_size=8192,
    file_reserved_time=0,
    **SMALL,
)
async def test_a_segment_with_a_waiting_message_is_deleted_only_after_its_delivery(
    world: OneBroker, /
) -> None:
    broker = world.broker
    retention, log = broker.store.retention, broker.store.log
    await send(world, b"waits", 100)
    for number in range(200):
        await world.client.send(b"%d" % number * 300)
    broker.store.flusher.flush_queues()
    await asyncio.sleep(15)
    assert len(log.files.files) > 2

    for _ in range(4):
        assert not await delete(retention)
        await asyncio.sleep(6)
    assert log.start == 0
    await asyncio.sleep(80)
    for _ in range(5):
        await delete(retention)  # or the broker's own rounds do
        await asyncio.sleep(6)
    assert log.start > 0
    assert len(log.files.files) == 1


@in_loop(with_one_broker, mapped_file_size_commit_log=64 << 10, max_message_size=8192, **SMALL)
async def test_files_of_the_timer_log_go_with_the_commit_log(world: OneBroker, /) -> None:
    broker = world.broker
    await send_many(world, 350, 20)
    await asyncio.sleep(40)
    timers = broker.parts.delivering.timers
    assert timers is not None
    assert len(timers.pending.log.files.files) == 4
    log = broker.store.log
    for file in log.files.files[:-1]:
        broker.store.log.files.forget_first()
        world.simulation.disk(HOST).mounted.remove(file.segment.path)  # type: ignore[union-attr]
    await send(world, b"more", 5)
    await asyncio.sleep(10)
    assert timers.pending.log.start > 0


@pytest.mark.parametrize("operation", ["sync", "rename", "write"])
@in_loop(with_one_broker, **SMALL)
async def test_a_disk_that_fails_the_timers_files_stops_no_delivery(
    world: OneBroker, /, operation: str
) -> None:
    sent = await send_many(world, 10, 10)
    await asyncio.sleep(3)
    world.simulation.disk(HOST).fail(operation, errno.EIO, nth=3, times=1)
    for body in (b"a", b"b", b"c"):
        if world.broker.store.durable.error is None:
            await asyncio.sleep(1)
            try:
                await asyncio.wait_for(send(world, body, 8), 5)
                sent.append(body)
            except (AssertionError, TimeoutError):
                pass
    await asyncio.sleep(15)
    if world.broker.store.durable.error is None:
        assert set(sent) <= set(await world.delivered())
    world.kill()
    world.simulation.disk(HOST).clear_faults()
    await world.up()
    await asyncio.sleep(20)
    assert set(sent) <= set(await world.delivered())


@pytest.mark.parametrize("killed_on_the_way", [False, True])
@in_loop(with_one_broker, **SMALL, timer_flush_interval_ms=1)
async def test_without_its_checkpoint_no_recalled_message_comes_and_one_of_the_same_id_does(
    world: OneBroker, /, killed_on_the_way: bool
) -> None:
    handle = await send(world, b"recalled", 3)
    later = await send(world, b"recalled, later", 60)
    for number in range(200):  # more than one turn reads
        await send(world, b"%d" % number, 3)
    for one in (handle, later):
        answer = await world.client.ask(RecallMessage(topic="T", recall_handle=one or ""))
        assert answer.code == ResponseCode.SUCCESS
    await send(world, b"again", 6, UNIQ_KEY=b"recalled".hex())
    await asyncio.sleep(10)
    sent = [*(b"%d" % number for number in range(200)), b"again"]
    assert await world.delivered() == sent
    await world.stop()
    files(world, remove_checkpoints)
    await world.up()
    if killed_on_the_way:
        timers = world.broker.parts.delivering.timers
        assert timers is not None
        while timers.pending.saved.queue_offset < 60:
            await asyncio.sleep(0.0001)
        assert timers.pending.saved.queue_offset < 200
        world.kill(power_cut=True)
        await world.up()
    await asyncio.sleep(100)
    assert Counter(await world.delivered()) == Counter([*sent, *sent])


@in_loop(with_one_broker, **SMALL)
async def test_overdue_pops_at_a_start_wait_while_their_reader_waits_for_the_rest(
    world: OneBroker, /
) -> None:
    deliver = now_ms(world) + 3000
    await send_many(world, 200, 3)
    await asyncio.sleep(10)
    await world.stop()
    files(world, remove_checkpoints)
    await world.up()
    timers, queue = (
        world.broker.parts.delivering.timers,
        world.broker.store.queues.find_or_make("T", 0),
    )
    assert timers is not None
    while not timers.has_delivered(deliver, 200):
        await asyncio.sleep(0.001)
    assert queue.max_index == 400
