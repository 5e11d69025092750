"""Filters over properties (SQL92): each consumer of ours over our broker and Apache's, which must
be told to allow them. Those of Java and Go on our broker are in test_foreign_clients.py.
"""

from __future__ import annotations

import asyncio
import time

from tests.interop.apache import NEWEST_4
from tests.interop.either_servers import Servers
from tests.interop.either_servers import servers as servers
from tests.interop.foreign import MESSAGES
from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    check,
    eventually,
    letters,
    make_topics,
    numbers,
    patient_producer,
    send_all,
)
from tests.loops import in_loop

from turbopump import (
    ConsumeFrom,
    LitePullConsumer,
    Message,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    Sql,
)
from turbopump.client.consumer.delivery import Delivery

TOPIC = "selected"
SELECTED = Sql("n BETWEEN 20 AND 79 AND TAGS IN ('red', 'blue')")


@in_loop
async def test_each_consumer_of_ours_gets_what_it_selects_by_properties(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    sent = letters(TOPIC, MESSAGES)
    wanted = [
        message for message in sent if 20 <= numbers([message])[0] <= 79 and message.tags != "green"
    ]
    await make_topics(servers.namesrv, servers.broker, TOPIC)
    async with patient_producer(servers.namesrv) as producer:
        await send_all(producer, sent)
    pops = () if servers.name.endswith(NEWEST_4) else (popped(servers, wanted),)
    await asyncio.gather(
        pushed(servers, wanted), polled(servers, wanted), pulled(servers, wanted), *pops
    )
    summary.append(f"SQL filters of ours, {servers.name}: {time.monotonic() - started:.1f} s")


async def pushed(servers: Servers, wanted: list[Message]) -> None:
    got: list[Delivery] = []
    settings = {
        "group": "selects",
        "topic": TOPIC,
        "tags": SELECTED,
        "consume_from": ConsumeFrom.FIRST,
        "handler": got.append,
    }
    async with PushConsumer(servers.namesrv, **settings):
        await eventually("what was selected is pushed", lambda: len(got) >= len(wanted))
    check(wanted, got)


async def polled(servers: Servers, wanted: list[Message]) -> None:
    got: list[ReceivedMessage] = []
    settings = {
        "group": "selects-polling",
        "topic": TOPIC,
        "tags": SELECTED,
        "consume_from": ConsumeFrom.FIRST,
    }
    async with (
        LitePullConsumer(servers.namesrv, **settings) as consumer,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        while len(got) < len(wanted):
            got += await consumer.poll(1)
    check(wanted, got)


async def pulled(servers: Servers, wanted: list[Message]) -> None:
    got: list[ReceivedMessage] = []
    async with PullConsumer(servers.namesrv, group="selects-pulling") as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, tags=SELECTED, timeout=CALL_SECONDS)
                got += result.messages
                offset = result.next_offset
    check(wanted, got)


async def popped(servers: Servers, wanted: list[Message]) -> None:
    got: list[ReceivedMessage] = []
    settings = {
        "group": "selects-popping",
        "topic": TOPIC,
        "tags": SELECTED,
        "consume_from": ConsumeFrom.FIRST,
    }
    async with (
        SimpleConsumer(servers.namesrv, **settings) as consumer,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        while len(got) < len(wanted):
            messages = await consumer.receive(16, 120)
            got += messages
            if messages:
                await consumer.ack(messages, timeout=CALL_SECONDS)
    check(wanted, got)
