"""A message that was changed after it was made, or is none: every way of sending says what is wrong
with it, and sends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import scripted_cluster

from turbopump.client.selectors import HashRing
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.send_result import SendStatus
from turbopump.client.transaction_producer import TransactionProducer
from turbopump.errors import ConfigError, MessageError
from turbopump.message.codec import decode_entry
from turbopump.message.message import Message
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2

settings = pytest.mark.parametrize("settings", [{}, {"auto_batch": AutoBatch()}])


def changed(**fields: object) -> Message:
    message = Message("orders", b"x", tags="a")
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def nobody(*_: object) -> None:
    raise AssertionError("not to be called")


@settings
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"properties": {"n": 5}}, "property 'n' has the value 5; names and values are text"),
        ({"properties": {5: "n"}}, "property 5 has the value 'n'"),
        ({"properties": {"a": None}}, "property 'a' has the value None"),
        ({"properties": 5}, "properties=5 is not a mapping"),
        ({"topic": None}, "topic=None is not a topic"),
        ({"topic": 5}, "topic=5 is not a topic"),
        ({"body": None}, "a body is bytes or a str, not NoneType"),
        ({"flag": 2**40}, "flag=1099511627776 does not fit"),
        ({"flag": "x"}, "flag='x' does not fit"),
        ({"flag": None}, "flag=None does not fit"),
    ],
)
@in_loop(simulated)
async def test_what_was_changed_into_no_message_is_refused_in_a_sentence(
    simulation: Simulation, /, fields: dict[str, Any], said: str, settings: dict[str, Any]
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        message = changed(**fields)
        sends: list[Callable[[], Any]] = [
            partial(producer.send, message),
            partial(producer.send, message, sharding_key="k"),
            partial(producer.send_batch, [message]),
            partial(producer.send_batch, [Message("orders", b"y"), message]),
            partial(producer.start_send, message),
            partial(producer.send_oneway, message),
            partial(producer.request, message),
        ]
        for send in sends:
            with pytest.raises(MessageError, match=said):
                await send()
        assert (
            cluster.broker.requests(SendMessageV2) + cluster.broker.requests(SendBatchMessage) == []
        )


@settings
@in_loop(simulated)
async def test_a_text_put_in_as_the_body_is_sent_as_one_given_at_first(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        await producer.send(changed(body="täxt", flag=-(2**31)))
        await producer.send_batch([changed(body="täxt")])
        (request, body), (_, batch) = (
            one for one in cluster.broker.received if one[1] and b"xt" in one[1]
        )
        assert (body, request.flag) == ("täxt".encode(), -(2**31))
        assert "täxt".encode() in batch


@settings
@pytest.mark.parametrize("bound", [None, BackPressure(messages=1)])
@in_loop(simulated)
async def test_a_message_that_is_changed_and_sent_again_goes_as_it_was_when_it_was_handed_in(
    simulation: Simulation, /, settings: dict[str, Any], bound: BackPressure | None
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, back_pressure=bound, **settings) as producer,
    ):
        message, sends = Message("orders", b"x"), []
        for number in range(20):
            message.body, message.properties = (
                b"%d" % number,
                {"TAGS": f"tag{number}"} if number % 4 else {},
            )
            sends.append(asyncio.create_task(producer.send(message)))
            await asyncio.sleep(0)  # it has begun
            message.topic, message.body, message.properties = (
                "others",
                b"not this",
                {"TAGS": "nor this"},
            )
            await asyncio.sleep(number % 3 * 0.001)
            message.topic = "orders"
        for number, send in enumerate(sends):
            result = await send
            stored = decode_entry(
                cluster.broker.entries["orders", result.queue.queue_id][result.queue_offset]
            )
            assert (stored.body, stored.tags) == (
                b"%d" % number,
                f"tag{number}" if number % 4 else None,
            )
            assert stored.msg_id == result.msg_id


@in_loop(simulated)
async def test_a_send_to_what_is_no_queue_gives_its_room_back(simulation: Simulation, /) -> None:
    bound, batch = BackPressure(messages=1), AutoBatch()
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, back_pressure=bound, auto_batch=batch) as producer,
    ):
        for _ in range(2):
            with pytest.raises(TypeError, match=r"queue=\[1\] must be a MessageQueue; take one of"):
                await producer.send("orders", b"x", queue=[1])  # type: ignore[arg-type]
        assert (await producer.send("orders", b"x")).status is SendStatus.OK


@settings
@in_loop(simulated)
async def test_what_is_no_message_or_queue_is_said_to_be_none(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    odd: Any = "orders"
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        for send, what in (
            (producer.start_send, "'orders' must be a Message, as in"),
            (producer.request, "a topic without a body was given; give a Message"),
        ):
            with pytest.raises(TypeError, match=what):
                await send(odd)
            with pytest.raises(TypeError, match=what):
                await send(odd, sharding_key="k")
        with pytest.raises(TypeError, match=r"queue=\[1\] must be a MessageQueue; take one of"):
            await producer.send("orders", b"x", queue=[1])  # type: ignore[arg-type]
        address, world = cluster.name_server.address, cluster.settings
        async with TransactionProducer(
            address, group="t", checker=nobody, executor=nobody, **world
        ) as seller:
            with pytest.raises(TypeError, match="'orders' must be a Message, as in"):
                await seller.send_in_transaction(odd)
            with pytest.raises(MessageError, match="properties=5 is not a mapping"):
                await seller.send_in_transaction(changed(properties=5))


@pytest.mark.parametrize("key", [5, None, b"k", "\ud800"])
def test_a_key_of_a_ring_that_is_no_text_is_refused_before_anything_is_sent(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"key=.* must be text, as in"):
        HashRing().by(key)
