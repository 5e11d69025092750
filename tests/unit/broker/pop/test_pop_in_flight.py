"""The limit on what is popped and not acknowledged (enablePopMessageThreshold), and the topic with
which retried messages are answered."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popper, popped
from tests.unit.broker.talking import Talk, in_virtual_time

from turbopump.broker.pop.group_queue import GroupQueue
from turbopump.broker.pop.in_flight import InFlight
from turbopump.message.codec import decode_entries
from turbopump.message.properties import POP_CK
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pop import PopMessageReply

HOST = "10.0.0.1"
FIVE: dict[str, Any] = {"enable_pop_message_threshold": True, "pop_inflight_message_threshold": 5}


async def twenty(talk: Talk, simulation: Simulation) -> Popper:
    await talk.client.create()
    for number in range(20):
        await talk.client.send(b"%d" % number)
    return Popper(talk.client, simulation.clock(HOST).now_ms)


@in_loop(in_virtual_time, **FIVE)
async def test_a_group_with_too_much_in_its_hands_gets_no_more_until_it_acknowledges(
    talk: Talk, simulation: Simulation, /
) -> None:
    popper = await twenty(talk, simulation)
    first = await popper.pop(max_msg_nums=5)
    second = await popper.pop(max_msg_nums=3)
    assert (len(first), len(second)) == (5, 3), (
        "it may be passed, as with Apache's broker, by one pop"
    )
    answer = await popper.answer(max_msg_nums=3)
    assert (popped(answer), answer.header(PopMessageReply).rest_num) == ([], 12)
    assert len(await Popper(talk.client, popper.now_ms, group="other").pop(max_msg_nums=3)) == 3
    for one in first[:2]:
        assert await popper.ack(one) == ResponseCode.SUCCESS
        assert await popper.ack(one) == ResponseCode.SUCCESS, "a repeated one does not count"
    waiting = asyncio.ensure_future(popper.pop(max_msg_nums=3, poll_ms=8000))
    await asyncio.sleep(1)
    assert await popper.ack(first[2]) == ResponseCode.SUCCESS
    assert [one.body for one in await waiting] == [b"8", b"9", b"10"]


@in_loop(in_virtual_time, **FIVE)
async def test_what_comes_again_is_out_no_more(talk: Talk, simulation: Simulation, /) -> None:
    popper = await twenty(talk, simulation)
    assert len(await popper.pop(max_msg_nums=8, invisible_ms=4000)) == 8
    begun = simulation.loop.time()
    more = await popper.until(12 + 8, 20)
    assert simulation.loop.time() - begun >= 4
    assert {one.attempt for one in more} == {0, 1}


@in_loop(in_virtual_time, **FIVE)
async def test_a_changed_time_leaves_a_message_in_hand_and_a_reset_forgets_what_is(
    talk: Talk, simulation: Simulation, /
) -> None:
    popper = await twenty(talk, simulation)
    first = await popper.pop(max_msg_nums=6, invisible_ms=60_000)
    assert (await popper.change(first[0], 60_000)).code == ResponseCode.SUCCESS
    assert await popper.pop() == []
    pop = talk.broker.parts.delivering.pop
    assert pop is not None
    assert pop.in_flight.count_popped(GroupQueue("g", "T", 0)) == 6
    talk.broker.tables.offsets.reset("g", "T", 0, 2)
    assert [one.body for one in await popper.pop(max_msg_nums=2)] == [b"2", b"3"]


def test_without_a_limit_no_queue_is_full() -> None:
    out, place = InFlight(None), GroupQueue("g", "T", 0)
    out.add_popped(place, range(100_000))
    assert (out.count_popped(place), out.is_full(place)) == (100_000, False)
    assert not out.remove_ended(place, [1, 100_000])
    assert out.count_popped(place) == 99_999


@in_loop(in_virtual_time, pop_response_return_actual_retry_topic=True)
async def test_a_message_that_comes_again_is_answered_with_its_retry_topic_on_request(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send(b"again")
    popper = Popper(talk.client, simulation.clock(HOST).now_ms)
    assert len(await popper.pop(invisible_ms=1000)) == 1
    answer = await popper.answer(poll_ms=8000)
    (message,) = decode_entries(answer.body)
    assert (message.topic, message.reconsume_times) == ("%RETRY%g_T", 1)
    assert POP_CK not in message.properties
    (one,) = popped(answer, "%RETRY%g_T")
    assert await popper.ack(one) == ResponseCode.SUCCESS
    await asyncio.sleep(20)
    assert await popper.pop() == []
