"""The blocking client against a real broker in a thread: the same behaviour, from plain threads,
and after a fork."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.forks import in_a_fork

from turbopump.blocking import (
    AutoBatch,
    BackPressure,
    ClientSettings,
    ConsumeFrom,
    Delivery,
    LitePullConsumer,
    Message,
    MessageFinder,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerSettings,
    Retry,
    SendStatus,
    SimpleConsumer,
    on_loop_thread,
)
from turbopump.client import lite_pull_consumer as asyncio_lite_pull_consumer
from turbopump.client import message_finder as asyncio_message_finder
from turbopump.client import producer as asyncio_producer
from turbopump.client import pull_consumer as asyncio_pull_consumer
from turbopump.client import push_consumer as asyncio_push_consumer
from turbopump.client.loop_thread import LoopThread, the_loop_thread
from turbopump.errors import (
    ConfigError,
    MessageError,
    MessageNotFoundError,
    NotStartedError,
    RouteNotFoundError,
    SendError,
)
from turbopump.testing import BrokerThread


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).split("[")[0]
    broker.create_topic(name, queues=2)
    return name


def consume(broker: BrokerThread, topic: str, **settings: object) -> PushConsumer:
    return PushConsumer(
        broker.namesrv,
        group=f"group_of_{topic}",
        topic=topic,
        consume_from=ConsumeFrom.FIRST,
        **settings,
    )  # type: ignore[arg-type]


def test_five_lines_without_await(broker: BrokerThread, topic: str) -> None:
    with Producer(broker.namesrv) as producer:
        result = producer.send(topic, "hello", tags="t", keys="k")
        assert result.status is SendStatus.OK
    with consume(broker, topic) as consumer:
        for message in consumer:
            assert (message.body, message.tags, message.keys, message.msg_id) == (
                b"hello",
                "t",
                ["k"],
                result.msg_id,
            )
            break


def test_every_kind_of_send(broker: BrokerThread, topic: str) -> None:
    with (
        Producer(broker.namesrv) as producer,
        PullConsumer(broker.namesrv, group="pullers") as consumer,
    ):
        queue = producer.publish_queues(topic)[1]
        assert producer.send(Message(topic, "one"), queue=queue).queue == queue
        producer.send_batch([Message(topic, "two"), Message(topic, "three")], queue=queue)
        producer.send_oneway(topic, "four", queue=queue)
        bodies: list[bytes] = []
        while len(bodies) < 4:
            result = consumer.pull(queue, len(bodies), wait=5)
            bodies += [message.body for message in result.messages]
        assert bodies == [b"one", b"two", b"three", b"four"]


def test_a_pull_consumer_reads_and_keeps_its_place(broker: BrokerThread, topic: str) -> None:
    with (
        Producer(broker.namesrv) as producer,
        PullConsumer(broker.namesrv, group="pullers") as consumer,
    ):
        queue = consumer.queues(topic)[0]
        for i in range(3):
            producer.send(topic, f"m{i}", queue=queue)
        assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 3)
        assert consumer.pull(queue, 3).status is PullStatus.NO_NEW_MESSAGE
        consumer.commit(queue, 2)
        assert consumer.committed(queue) == 2
        assert consumer.offset_at(queue, 0) == 0


def test_a_message_is_done_when_the_next_is_asked_for_and_not_after_a_break(
    broker: BrokerThread, topic: str
) -> None:
    with (
        Producer(broker.namesrv) as producer,
        PullConsumer(broker.namesrv, group=f"group_of_{topic}") as place,
    ):
        queue = producer.publish_queues(topic)[0]
        for i in range(30):
            producer.send(topic, f"m{i}", queue=queue)
        with consume(broker, topic) as consumer:
            for message in consumer:
                if message.body == b"m20":
                    break
            for message in consumer:
                assert message.body == b"m20"  # it was put back
                break
        assert place.committed(queue) == 20


def read(consumer: Any, seen: list[bytes]) -> None:
    for message in consumer:
        seen.append(message.body)
        if len(seen) == 200:
            threading.Thread(target=consumer.close).start()


def test_several_threads_share_one_consumer(broker: BrokerThread, topic: str) -> None:
    seen: list[bytes] = []
    with Producer(broker.namesrv) as producer:
        for i in range(200):
            producer.send(topic, f"m{i}")
    consumer = consume(broker, topic)
    consumer.start()

    threads = [threading.Thread(target=partial(read, consumer, seen)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == len(set(seen)) == 200


def note_and_retry(answers: Any, producer: Producer, seen: set[str], message: Delivery) -> object:
    seen.add(threading.current_thread().name)
    if message.attempt == 1 and message.body == b"m0":
        return Retry(delay=0)
    producer.send(answers, message.body)
    message.done()
    return None


def test_a_plain_handler_runs_in_threads_and_may_use_the_blocking_client(
    broker: BrokerThread, topic: str
) -> None:
    answers = f"{topic}_answers"
    broker.create_topic(answers)
    seen: set[str] = set()
    with Producer(broker.namesrv) as producer:
        for i in range(10):
            producer.send(topic, f"m{i}")
        with (
            consume(broker, topic, handler=partial(note_and_retry, answers, producer, seen)),
            consume(broker, answers) as reader,
        ):
            bodies = set()
            for message in reader:
                bodies.add(message.body)
                if len(bodies) == 10:
                    break
    assert bodies == {f"m{i}".encode() for i in range(10)}
    assert all(name.startswith("turbopump-handler") for name in seen)


def test_a_coroutine_handler_may_not_wait_for_its_own_loop(
    broker: BrokerThread, topic: str
) -> None:
    caught: list[str] = []
    with Producer(broker.namesrv) as producer:

        async def handle(message: Delivery) -> None:
            with pytest.raises(RuntimeError) as error:
                producer.send(topic, "x")
            caught.append(str(error.value))
            threading.Thread(target=consumer.close).start()

        producer.send(topic, "x")
        consumer = consume(broker, topic, handler=handle)
        consumer.start()
        consumer.wait_closed()
    assert "use await" in caught[0]


def test_messages_are_found_again(broker: BrokerThread, topic: str) -> None:
    with Producer(broker.namesrv) as producer, MessageFinder(broker.namesrv) as finder:
        sent = producer.send(topic, "one", keys=["k1", "k2"])
        producer.send(topic, "two", keys="k2")
        assert finder.view(topic, sent.msg_id).body == b"one"
        assert finder.view(topic, sent.offset_msg_id).msg_id == sent.msg_id
        assert finder.at(sent.queue, sent.queue_offset).body == b"one"
        assert [message.body for message in finder.by_key(topic, "k2").messages] == [b"one", b"two"]
        assert [message.body for message in finder.by_unique_id(topic, sent.msg_id).messages] == [
            b"one"
        ]
        assert [message.body for message in finder.by_time(topic, 0).messages] == [b"one", b"two"]
        with pytest.raises(MessageNotFoundError, match="Check the topic"):
            finder.view(topic, "unknown")


def test_sends_that_are_only_started_are_many_at_once(broker: BrokerThread, topic: str) -> None:
    with Producer(broker.namesrv, back_pressure=BackPressure(messages=64)) as producer:
        sends = [producer.start_send(Message(topic, f"{i}")) for i in range(300)]
        results = [send.result(60) for send in sends]
        assert len({(result.queue, result.queue_offset) for result in results}) == 300
        with pytest.raises(MessageError):
            producer.start_send(Message(topic, b""))
        elsewhere = MessageQueue(topic, "no-such-broker", 0)
        with pytest.raises(SendError, match="no-such-broker"):
            producer.start_send(Message(topic, b"x"), queue=elsewhere).result(60)


def test_a_send_that_is_on_its_way_cannot_be_cancelled(
    broker: BrokerThread, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled future once said that it was, and asyncio logged an InvalidStateError when the
    message was stored."""
    with Producer(broker.namesrv) as producer:
        futures = [producer.start_send(Message(topic, f"{i}")) for i in range(50)]
        cancelled = [future.cancel() for future in futures]
        assert cancelled == [False] * 50
        assert [future.result(60).status for future in futures] == [SendStatus.OK] * 50
    assert "InvalidStateError" not in caplog.text


def test_keys_batches_and_bounds_work_from_many_threads(broker: BrokerThread, topic: str) -> None:
    settings = ProducerSettings(
        broker.namesrv,
        auto_batch=AutoBatch(),
        back_pressure=BackPressure(messages=20),
        compression="zstd",
    )
    with Producer(**settings) as producer:
        producer.send(topic, "first")
        with ThreadPoolExecutor(16) as threads:
            results = list(threads.map(lambda i: producer.send(topic, f"{i}" * 2000), range(100)))
        assert len({(result.queue, result.queue_offset) for result in results}) == 100
        keyed = [producer.send(topic, f"{i}", sharding_key="order-42") for i in range(5)]
        assert len({result.queue for result in keyed}) == 1
        chosen = producer.send(topic, "x", selector=lambda queues, _message: queues[-1])
        assert chosen.queue == producer.publish_queues(topic)[-1]
    with MessageFinder(broker.namesrv) as finder:
        bodies = {finder.at(result.queue, result.queue_offset).body for result in results}
        assert bodies == {f"{i}".encode() * 2000 for i in range(100)}


def test_errors_are_the_same(broker: BrokerThread) -> None:
    with pytest.raises(ConfigError):
        Producer("nowhere")
    producer = Producer(broker.namesrv)
    with pytest.raises(NotStartedError, match="with Producer"):
        producer.send("t", "x")
    with producer, pytest.raises(MessageError):
        producer.send("t", b"")
    with pytest.raises(NotStartedError, match="closed"):
        producer.send("t", "x")
    with pytest.raises(RouteNotFoundError), PullConsumer(broker.namesrv, group="g") as consumer:
        consumer.queues("missing")


def wait_for_a_message_and_ctrl_c(consumer: PushConsumer) -> None:
    main = threading.get_ident()  # a process that is stopped may give its signals to any thread
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    next(iter(consumer))


def test_ctrl_c_interrupts_a_wait_and_the_client_stays_usable(
    broker: BrokerThread, topic: str
) -> None:
    # a run in the background may have it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        ExitStack() as at_end,
        Producer(broker.namesrv) as producer,
        consume(broker, topic) as consumer,
    ):
        at_end.callback(signal.signal, signal.SIGINT, before)
        with pytest.raises(KeyboardInterrupt):
            wait_for_a_message_and_ctrl_c(consumer)
        producer.send(topic, "still here")
        assert next(iter(consumer)).body == b"still here"


def send_in_thread(producer: Producer, topic: str) -> str:
    status = producer.send(topic, "in the child").status
    client_id = producer.client_id
    producer.close()
    return f"{status.value} {client_id}"


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin",
    reason="needs a fork that is safe with threads",
)
def test_a_producer_starts_afresh_in_a_fork_and_the_parents_goes_on(
    broker: BrokerThread, topic: str
) -> None:
    with Producer(broker.namesrv) as producer:
        producer.send(topic, "before")
        parent_id = producer.client_id

        status, child_id = in_a_fork(partial(send_in_thread, producer, topic)).split()
        assert status == "SEND_OK"
        assert child_id != parent_id
        assert producer.send(topic, "after").status is SendStatus.OK
    with consume(broker, topic) as consumer:
        bodies = set()
        for message in consumer:
            bodies.add(message.body)
            if len(bodies) == 3:
                break
    assert bodies == {b"before", b"in the child", b"after"}


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin",
    reason="needs a fork that is safe with threads",
)
def test_a_push_consumer_is_refused_in_a_fork(broker: BrokerThread, topic: str) -> None:
    with consume(broker, topic) as consumer:
        answer = in_a_fork(lambda: str(consumer.take(1)))
        assert answer.startswith("NotStartedError: this PushConsumer was started in process")
        assert "start a new one after the fork" in answer


def take_in_thread(consumer: Any) -> str:
    with consumer:
        if isinstance(consumer, PushConsumer):
            return consumer.take(1)[0].body.decode()
        get = consumer.poll if isinstance(consumer, LitePullConsumer) else consumer.receive
        while not (messages := get(timeout=5)):
            pass
        return messages[0].body.decode()


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin",
    reason="needs a fork that is safe with threads",
)
@pytest.mark.parametrize("kind", [LitePullConsumer, SimpleConsumer, PushConsumer])
def test_a_consumer_that_was_not_started_keeps_what_it_subscribes_to_in_a_fork(
    broker: BrokerThread, topic: str, kind: type[LitePullConsumer | SimpleConsumer | PushConsumer]
) -> None:
    consumer = kind(broker.namesrv, group=f"{kind.__name__}_forked", consume_from=ConsumeFrom.FIRST)
    consumer.subscribe(topic)
    with Producer(broker.namesrv) as producer:
        producer.send(topic, "for the child")

    assert in_a_fork(partial(take_in_thread, consumer)) == "for the child"


def work(monkeypatch: pytest.MonkeyPatch, producer: Producer, topic: str) -> str:
    outcomes: list[str] = []
    begun = threading.Event()

    def send() -> None:
        begun.set()
        outcomes.append(producer.send(topic, "second").status.value)

    second = threading.Thread(target=send, daemon=True)

    def the_loop_thread_when_the_second_has_come() -> LoopThread:
        if not begun.is_set():
            second.start()
            begun.wait()
            second.join(0.3)  # for as long as it can get anywhere
        return the_loop_thread()

    monkeypatch.setattr(on_loop_thread, "the_loop_thread", the_loop_thread_when_the_second_has_come)
    outcomes.append(producer.send(topic, "first").status.value)
    second.join(30)
    return "hangs" if second.is_alive() else " ".join(outcomes)


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin",
    reason="needs a fork that is safe with threads",
)
def test_a_thread_of_a_fork_waits_until_another_has_started_the_producer_afresh(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(broker.namesrv) as producer:
        producer.send(topic, "before")

        assert in_a_fork(partial(work, monkeypatch, producer, topic)) == "SEND_OK SEND_OK"


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin",
    reason="needs a fork that is safe with threads",
)
def test_a_closed_producer_says_so_in_a_fork_and_does_not_wait_for_the_parents_thread(
    broker: BrokerThread, topic: str
) -> None:
    producer = Producer(broker.namesrv)
    with producer:
        producer.send(topic, "before")
    assert in_a_fork(lambda: producer.send(topic, "x").status.value).startswith(
        "NotStartedError: this Producer is not started"
    )


@pytest.mark.parametrize(
    ("settings", "behind"),
    [
        (ProducerSettings, asyncio_producer.Producer),
        (PushConsumerSettings, asyncio_push_consumer.PushConsumer),
        (ClientSettings, asyncio_message_finder.MessageFinder),
    ],
)
def test_settings_to_hand_on_are_those_of_the_client(
    settings: type[ClientSettings], behind: type
) -> None:
    keywords = inspect.signature(behind).parameters
    assert settings.keys() == list(keywords)
    given = {"namesrv": "127.0.0.1:9876", "group": "g", "instance_name": "one"}
    known = settings(**{name: value for name, value in given.items() if name in keywords})
    assert isinstance(behind(**known), behind)


def methods(type_: type) -> set[str]:
    return {name for name in dir(type_) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("face", "behind"),
    [
        (Producer, asyncio_producer.Producer),
        (PullConsumer, asyncio_pull_consumer.PullConsumer),
        (PushConsumer, asyncio_push_consumer.PushConsumer),
        (LitePullConsumer, asyncio_lite_pull_consumer.LitePullConsumer),
        (MessageFinder, asyncio_message_finder.MessageFinder),
    ],
)
def test_both_faces_have_the_same_settings_and_methods(face: type, behind: type) -> None:
    assert inspect.signature(face) == inspect.signature(behind)

    assert methods(behind) - methods(face) <= {"give_back", "consumer_data", "apply", "assigned_of"}
    for name in methods(face) & methods(behind):
        if not inspect.iscoroutinefunction(getattr(behind, name)):
            continue
        if name == "start_send":  # the one is given a Future of asyncio, the other one of threads
            assert list(inspect.signature(face.start_send).parameters) == list(
                inspect.signature(behind.start_send).parameters
            )
            continue
        assert str(inspect.signature(getattr(face, name))) == str(
            inspect.signature(getattr(behind, name))
        ), name
