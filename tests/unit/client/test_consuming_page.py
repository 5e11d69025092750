"""The examples of docs/guide/consuming.md run as they stand, and both ways of consuming work
without await, on a real broker and a real disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turbopump import blocking
from turbopump.testing import BrokerThread


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


def test_messages_one_by_one_without_await(broker: BrokerThread) -> None:
    broker.create_topic("parts", queues=2)
    with (
        blocking.Producer(broker.namesrv) as producer,
        blocking.SimpleConsumer(
            broker.namesrv, group="fitters", consume_from=blocking.ConsumeFrom.FIRST
        ) as consumer,
    ):
        consumer.subscribe("parts", "small || large")
        for number in range(20):
            producer.send("parts", str(number), tags=("small", "large", "broken")[number % 3])
        assert consumer.subscriptions == {"parts": "small || large"}
        assert (consumer.group, consumer.client_id.count("@")) == ("fitters", 1)
        seen: list[blocking.PoppedMessage] = []
        while len(seen) < 14:
            seen += consumer.receive(5, 60, timeout=30)
        assert sorted(int(message.body) for message in seen) == [n for n in range(20) if n % 3 != 2]
        consumer.ack(seen[0])
        consumer.ack(seen[1:13])
        before = seen[13].handle
        assert consumer.change_invisible_time(seen[13], 0.5) == seen[13].handle != before
        (again,) = consumer.receive(timeout=30)
        assert (again.body, again.attempt) == (seen[13].body, 2)
        consumer.ack(again)
        consumer.unsubscribe("parts")
        assert consumer.subscriptions == {}


def note_and_retry(
    failed: list[int], seen: list[int], message: blocking.Delivery
) -> blocking.Retry | None:
    if message.attempt == 1 and int(message.body) % 10 == 3:
        failed.append(int(message.body))
        return blocking.Retry()
    seen.append(int(message.body))
    if seen[-1] == 59:
        message.done()
    return None


def test_ordered_without_await_in_a_loop_and_with_a_plain_handler(broker: BrokerThread) -> None:
    broker.create_topic("steps", queues=1)
    with blocking.Producer(broker.namesrv) as producer:
        for number in range(60):
            producer.send("steps", str(number))
    settings: Any = {
        "group": "walkers",
        "topic": "steps",
        "ordered": True,
        "consume_from": blocking.ConsumeFrom.FIRST,
    }
    seen: list[int] = []
    with blocking.PushConsumer(broker.namesrv, **settings) as consumer:
        for message in consumer:
            seen.append(int(message.body))
            if seen[-1] == 29:
                message.done()
                break
    failed: list[int] = []

    with blocking.PushConsumer(
        broker.namesrv, **settings, handler=partial(note_and_retry, failed, seen), suspend_time=0.01
    ) as consumer:
        while len(seen) < 60:
            consumer.commit(acknowledged=True)
    assert seen == list(range(60))
    assert failed == [33, 43, 53]


def test_broadcasting_without_await_goes_on_where_the_life_before_stopped(
    broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("news", queues=1)
    with blocking.Producer(broker.namesrv) as producer:
        for number in range(20):
            producer.send("news", str(number))
    settings: Any = {
        "group": "readers",
        "topic": "news",
        "broadcast": True,
        "consume_from": blocking.ConsumeFrom.FIRST,
    }
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for upto in (10, 20):
        for name, numbers in seen.items():
            with blocking.PushConsumer(
                broker.namesrv, **settings, offsets_directory=tmp_path, instance_name=name
            ) as consumer:
                for message in consumer:
                    numbers.append(int(message.body))
                    if len(numbers) == upto:
                        message.done()
                        break
    assert seen == {"a": list(range(20)), "b": list(range(20))}


def handle(
    enough: threading.Event, seen: list[tuple[bytes, int]], message: blocking.Delivery
) -> blocking.Retry | None:
    seen.append((message.body, message.reconsume_times))
    if message.body == b"good again":
        enough.set()
    if message.body == b"worse":
        return blocking.Retry(level=-1)
    return blocking.Retry() if message.body == b"bad" else None


def test_a_message_that_fails_too_often_in_order_is_a_dead_letter_and_its_queue_goes_on(
    broker: BrokerThread,
) -> None:
    broker.create_topic("parcels", queues=1)
    with blocking.Producer(broker.namesrv) as producer:
        for body in ("good", "bad", "worse", "good again"):
            producer.send("parcels", body, tags="fragile")
    seen: list[tuple[bytes, int]] = []
    enough = threading.Event()

    with blocking.PushConsumer(
        broker.namesrv,
        group="carriers",
        topic="parcels",
        ordered=True,
        handler=partial(handle, enough, seen),
        consume_from=blocking.ConsumeFrom.FIRST,
        max_reconsume_times=2,
        suspend_time=0.01,
    ):
        assert enough.wait(60)
    assert seen == [
        (b"good", 0),
        (b"bad", 0),
        (b"bad", 1),
        (b"bad", 2),
        (b"worse", 0),
        (b"good again", 0),
    ]
    with blocking.PullConsumer(broker.namesrv, group="reader") as reader:
        (queue,) = reader.queues("%DLQ%carriers")
        letters = reader.pull(queue, 0).messages
    assert [(letter.body, letter.tags, letter.properties["RETRY_TOPIC"]) for letter in letters] == [
        (b"bad", "fragile", "parcels"),
        (b"worse", "fragile", "parcels"),
    ]
