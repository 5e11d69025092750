"""Request and reply end to end: our clients, both faces, and our broker in the same loop or in a
thread."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.loops import in_loop

from turbopump import ConsumeFrom, Message, Producer, PullConsumer, PushConsumer
from turbopump import blocking as without_await
from turbopump.client.consumer.delivery import Delivery
from turbopump.errors import ReplyError
from turbopump.testing import BrokerThread
from turbopump.testing.broker_in_loop import running_broker

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@in_loop
async def test_requests_are_replied_to_and_the_replies_are_kept() -> None:
    async def handle(request: Delivery) -> None:
        await consumer.reply(
            request, b"re:" + request.body, properties={"n": request.properties["n"]}
        )

    async with running_broker() as broker:
        await broker.create_topic("questions", 4)
        consumer = PushConsumer(
            broker.namesrv,
            group="g",
            topic="questions",
            consume_from=ConsumeFrom.FIRST,
            handler=handle,
        )
        async with (
            consumer,
            Producer(broker.namesrv) as producer,
            PullConsumer(broker.namesrv, group="r") as reader,
        ):
            questions = [
                Message(
                    "questions", f"{n} " * (3000 if n % 10 == 9 else 1), properties={"n": f"{n}"}
                )
                for n in range(50)
            ]
            replies = await asyncio.gather(
                *(producer.request(question, timeout=30) for question in questions)
            )
            assert [reply.body for reply in replies] == [
                b"re:" + question.body for question in questions
            ]
            assert [reply.properties["n"] for reply in replies] == [f"{n}" for n in range(50)]
            assert producer.late_replies == 0
            (queue,) = await reader.queues(REPLY_TOPIC)
            kept, offset = [], 0
            while offset < await reader.max_offset(queue):
                found = await reader.pull(queue, offset)
                kept += [message.body for message in found.messages]
                offset = found.next_offset
            assert sorted(kept) == sorted(reply.body for reply in replies)


@in_loop
async def test_a_producer_that_gave_up_gets_nothing_and_the_replier_hears_of_it() -> None:
    async with running_broker() as broker:
        await broker.create_topic("questions", 1)
        consumer = PushConsumer(
            broker.namesrv, group="g", topic="questions", consume_from=ConsumeFrom.FIRST
        )
        async with consumer, Producer(broker.namesrv, instance_name="stays") as producer:
            async with Producer(broker.namesrv, instance_name="leaves") as leaving:
                asked = [
                    asyncio.create_task(each.request(Message("questions", body), timeout=60))
                    for each, body in ((producer, b"first"), (leaving, b"second"))
                ]
                came = [message for _ in asked for message in await consumer.take(1)]
                for each in asked:
                    each.cancel()
                await asyncio.wait(asked)
            first, second = sorted(came, key=lambda message: message.body)
            await consumer.reply(first, b"too late")
            assert producer.late_replies == 1
            with pytest.raises(ReplyError, match=r"channel of <.*@leaves> not found"):
                await consumer.reply(second, b"to nobody")


def test_the_blocking_faces_request_and_reply_from_plain_threads() -> None:
    def handle(request: Delivery) -> None:
        threads.add(threading.current_thread())
        consumer.reply(request, b"re:" + request.body, timeout=30)

    threads: set[threading.Thread] = set()
    with BrokerThread() as broker:
        broker.create_topic("questions", queues=2)
        consumer = without_await.PushConsumer(
            broker.namesrv,
            group="g",
            topic="questions",
            consume_from=ConsumeFrom.FIRST,
            handler=handle,
        )
        with consumer, without_await.Producer(broker.namesrv) as producer:
            assert producer.request(Message("questions", b"one"), timeout=30).body == b"re:one"
            assert (
                producer.request(Message("questions", b"two"), timeout=30, sharding_key=1).body
                == b"re:two"
            )
            assert producer.late_replies == 0
    assert threads
    assert threading.main_thread() not in threads


def test_the_blocking_producer_replies_to_what_a_pull_consumer_got() -> None:
    with BrokerThread() as broker:
        broker.create_topic("questions", queues=1)
        with (
            without_await.PullConsumer(broker.namesrv, group="g") as consumer,
            without_await.Producer(broker.namesrv, instance_name="asks") as asking,
            without_await.Producer(broker.namesrv, instance_name="answers") as answering,
        ):
            answers: list[bytes] = []
            question = Message("questions", b"one")
            asker = threading.Thread(
                target=lambda: answers.append(asking.request(question, timeout=30).body)
            )
            asker.start()
            (queue,) = consumer.queues("questions")
            (request,) = consumer.pull(queue, 0, wait=30).messages
            answering.reply(request, b"re:" + request.body, timeout=30)
            asker.join(30)
            assert answers == [b"re:one"]
