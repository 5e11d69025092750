"""POP as a consumer sees it: messages are taken for a time, and come back unless they are
acknowledged."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popped, Popper, pop_request
from tests.unit.broker.talking import Talk, in_virtual_time, subscription

from turbopump.message.properties import encode_properties
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.pop import (
    AckMessage,
    BatchAck,
    BatchAckBody,
    BatchAckMessage,
    Notification,
    NotificationReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopMessageReply,
    pack_bits,
)

HOST = "10.0.0.1"
Scene = Callable[[Talk, Simulation, Popper], Coroutine[Any, Any, None]]


async def run_scene(scene: Scene, talk: Talk, simulation: Simulation) -> None:
    await talk.client.create(queues=2)
    await scene(talk, simulation, Popper(talk.client, simulation.clock(HOST).now_ms))


def scene_of(scene: Scene, **config: Any) -> None:
    """Run ``scene`` with a broker in virtual time, a topic of two queues, and a consumer."""

    in_virtual_time(partial(run_scene, scene), **config)


def bodies(found: list[Any]) -> list[bytes]:
    return sorted(one.body for one in found)


@in_loop(scene_of)
async def test_a_pop_takes_messages_of_all_queues_and_gives_them_once(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    for number in range(4):
        await talk.client.send(b"%d" % number, queue_id=number % 2)
    assert bodies(await popper.pop()) == [b"0", b"1", b"2", b"3"]
    assert await popper.pop() == []


@in_loop(scene_of)
async def test_what_is_acknowledged_does_not_come_back_and_the_rest_does_at_its_time(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    for number in range(4):
        await talk.client.send(b"%d" % number, queue_id=number % 2)
    found = {one.body: one for one in await popper.pop(invisible_ms=10_000)}
    visible_at = found[b"1"].handle.visible_at_ms
    assert [await popper.ack(found[body]) for body in (b"0", b"2", b"3")] == [0, 0, 0]
    assert await popper.ack(found[b"0"]) == ResponseCode.SUCCESS, "a second time says the same"
    again = await popper.until(1, 30)
    now = simulation.clock(HOST).now_ms()
    assert bodies(again) == [b"1"]
    assert visible_at <= now <= visible_at + 2000
    assert again[0].attempt == 1
    assert again[0].message.properties["1ST_POP_TIME"] == str(found[b"1"].handle.pop_time_ms)
    assert await popper.ack(again[0]) == ResponseCode.SUCCESS
    await asyncio.sleep(40)
    assert await popper.pop() == []


@in_loop(scene_of)
async def test_a_waiting_pop_is_answered_when_a_message_comes_and_wakes_nobody_else(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    other = talk.another()
    one = asyncio.ensure_future(popper.answer(poll_ms=15_000, invisible_ms=60_000))
    two = asyncio.ensure_future(
        Popper(other, popper.now_ms).answer(poll_ms=15_000, invisible_ms=60_000)
    )
    await asyncio.sleep(1)
    waiting = await talk.client.ask(PollingInfo(consumer_group="g", topic="T", queue_id=-1))
    assert waiting.header(PollingInfoReply).polling_num == 2
    begun = simulation.loop.time()
    await talk.client.send(b"x")
    done, pending = await asyncio.wait((one, two), return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == len(pending) == 1
    assert simulation.loop.time() - begun < 0.5
    answer = await pending.pop()
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert 13.5 < simulation.loop.time() - begun < 14.5


@in_loop(scene_of)
async def test_a_pop_that_waits_is_woken_by_what_comes_back(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    await talk.client.send(b"x")
    (first,) = await popper.pop(invisible_ms=3000)
    (again,) = await popper.pop(poll_ms=15_000)
    assert (
        first.handle.visible_at_ms
        <= simulation.clock(HOST).now_ms()
        <= first.handle.visible_at_ms + 2000
    )
    assert again.attempt == 1


@in_loop(scene_of)
async def test_the_invisible_time_can_be_changed_and_the_old_receipt_is_done(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    await talk.client.send(b"x")
    await talk.client.send(b"y")
    x, _ = sorted(await popper.pop(invisible_ms=5000), key=lambda one: one.body)
    await asyncio.sleep(4)
    assert (await popper.change(x, 20_000)).code == ResponseCode.SUCCESS
    assert x.handle.invisible_ms == 20_000
    (back,) = await popper.until(1, 5, invisible_ms=60_000)
    assert back.body == b"y"
    (again,) = await popper.until(1, 30, invisible_ms=60_000)
    assert again.body == b"x"
    assert (
        x.handle.visible_at_ms <= simulation.clock(HOST).now_ms() <= x.handle.visible_at_ms + 2000
    )
    assert again.attempt == 1


@in_loop(scene_of)
async def test_a_message_that_is_visible_again_gets_no_new_time(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    await talk.client.send(b"x")
    (x,) = await popper.pop(invisible_ms=2000)
    await asyncio.sleep(5)
    assert (await popper.change(x, 20_000)).code == ResponseCode.NO_MESSAGE
    assert bodies(await popper.until(2, 60, invisible_ms=100_000)) == [b"x"]


@in_loop(scene_of)
async def test_a_receipt_that_was_changed_acknowledges(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    await talk.client.send(b"x")
    (x,) = await popper.pop(invisible_ms=5000)
    await popper.change(x, 10_000)
    assert await popper.ack(x) == ResponseCode.SUCCESS
    assert await popper.until(1, 30) == []


@in_loop(scene_of)
async def test_many_are_acknowledged_at_once(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    for number in range(10):
        await talk.client.send(b"%d" % number)
    found = await popper.pop(invisible_ms=3000)
    handle = found[0].handle
    ack = BatchAck(
        consumer_group="g",
        topic="T",
        retry=handle.kind.value,
        start_offset=handle.start_offset,
        queue_id=handle.queue_id,
        revive_queue_id=handle.revive_queue_id,
        pop_time=handle.pop_time_ms,
        invisible_time=handle.invisible_ms,
        bits=pack_bits([n for n in range(10) if n != 4]),
    )
    body = fastjson.encode(BatchAckBody(broker_name="broker-a", acks=(ack,)))
    assert (await talk.client.ask(BatchAckMessage(), body)).code == ResponseCode.SUCCESS
    assert bodies(await popper.until(2, 20, invisible_ms=60_000)) == [b"4"]
    assert (await talk.client.ask(BatchAckMessage())).code == ResponseCode.NO_MESSAGE


@in_loop(scene_of)
async def test_tags_and_properties_are_filtered_at_the_broker(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    for number in range(40):
        text = encode_properties({"TAGS": "even" if number % 2 == 0 else "odd", "n": str(number)})
        await talk.client.send(b"%d" % number, properties=text)
    assert len(await popper.pop(exp_type="TAG", exp="even", max_msg_nums=32)) == 20
    other = Popper(talk.client, popper.now_ms, group="h")
    assert bodies(await other.pop(exp_type="SQL92", exp="n > 37")) == [b"38", b"39"]
    request = pop_request(popper.now_ms(), exp_type="SQL92", exp="n >")
    assert (await talk.client.code(request))[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@in_loop(scene_of)
async def test_after_too_many_attempts_a_message_is_a_dead_letter(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=2)
    await talk.client.ask(CreateGroup(), fastjson.encode(group))
    await talk.client.send(b"poison")
    attempts = [one.attempt for one in await popper.until(5, 60, invisible_ms=1000)]
    assert attempts == [0, 1, 2]
    (dead,) = await talk.client.messages(topic="%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"poison", 3)
    assert dead.properties["RETRY_TOPIC"] == "T"


@in_loop(scene_of, enable_retry_topic_v2=True)
async def test_retry_topics_of_the_second_version_are_popped_too(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    await talk.client.send(b"x")
    await popper.pop(invisible_ms=1000)
    (again,) = await popper.until(1, 20)
    assert again.handle.kind.value == "2"
    assert await popper.ack(again) == ResponseCode.SUCCESS
    assert talk.broker.store.max_offset("%RETRY%g+T", 0) == 1


@in_loop(scene_of, init_pop_offset_by_check_msg_in_mem=False)
async def test_a_new_group_begins_where_it_wants(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    for number in range(5):
        await talk.client.send(b"%d" % number)
    last = Popper(talk.client, popper.now_ms, group="last")
    assert bodies(await last.pop(init_mode=1)) == [b"4"]
    first = Popper(talk.client, popper.now_ms, group="first")
    assert len(await first.pop(init_mode=0)) == 5


def code_of_pop(popper: Popper, talk: Talk, **fields: Any) -> Coroutine[Any, Any, tuple[int, str]]:
    return talk.client.code(pop_request(popper.now_ms(), **fields))


@in_loop(scene_of)
async def test_what_may_not_be_is_refused_with_apaches_codes(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    assert (await code_of_pop(popper, talk, max_msg_nums=33))[0] == ResponseCode.INVALID_PARAMETER
    assert (await code_of_pop(popper, talk, topic="none"))[0] == ResponseCode.TOPIC_NOT_EXIST
    assert (await code_of_pop(popper, talk, queue_id=2))[0] == ResponseCode.INVALID_PARAMETER
    assert (await code_of_pop(popper, talk, consumer_group="no/name"))[
        0
    ] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await code_of_pop(popper, talk, invisible_ms=-1))[0] == ResponseCode.INVALID_PARAMETER
    late = pop_request(popper.now_ms() - 10_000, poll_ms=5000)
    assert (await talk.client.code(late))[0] == ResponseCode.POLLING_TIMEOUT
    await talk.client.send(b"x")
    (x,) = await popper.pop()
    ack = AckMessage(
        consumer_group="g", topic="T", queue_id=0, extra_info=x.handle.encode(), offset=0
    )
    for fields, wanted in (
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 9}, ResponseCode.NO_MESSAGE),
        ({"extra_info": "x"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extra_info": "0 1 1 77 0 b 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
    ):
        changed = AckMessage(
            **{**{name: getattr(ack, name) for name in ack.__struct_fields__}, **fields}
        )  # type: ignore[arg-type]
        assert (await talk.client.code(changed))[0] == wanted, fields


@in_loop(scene_of, timer_wheel_enable=False)
async def test_pops_are_refused_where_there_are_no_timers(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    code, remark = await talk.client.code(pop_request(popper.now_ms()))
    assert (code, "timerWheelEnable" in remark) == (ResponseCode.SYSTEM_ERROR, True)


@in_loop(scene_of)
async def test_a_peek_takes_nothing(talk: Talk, simulation: Simulation, popper: Popper, /) -> None:
    peek = PeekMessage(topic="T", queue_id=-1, max_msg_nums=2, consumer_group="g")
    assert (await talk.client.code(peek))[0] == ResponseCode.PULL_NOT_FOUND
    for number in range(3):
        await talk.client.send(b"%d" % number)
    answer = await talk.client.ask(peek)
    assert answer.header(PopMessageReply).rest_num == 1
    assert len(await popper.pop()) == 3
    assert (await talk.client.code(peek))[0] == ResponseCode.PULL_NOT_FOUND


def ask(simulation: Simulation, poll_ms: int) -> Notification:
    return Notification(
        consumer_group="g",
        topic="T",
        queue_id=-1,
        poll_time=poll_ms,
        born_time=simulation.clock(HOST).now_ms(),
    )


@in_loop(scene_of)
async def test_a_notification_tells_of_messages_without_taking_them(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    assert (await talk.client.ask(ask(simulation, 0))).header(NotificationReply).has_msg is False
    waiting = asyncio.ensure_future(talk.client.ask(ask(simulation, 8000)))
    await asyncio.sleep(1)
    await talk.client.send(b"x")
    assert (await waiting).header(NotificationReply).has_msg is True
    assert len(await popper.pop()) == 1
    assert (await talk.client.ask(ask(simulation, 2000))).header(NotificationReply).has_msg is False


@in_loop(scene_of)
async def test_an_operators_reset_is_where_pops_go_on(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    for number in range(3):
        await talk.client.send(b"%d" % number)
    for one in await popper.pop():
        await popper.ack(one)
    talk.broker.tables.offsets.reset("g", "T", 0, 1)
    assert bodies(await popper.pop()) == [b"1", b"2"]


@in_loop(scene_of)
async def test_a_subscription_of_a_heartbeat_is_not_needed_but_does_no_harm(
    talk: Talk, simulation: Simulation, popper: Popper, /
) -> None:
    await talk.client.join("c", "g", subscription("T"), consumeType="CONSUME_POP")
    await talk.client.send(b"x")
    assert bodies(await popper.pop()) == [b"x"]


@pytest.mark.parametrize("v2", [False, True])
@given(
    names=st.lists(
        st.text("ab_", min_size=3, max_size=8).filter(lambda one: one[0] != "_" != one[-1]),
        min_size=2,
        max_size=4,
        unique=True,
    )
)
@example(names=["pay", "pay_order", "order_events", "events"])
@example(names=["a", "a_a", "a_a_a"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_group_gets_what_another_has_popped(names: list[str], v2: bool) -> None:
    """Groups and topics have the same names: of `a_b` and `c`, and `a` and `b_c`, one retry topic
    would be the same."""
    pairs = [(group, topic) for group in names for topic in names][:9]
    in_virtual_time(partial(pops_do_not_cross, pairs=pairs), enable_retry_topic_v2=v2)


async def pops_do_not_cross(
    talk: Talk, simulation: Simulation, *, pairs: list[tuple[str, str]]
) -> None:
    now_ms = simulation.clock(HOST).now_ms
    for topic in {topic for _, topic in pairs}:
        await talk.client.create(topic)
    for group, topic in pairs:
        await talk.client.send(f"{group} {topic}".encode(), topic=topic)
    poppers = [Popper(talk.client, now_ms, topic, group) for group, topic in pairs]
    for popper in poppers:
        await popper.pop(invisible_ms=1000)
    await asyncio.sleep(30)
    for popper in poppers:
        found: list[Popped] = []
        while again := await popper.pop(invisible_ms=600_000):
            found += again
        assert {one.attempt for one in found} == {1}
        assert [await popper.ack(one) for one in found] == [0] * len(found)
        sent = sorted(f"{group} {topic}" for group, topic in pairs if topic == popper.topic)
        assert sorted(one.body.decode() for one in found) == sent
