"""Inner batches that come out of a pop: their messages one by one, the batch acknowledged when all
of them are done."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.consumer.popping_consumers import Handled
from tests.unit.client.consumer.popping_consumers import consumer_of as push_consumer_of
from tests.unit.client.consumer.popping_consumers import popping as popping_for_push
from tests.unit.client.scripted_pops import ScriptedPops
from tests.unit.client.simple_consumers import bodies, consumer_of, popping
from tests.waits import until_some

from turbopump import Retry
from turbopump.message.batch import encode_batch
from turbopump.message.message import Message
from turbopump.message.properties import SysFlag
from turbopump.protocol.requests.pop import ChangeInvisibleTime

BATCH = ("orders", 0, 0)
"""Where the batch lies."""


def store_batch(pops: ScriptedPops, count: int, *, body: bytes | None = None) -> None:
    """A batch of so many messages arrives, as brokers have it in topics with queue.type=BatchCQ."""
    messages = (
        Message("orders", b"%d" % number, properties={"UNIQ_KEY": f"ID{number}"})
        for number in range(count)
    )
    pops.store(
        "orders",
        0,
        encode_batch(messages) if body is None else body,
        f"UNIQ_KEY\x01BATCH\x02INNER_NUM\x01{count}\x02INNER_BASE\x010\x02",
        sys_flag=int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP),
    )


@in_loop(simulated)
async def test_a_batch_is_received_as_its_messages_and_acknowledged_with_the_last_of_them(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        store_batch(pops, 3)
        pops.store("orders", 0, b"single")
        *batch, single = await consumer.receive(8, 30)
        assert bodies([*batch, single]) == [b"0", b"1", b"2", b"single"]
        assert [message.msg_id for message in batch] == ["ID0", "ID1", "ID2"]
        assert [message.queue_offset for message in batch] == [0, 1, 2]
        await consumer.ack(batch[1])
        await consumer.ack([batch[0], single, batch[1]])
        assert pops.acked == [("orders", 0, 1)]
        await consumer.ack(batch[2])
        assert pops.acked == [("orders", 0, 1), BATCH]
        assert await consumer.receive(timeout=60) == []


@in_loop(simulated)
async def test_all_of_a_batch_acknowledged_at_once_is_one_acknowledgement(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        store_batch(pops, 5)
        await consumer.ack(await consumer.receive(8, 30))
        assert (pops.acked, pops.invisible) == ([BATCH], [])


@in_loop(simulated)
async def test_a_batch_of_which_one_message_is_not_acknowledged_comes_again_whole(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        store_batch(pops, 3)
        first = await consumer.receive(8, 30)
        await consumer.ack(first[:2])
        again = await consumer.receive(8, 30, timeout=60)
        assert (bodies(again), [message.attempt for message in again]) == (
            [b"0", b"1", b"2"],
            [2, 2, 2],
        )
        assert {message.topic for message in again} == {"orders"}
        await consumer.ack(again)
        assert (pops.acked, pops.invisible) == ([("%RETRY%readers_orders", 0, 0)], [])


@in_loop(simulated)
async def test_the_time_of_one_message_is_that_of_its_batch_and_so_is_its_handle(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        store_batch(pops, 3)
        batch = await consumer.receive(8, 30)
        handle = await consumer.change_invisible_time(batch[1], 100)
        assert {message.handle for message in batch} == {handle}
        await asyncio.sleep(50)
        await consumer.ack(batch)
        assert (pops.acked, pops.invisible) == ([BATCH], [])
        assert await consumer.receive(timeout=200) == []


@in_loop(simulated)
async def test_messages_of_a_batch_that_want_the_same_time_at_once_ask_for_it_once(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        store_batch(pops, 20)
        batch = await consumer.receive(8, 30)
        await asyncio.gather(*(consumer.change_invisible_time(message, 5) for message in batch))
        assert len(cluster.broker.requests(ChangeInvisibleTime)) == 1
        await asyncio.sleep(1)
        await consumer.change_invisible_time(batch[0], 5)
        assert len(cluster.broker.requests(ChangeInvisibleTime)) == 2, "more time, asked for later"
        assert bodies(await consumer.receive(32, 30, timeout=60)) == bodies(batch)


@in_loop(simulated)
async def test_a_push_consumer_handles_a_batch_one_by_one_and_a_failure_brings_all_again(
    simulation: Simulation, /
) -> None:
    handled = Handled(
        lambda message: Retry() if message.body == b"1" and message.attempt == 1 else None
    )
    async with popping_for_push(simulation) as (cluster, pops):
        store_batch(pops, 3)
        async with push_consumer_of(cluster, handler=handled):
            await until_some(pops.acked)
        assert sorted(handled.bodies) == sorted([b"0", b"1", b"2"] * 2)
        assert sorted(handled.attempts) == [1, 1, 1, 2, 2, 2]
        assert (pops.acked, pops.invisible) == ([("%RETRY%readers_orders", 0, 0)], [])


@in_loop(simulated)
async def test_a_batch_that_cannot_be_taken_apart_is_told_of_and_left_out(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        store_batch(pops, 3, body=b"nonsense")
        pops.store("orders", 0, b"single")
        assert bodies(await consumer.receive(8, 30)) == [b"single"]
        assert (
            "the inner batch at queue offset 0 of orders queue 0 cannot be unpacked" in caplog.text
        )
