"""Where a new group begins in a topic that is young: as with RocketMQ, and as people expect."""

import logging
import time

import pytest
from tests.loops import in_loop

from turbopump import (
    ConfigError,
    ConsumeFrom,
    LitePullConsumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from turbopump.testing.broker_in_loop import RunningBroker, running_broker


async def keep_old_messages(running: RunningBroker) -> None:
    """Store three messages, and let the clock go on."""
    await running.create_topic("orders", 1)
    async with Producer(running.namesrv) as producer:
        for number in range(3):
            await producer.send("orders", f"old {number}")
    stored_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == stored_ms:
        pass


@pytest.mark.parametrize(
    ("start", "first"), [(ConsumeFrom.NOW, b"new"), (ConsumeFrom.LAST, b"old 0")]
)
@in_loop
async def test_a_new_group_in_a_young_topic(
    caplog: pytest.LogCaptureFixture, start: ConsumeFrom, first: bytes
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.client"):
        async with running_broker() as running:
            await keep_old_messages(running)
            settings = {"group": "billing", "topic": "orders", "consume_from": start}
            async with (
                PushConsumer(running.namesrv, **settings) as consumer,
                Producer(running.namesrv) as producer,
            ):
                await producer.send("orders", b"new")
                (message,) = await consumer.take(1)
    assert message.body == first
    said = [line for line in caplog.messages if line.startswith("queue is read from its beginning")]
    assert len(said) == (start is ConsumeFrom.LAST)


@in_loop
async def test_a_lite_consumer_begins_now() -> None:
    async with running_broker() as running:
        await keep_old_messages(running)
        async with (
            LitePullConsumer(
                running.namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.NOW
            ) as consumer,
            Producer(running.namesrv) as producer,
        ):
            await producer.send("orders", b"new")
            messages = []
            while not messages:
                messages = await consumer.poll(1)
    assert [message.body for message in messages] == [b"new"]


def test_a_simple_consumer_knows_no_now() -> None:
    with pytest.raises(ConfigError, match="brokers know no time here"):
        SimpleConsumer("127.0.0.1:1", group="billing", consume_from=ConsumeFrom.NOW)
