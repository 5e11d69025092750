"""OpenTelemetry spans of sends and of handled messages, by the in-memory exporter."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster

pytest.importorskip(
    "opentelemetry.sdk", reason="turbopump[otel] and opentelemetry-sdk are not installed"
)

from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.spans import Spans, context_of, with_producer

from turbopump import blocking
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.hooks import SendContext, SendHook
from turbopump.client.open_telemetry import OpenTelemetry
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.sending.settings import DEFAULT_GROUP
from turbopump.errors import SendError
from turbopump.message.codec import decode_entry
from turbopump.message.message import Message, MessageQueue, ReceivedMessage
from turbopump.message.properties import decode_properties
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.testing import BrokerThread


def stored(cluster: ScriptedCluster) -> list[ReceivedMessage]:
    return [
        decode_entry(entry)
        for broker in cluster.brokers
        for queue in broker.entries.values()
        for entry in queue
    ]


@in_loop(with_producer)
async def test_a_send_has_a_span_by_the_conventions_and_the_message_carries_it(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    with spans.tracer.start_as_current_span("the caller's"):
        result = await producer.send(
            "orders", b"body", tags="new", keys=["k1", "k2"], properties={"n": "1"}
        )
    sent, outer = spans.ended
    assert (sent.name, sent.kind, sent.status.status_code) == (
        "send orders",
        SpanKind.PRODUCER,
        StatusCode.UNSET,
    )
    assert sent.parent == outer.get_span_context()
    host, _, port = cluster.broker.address.partition(":")
    assert dict(sent.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.client_group": DEFAULT_GROUP,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "messaging.rocketmq.send.status": "SEND_OK",
        "server.address": host,
        "server.port": int(port),
    }
    (message,) = stored(cluster)
    assert message.properties["traceparent"] == context_of(sent)
    assert (message.msg_id, message.tags, message.keys, message.properties["n"]) == (
        result.msg_id,
        "new",
        ["k1", "k2"],
        "1",
    )


@in_loop(with_producer, brokers=2)
async def test_each_attempt_has_a_span_and_the_message_carries_the_last(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    for broker in cluster.brokers:
        broker.script[RequestCode.SEND_MESSAGE_V2].append(refusal(ResponseCode.SYSTEM_BUSY, "busy"))
    await producer.send("orders", b"x")
    failed, again, sent = spans.ended
    for span in (failed, again):
        assert span.status.status_code is StatusCode.ERROR
        assert "busy" in (span.status.description or "")
        assert (span.attributes or {})["error.type"] == "2"
        assert [event.name for event in span.events] == ["exception"]
    assert sent.status.status_code is StatusCode.UNSET
    (message,) = stored(cluster)
    assert message.properties["traceparent"] == context_of(sent)
    for broker in cluster.brokers:
        for request in broker.requests(SendMessageV2):
            assert (request.properties or "").count("traceparent") == 1


@in_loop(with_producer)
async def test_a_lost_broker_and_a_cancelled_send_end_their_spans(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
    sending = asyncio.create_task(producer.send("orders", b"x"))
    await asyncio.sleep(0.5)
    sending.cancel()
    await asyncio.wait({sending})
    await cluster.broker.stop()
    with pytest.raises(SendError):
        await producer.send("orders", b"x")
    kinds = [(span.attributes or {})["error.type"] for span in spans.ended]
    assert kinds[0] == "SendError"
    assert {"ConnectError"} <= set(kinds[1:]) <= {"ConnectError", "ConnectionLostError"}


@in_loop(with_producer)
async def test_the_kind_of_a_message_is_told(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    await producer.send("orders", b"x", sharding_key="book")
    await producer.send(Message("orders", b"x", delay_level=3))
    await producer.send(Message("orders", b"x", deliver_at=1700000000000))
    ordered, delayed, timed = [dict(span.attributes or {}) for span in spans.ended]
    assert (
        ordered["messaging.rocketmq.message.type"],
        ordered["messaging.rocketmq.message.group"],
    ) == ("fifo", "book")
    assert (
        delayed["messaging.rocketmq.message.type"],
        delayed["messaging.rocketmq.message.delay_time_level"],
    ) == ("delay", 3)
    assert timed["messaging.rocketmq.message.delivery_timestamp"] == 1700000000000


@in_loop(with_producer, namespace="ns")
async def test_a_namespace_is_told_apart_from_the_topic(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    cluster.name_server.route("ns%orders", cluster.broker)
    await producer.send("orders", b"x")
    (span,) = spans.ended
    attributes = dict(span.attributes or {})
    assert (span.name, attributes["messaging.destination.name"]) == ("send orders", "orders")
    assert attributes["messaging.rocketmq.namespace"] == "ns"
    assert attributes["messaging.rocketmq.client_group"] == DEFAULT_GROUP


@in_loop(with_producer)
async def test_a_oneway_message_carries_its_span(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    await producer.send_oneway("orders", b"x")
    await asyncio.sleep(0.1)
    (span,) = spans.ended
    (message,) = stored(cluster)
    assert message.properties["traceparent"] == context_of(span)


@in_loop(with_producer)
async def test_a_batch_has_one_span_and_its_messages_carry_what_they_are_given(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    messages = [Message("orders", f"{n}", properties={"n": f"{n}"}) for n in range(3)]
    with spans.tracer.start_as_current_span("the caller's"):
        await producer.send_batch([spans.telemetry.carrying(message) for message in messages])
    batch, outer = spans.ended
    assert (batch.attributes or {})["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in (batch.attributes or {})
    assert batch.parent == outer.get_span_context()
    assert context_of(outer).encode() in cluster.broker.received[-1][1]
    assert "traceparent" not in messages[0].properties


class Spoiler(SendHook):
    """Puts in what cannot travel."""

    def __init__(self, name: str, value: Any) -> None:
        self._pair = name, value

    def before(self, context: SendContext) -> None:
        context.properties.update([self._pair])


@pytest.mark.parametrize(
    "hooks", [[Spoiler("spoilt", value)] for value in ("a\x02b", "x" * 40_000, "\ud800", 5, None)]
)
@in_loop(with_producer)
async def test_properties_of_a_hook_that_cannot_travel_do_not_fail_the_send(
    cluster: ScriptedCluster, producer: Producer, /, hooks: list[SendHook]
) -> None:
    await producer.send("orders", b"x", properties={"mine": "stays"})
    (message,) = stored(cluster)
    assert message.properties["mine"] == "stays"
    assert "spoilt" not in message.properties


def received(properties: dict[str, str] | None = None) -> ReceivedMessage:
    from tests.unit.client.scripted_cluster import ScriptedBroker

    broker = ScriptedBroker()
    text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    broker.store("orders", 3, b"body", text)
    return decode_entry(broker.entries["orders", 3][0])


async def note(handled: asyncio.Event, inside: list[Any], message: ReceivedMessage) -> None:
    inside.append(trace.get_current_span().get_span_context())
    handled.set()


@in_loop(with_producer)
async def test_handling_is_a_child_of_sending_wherever_it_happens(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    inside: list[Any] = []

    handled = asyncio.Event()
    await producer.send("orders", b"body", tags="new")
    consumer = PushConsumer(
        cluster.name_server.address,
        group="g",
        topic="orders",
        consume_from=ConsumeFrom.FIRST,
        handler=spans.telemetry.traced(partial(note, handled, inside), group="g"),
        **cluster.settings,
    )
    async with consumer:
        await handled.wait()
    sent, processed = spans.ended
    assert (processed.name, processed.kind) == ("process orders", SpanKind.CONSUMER)
    assert processed.parent is not None
    assert processed.parent.span_id == sent.get_span_context().span_id  # type: ignore[union-attr]
    assert processed.parent.trace_id == sent.get_span_context().trace_id  # type: ignore[union-attr]
    assert inside == [processed.get_span_context()]
    attributes = dict(processed.attributes or {})
    assert attributes["messaging.operation.type"] == "process"
    assert attributes["messaging.consumer.group.name"] == "g"
    assert attributes["messaging.message.id"] == (sent.attributes or {})["messaging.message.id"]
    assert attributes["messaging.rocketmq.message.tag"] == "new"


async def handle(
    handled: asyncio.Event, inside: list[Any], messages: list[ReceivedMessage]
) -> None:
    inside.append((len(messages), trace.get_current_span().get_span_context()))
    handled.set()


@in_loop(with_producer)
async def test_a_list_of_messages_has_one_span_linked_to_those_that_sent_them(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    inside: list[Any] = []

    handled = asyncio.Event()
    queue = (await producer.publish_queues("orders"))[0]
    for body in (b"a", b"b"):
        await producer.send("orders", body, queue=queue)
    cluster.broker.store("orders", queue.queue_id, b"not traced")
    consumer = PushConsumer(
        cluster.name_server.address,
        group="g",
        topic="orders",
        consume_from=ConsumeFrom.FIRST,
        handler=spans.telemetry.traced(partial(handle, handled, inside), group="g"),  # type: ignore[arg-type]
        handler_batch=10,
        **cluster.settings,
    )
    async with consumer:
        await handled.wait()
    *sent, processed = spans.ended
    assert (processed.name, processed.kind, processed.parent) == (
        "process orders",
        SpanKind.CONSUMER,
        None,
    )
    assert [link.context.span_id for link in processed.links] == [
        one.get_span_context().span_id for one in sent
    ]  # type: ignore[union-attr]
    assert inside == [(3, processed.get_span_context())]
    attributes = dict(processed.attributes or {})
    assert attributes["messaging.batch.message_count"] == 3
    assert attributes["messaging.destination.partition.id"] == str(queue.queue_id)
    assert "messaging.message.id" not in attributes


def plain(message: ReceivedMessage) -> object:
    if message.body == b"body":
        raise ValueError("not this one")
    return None


async def awaited(message: ReceivedMessage) -> object:
    return plain(message)


def test_what_a_handler_raises_marks_its_span_and_goes_on(spans: Spans) -> None:
    with pytest.raises(ValueError, match="not this one"):
        spans.telemetry.traced(plain)(received())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not this one"):
        asyncio.run(spans.telemetry.traced(awaited)(received()))  # type: ignore[arg-type]
    for span in spans.ended:
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR,
            "not this one",
        )
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert [event.name for event in span.events] == ["exception"]
        assert span.parent is None


def test_without_a_handler_a_block_makes_the_span(spans: Spans) -> None:
    with spans.telemetry.processing(
        received({"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"})
    ) as span:
        span.set_attribute("own", 1)
    (ended,) = spans.ended
    assert ended.parent is not None
    assert f"{ended.parent.trace_id:032x}" == "1" * 32
    assert (ended.attributes or {})["own"] == 1


@pytest.mark.parametrize(
    ("broadcast", "model"), [(None, None), (True, "broadcasting"), (False, "clustering")]
)
def test_a_span_says_how_the_group_divides_messages_if_that_is_known(
    spans: Spans, broadcast: bool | None, model: str | None
) -> None:
    spans.telemetry.traced(list, broadcast=broadcast)([received()])  # type: ignore[arg-type]
    (ended,) = spans.ended
    assert (ended.attributes or {}).get("messaging.rocketmq.consumption_model") == model


def send(producer: blocking.Producer, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("the thread's"):
        producer.send(
            "orders",
            b"x",
            queue=MessageQueue("orders", producer.publish_queues("orders")[0].broker_name, 0),
        )


def test_the_context_of_a_plain_thread_reaches_the_blocking_producer(spans: Spans) -> None:
    with BrokerThread() as broker:
        broker.create_topic("orders", queues=1)
        with blocking.Producer(broker.namesrv, hooks=[spans.telemetry]) as producer:
            thread = threading.Thread(target=partial(send, producer, spans))
            thread.start()
            thread.join()
        sent, outer = spans.ended
        assert sent.parent == outer.get_span_context()
        with blocking.PullConsumer(broker.namesrv, group="r") as reader:
            (message,) = reader.pull(reader.queues("orders")[0], 0).messages
        assert message.properties["traceparent"] == context_of(sent)


@in_loop(simulated)
async def test_without_a_provider_nothing_is_recorded_and_nothing_is_carried(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        hooks = [OpenTelemetry(trace.NoOpTracerProvider())]
        async with Producer(
            cluster.name_server.address, hooks=hooks, **cluster.settings
        ) as producer:
            await producer.send("orders", b"x")
        (request,) = cluster.broker.requests(SendMessageV2)
        assert "traceparent" not in decode_properties(request.properties or "")
