"""Inner batches end to end: our consumers and a broker that gives them as Apache's does."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.loops import in_loop
from tests.unit.client.stored_batches import BODIES, serve_batches

from turbopump import ConsumeFrom, LitePullConsumer, PullConsumer, PushConsumer
from turbopump.client.consumer.delivery import Delivery
from turbopump.message.properties import SysFlag
from turbopump.testing.broker_in_loop import running_broker


async def handle(done: asyncio.Event, handled: list[Delivery], message: Delivery) -> None:
    handled.append(message)
    if len(handled) == 7:
        done.set()
    if message.body == b"6" and message.attempt == 1:
        raise ValueError("not now")


@in_loop
async def test_a_push_consumer_gets_what_its_tags_want_and_a_failed_one_comes_again_alone() -> None:
    handled: list[Delivery] = []
    done = asyncio.Event()

    async with running_broker(message_delay_level="1s 1s 1s") as broker:
        await serve_batches(broker.broker)
        consumer = PushConsumer(
            broker.namesrv,
            group="g",
            topic="B",
            tags="a",
            consume_from=ConsumeFrom.FIRST,
            handler=partial(handle, done, handled),
        )
        async with consumer, asyncio.timeout(60):
            await done.wait()
        assert sorted(message.body for message in handled) == sorted([*BODIES[::2], b"6"])
        again = handled[-1]
        assert (again.body, again.topic, again.attempt, again.msg_id) == (b"6", "B", 2, "ID6")
        assert not again.sys_flag & SysFlag.INNER_BATCH


@in_loop
async def test_pull_and_lite_pull_consumers_begin_in_the_middle_of_a_batch() -> None:
    async with running_broker() as broker:
        await serve_batches(broker.broker)
        async with PullConsumer(broker.namesrv, group="p") as consumer:
            (queue,) = await consumer.queues("B")
            found = await consumer.pull(queue, 6)
            assert [(one.queue_offset, one.body) for one in found.messages] == list(
                enumerate(BODIES)
            )[6:]
            assert (found.next_offset, await consumer.max_offset(queue)) == (12, 12)
            assert [
                one.body for one in (await consumer.pull(queue, 0, tags="b")).messages
            ] == BODIES[1::2]
        async with LitePullConsumer(broker.namesrv, group="l") as lite:
            await lite.assign(await lite.queues("B"))
            await lite.seek(queue, 5)
            got: list[bytes] = []
            async with asyncio.timeout(60):
                while len(got) < 7:
                    got += [one.body for one in await lite.poll(1)]
            assert got == BODIES[5:]
