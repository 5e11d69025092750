"""OpenTelemetry spans: the kind of a message as who handles it sees it, and what automatic batches
carry."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.stand_ins import does_nothing, returns
from tests.unit.client.scripted_cluster import ScriptedCluster

pytest.importorskip(
    "opentelemetry.sdk", reason="turbopump[otel] and opentelemetry-sdk are not installed"
)

from opentelemetry import trace
from tests.loops import in_loop
from tests.unit.client.spans import Spans, context_of, with_producer

from turbopump import Retry
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.transaction_producer import TransactionProducer, TransactionState
from turbopump.message.message import Message, ReceivedMessage
from turbopump.protocol.requests.send import SendBatchMessage
from turbopump.testing import running_broker


async def handle(
    levels: list[str], seen: asyncio.Event, types: dict[str, list[str]], message: ReceivedMessage
) -> Retry | None:
    span: Any = trace.get_current_span()
    types.setdefault(message.body.decode(), []).append(
        span.attributes["messaging.rocketmq.message.type"]
    )
    if "messaging.rocketmq.message.delay_time_level" in span.attributes:
        levels.append(message.body.decode())
    if sum(map(len, types.values())) == 6:
        seen.set()
    again = message.body in (b"plain", b"transaction") and message.reconsume_times == 0
    return Retry(level=1) if again else None


@in_loop
async def test_the_kind_of_a_message_is_told_when_it_is_handled_too(spans: Spans) -> None:
    types: dict[str, list[str]] = {}
    levels: list[str] = []
    seen = asyncio.Event()

    async with running_broker() as broker:
        await broker.create_topic("orders", 1)
        async with (
            TransactionProducer(
                broker.namesrv,
                group="shop",
                checker=does_nothing,
                executor=returns(TransactionState.COMMIT),
            ) as producer,
            PushConsumer(
                broker.namesrv,
                group="g",
                topic="orders",
                consume_from=ConsumeFrom.FIRST,
                handler=spans.telemetry.traced(partial(handle, levels, seen, types)),
            ),
        ):
            await producer.send("orders", b"plain")
            await producer.send(Message("orders", b"level", delay_level=1))
            await producer.send(Message("orders", b"timer", delay=0.5))
            await producer.send_in_transaction(Message("orders", b"transaction"))
            async with asyncio.timeout(60):
                await seen.wait()
    assert types == {
        "plain": ["normal", "normal"],
        "level": ["delay"],
        "timer": ["delay"],
        "transaction": ["transaction", "transaction"],
    }
    assert levels == ["level"]


@in_loop(with_producer, auto_batch=AutoBatch())
async def test_messages_of_automatic_batches_carry_what_they_are_given(
    cluster: ScriptedCluster, producer: Producer, /, spans: Spans
) -> None:
    with spans.tracer.start_as_current_span("the caller's"):
        sends = [
            producer.send(spans.telemetry.carrying(Message("orders", f"{n}"))) for n in range(3)
        ]
        await asyncio.gather(*sends)
    outer = spans.ended[-1]
    (body,) = [
        body for request, body in cluster.broker.received if type(request) is SendBatchMessage
    ]
    assert body.count(context_of(outer).encode()) == 3
