"""SYNC_FLUSH: an answer means that the message is on the disk, and nobody reads what may still be
lost."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Talk, in_virtual_time, pull, talking, watched

from turbopump.config.broker_config import FlushDiskType
from turbopump.message.batch import encode_batch
from turbopump.message.codec import decode_entries
from turbopump.message.handles import RecallHandle
from turbopump.message.message import Message
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.send import RecallMessage, SendMessageReply, SendMessageV2

SYNC: dict[str, Any] = {
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "flush_interval_commit_log": 1_000_000,
}
SEND = SendMessageV2(topic="T", queue_id=0)


async def on_host(
    scene: Callable[[Talk, SimulatedDisk], Coroutine[Any, Any, None]],
    talk: Talk,
    simulation: Simulation,
) -> None:
    disk = simulation.disk("10.0.0.1")
    await talk.client.create()
    await asyncio.sleep(1)
    await scene(talk, disk)


def with_disk(
    scene: Callable[[Talk, SimulatedDisk], Coroutine[Any, Any, None]],
    flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH,
    **config: Any,
) -> None:
    in_virtual_time(
        partial(on_host, scene), **{**SYNC, "flush_disk_type": flush_disk_type, **config}
    )


@in_loop(with_disk)
async def test_sends_and_batches_are_answered_once_they_are_on_the_disk(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (0.2, 0.2)
    begun = disk.loop.time()
    replies = await asyncio.gather(*(talk.client.ask(SEND, b"%d" % number) for number in range(10)))
    assert {reply.code for reply in replies} == {0}
    assert 0.1 < disk.loop.time() - begun < 0.5, "one or two syncs for all of them"
    assert talk.broker.store.durable.value == talk.broker.store.log.end
    batch = encode_batch([Message("T", b"a"), Message("T", b"b")])
    answer = await talk.client.ask(SendMessageV2(topic="T", queue_id=0, batch=True), batch)
    assert answer.header(SendMessageReply).queue_offset == 10
    assert talk.broker.store.durable.value == talk.broker.store.log.end
    assert len(await talk.client.all_bodies()) == 12


@in_loop(with_disk)
async def test_no_reader_sees_a_message_that_a_power_cut_could_still_take(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (2.0, 2.0)
    held = asyncio.ensure_future(talk.client.ask(pull(0, suspend_ms=30_000), timeout=60))
    await asyncio.sleep(0.1)
    sent = asyncio.ensure_future(talk.client.ask(SEND, b"x"))
    await asyncio.sleep(0.5)
    assert not sent.done()
    assert not held.done()
    answer, header = await talk.client.pull(0)
    assert (answer.code, header.max_offset) == (19, 0)
    assert (await talk.client.ask(GetMaxOffset(topic="T", queue_id=0))).ext == {"offset": "0"}
    assert (await sent).code == 0
    assert [message.body for message in decode_entries((await held).body)] == [b"x"]


@in_loop(with_disk)
async def test_a_producer_that_does_not_wait_is_answered_at_once(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (2.0, 2.0)
    begun = disk.loop.time()
    for properties in ("WAIT\x01false\x02", "a\x01b\x02WAIT\x01false"):
        answer = await talk.client.ask(
            SendMessageV2(topic="T", queue_id=0, properties=properties), b"x"
        )
        assert answer.code == 0
    assert disk.loop.time() - begun < 0.5
    await talk.client.send(b"x", properties="MYWAIT\x01false\x02")
    assert disk.loop.time() - begun > 1, "a property of another name is no such wish"


@in_loop(with_disk)
async def test_a_disk_that_takes_too_long_is_said_to_and_the_message_is_kept(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (20.0, 20.0)
    begun = disk.loop.time()
    answer = await talk.client.ask(SEND, b"x", timeout=60)
    assert disk.loop.time() - begun == pytest.approx(5, abs=0.2)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert "stored but may be lost" in (answer.remark or "")
    assert answer.header(SendMessageReply).queue_offset == 0, "the answer is complete"
    await asyncio.sleep(30)
    assert await talk.client.all_bodies() == [b"x"]


@in_loop(with_disk)
async def test_a_timer_message_on_a_slow_disk_can_be_recalled_by_its_handle(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (20.0, 20.0)
    timer = SendMessageV2(
        topic="T", queue_id=0, properties="UNIQ_KEY\x01U1\x02TIMER_DELAY_SEC\x01300\x02"
    )
    answer = await talk.client.ask(timer, b"later", timeout=60)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    handle = answer.header(SendMessageReply).recall_handle
    assert RecallHandle.decode(handle or "").unique_id == "U1"
    disk.sync_seconds = (0.001, 0.001)
    await asyncio.sleep(30)
    assert (await talk.client.ask(RecallMessage(topic="T", recall_handle=handle))).code == 0
    await talk.client.send(b"plain")
    await asyncio.sleep(320)
    assert await talk.client.all_bodies() == [b"plain"]


@in_loop(with_disk)
async def test_each_send_has_its_own_deadline_and_those_in_time_are_answered_in_order(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (6.0, 6.0)
    begun = disk.loop.time()
    answered: list[tuple[int, int, float]] = []

    async def send(number: int) -> None:
        answer = await talk.client.ask(SEND, b"%d" % number, timeout=60)
        answered.append((number, answer.code, disk.loop.time() - begun))

    sends = []
    for number in range(3):  # at 0, 2 and 4 s; the first sync ends at 6, the second at 8.5 s
        sends.append(asyncio.ensure_future(send(number)))
        await asyncio.sleep(2)
        disk.sync_seconds = (2.5, 2.5)
    await asyncio.gather(*sends)
    assert [number for number, _, _ in answered] == [0, 1, 2]
    late, good = ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SUCCESS
    assert [code for _, code, _ in answered] == [late, late, good]
    assert [at for _, _, at in answered] == pytest.approx([5, 7, 8.5], abs=0.2)
    await talk.client.send(b"afterwards")
    assert await talk.client.all_bodies() == [b"0", b"1", b"2", b"afterwards"]


@in_loop(with_disk)
async def test_answers_that_one_sync_releases_go_to_those_who_asked(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (2.0, 2.0)
    one, other = talk.client, talk.another()
    asked = [(client, b"%d" % number) for number in range(6) for client in (one, other)]
    answers = await asyncio.gather(*(client.ask(SEND, body) for client, body in asked))
    offsets = [answer.header(SendMessageReply).queue_offset for answer in answers]
    stored = await one.all_bodies()
    assert [stored[offset] for offset in offsets] == [body for _, body in asked]


@in_loop(with_disk)
async def test_a_batch_that_is_late_is_answered_with_the_ids_of_its_messages(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (20.0, 20.0)
    batch = encode_batch([Message("T", b"a"), Message("T", b"b")])
    answer = await talk.client.ask(SendMessageV2(topic="T", queue_id=0, batch=True), batch, 60)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert len(answer.header(SendMessageReply).msg_id.split(",")) == 2


@in_loop(with_disk)
async def test_a_oneway_send_is_flushed_and_not_answered(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    await talk.client.remoting.send_oneway(talk.client.address, SEND, b"x")
    await asyncio.sleep(2)
    assert await talk.client.all_bodies() == [b"x"]


@in_loop(with_disk)
async def test_a_failed_sync_fails_its_sends_and_all_that_follow_and_reading_goes_on(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    await talk.client.send(b"safe")
    disk.fail("sync", errno.EIO)
    answers = await asyncio.gather(*(talk.client.ask(SEND, b"lost") for _ in range(3)))
    following = await talk.client.ask(SEND, b"refused")
    batch = await talk.client.ask(
        SendMessageV2(topic="T", queue_id=0, batch=True), encode_batch([Message("T", b"x")])
    )
    for answer in (*answers, following, batch):
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "fdatasync of the commit log failed" in (answer.remark or "")
        assert "read-only until a restart" in (answer.remark or "")
    assert await talk.client.all_bodies() == [b"safe"]


@in_loop(with_disk, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_commit_log=500)
async def test_async_flush_refuses_sends_after_a_failed_sync_too(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    await talk.client.send(b"makes the index file, and has it noted")
    await asyncio.sleep(2)
    disk.fail("sync", errno.EIO)
    await talk.client.send(b"answered before the flush")
    await asyncio.sleep(2)
    answer = await talk.client.ask(SEND, b"refused")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


@in_loop(watched)
async def test_sync_flush_on_a_real_disk(tmp_path: Path) -> None:
    async with talking(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as talk:
        replies = await asyncio.gather(*(talk.client.send(b"%d" % number) for number in range(50)))
        assert sorted(reply.queue_offset for reply in replies) == list(range(50))
        assert len(await talk.client.all_bodies()) == 50
    async with talking(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as talk:
        assert len(await talk.client.all_bodies()) == 50


@pytest.mark.parametrize("flush_disk_type", list(FlushDiskType))
@in_loop(with_disk)
async def test_the_first_answers_of_a_new_topic_wait_until_a_crash_cannot_take_the_topic(
    talk: Talk, disk: SimulatedDisk, /, flush_disk_type: FlushDiskType
) -> None:
    disk.sync_seconds = (0.3, 0.3)
    table = next(path for path in disk.files if path.name == "topics.json")
    new = SendMessageV2(topic="NEW", queue_id=0)
    replies = [asyncio.ensure_future(talk.client.ask(new, b"%d" % number)) for number in range(3)]
    while not all(reply.done() for reply in replies):
        assert b"NEW" in disk.files[table].content or not any(reply.done() for reply in replies)
        await asyncio.sleep(0.01)
    assert {reply.result().code for reply in replies} == {0}
    assert len(await talk.client.all_bodies("NEW")) == 3


@in_loop(with_disk)
async def test_a_new_topic_that_cannot_be_saved_is_no_promise_kept(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    await talk.client.send(b"x")  # an index file is made, and noted
    await asyncio.sleep(1)
    disk.fail("rename", errno.ENOSPC)
    new = SendMessageV2(topic="NEW", queue_id=0)
    for _ in range(2):
        assert (await talk.client.ask(new, b"x")).code == ResponseCode.FLUSH_DISK_TIMEOUT
    await asyncio.sleep(2)
    assert (await talk.client.ask(new, b"x")).code == 0
