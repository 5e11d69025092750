"""Messages with a delay level: where they wait, when they come and as what, and what survives a
stop, a kill and a full disk."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Client, Talk, in_virtual_time, pull
from tests.unit.store.looked_up import find_by_key, message_in_queue

from turbopump.broker.interceptors import Destination
from turbopump.broker.schedule.destinations import delay_level_interceptor
from turbopump.message.codec import decode_entries
from turbopump.message.delivery_time import DelayLevels
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessage
from turbopump.remoting.response import Response

LEVELS = "1s 5s 10s"


def props(level: int | str, **more: str) -> str:
    return encode_properties({"UNIQ_KEY": "U1", "DELAY": str(level), **more})


async def waiting_pull(client: Client, offset: int = 0, **fields: Any) -> list[ReceivedMessage]:
    """The next messages of the queue, as soon as there are any."""
    answer = await client.ask(pull(offset, suspend_ms=100_000, **fields), timeout=120)
    return list(decode_entries(answer.body))


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_a_message_comes_after_its_delay_and_not_before(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, loop = talk.client, asyncio.get_running_loop()
    await client.create()
    for level, seconds in ((2, 5), (1, 1), (3, 10), (99, 10)):
        began = loop.time()
        sent = await client.send(b"later", properties=props(level))
        offset = talk.broker.store.max_offset("T", 0)
        (message,) = await waiting_pull(client, offset)
        assert seconds <= loop.time() - began < seconds + 0.05
        assert (message.body, message.queue_offset) == (b"later", offset)
        assert sent.queue_id == 0, "the answer tells the queue that was asked for"


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_the_copy_is_the_stored_message_in_its_real_place(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, store = talk.client, talk.broker.store
    await client.create(queues=2)
    text = props(7, TAGS="paid", KEYS="k1 k2", TIMER_DELAY_SEC="900", own="é")
    await client.send(
        b"later", queue_id=1, born_timestamp=17, flag=5, reconsume_times=2, properties=text
    )
    stored = message_in_queue(store.lookup, "SCHEDULE_TOPIC_XXXX", 2, 0)
    assert stored is not None
    waits = stored.properties
    assert (waits["REAL_TOPIC"], waits["REAL_QID"], waits["DELAY"]) == ("T", "1", "3"), (
        "the highest level stands for those above"
    )
    assert "TIMER_DELAY_SEC" not in waits, "a level goes before a timer"
    unit = store.queues.find_or_make("SCHEDULE_TOPIC_XXXX", 2).unit(0)
    assert unit is not None
    assert unit[2] == stored.store_timestamp + 10_000
    (message,) = await waiting_pull(client, queue_id=1, tags="paid")
    assert (
        message.properties_text.split("__CRC32#")[0] == stored.properties_text.split("__CRC32#")[0]
    )
    assert (message.born_timestamp, message.flag, message.reconsume_times, message.keys) == (
        17,
        5,
        2,
        ["k1", "k2"],
    )
    assert message.born_host == stored.born_host
    assert message.store_timestamp >= stored.store_timestamp + 10_000
    assert [found.message.topic for found in find_by_key(store.lookup, "T", "k1", 0, 1 << 50)] == [
        "T"
    ]


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_levels_do_not_wait_for_each_other(talk: Talk, simulation: Simulation, /) -> None:
    client = talk.client
    await client.create()
    for number, level in enumerate((3, 1, 2, 1, 3)):
        await client.send(b"%d" % number, properties=props(level))
    await asyncio.sleep(10.1)
    assert await client.all_bodies() == [b"1", b"3", b"2", b"0", b"4"]


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_nothing_runs_while_nothing_is_due(talk: Talk, simulation: Simulation, /) -> None:
    client = talk.client
    await client.create()
    await client.send(b"later", properties=props(3))
    looked: list[int] = []
    for level in talk.broker.parts.delivering.delays.levels:  # type: ignore[union-attr]
        number, look = level.number, level.deliver_due

        async def counted(number: int = number, look: Any = look) -> int:
            looked.append(number)
            return await look()  # type: ignore[no-any-return]

        level.deliver_due = counted  # type: ignore[method-assign]
    await asyncio.sleep(9.9)
    assert looked == []
    await asyncio.sleep(0.2)
    assert looked == [3]
    assert await client.all_bodies() == [b"later"]


def test_a_retried_level_that_makes_no_sense_is_refused_and_none_is_none() -> None:
    rule = delay_level_interceptor(DelayLevels((1000,)))
    request = SendMessage(topic="T", queue_id=0)
    for value in ("0", "-1"):
        plain = Destination("T", 0, encode_properties({"DELAY": value}), 0)
        assert rule(request, plain) is plain
    refused = rule(request, Destination("T", 0, encode_properties({"DELAY": "x"}), 0))
    assert isinstance(refused, Response)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "messageDelayLevel" in str(refused.remark)
    half = Destination("Half", 0, encode_properties({"DELAY": "1"}), 0)
    assert rule(request, half) is half, "it waits for its transaction"


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_the_log_is_kept_from_the_first_message_without_a_copy_on_the_disk(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, store, delays = talk.client, talk.broker.store, talk.broker.parts.delivering.delays
    assert delays is not None
    await client.create()
    assert delays.needed_from() is None
    assert delays.needed_from in store.retention.needed_from
    await client.send(b"later", properties=props(1))
    waits = store.log.end
    await client.send(b"much later", properties=props(3))
    store.flusher.log_busy = True  # as if a sync took for ever
    await asyncio.sleep(2)
    assert await client.all_bodies() == [b"later"]
    assert delays.needed_from() == 0
    store.flusher.log_busy = False
    await asyncio.sleep(1)
    assert delays.needed_from() == waits
    await asyncio.sleep(10)
    assert delays.needed_from() is None
