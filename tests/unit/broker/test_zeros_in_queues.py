"""Queues whose units are zeros, in a broker that began empty: whatever the broker itself reads from
them comes as if they were whole. Nothing is passed over, and nothing comes early."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import returns
from tests.unit.broker.popping import Popper
from tests.unit.broker.talking import SERVER, Talk, converse, in_virtual_time, pull
from tests.unit.broker.transacting import HALF, OP, Transactor

from turbopump.compiled import IS_COMPILED
from turbopump.disk.maps import outlive_lost_pages
from turbopump.message.codec import decode_entries
from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import TransactionOutcome
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.timers.pending_timers import TIMER_TOPIC

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
TOPICS = ["T", SCHEDULE_TOPIC, TIMER_TOPIC, HALF, OP, REVIVE, "%RETRY%g_T"]


def clear(topics: list[str], queue: ConsumeQueue, index: int) -> None:
    for at in range(index, queue.max_index if queue.topic in topics else 0):
        queue.rewrite(at, 0, 0, 0)


@pytest.fixture
def zeroed() -> Iterator[list[str]]:
    """Topics whose units are zeros as soon as they are written."""
    topics: list[str] = []
    append, append_many = ConsumeQueue.append, ConsumeQueue.append_many

    def append_zeros(queue: ConsumeQueue, index: int, *rest: Any) -> bool:
        done = append(queue, index, *rest)
        clear(topics, queue, index)
        return done

    def append_many_zeros(queue: ConsumeQueue, index: int, *rest: Any) -> bool:
        done = append_many(queue, index, *rest)
        clear(topics, queue, index)
        return done

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ConsumeQueue, "append", append_zeros)
        patched.setattr(ConsumeQueue, "append_many", append_many_zeros)
        yield topics


async def arrivals(talk: Talk, count: int) -> dict[bytes, ReceivedMessage]:
    """All messages of the queue, as soon as there are so many."""
    found: dict[bytes, ReceivedMessage] = {}
    offset = 0
    async with asyncio.timeout(60):
        while len(found) < count:
            answer = await talk.client.ask(pull(offset, suspend_ms=20_000), timeout=40)
            for message in decode_entries(answer.body):
                assert message.queue_offset == offset
                offset += 1
                found[message.body] = message
    return found


@pytest.mark.parametrize("topic", TOPICS)
@in_loop(
    in_virtual_time,
    message_delay_level="1s 5s 10s",
    transaction_time_out=6000,
    transaction_check_interval=10_000,
)
async def test_everything_comes_and_nothing_before_its_time(
    talk: Talk, simulation: Simulation, /, topic: str, zeroed: list[str]
) -> None:
    zeroed.append(topic)
    clock = simulation.clock(SERVER)
    await talk.client.create()
    seller = Transactor(talk.another(), clock.now_ms)
    await seller.announce()
    seller.answer = returns(TransactionOutcome.COMMIT)
    popper = Popper(talk.another(), clock.now_ms)
    began = clock.now_ms()

    for number in range(3):
        await talk.client.send(b"plain %d" % number)
    await talk.client.send(b"delayed", properties=encode_properties({"DELAY": "2"}))
    timer = {"TIMER_DELIVER_MS": str(began + 3000), "UNIQ_KEY": "U1"}
    await talk.client.send(b"timed", properties=encode_properties(timer))
    ended, forgotten = await seller.prepare(b"ended"), await seller.prepare(b"forgotten")
    given_up = await seller.prepare(b"rolled back")
    await seller.end(ended, TransactionOutcome.COMMIT)
    await seller.end(given_up, TransactionOutcome.ROLLBACK)

    taken = {one.body: one for one in await popper.until(3, 2, invisible_ms=20_000)}
    assert {b"plain 0", b"plain 1", b"plain 2"} <= taken.keys()
    assert await popper.ack(taken[b"plain 1"]) == ResponseCode.SUCCESS

    found = await arrivals(talk, 7)
    assert set(found) == {b"plain 0", b"plain 1", b"plain 2", b"delayed", b"timed", b"ended"} | {
        b"forgotten"
    }
    assert found[b"delayed"].store_timestamp >= began + 5000
    assert found[b"timed"].store_timestamp >= began + 3000
    assert [asked.message.body for asked in seller.asked] == [b"forgotten"]
    assert forgotten.queue_offset == 1

    again: set[bytes] = set()
    async with asyncio.timeout(100):
        while not {b"plain 0", b"plain 2"} <= again:
            again |= {one.body for one in await popper.pop(poll_ms=5000, invisible_ms=60_000)}
    assert b"plain 1" not in again


def test_a_pull_from_a_cut_queue_file_gets_every_message_from_the_rebuilt_units(
    tmp_path: Path,
) -> None:
    if not (IS_COMPILED and outlive_lost_pages()):
        pytest.skip("a page that is gone ends a process of plain Python")
    converse(pull_from_a_cut_file, tmp_path)


async def pull_from_a_cut_file(talk: Talk) -> None:
    client = talk.client
    await client.create()
    for number in range(300):
        await client.send(b"%d" % number)
    (path,) = (talk.directory / "consumequeue" / "T" / "0").iterdir()
    with path.open("r+b") as file:
        file.truncate(0)
    assert await client.all_bodies() == [b"%d" % number for number in range(300)]
    answer = await client.ask(pull(0, tags="wanted"))
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, answer
