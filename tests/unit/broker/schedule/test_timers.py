"""Messages for any time: where they wait, when they come and as what, how they are called back, and
what survives stops and kills."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import START_MS, Simulation
from tests.unit.broker.talking import Client, Talk, in_virtual_time, pull, simulated_broker
from tests.unit.broker.transacting import BROKER, World, in_a_world
from tests.unit.store.looked_up import message_in_queue

from turbopump.broker.schedule.timer_messages import slots_of
from turbopump.message.codec import decode_entries
from turbopump.message.handles import RecallHandle
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import (
    RecallMessage,
    RecallMessageReply,
    SendMessageReply,
    SendMessageV2,
)
from turbopump.store.timers.pending_timers import TIMER_TOPIC

assert START_MS % 1000 == 0


def props(unique: str = "U1", **more: Any) -> str:
    return encode_properties(
        {"UNIQ_KEY": unique, **{name: str(value) for name, value in more.items()}}
    )


def now_ms(talk: Talk) -> int:
    return talk.broker.clock.now_ms()


async def waiting_pull(client: Client, offset: int = 0, **fields: Any) -> list[ReceivedMessage]:
    """The next messages of the queue, as soon as there are any."""
    answer = await client.ask(pull(offset, suspend_ms=100_000, **fields), timeout=120)
    return list(decode_entries(answer.body))


async def send_at(
    talk: Talk, deliver_ms: int, unique: str = "U1", body: bytes = b"later"
) -> SendMessageReply:
    return await talk.client.send(body, properties=props(unique, TIMER_DELIVER_MS=deliver_ms))


@pytest.mark.parametrize("ahead", [1, 999, 1000, 1001, 2500, 70_000])
@in_loop(in_virtual_time)
async def test_a_message_comes_at_its_time_or_less_than_a_second_later(
    talk: Talk, simulation: Simulation, /, ahead: int
) -> None:
    await talk.client.create()
    deliver = now_ms(talk) + ahead
    for fields in ({"TIMER_DELIVER_MS": deliver}, {"TIMER_DELAY_MS": ahead}):
        offset = talk.broker.store.max_offset("T", 0)
        wanted = now_ms(talk) + ahead if "TIMER_DELAY_MS" in fields else deliver
        await talk.client.send(b"later", properties=props(**fields))
        (message,) = await waiting_pull(talk.client, offset)
        assert wanted <= message.store_timestamp <= wanted + 1000 + 20
        assert message.store_timestamp % 1000 <= 20 or ahead == 1


@in_loop(in_virtual_time)
async def test_a_time_on_a_whole_second_is_met(talk: Talk, simulation: Simulation, /) -> None:
    await talk.client.create()
    deliver = now_ms(talk) // 1000 * 1000 + 5000
    await send_at(talk, deliver)
    (message,) = await waiting_pull(talk.client)
    assert deliver <= message.store_timestamp <= deliver + 5


@in_loop(in_virtual_time)
async def test_it_waits_in_apaches_topic_and_comes_as_apaches_copy(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, store = talk.client, talk.broker.store
    await client.create(queues=2)
    text = props(TAGS="paid", KEYS="k1", TIMER_DELAY_SEC=3, own="é")
    sent = await client.send(
        b"later", queue_id=1, born_timestamp=17, flag=5, reconsume_times=2, properties=text
    )
    assert sent.queue_id == 1
    out = (now_ms(talk) + 3000 - 1) // 1000 * 1000
    handle = RecallHandle.decode(sent.recall_handle or "")
    assert handle == RecallHandle("T", "broker-a", str(out + 1), "U1")
    stored = message_in_queue(store.lookup, TIMER_TOPIC, 0, 0)
    assert stored is not None
    waits = stored.properties
    assert (waits["REAL_TOPIC"], waits["REAL_QID"], waits["TIMER_OUT_MS"]) == ("T", "1", str(out))
    (message,) = await waiting_pull(client, queue_id=1, tags="paid")
    copy = message.properties
    assert {name: copy[name] for name in waits if name != "__CRC32#"} == {
        n: v for n, v in waits.items() if n != "__CRC32#"
    }
    added = set(copy) - set(waits)
    assert added == {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
    assert int(copy["TIMER_ENQUEUE_MS"]) % 1000 == 0
    assert int(copy["TIMER_DEQUEUE_MS"]) == message.store_timestamp
    assert (message.born_timestamp, message.flag, message.reconsume_times, message.keys) == (
        17,
        5,
        2,
        ["k1"],
    )
    assert message.born_host == stored.born_host


@pytest.mark.parametrize(
    "fields",
    [
        {"TIMER_DELAY_SEC": 0},
        {"TIMER_DELAY_MS": -5},
        {"TIMER_DELIVER_MS": 12},
        {"TIMER_DELAY_SEC": "+0"},
    ],
)
@in_loop(in_virtual_time)
async def test_what_is_due_is_stored_at_once(
    talk: Talk, simulation: Simulation, /, fields: dict[str, Any]
) -> None:
    await talk.client.create()
    sent = await talk.client.send(b"now", properties=props(**fields))
    assert sent.recall_handle is None
    assert await talk.client.all_bodies() == [b"now"]
    assert talk.broker.store.max_offset(TIMER_TOPIC, 0) == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, "'soon' is not a whole number"),
        ({"TIMER_DELAY_MS": "1.5"}, "not a whole number"),
        ({"TIMER_DELIVER_MS": "9" * 19}, "not a whole number"),
        ({"TIMER_DELIVER_MS": " 5"}, "not a whole number"),
        (
            {"TIMER_DELAY_SEC": 101},
            "101 s ahead; the delay time should not be bigger than the max delay 100000ms",
        ),
        ({"TIMER_DELIVER_MS": 5, "TIMER_DEL_UNIQKEY": "T+U1"}, "too late to recall"),
    ],
)
@in_loop(in_virtual_time, timer_max_delay_sec=100)
async def test_a_time_that_cannot_be_is_refused_with_the_reason(
    talk: Talk, simulation: Simulation, /, fields: dict[str, Any], says: str
) -> None:
    await talk.client.create()
    code, remark = await talk.client.code(
        SendMessageV2(topic="T", queue_id=0, properties=props(**fields)), b"x"
    )
    assert code == ResponseCode.MESSAGE_ILLEGAL
    assert says in remark
    assert "timer message illegal" in remark


@in_loop(in_virtual_time, timer_wheel_enable=False)
async def test_without_a_wheel_a_timer_message_is_refused(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    code, remark = await talk.client.code(
        SendMessageV2(topic="T", queue_id=0, properties=props(TIMER_DELAY_SEC=5)), b"x"
    )
    assert code == ResponseCode.SYSTEM_ERROR
    assert "timerWheelEnable is false" in remark


@in_loop(in_virtual_time)
async def test_a_level_goes_before_a_time_and_drops_it(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send(b"x", properties=props(DELAY=2, TIMER_DELAY_SEC=500, TIMER_DELIVER_MS=5))
    (message,) = await waiting_pull(talk.client)
    assert not [name for name in message.properties if name.startswith("TIMER")]
    assert talk.broker.store.max_offset(TIMER_TOPIC, 0) == 0


@in_loop(in_virtual_time)
async def test_messages_of_many_seconds_come_in_order_and_all_of_them(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await client.create()
    began = now_ms(talk)
    wanted = {}
    for number in range(300):
        ahead = simulation.random.randrange(2_000, 60_000)
        wanted[b"%d" % number] = began + ahead
        await client.send(
            b"%d" % number, properties=props(f"U{number}", TIMER_DELIVER_MS=began + ahead)
        )
    await asyncio.sleep(61)
    assert sorted(await client.all_bodies()) == sorted(wanted)
    for index in range(300):
        message = message_in_queue(talk.broker.store.lookup, "T", 0, index)
        assert message is not None
        late = message.store_timestamp - wanted[message.body]
        assert 0 <= late <= 1020
    numbers = talk.broker.parts.delivering.timers.numbers  # type: ignore[union-attr]
    assert (numbers.received, numbers.delivered, numbers.skipped) == (300, 300, 0)


@in_loop(in_virtual_time)
async def test_a_slot_of_many_messages_lets_others_have_their_turn(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, loop = talk.client, asyncio.get_running_loop()
    await client.create()
    deliver = now_ms(talk) // 1000 * 1000 + 60_000
    for number in range(500):
        await send_at(talk, deliver, f"U{number}", b"%d" % number)
    turns = [0]

    def count() -> None:
        turns.append(talk.broker.store.max_offset("T", 0))
        if turns[-1] < 500:
            loop.call_later(0.0001, count)  # reads take their time on this disk

    talk.broker.store.queues.find_or_make("T", 0).end.when(1, count)
    await asyncio.sleep(70)
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 32
    assert await client.all_bodies() == [b"%d" % number for number in range(500)]


async def counted(look: Callable[..., Any], looked: list[int], talk: Talk) -> float:
    looked.append(now_ms(talk))
    return await look()


@in_loop(in_virtual_time)
async def test_nothing_runs_while_nothing_is_due(talk: Talk, simulation: Simulation, /) -> None:
    await talk.client.create()
    await talk.client.send(b"x", properties=props(TIMER_DELAY_SEC=50))
    timers = talk.broker.parts.delivering.timers
    assert timers is not None
    await asyncio.sleep(2)
    looked: list[int] = []
    look = timers.deliver_due

    timers.deliver_due = partial(counted, look, looked, talk)  # type: ignore[method-assign]
    await asyncio.sleep(47)
    assert looked == []
    await asyncio.sleep(3)
    assert await talk.client.all_bodies() == [b"x"]
    assert len(looked) == 3, "a little before its time, at its time, and once more"


@in_loop(in_virtual_time, timer_roll_window_slot=30)
async def test_a_message_far_ahead_rolls_and_still_comes_on_time(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    deliver = now_ms(talk) // 1000 * 1000 + 95_000
    sent = await send_at(talk, deliver)
    await asyncio.sleep(80)
    assert talk.broker.store.max_offset(TIMER_TOPIC, 0) >= 3
    (message,) = await waiting_pull(talk.client)
    assert deliver <= message.store_timestamp <= deliver + 20
    assert int(message.properties["TIMER_ROLL_TIMES"]) >= 2
    assert sent.recall_handle is not None


async def recall(talk: Talk, handle: str | None, topic: str = "T") -> tuple[int, str]:
    return await talk.client.code(
        RecallMessage(topic=topic, recall_handle=handle, producer_group="p")
    )


@pytest.mark.parametrize("window", [30, 172_800])
@in_loop(on_a_client_s_host)
async def test_a_recalled_message_is_not_delivered_and_others_are(
    simulation: Simulation, /, window: int
) -> None:
    async with simulated_broker(simulation, timer_roll_window_slot=window) as talk:
        await talk.client.create()
        deliver = now_ms(talk) // 1000 * 1000 + 70_000
        sent = [await send_at(talk, deliver, f"U{number}", b"%d" % number) for number in range(5)]
        await asyncio.sleep(10)
        answer = await talk.client.ask(
            RecallMessage(topic="T", recall_handle=sent[2].recall_handle or "")
        )
        assert answer.code == ResponseCode.SUCCESS
        assert answer.header(RecallMessageReply).msg_id == "U2"
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        assert await recall(talk, sent[4].recall_handle) == (ResponseCode.SUCCESS, "")
        assert await recall(talk, sent[4].recall_handle) == (ResponseCode.SUCCESS, "")
        await asyncio.sleep(65)
        assert sorted(await talk.client.all_bodies()) == [b"0", b"1", b"3"]


@pytest.mark.parametrize("name", ["T+U1", "U1"])
@in_loop(in_virtual_time)
async def test_a_recall_that_is_sent_to_a_topic_is_of_no_message_of_another(
    talk: Talk, simulation: Simulation, /, name: str
) -> None:
    await talk.client.create()
    await talk.client.create("other")
    deliver = now_ms(talk) // 1000 * 1000 + 5000
    await send_at(talk, deliver, "U1")
    text = props("U1", TIMER_DELIVER_MS=deliver, TIMER_DEL_UNIQKEY=name)
    await talk.client.send(b"0", "other", properties=text)
    await asyncio.sleep(10)
    assert await talk.client.all_bodies() == [b"later"]


@in_loop(in_virtual_time)
async def test_a_recall_is_taken_up_to_the_moment_of_delivery_and_refused_after_it(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    deliver = now_ms(talk) // 1000 * 1000 + 10_000
    first, second = (
        await send_at(talk, deliver, "U1", b"1"),
        await send_at(talk, deliver, "U2", b"2"),
    )
    await asyncio.sleep((deliver - now_ms(talk)) / 1000 - 0.05)
    assert (await recall(talk, first.recall_handle))[0] == ResponseCode.SUCCESS
    await asyncio.sleep(0.1)
    code, remark = await recall(talk, second.recall_handle)
    assert code == ResponseCode.ILLEGAL_OPERATION
    assert "timestamp invalid: the message was due" in remark
    assert await talk.client.all_bodies() == [b"2"]


@pytest.mark.parametrize(
    ("handle", "topic", "code", "says"),
    [
        ("nonsense", "T", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        (None, "T", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("", "T", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        (
            RecallHandle("T", "broker-a", "%d", "U1"),
            "Nowhere",
            ResponseCode.TOPIC_NOT_EXIST,
            "topic[Nowhere] not exist",
        ),
        (
            RecallHandle("Other", "broker-a", "%d", "U1"),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "topic not match",
        ),
        (
            RecallHandle("T", "broker-b", "%d", "U1"),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "waits on broker broker-b",
        ),
        (
            RecallHandle("T", "broker-a", "soon", "U1"),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "timestamp invalid",
        ),
        (
            RecallHandle("T", "broker-a", "%d", "U2"),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "no message U2",
        ),
        (
            RecallHandle("T", "broker-a", "%d0", "U1"),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "timestamp invalid",
        ),
    ],
)
@in_loop(in_virtual_time)
async def test_a_handle_that_is_not_of_a_waiting_message_is_refused_with_the_reason(
    talk: Talk,
    simulation: Simulation,
    /,
    handle: RecallHandle | str | None,
    topic: str,
    code: int,
    says: str,
) -> None:
    await talk.client.create()
    sent = await send_at(talk, now_ms(talk) + 60_000)
    time = RecallHandle.decode(sent.recall_handle or "").time_ms
    text = handle
    if isinstance(handle, RecallHandle):
        text = RecallHandle(
            handle.topic,
            handle.broker_name,
            handle.time_text.replace("%d", str(time)),
            handle.unique_id,
        ).encode()
    assert text is None or isinstance(text, str)
    found, remark = await recall(talk, text, topic)
    assert found == code
    assert says in remark
    await asyncio.sleep(62)
    assert await talk.client.all_bodies() == [b"later"]


@in_loop(in_virtual_time, recall_message_enable=False)
async def test_recalls_can_be_switched_off(talk: Talk, simulation: Simulation, /) -> None:
    await talk.client.create()
    sent = await send_at(talk, now_ms(talk) + 60_000)
    assert sent.recall_handle is None
    handle = RecallHandle("T", "broker-a", str(now_ms(talk) + 59_000), "U1").encode()
    code, remark = await recall(talk, handle)
    assert code == ResponseCode.NO_PERMISSION
    assert "recallMessageEnable" in remark


@in_loop(in_a_world)
async def test_a_broker_stopped_after_its_first_timer_message_starts_clean_and_delivers_it(
    world: World, /, caplog: pytest.LogCaptureFixture
) -> None:
    client = world.client()
    await client.create("T")
    at = world.simulation.clock(BROKER).now_ms() + 60_000
    await client.send(b"later", properties=props(TIMER_DELIVER_MS=str(at)))
    await world.stop()
    await world.start()
    assert "timercheck" not in caplog.text
    await asyncio.sleep(62)
    assert [message.body for message in await world.client().messages()] == [b"later"]


@pytest.mark.parametrize(
    ("out", "deliver", "precision", "slots"),
    [
        pytest.param(5000, 5001, 1000, (5000, 5000), id="the slot that it got"),
        pytest.param(5000, 6000, 1000, (5000, 5000), id="on the last ms of it"),
        pytest.param(5300, 5371, 1000, (5000, 5000), id="coarser"),
        pytest.param(5000, 5871, 100, (5800, 5800), id="finer"),
        pytest.param(5000, 5871, 500, (5500, 5500), id="half"),
        pytest.param(1200, 1371, 500, (1000, 1000), id="from 200 to 500"),
        pytest.param(5000, None, 100, (5000, 5900), id="its time is not known"),
        pytest.param(5500, None, 100, (5500, 5900), id="it was 500 at most"),
        pytest.param(5400, None, 100, (5400, 5500), id="it was 200 at most"),
        pytest.param(5300, None, 100, (5300, 5300), id="it was 100"),
        pytest.param(5000, None, 1000, (5000, 5000), id="it does not matter"),
        pytest.param(5000, 9000, 100, (5000, 5900), id="a time that is not that of its slot"),
    ],
)
def test_the_slots_in_which_a_message_may_be_follow_from_what_it_tells(
    out: int, deliver: int | None, precision: int, slots: tuple[int, int]
) -> None:
    assert slots_of(out, deliver, precision) == slots


@pytest.mark.parametrize(("precision", "tells"), [(1000, False), (500, True), (100, True)])
@in_loop(on_a_client_s_host)
async def test_a_message_with_a_delay_tells_its_time_where_its_slot_alone_would_not(
    simulation: Simulation, /, precision: int, tells: bool
) -> None:
    async with simulated_broker(simulation, timer_precision_ms=precision) as talk:
        await talk.client.create()
        await talk.client.send(b"later", properties=props(TIMER_DELAY_MS=2345))
        stored = message_in_queue(talk.broker.store.lookup, TIMER_TOPIC, 0, 0)
        assert stored is not None
        assert ("TIMER_DELIVER_MS" in stored.properties) == tells
        (message,) = await waiting_pull(talk.client)
        assert stored.born_timestamp <= message.store_timestamp
        if tells:
            due = int(stored.properties["TIMER_DELIVER_MS"])
            assert due <= message.store_timestamp <= due + precision + 20
