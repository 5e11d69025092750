"""Consumers in a namespace: names carry it on the wire and nowhere else. In virtual time, and once
with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until_count

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.errors import MessageError, RequestTimeoutError, RouteNotFoundError, SendError
from turbopump.message.message import Message, MessageQueue
from turbopump.message.properties import decode_properties
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2
from turbopump.testing import running_broker

WIRED_RETRY = "%RETRY%space%readers"


@in_loop(simulated)
async def test_a_push_consumer_s_names_are_wrapped_on_the_wire_and_its_messages_unwrapped(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, topic="space%orders", queues=1) as cluster:
        cluster.broker.store("space%orders", 0, b"body")
        settings: dict[str, Any] = {
            "group": "readers",
            "topic": "orders",
            "namespace": "space",
            **cluster.settings,
        }
        async with PushConsumer(
            cluster.name_server.address, consume_from=ConsumeFrom.FIRST, **settings
        ) as consumer:
            message = await anext(aiter(consumer))
            assert (message.topic, message.body) == ("orders", b"body")
            assert (consumer.group, consumer.queues) == (
                "readers",
                [MessageQueue("orders", "broker-a", 0)],
            )
            message.done()
        (data,) = cluster.broker.heartbeats[-1].consumer_data_set
        assert data.group_name == "space%readers"
        assert {each.topic for each in data.subscription_data_set} == {"space%orders", WIRED_RETRY}
        assert cluster.broker.committed["space%readers", "space%orders", 0] == 1
        assert cluster.broker.farewells[-1].consumer_group == "space%readers"
        assert {request.topic for request in cluster.broker.requests(PullMessage)} <= {
            "space%orders",
            WIRED_RETRY,
        }


async def fails(doing: Awaitable[object]) -> None:
    with pytest.raises(
        (SendError, MessageError, RouteNotFoundError, RequestTimeoutError)
    ) as caught:
        await doing
    assert "space%" not in str(caught.value).partition("turbopump topic create")[0]
    assert "orders'" in str(caught.value)
    assert getattr(caught.value, "topic", "orders") == "orders"


@pytest.mark.parametrize(
    "settings", [{}, {"auto_batch": AutoBatch()}, {"back_pressure": BackPressure(messages=1)}]
)
@in_loop(simulated)
async def test_what_goes_wrong_when_sending_is_told_with_the_names_that_the_user_knows(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    settings.update(namespace="space", send_timeout=0.5)
    async with (
        scripted_cluster(simulation, topic="space%orders") as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        message, batch = (
            Message("orders", b"x"),
            [Message("orders", b"x"), Message("orders", b"y")],
        )
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            cluster.broker.script[code].extend([None] * 20)

        other = MessageQueue("other", "broker-a", 0)
        await asyncio.gather(
            fails(producer.send(message)),
            fails(producer.send(message, timeout=0.2)),
            fails(producer.send(message, timeout=0)),
            fails(producer.send_batch(batch)),
            fails(producer.send(message, queue=other)),
        )
        cluster.broker.script.clear()
        await fails(producer.request(message))
        await fails(producer.request(message, timeout=0))
        await fails(producer.send("reorders", b"x"))
        cluster.name_server.silent = True
        await fails(producer.send("preorders", b"x"))


async def handle(handled: list[tuple[str, int]], message: Delivery) -> None:
    handled.append((message.topic, message.attempt))
    if len(handled) == 1:
        raise ValueError("not now")


@in_loop(simulated)
async def test_a_failed_message_goes_back_under_its_namespace_and_comes_again_without_it(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, topic="space%orders", queues=1) as cluster:
        cluster.name_server.route(WIRED_RETRY, cluster.broker, queues=1)
        cluster.broker.store("space%orders", 0, b"body")
        handled: list[tuple[str, int]] = []

        settings: dict[str, Any] = {
            "group": "readers",
            "topic": "orders",
            "namespace": "space",
            **cluster.settings,
        }
        async with PushConsumer(
            cluster.name_server.address,
            consume_from=ConsumeFrom.FIRST,
            handler=partial(handle, handled),
            **settings,
        ):
            await until_count(handled, 2)
        assert [topic for topic, _ in handled] == ["orders"] * 2
        (back,) = cluster.broker.requests(ConsumerSendMsgBack)
        assert (back.group, back.origin_topic) == ("space%readers", "space%orders")
        # the scripted broker takes nothing back
        (plain,) = cluster.broker.requests(SendMessageV2)
        assert plain.topic == WIRED_RETRY
        assert decode_properties(plain.properties)["RETRY_TOPIC"] == "space%orders"


@in_loop(simulated)
async def test_a_pull_consumer_s_names_are_wrapped_on_the_wire_and_its_messages_unwrapped(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, topic="space%orders", queues=1) as cluster:
        cluster.broker.store("space%orders", 0, b"body")
        settings: dict[str, Any] = {"group": "readers", "namespace": "space", **cluster.settings}
        async with PullConsumer(cluster.name_server.address, **settings) as consumer:
            (queue,) = await consumer.queues("orders")
            assert queue == MessageQueue("orders", "broker-a", 0)
            (message,) = (await consumer.pull(queue, 0)).messages
            assert (message.topic, message.body) == ("orders", b"body")
            assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 1)
            await consumer.commit(queue, 1)
            assert await consumer.committed(queue) == 1
        (pull,) = cluster.broker.requests(PullMessage)
        (commit,) = cluster.broker.requests(UpdateConsumerOffset)
        assert (
            (pull.consumer_group, pull.topic)
            == (commit.consumer_group, commit.topic)
            == ("space%readers", "space%orders")
        )
        (data,) = cluster.broker.heartbeats[-1].consumer_data_set
        assert data.group_name == "space%readers"


@in_loop(simulated)
async def test_names_that_are_wrapped_already_and_the_system_s_own_stay(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, topic="space%orders", queues=1) as cluster,
        producer_of(cluster, namespace="space") as producer,
    ):
        settings: dict[str, Any] = {
            "group": "space%readers",
            "namespace": "space",
            **cluster.settings,
        }
        async with PullConsumer(cluster.name_server.address, **settings) as consumer:
            await producer.send("orders", b"x")
            (queue,) = await consumer.queues("space%orders")
            assert queue == MessageQueue("orders", "broker-a", 0)
        assert cluster.broker.requests(SendMessageV2)[0].code == RequestCode.SEND_MESSAGE_V2


@in_loop
async def test_two_namespaces_share_a_broker_and_nothing_else() -> None:
    async with asyncio.timeout(30), running_broker() as broker:
        for namespace in ("north", "south"):
            async with Producer(broker.namesrv, namespace=namespace) as producer:
                result = await producer.send("orders", f"for {namespace}")
                assert result.queue.topic == "orders"
        for namespace in ("north", "south"):
            first, settings = (
                ConsumeFrom.FIRST,
                {"group": "g", "topic": "orders", "namespace": namespace},
            )
            async with PushConsumer(broker.namesrv, consume_from=first, **settings) as consumer:  # type: ignore[arg-type]
                message = await anext(aiter(consumer))
                assert (message.topic, message.body) == ("orders", f"for {namespace}".encode())
                assert message.properties["INSTANCE_ID"] == namespace
                message.done()
        async with PullConsumer(broker.namesrv, group="g") as outside:
            assert {queue.topic for queue in await outside.queues("north%orders")} == {
                "north%orders"
            }
