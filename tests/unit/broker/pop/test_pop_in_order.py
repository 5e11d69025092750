"""Ordered pops: a queue gives nothing more until what was taken is acknowledged or visible again,
and then from there on."""

import asyncio
from typing import Any

from tests.loops import in_loop
from tests.simulation.one_broker import HOST as ONE_HOST
from tests.simulation.one_broker import OneBroker, with_one_broker
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popper
from tests.unit.broker.talking import Talk, in_virtual_time

from turbopump.broker.pop.view import PopView
from turbopump.message.handles import QueueKind, decode_numbers, message_key, queue_key
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pop import Notification, NotificationReply, PopMessageReply

HOST = "10.0.0.1"
ORDERED: dict[str, Any] = {"order": True, "max_msg_nums": 2}


async def three(talk: Talk, simulation: Simulation) -> Popper:
    await talk.client.create()
    for body in (b"a", b"b", b"c"):
        await talk.client.send(body)
    return Popper(talk.client, simulation.clock(HOST).now_ms)


@in_loop(in_virtual_time)
async def test_nothing_more_comes_until_all_that_was_taken_is_acknowledged(
    talk: Talk, simulation: Simulation, /
) -> None:
    popper = await three(talk, simulation)
    a, b = await popper.pop(**ORDERED)
    assert (a.body, b.body, a.handle.ordered) == (b"a", b"b", True)
    assert await popper.pop(**ORDERED) == []
    assert await popper.ack(a) == ResponseCode.SUCCESS
    assert await popper.pop(**ORDERED) == []
    waiting = asyncio.ensure_future(popper.pop(poll_ms=8000, **ORDERED))
    await asyncio.sleep(1)
    assert await popper.ack(b) == ResponseCode.SUCCESS
    (c,) = await waiting
    assert c.body == b"c"
    assert talk.broker.tables.offsets.find("g", "T", 0) == 2


@in_loop(in_virtual_time)
async def test_what_is_not_acknowledged_comes_again_from_there_on_and_is_counted(
    talk: Talk, simulation: Simulation, /
) -> None:
    popper = await three(talk, simulation)
    a, b = await popper.pop(invisible_ms=3000, **ORDERED)
    await popper.ack(a)
    answer = await popper.answer(poll_ms=8000, **ORDERED)
    assert b.handle.visible_at_ms <= simulation.clock(HOST).now_ms() <= b.handle.visible_at_ms + 500
    counts = decode_numbers(answer.header(PopMessageReply).order_count_info)
    assert counts == {message_key(QueueKind.NORMAL, 0, 1): 1, queue_key(QueueKind.NORMAL, 0): 0}
    assert answer.header(PopMessageReply).msg_offset_info == "0 0 1,2"
    assert await popper.ack(b) == ResponseCode.SUCCESS, (
        "a receipt of the time before is answered, and counts no more"
    )
    assert talk.broker.tables.offsets.find("g", "T", 0) == 1


@in_loop(in_virtual_time)
async def test_the_time_of_a_message_can_be_changed(talk: Talk, simulation: Simulation, /) -> None:
    popper = await three(talk, simulation)
    a, b = await popper.pop(invisible_ms=60_000, **ORDERED)
    await popper.ack(b)
    assert (await popper.change(a, 2000)).code == ResponseCode.SUCCESS
    begun = simulation.loop.time()
    again = await popper.pop(poll_ms=15_000, **ORDERED)
    assert [one.body for one in again] == [b"a", b"b"]
    assert 1.9 < simulation.loop.time() - begun < 2.5


@in_loop(in_virtual_time)
async def test_who_has_not_got_the_answer_asks_again_with_the_same_attempt_id(
    talk: Talk, simulation: Simulation, /
) -> None:
    popper = await three(talk, simulation)
    first = await popper.pop(attempt_id="one", **ORDERED)
    again = await popper.pop(attempt_id="one", **ORDERED)
    assert [one.body for one in first] == [one.body for one in again] == [b"a", b"b"]
    assert await popper.pop(attempt_id="two", **ORDERED) == []


@in_loop(with_one_broker)
async def test_a_clean_stop_keeps_what_is_taken(world: OneBroker, /) -> None:
    for body in (b"a", b"b", b"c"):
        await world.client.send(body)
    now_ms = world.simulation.clock(ONE_HOST).now_ms
    a, b = await Popper(world.client, now_ms).pop(invisible_ms=60_000, **ORDERED)
    await world.stop()
    await world.up()
    popper = Popper(world.client, now_ms)
    assert await popper.pop(**ORDERED) == []
    assert [await popper.ack(a), await popper.ack(b)] == [0, 0]
    assert [one.body for one in await popper.pop(**ORDERED)] == [b"c"]


@in_loop(in_virtual_time)
async def test_what_waits_in_the_retry_topic_neither_wakes_nor_is_given_to_an_ordered_pop(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send(b"popped before")
    popper = Popper(talk.client, simulation.clock(HOST).now_ms)
    assert len(await popper.pop(invisible_ms=1000)) == 1
    await asyncio.sleep(5)
    assert talk.broker.store.max_offset("%RETRY%g_T", 0) == 1
    looks, queues = 0, PopView.topic_queues

    def count(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return queues(*args)

    PopView.topic_queues = count  # type: ignore[method-assign]
    try:
        assert await popper.pop(poll_ms=8000, **ORDERED) == []
    finally:
        PopView.topic_queues = queues  # type: ignore[method-assign]
    assert looks < 10
    asked = Notification(
        consumer_group="g",
        topic="T",
        queue_id=-1,
        poll_time=1000,
        born_time=simulation.clock(HOST).now_ms(),
        order=True,
    )
    assert not (await talk.client.ask(asked)).header(NotificationReply).has_msg
    assert [one.body for one in await popper.pop()] == [b"popped before"]


@in_loop(with_one_broker)
async def test_after_a_kill_that_forgot_what_was_taken_no_message_is_passed_over(
    world: OneBroker, /
) -> None:
    for body in (b"a", b"b", b"c"):
        await world.client.send(body)
    now_ms = world.simulation.clock(ONE_HOST).now_ms
    popper = Popper(world.client, now_ms)
    await asyncio.sleep(6)
    (a,) = await popper.pop(order=True, max_msg_nums=1)
    await popper.ack(a)
    await asyncio.sleep(6)
    b, c = await popper.pop(**ORDERED)
    world.kill()
    await world.up()
    world.broker.parts.delivering.pop.order._table.clear()  # as if it had not been saved
    popper = Popper(world.client, now_ms)
    assert await popper.ack(c) == ResponseCode.SUCCESS
    assert [one.body for one in await popper.pop(**ORDERED)] == [b"b", b"c"]
    assert (b.body, c.body) == (b"b", b"c")
