"""``for message in consumer`` without await: what the reader's own thread takes, and what goes by
way of the loop."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from turbopump.blocking import ConsumeFrom, Delivery, Producer, PullConsumer, PushConsumer
from turbopump.testing import BrokerThread

COUNT = 400


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """With ``COUNT`` messages."""
    name = str(request.node.name)
    broker.create_topic(name, queues=2)
    with Producer(broker.namesrv) as producer:
        for i in range(COUNT):
            producer.send(name, f"m{i}")
    return name


def consumer_of(broker: BrokerThread, topic: str, *, ordered: bool = False) -> PushConsumer:
    return PushConsumer(
        broker.namesrv,
        group=f"g_{topic}",
        topic=topic,
        consume_from=ConsumeFrom.FIRST,
        ordered=ordered,
    )


def committed(broker: BrokerThread, topic: str) -> int:
    with PullConsumer(broker.namesrv, group=f"g_{topic}") as place:
        return sum(place.committed(queue) or 0 for queue in place.queues(topic))


def test_a_reader_takes_what_is_ready_without_asking_the_loop(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer_of(broker, topic) as consumer:
        waits, take = 0, consumer.take

        def counted(count: int) -> list[Delivery]:
            nonlocal waits
            waits += 1
            return take(count)

        monkeypatch.setattr(consumer, "take", counted)
        messages = iter(consumer)
        seen = [next(messages).body for _ in range(COUNT)]
        assert sorted(seen) == sorted(f"m{i}".encode() for i in range(COUNT))
        assert waits < COUNT / 2
        del messages  # the last one is not done: nobody asked for the next
    assert committed(broker, topic) == COUNT - 1


def test_several_readers_get_each_message_once(broker: BrokerThread, topic: str) -> None:
    seen: Counter[bytes] = Counter()
    lock, complete = threading.Lock(), threading.Event()
    with consumer_of(broker, topic) as consumer:

        def read() -> None:
            for message in consumer:
                with lock:
                    seen[message.body] += 1
                    if seen.total() == COUNT:
                        complete.set()

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        assert complete.wait(60)
        consumer.close()
        for reader in readers:
            reader.join(60)
    assert set(seen.values()) == {1}
    assert len(seen) == COUNT


def test_a_reader_gets_nothing_while_the_consumer_is_paused(
    broker: BrokerThread, topic: str
) -> None:
    with consumer_of(broker, topic) as consumer:
        messages = iter(consumer)
        next(messages)
        consumer.pause()
        got: list[Delivery] = []
        reader = threading.Thread(target=lambda: got.append(next(messages)))
        reader.start()
        reader.join(0.2)
        assert got == []
        consumer.resume()
        reader.join(60)
        assert len(got) == 1


def test_how_long_a_reader_had_a_message_is_what_counts_as_its_time(
    broker: BrokerThread, topic: str
) -> None:
    with consumer_of(broker, topic) as consumer:
        messages = iter(consumer)
        taken = [next(messages) for _ in range(10)]
        assert all(message.handled_s is not None for message in taken[:-1])
        assert sum(message.handled_s or 0.0 for message in taken[:-1]) < 5.0


def test_what_a_reader_has_finished_is_committed_while_it_handles_the_next(
    broker: BrokerThread, topic: str
) -> None:
    with consumer_of(broker, topic) as consumer:
        messages = iter(consumer)
        for _ in range(6):
            next(messages)
        deadline = time.monotonic() + 60
        while committed(broker, topic) < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert committed(broker, topic) == 5
        next(messages)


def test_in_order_a_queue_goes_on_while_its_last_reader_handles_another_message(
    broker: BrokerThread, topic: str
) -> None:
    with consumer_of(broker, topic, ordered=True) as consumer:
        for message in [*consumer.take(1), *consumer.take(1)]:  # both queues are there
            message.done()
        busy, idle = iter(consumer), iter(consumer)
        done, long_one = next(busy), next(busy)
        while long_one.queue_id == done.queue_id:
            done, long_one = long_one, next(busy)
        got: list[Delivery] = []
        reader = threading.Thread(target=lambda: got.append(next(idle)), daemon=True)
        reader.start()
        reader.join(60)
        assert [(message.queue_id, message.queue_offset) for message in got] == [
            (done.queue_id, done.queue_offset + 1)
        ]


def test_a_plain_handler_may_close_its_consumer_and_its_message_is_done(
    broker: BrokerThread, topic: str
) -> None:
    seconds: list[float] = []

    def handle(_: Delivery) -> None:
        began = time.monotonic()
        consumer.close()
        seconds.append(time.monotonic() - began)

    consumer = PushConsumer(
        broker.namesrv,
        group=f"g_{topic}",
        topic=topic,
        consume_from=ConsumeFrom.FIRST,
        handler=handle,
        concurrency=1,
        close_timeout=60,
    )
    with consumer:
        consumer.wait_closed()
    assert len(seconds) == 1
    assert seconds[0] < 30
    assert committed(broker, topic) == 1


def test_a_commit_and_the_close_tell_what_readers_have_finished_until_then(
    broker: BrokerThread, topic: str
) -> None:
    with consumer_of(broker, topic) as consumer:
        messages = iter(consumer)
        for _ in range(4):
            next(messages)
        consumer.commit(acknowledged=True)
        assert committed(broker, topic) == 3
        next(messages)
        next(messages)
        consumer.close()
        assert committed(broker, topic) == 5
        del messages
