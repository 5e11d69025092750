"""Offsets over the wire: a group's place (14, 15), a queue's ends (30, 31), places in time (29)."""

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Talk, converse, in_virtual_time, talking, watched

from turbopump.broker.broker import Broker
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.offsets import (
    ConsumerOffsetTable,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)


def commit(
    offset: int | None, *, queue_id: int | None = 0, group: str = "g", topic: str = "T"
) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )


def query(group: str = "g", **more: Any) -> QueryConsumerOffset:
    return QueryConsumerOffset(consumer_group=group, **{"topic": "T", "queue_id": 0, **more})


def outcome(answer: Command) -> int | tuple[str, int]:
    """The code, or the offset of a good answer."""
    return answer.code or ("offset", answer.header(OffsetReply).offset)


async def prepare(talk: Talk) -> None:
    """Topic T with a message, and the group g."""
    await talk.client.send()
    await talk.client.pull()


@in_loop(converse)
async def test_a_committed_place_is_found_again_also_after_going_back(talk: Talk, /) -> None:
    await prepare(talk)
    for offset in (5, 2, 2**63 - 1):
        assert await talk.client.code(commit(offset)) == (0, "")
        assert outcome(await talk.client.ask(query())) == ("offset", offset)
    await talk.client.remoting.send_oneway(talk.client.address, commit(3))
    assert outcome(await talk.client.ask(query())) == ("offset", 3)
    assert outcome(await talk.client.ask(query("other", set_zero_if_not_found=False))) == 22


@pytest.mark.parametrize(
    ("request_", "code", "remark"),
    [
        (
            commit(1, group="unknown", topic="unknown", queue_id=None),
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "Group unknown",
        ),
        (commit(1, topic="unknown", queue_id=None), ResponseCode.TOPIC_NOT_EXIST, "Topic unknown"),
        (commit(None, queue_id=None), ResponseCode.INVALID_PARAMETER, "QueueId is null"),
        (commit(None), ResponseCode.INVALID_PARAMETER, "Offset is null"),
        (commit(2**63), ResponseCode.INVALID_PARAMETER, "Offset is null"),
        (commit(1, queue_id=2**31), ResponseCode.INVALID_PARAMETER, "QueueId is null"),
    ],
)
@in_loop(converse)
async def test_a_commit_that_cannot_be_is_refused_in_apache_s_order(
    talk: Talk, /, request_: UpdateConsumerOffset, code: int, remark: str
) -> None:
    await prepare(talk)
    answer = await talk.client.code(request_)
    assert (answer[0], remark in answer[1]) == (code, True)


@in_loop(watched)
async def test_offsets_beyond_the_end_of_a_recovered_queue_are_set_back_to_it_saved_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create(queues=3)
        await talk.client.create("%RETRY%g")
        for queue_id in (0, 0, 0, 1, 1):
            await talk.client.send(queue_id=queue_id)
        await talk.client.pull()
        for queue_id, offset in ((0, 9), (1, 2), (2, 4)):
            assert await talk.client.code(commit(offset, queue_id=queue_id)) == (0, "")
        assert await talk.client.code(commit(7, topic="%RETRY%g")) == (0, "")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "turbopump.broker.broker"):
        async with talking(tmp_path) as talk:
            saved = fastjson.decode(
                (tmp_path / "config" / "consumerOffset.json").read_bytes(), ConsumerOffsetTable
            )
            assert saved.offset_table == {"T@g": {0: 3, 1: 2, 2: 0}, "%RETRY%g@g": {0: 0}}, (
                "saved before anybody is served"
            )
            for queue_id, offset in ((0, 3), (1, 2), (2, 0)):
                assert outcome(await talk.client.ask(query(queue_id=queue_id))) == (
                    "offset",
                    offset,
                )
            assert await talk.client.code(commit(50)) == (0, ""), "what a client says later counts"
            assert outcome(await talk.client.ask(query())) == ("offset", 50)
    lines = [record.getMessage() for record in caplog.records]
    start = "offset set back to the end of its recovered queue group=g topic="
    assert [line.removeprefix(start) for line in lines if line.startswith(start)] == [
        "T queue=0 offset=9 end=3",
        "T queue=2 offset=4 end=0",
        "%RETRY%g queue=0 offset=7 end=0",
    ]
    assert "offsets set back to the ends of their recovered queues count=3" in lines


@in_loop(in_virtual_time)
async def test_a_save_of_offsets_that_fails_is_repeated_though_nobody_commits(
    talk: Talk, simulation: Simulation, /
) -> None:
    await prepare(talk)
    disk = simulation.disk("10.0.0.1")
    path = Path("/store/config/consumerOffset.json")
    await asyncio.sleep(6)
    await talk.client.code(commit(1))
    disk.fail("write", errno.ENOSPC)
    await asyncio.sleep(7)
    assert disk.files[path].content.count(b"0:1") == 1


@in_loop(watched)
async def test_no_commit_keeps_a_broker_from_its_next_start(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await prepare(talk)
        for offset in (2**63 - 1, -(2**63), 2**63, 10**30):
            for queue_id in (0, 2**31 - 1, -(2**31), 2**31, 10**30):
                await talk.client.ask(commit(offset, queue_id=queue_id))
    async with talking(tmp_path) as talk:
        assert outcome(await talk.client.ask(query())) == ("offset", -(2**63))


@pytest.mark.parametrize(
    ("set_zero", "messages", "expected"),
    [
        (None, 0, ("offset", 0)),
        (True, 3, ("offset", 0)),
        (None, 3, ("offset", 0)),
        (False, 3, 22),
        (False, 0, 22),
    ],
)
@in_loop(converse)
async def test_a_group_without_a_place_begins_at_zero_while_the_queue_is_young(
    talk: Talk, /, set_zero: bool | None, messages: int, expected: object
) -> None:
    await talk.client.create()
    for _ in range(messages):
        await talk.client.send()
    assert outcome(await talk.client.ask(query(set_zero_if_not_found=set_zero))) == expected


@in_loop(watched)
async def test_a_group_without_a_place_is_not_found_once_the_first_message_is_cold_or_gone(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path, access_message_in_memory_max_ratio=0) as talk:
        for _ in range(3):
            await talk.client.send()
        assert outcome(await talk.client.ask(query())) == 22
    async with talking(tmp_path) as talk:
        queue = talk.broker.store.queue("T", 0)
        assert queue is not None
        queue.min_index = 1
        assert outcome(await talk.client.ask(query())) == 22


@in_loop(converse)
async def test_the_ends_of_a_queue(talk: Talk, /) -> None:
    for _ in range(3):
        await talk.client.send()
    assert outcome(await talk.client.ask(GetMaxOffset(topic="T", queue_id=0))) == ("offset", 3)
    assert outcome(await talk.client.ask(GetMinOffset(topic="T", queue_id=0))) == ("offset", 0)
    for request in (GetMaxOffset(topic="none", queue_id=0), GetMinOffset(topic="T", queue_id=99)):
        assert outcome(await talk.client.ask(request)) == ("offset", 0)


@in_loop(watched)
async def test_a_place_in_time_by_either_boundary(tmp_path: Path) -> None:
    class Clock:
        now = 1000

        def now_ms(self) -> int:
            return self.now

        def monotonic(self) -> float:
            return 0.0

    clock = Clock()

    def at_our_time(*args: Any) -> Broker:
        return Broker(*args, clock=clock)

    async with talking(tmp_path, make=at_our_time) as talk:
        for now in (1000, 2000, 2000, 3000):
            clock.now = now
            await talk.client.send()
        for timestamp, lower, upper in ((0, 0, 0), (2000, 1, 2), (2001, 3, 2), (9000, 4, 3)):
            for boundary, expected in ((None, lower), ("LOWER", lower), ("UPPER", upper)):
                request = SearchOffset(
                    topic="T", queue_id=0, timestamp=timestamp, boundary_type=boundary
                )
                assert outcome(await talk.client.ask(request)) == ("offset", expected), (
                    timestamp,
                    boundary,
                )
