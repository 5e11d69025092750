"""What the broker has still to deliver, on a disk too full for sends: it goes on, so that what it
held can be deleted."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.disk import SimulatedDisk
from tests.stand_ins import returns
from tests.unit.broker.small_disk import ROOT, SEGMENT
from tests.unit.broker.talking import Client
from tests.unit.broker.transacting import BROKER, GIVEN_UP, HALF, OP, World, in_a_world

from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2, TransactionOutcome

FREE_MIN = 20 * SEGMENT
SEND = SendMessageV2(topic="F", queue_id=0)
BODY = b"x" * 3000
WAITS = {"level": {"DELAY": "3"}, "timer": {"TIMER_DELAY_SEC": "60"}}


async def with_topics(
    story: Callable[[World, Client], Coroutine[Any, Any, None]], world: World
) -> None:
    client = world.client()
    await client.create()
    await client.create("F")
    await client.send(topic="F")
    await asyncio.sleep(1)
    await story(world, client)
    world.simulation.disk(BROKER).capacity = 1 << 30
    await client.close()


def on_a_small_disk(
    story: Callable[[World, Client], Coroutine[Any, Any, None]], **config: Any
) -> None:
    settings = {
        "mapped_file_size_commit_log": SEGMENT,
        "mapped_file_size_timer_log": 52 * 1000,
        "max_message_size": 4096,
        "flush_interval_consume_queue": 100,
        "flush_interval_commit_log": 100,
        "message_index_enable": False,
        "disk_free_space_min": FREE_MIN,
        "message_delay_level": "1s 5s 60s",
        "transaction_time_out": 60_000,
        "transaction_check_interval": 10_000,
    }
    in_a_world(partial(with_topics, story), **{**settings, **config})


def leave(disk: SimulatedDisk, size: int) -> None:
    """Let so many bytes be free."""
    disk.capacity += size - disk.space(ROOT).free


async def fill(client: Client) -> int:
    """Send until the disk is too full for it; how many were taken."""
    sent = 0
    while (await client.ask(SEND, BODY)).code == ResponseCode.SUCCESS:
        sent += 1
        assert sent < 10_000, "the disk does not fill up"
        await asyncio.sleep(0.05)
    return sent


async def until(client: Client, bodies: list[bytes]) -> None:
    """Wait until they have come."""
    async with asyncio.timeout(300):
        while await client.all_bodies() != bodies:
            await asyncio.sleep(0.1)


async def writable(client: Client) -> None:
    async with asyncio.timeout(300):
        while (await client.ask(SEND, BODY)).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", WAITS)
@in_loop(on_a_small_disk)
async def test_a_message_that_is_due_comes_while_sends_are_refused_and_what_it_held_is_deleted(
    world: World, client: Client, /, kind: str
) -> None:
    await client.send(b"later", properties=encode_properties({"UNIQ_KEY": "U", **WAITS[kind]}))
    await asyncio.sleep(3)
    leave(world.simulation.disk(BROKER), FREE_MIN + 20 * SEGMENT)
    assert await fill(client) * 3000 > 10 * SEGMENT
    assert world.broker.store.log.start == 0, "the message waits in the first segment"
    await until(client, [b"later"])
    await writable(client)
    assert world.broker.store.log.start > 0


@in_loop(on_a_small_disk)
async def test_a_half_message_keeps_its_segment_until_its_check_and_commit_on_a_full_disk(
    world: World, client: Client, /
) -> None:
    seller = world.transactor()
    await seller.announce()
    seller.answer = returns(TransactionOutcome.COMMIT)
    await seller.prepare(b"half")
    await asyncio.sleep(1)
    leave(world.simulation.disk(BROKER), FREE_MIN + 20 * SEGMENT)
    assert await fill(client) * 3000 > 10 * SEGMENT
    assert world.broker.store.log.start == 0, "the half message is in the first segment"
    await until(client, [b"half"])
    assert [asked.message.body for asked in seller.asked] == [b"half"]
    await writable(client)
    assert world.broker.store.log.start > 0
    await seller.client.close()


@in_loop(on_a_small_disk, flush_consumer_offset_interval=600_000)
async def test_an_ended_half_message_holds_nothing_after_a_kill_before_this_was_noted(
    world: World, client: Client, /
) -> None:
    seller = world.transactor()
    await seller.end(await seller.prepare(b"half"), TransactionOutcome.COMMIT)
    await asyncio.sleep(4)
    world.kill()
    await world.start()
    client = world.client()
    assert world.offset(HALF) in (None, 0)
    assert world.broker.store.max_offset(OP, 0) == 1
    leave(world.simulation.disk(BROKER), FREE_MIN + 20 * SEGMENT)
    for _ in range(1000):  # of which half have room
        await client.ask(SEND, BODY)
        await asyncio.sleep(0.05)
    await writable(client)
    assert world.broker.store.log.start > 0
    await client.close()
    await seller.client.close()


@in_loop(on_a_small_disk, transaction_check_max=3)
async def test_an_unanswered_half_message_moves_between_full_segments_and_is_given_up(
    world: World, client: Client, /
) -> None:
    seller = world.transactor()
    await seller.announce()
    await seller.prepare(b"half")
    await asyncio.sleep(1)
    leave(world.simulation.disk(BROKER), FREE_MIN + 20 * SEGMENT)
    begins: set[int] = set()
    async with asyncio.timeout(600):
        while not world.broker.store.max_offset(GIVEN_UP, 0):
            await client.ask(SEND, BODY)
            begins.add(world.broker.store.log.start)
            await asyncio.sleep(0.02)
    assert await client.all_bodies(GIVEN_UP) == [b"half"]
    assert len(begins) > 3, "segments went in between"
    await seller.client.close()


@in_loop(on_a_small_disk, transaction_check_max=3)
async def test_a_half_message_whose_producers_are_away_holds_no_segment_and_is_not_given_up(
    world: World, client: Client, /
) -> None:
    seller = world.transactor()
    await seller.prepare(b"half")
    await seller.client.close()
    leave(world.simulation.disk(BROKER), FREE_MIN + 20 * SEGMENT)
    begins: set[int] = set()
    async with asyncio.timeout(600):
        while len(begins) < 5:
            await client.ask(SEND, BODY)
            begins.add(world.broker.store.log.start)
            await asyncio.sleep(0.02)
    assert world.broker.store.max_offset(GIVEN_UP, 0) == 0
    assert world.broker.store.max_offset(HALF, 0) > 1, "it stands again at the end"


@in_loop(on_a_small_disk)
async def test_a_half_message_not_due_for_a_day_is_set_aside_when_its_segment_is_to_go(
    world: World, client: Client, /
) -> None:
    seller = world.transactor()
    await seller.prepare(b"half", CHECK_IMMUNITY_TIME_IN_SECONDS="86400")
    await asyncio.sleep(100)  # it was looked at, and is to be so again in a day
    leave(world.simulation.disk(BROKER), FREE_MIN + 20 * SEGMENT)
    await fill(client)
    await writable(client)
    assert world.broker.store.log.start > 0
    assert world.broker.store.max_offset(HALF, 0) > 1, "it stands again at the end"
    assert seller.asked == []
    await seller.client.close()


@in_loop(on_a_small_disk, clean_file_forcibly_enable=False)
async def test_a_really_full_disk_delays_what_is_due_and_loses_nothing(
    world: World, client: Client, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    disk = world.simulation.disk(BROKER)
    for number in range(60):
        await client.send(
            b"%d" % number + BODY,
            properties=encode_properties({"UNIQ_KEY": f"U{number}", "DELAY": "3"}),
        )
    leave(disk, SEGMENT // 2)
    await asyncio.sleep(120)
    came = await client.all_bodies()
    assert len(came) < 60, "only what the files there are could take"
    assert disk.space(ROOT).free > 0
    assert (await client.ask(SEND, b"small")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    leave(disk, 2 * FREE_MIN)
    await until(client, [b"%d" % number + BODY for number in range(60)])
    assert "delayed messages wait, trying again" in caplog.text


@in_loop(on_a_small_disk, clean_file_forcibly_enable=False)
async def test_what_a_consumer_sends_back_is_refused_as_a_send_is(
    world: World, client: Client, /
) -> None:
    sent = await client.send(b"a")
    await client.join("c-1")
    (message,) = await client.messages()
    leave(world.simulation.disk(BROKER), FREE_MIN - SEGMENT)
    await asyncio.sleep(3)
    code, remark = await client.code(_back(message))
    assert code == ResponseCode.SYSTEM_ERROR
    assert "is full" in remark
    assert sent.queue_offset == 0


def _back(message: ReceivedMessage) -> ConsumerSendMsgBack:
    return ConsumerSendMsgBack(
        offset=message.commit_log_offset,
        group="g",
        delay_level=0,
        origin_msg_id="",
        origin_topic="T",
        max_reconsume_times=16,
    )
