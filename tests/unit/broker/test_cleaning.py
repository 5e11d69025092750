"""Room and retention as clients see them: refusals with their cause, writing that comes back by
itself, offsets that move."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.mount import SimulatedFile
from tests.simulation.world.simulation import START_MS, Simulation
from tests.unit.broker.small_disk import ROOT, SEGMENT
from tests.unit.broker.talking import Talk, in_virtual_time, pull

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.cleaning import (
    CleanExpiredConsumeQueue,
    CleanUnusedTopic,
    DeleteExpiredCommitLog,
)
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.store.disk_space import SpaceLimits

EVERY_HOUR = ";".join(map(str, range(24)))
HALF_A_DAY_LATER = str((datetime.fromtimestamp(START_MS / 1000).hour + 12) % 24)
SEND = SendMessageV2(topic="T", queue_id=0)
KIB = b"x" * 1024


async def on_host(
    scene: Callable[[Talk, SimulatedDisk], Coroutine[Any, Any, None]],
    talk: Talk,
    simulation: Simulation,
) -> None:
    await talk.client.create()
    await asyncio.sleep(1)
    disk = simulation.disk("10.0.0.1")
    capacity = disk.capacity
    await scene(talk, disk)
    disk.capacity = capacity


def on_disk(
    scene: Callable[[Talk, SimulatedDisk], Coroutine[Any, Any, None]],
    delete_when: str = "04",
    **config: Any,
) -> None:
    settings = {
        "mapped_file_size_commit_log": SEGMENT,
        "max_message_size": 4096,
        "flush_interval_consume_queue": 100,
        "disk_free_space_min": 0,
        "delete_when": delete_when,
    }
    in_virtual_time(partial(on_host, scene), **{**settings, **config})


def use(disk: SimulatedDisk, percent: float) -> None:
    """Let so much of the disk be used, by making it smaller or larger."""
    used = disk.capacity - disk.space(ROOT).free
    disk.capacity = int(used * 100 / percent) + 1


async def writable_after(talk: Talk, disk: SimulatedDisk) -> float:
    began = disk.loop.time()
    while (await talk.client.ask(SEND, KIB)).code != ResponseCode.SUCCESS:
        await asyncio.sleep(0.1)
    return disk.loop.time() - began


@in_loop(on_disk, clean_file_forcibly_enable=False)
async def test_a_full_disk_refuses_with_the_exact_cause_until_there_is_room_and_reading_goes_on(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    await talk.client.send(b"before")
    await asyncio.sleep(3)  # its index file and the next segment are there
    use(disk, 89.5)
    await asyncio.sleep(3)
    await talk.client.send(b"at 90 %")
    use(disk, 90.5)
    await asyncio.sleep(3)
    code, remark = await talk.client.code(SEND, b"refused")
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    free = disk.space(ROOT).free
    assert (
        f"the disk of /store/commitlog is full: 91 % used, {free} of {disk.capacity} bytes free"
    ) in remark
    assert "diskSpaceWarningLevelRatio=90 %" in remark
    assert "fileReservedTime" in remark
    assert await talk.client.all_bodies() == [b"before", b"at 90 %"]
    use(disk, 86)
    await asyncio.sleep(30)
    assert (await talk.client.ask(SEND, b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE, (
        "not at the first byte"
    )
    use(disk, 84)
    assert await writable_after(talk, disk) <= 2.5


@in_loop(on_disk, clean_file_forcibly_enable=False)
async def test_a_disk_may_be_judged_by_its_free_bytes_alone(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.files[Path("/of another program")] = SimulatedFile(bytes(64 << 20), synced=True)
    talk.broker.store.space.limits = SpaceLimits(free_min=1)
    use(disk, 99)
    await talk.client.send(b"taken")
    await asyncio.sleep(3)
    free = disk.space(ROOT).free
    talk.broker.store.space.limits = SpaceLimits(free_min=free)
    await asyncio.sleep(3)
    await talk.client.send(b"taken")
    disk.capacity -= 1
    await asyncio.sleep(3)
    code, remark = await talk.client.code(SEND, b"refused")
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (
        f"diskFreeSpaceMin={free}, and sends are accepted again from {free * 3 // 2} on" in remark
    )
    disk.capacity += free // 2
    assert (await talk.client.ask(SEND, b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    disk.capacity += 1
    assert await writable_after(talk, disk) <= 2.5


@in_loop(on_disk, disk_free_space_min=1)
async def test_a_file_that_finds_no_room_refuses_sends_until_it_does(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    sent = []
    disk.capacity = disk.capacity - disk.space(ROOT).free + SEGMENT // 2
    for number in range(1000):
        body = b"%d " % number + KIB
        code, remark = await talk.client.code(SEND, body)
        if code != ResponseCode.SUCCESS:
            break
        sent.append(body)
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (f"no space for {SEGMENT} bytes in /store/commitlog (No space left on device") in remark
    await asyncio.sleep(3)
    code, remark = await talk.client.code(SEND, b"small")
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert f"of {disk.capacity} bytes free" in remark
    assert await talk.client.all_bodies() == sent
    disk.capacity += SEGMENT
    assert await writable_after(talk, disk) <= 2.5
    assert len(await talk.client.all_bodies()) == len(sent) + 1


@in_loop(on_disk)
async def test_a_disk_that_fills_up_loses_its_oldest_messages_and_goes_on(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.change((ROOT / "turbopump.reserve", None))  # 4 MiB, as on a big disk
    disk.capacity = 40 * SEGMENT
    count = 0
    for _ in range(60):
        for _ in range(60):
            await talk.client.send(b"%d " % count + KIB)
            count += 1
        await asyncio.sleep(2.5)
    assert count * 1024 > 50 * SEGMENT
    low = int((await talk.client.ask(GetMinOffset(topic="T", queue_id=0))).ext["offset"])
    assert low > 1000
    assert disk.space(ROOT).used_percent <= 90
    answer, header = await talk.client.pull(0)
    assert (answer.code, header.next_begin_offset, header.min_offset) == (
        ResponseCode.PULL_OFFSET_MOVED,
        low,
        low,
    )
    kept = []
    offset = low
    while messages := await talk.client.messages(offset):
        kept += [int(message.body.split()[0]) for message in messages]
        offset = kept[-1] + 1
    assert kept == list(range(low, count))


@pytest.mark.parametrize(("delete_when", "gone"), [(EVERY_HOUR, True), (HALF_A_DAY_LATER, False)])
@in_loop(on_disk, file_reserved_time=1)
async def test_messages_are_kept_for_as_long_as_asked_and_go_at_the_hours_asked_for(
    talk: Talk, disk: SimulatedDisk, /, delete_when: str, gone: bool
) -> None:
    for number in range(200):
        await talk.client.send(b"%d " % number + KIB)
    await asyncio.sleep(0.9 * 3600)
    assert talk.broker.store.log.start == 0
    await asyncio.sleep(0.2 * 3600)
    assert (talk.broker.store.log.start > 0) is gone
    files = len(talk.broker.store.log.files.files)
    assert files == (1 if gone else 4), "the last one is never deleted"
    low = int((await talk.client.ask(GetMinOffset(topic="T", queue_id=0))).ext["offset"])
    assert (low > 100) is gone
    assert (await talk.client.ask(pull(low))).code == ResponseCode.SUCCESS


@in_loop(on_disk, file_reserved_time=1, delete_when=HALF_A_DAY_LATER)
async def test_an_operator_lets_expired_files_go_whatever_the_hour(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    for number in range(200):
        await talk.client.send(b"%d " % number + KIB)
    assert await talk.client.code(DeleteExpiredCommitLog()) == (0, "")
    await asyncio.sleep(1.1 * 3600)
    assert talk.broker.store.log.start == 0, "they had not expired then, and now nobody asks"
    assert await talk.client.code(DeleteExpiredCommitLog()) == (0, "")
    await asyncio.sleep(15)
    assert talk.broker.store.log.start > 0
    assert await talk.client.code(CleanExpiredConsumeQueue()) == (0, "")
    low = int((await talk.client.ask(GetMinOffset(topic="T", queue_id=0))).ext["offset"])
    assert low > 100
    assert (await talk.client.ask(pull(low))).code == ResponseCode.SUCCESS
    await talk.client.send(b"the queue goes on")
    assert (await talk.client.ask(GetMaxOffset(topic="T", queue_id=0))).ext["offset"] == "201"


@in_loop(on_disk)
async def test_queues_of_topics_that_are_not_known_go_and_others_stay(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    await talk.client.create("forgotten")
    await talk.client.send(topic="forgotten")
    await talk.client.send()
    talk.broker.tables.topics.delete("forgotten")
    assert talk.broker.store.queue("forgotten", 0) is not None
    assert await talk.client.code(CleanUnusedTopic()) == (0, "")
    assert talk.broker.store.queue("forgotten", 0) is None
    assert await talk.client.all_bodies() == [b"x"]


@in_loop(on_disk)
async def test_a_disk_that_does_not_say_how_much_room_there_is_holds_nobody_up(
    talk: Talk, disk: SimulatedDisk, /
) -> None:
    disk.sync_seconds = (3600.0, 3600.0)
    await asyncio.sleep(5)
    began = disk.loop.time()
    for _ in range(50):
        await talk.client.send(b"taken")
    assert disk.loop.time() - began < 5
    assert len(await talk.client.all_bodies()) == 50


@in_loop(on_disk)
async def test_an_error_of_the_question_is_reported_once_and_changes_nothing(
    talk: Talk, disk: SimulatedDisk, /, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fail("space", times=20)
    await asyncio.sleep(10)
    await talk.client.send(b"taken")
    assert caplog.text.count("the free space cannot be read") == 1
