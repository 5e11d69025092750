"""Dead letters on a broker of ours."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from turbopump.client.dead_letters import DeadLetters
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.errors import RouteNotFoundError
from turbopump.message.message import Message, ReceivedMessage
from turbopump.testing import RunningBroker, running_broker

GROUP = "billing"
DLQ = f"%DLQ%{GROUP}"
SETTLE_S = 0.05


async def dead(
    broker: RunningBroker,
    count: int,
    origin: str | None = "orders",
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """So many dead letters of the group; ``more``: properties that they have."""
    await broker.create_topic(DLQ)
    properties = {**more, "RETRY_TOPIC": origin} if origin else dict(more)
    async with Producer(broker.namesrv) as producer:
        for number in range(count):
            message = Message(DLQ, b"%d" % number)
            message.properties.update(properties, n=str(number))
            await producer.send(message)


async def stored(broker: RunningBroker, topic: str = "orders") -> list[ReceivedMessage]:
    async with PullConsumer(broker.namesrv, group="looker") as consumer:
        found: list[ReceivedMessage] = []
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
        return found


async def run(story: Callable[[RunningBroker, DeadLetters], Awaitable[None]]) -> None:
    async with running_broker() as broker, DeadLetters(broker.namesrv) as dead_letters:
        await broker.create_topic("orders", 2)
        await story(broker, dead_letters)


def with_broker(story: Callable[[RunningBroker, DeadLetters], Awaitable[None]]) -> None:
    asyncio.run(run(story))


async def has_route(dead_letters: DeadLetters, topic: str) -> bool:
    try:
        await dead_letters.instance.routes.refresh(topic)
    except RouteNotFoundError:
        return False
    return True


def once(messages: list[ReceivedMessage], count: int) -> bool:
    return Counter(message.body for message in messages) == {
        b"%d" % number: 1 for number in range(count)
    }
