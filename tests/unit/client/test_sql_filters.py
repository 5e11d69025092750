"""A consumer that filters by SQL92 is given what matches, by push and by pull; what is no filter is
refused before anything is sent."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop

from turbopump import ConsumeFrom, Message, MessageQueue, Producer, PullConsumer, PushConsumer, Sql
from turbopump.errors import ConfigError
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

CHEAP_AND_RED = Sql("price < 5 AND colour = 'red'")
WANTED = [b"0", b"2", b"4"]


async def fill(running: RunningBroker) -> None:
    await running.create_topic("Goods")
    async with Producer(running.namesrv) as producer:
        for price in range(10):
            colour = "red" if price % 2 == 0 else "blue"
            await producer.send(
                Message("Goods", str(price), properties={"price": str(price), "colour": colour})
            )


@in_loop
async def test_a_push_consumer_gets_what_its_filter_takes() -> None:
    async with running_broker() as running:
        await fill(running)
        got = []
        consumer = PushConsumer(
            running.namesrv,
            group="red",
            topic="Goods",
            tags=CHEAP_AND_RED,
            consume_from=ConsumeFrom.FIRST,
        )
        async with consumer, asyncio.timeout(60):
            async for message in consumer:
                got.append(message.body)
                if len(got) == len(WANTED):
                    break
        assert got == WANTED


@in_loop
async def test_a_pull_may_have_a_filter_of_its_own() -> None:
    async with running_broker() as running:
        await fill(running)
        async with PullConsumer(running.namesrv, group="puller") as consumer:
            queue = MessageQueue("Goods", running.broker.config.broker_name, 0)
            pulled = await consumer.pull(queue, 0, tags=CHEAP_AND_RED)
            assert [message.body for message in pulled.messages] == WANTED
            assert len((await consumer.pull(queue, 0)).messages) == 10


def test_what_is_no_filter_is_refused_at_once() -> None:
    with pytest.raises(
        ConfigError,
        match="'price >' is not a SQL92 filter: at character 8: a property, a literal or a bracket",
    ):
        Sql("price >")
