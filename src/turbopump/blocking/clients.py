"""Blocking clients, except the push consumer. Each method calls the asyncio method and waits for
its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from turbopump.blocking.on_loop_thread import (
    ClientOfGroup,
    OnLoopThread,
    made_as,
    on_loop,
    starts,
    waits,
    waits_anytime,
)
from turbopump.client import (
    idempotence,
    lite_pull_consumer,
    message_finder,
    producer,
    pull_consumer,
    simple_consumer,
    transaction_producer,
)
from turbopump.client.consumer.subscription import Wanted
from turbopump.client.loop_thread import the_loop_thread
from turbopump.client.sending.send_result import SendStatistics
from turbopump.message.message import MessageQueue, ReceivedMessage


class Producer(ClientOfGroup[producer.Producer]):
    """Producer whose methods block the calling thread, for code without an event loop.

    Use it as ``with Producer("127.0.0.1:9876") as producer: producer.send("t", b"x")``. Settings,
    methods and errors are those of ``turbopump.client.producer.Producer``. Many threads may use one
    producer. ``start_send`` returns a ``concurrent.futures.Future``, which cannot be cancelled. Its
    callbacks run on the client's thread, must be quick and must not call the blocking client.
    """

    @made_as(producer.Producer)
    def __init__(self, _settings: Mapping[str, Any]) -> None: ...

    send = waits(producer.Producer.send)
    send_batch = waits(producer.Producer.send_batch)
    start_send = starts(producer.Producer.start_send)
    send_oneway = waits(producer.Producer.send_oneway)
    request = waits(producer.Producer.request)
    reply = waits(producer.Producer.reply)
    recall = waits(producer.Producer.recall)
    publish_queues = waits(producer.Producer.publish_queues)

    @property
    def statistics(self) -> SendStatistics:
        """Counts and times of this producer's sends, by broker."""
        return self._client.statistics

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client."""
        return self._ready().client_id

    @property
    def late_replies(self) -> int:
        """Number of replies that arrived after their request had ended."""
        return self._ready().late_replies


class TransactionProducer(Producer):
    """Producer of transactional messages whose methods block the calling thread.

    Settings, methods and errors are those of
    ``turbopump.client.transaction_producer.TransactionProducer``. A plain executor or checker runs
    in a separate thread and may call this producer. A coroutine function runs on the client's
    thread and must not call it.
    """

    @made_as(transaction_producer.TransactionProducer)
    def __init__(self, _settings: Mapping[str, Any]) -> None: ...

    send_in_transaction = waits(transaction_producer.TransactionProducer.send_in_transaction)


class PullConsumer(ClientOfGroup[pull_consumer.PullConsumer]):
    """Pull consumer whose methods block the calling thread.

    Settings, methods and errors are those of ``turbopump.client.pull_consumer.PullConsumer``.
    """

    @made_as(pull_consumer.PullConsumer)
    def __init__(self, _settings: Mapping[str, Any]) -> None: ...

    queues = waits(pull_consumer.PullConsumer.queues)
    pull = waits(pull_consumer.PullConsumer.pull)
    min_offset = waits(pull_consumer.PullConsumer.min_offset)
    max_offset = waits(pull_consumer.PullConsumer.max_offset)
    offset_at = waits(pull_consumer.PullConsumer.offset_at)
    committed = waits(pull_consumer.PullConsumer.committed)
    commit = waits(pull_consumer.PullConsumer.commit)


class LitePullConsumer(ClientOfGroup[lite_pull_consumer.LitePullConsumer]):
    """Lite pull consumer whose methods block the calling thread.

    Settings and methods are those of ``turbopump.client.lite_pull_consumer.LitePullConsumer``.
    """

    _survives_fork = False

    @made_as(lite_pull_consumer.LitePullConsumer)
    def __init__(self, _settings: Mapping[str, Any]) -> None: ...

    subscribe = waits_anytime(lite_pull_consumer.LitePullConsumer.subscribe)
    unsubscribe = waits_anytime(lite_pull_consumer.LitePullConsumer.unsubscribe)
    assign = waits_anytime(lite_pull_consumer.LitePullConsumer.assign)
    on_queue_change = waits_anytime(lite_pull_consumer.LitePullConsumer.on_queue_change)
    queues = waits(lite_pull_consumer.LitePullConsumer.queues)
    poll = waits(lite_pull_consumer.LitePullConsumer.poll)
    seek = waits(lite_pull_consumer.LitePullConsumer.seek)
    seek_to_begin = waits(lite_pull_consumer.LitePullConsumer.seek_to_begin)
    seek_to_end = waits(lite_pull_consumer.LitePullConsumer.seek_to_end)
    pause = on_loop(lite_pull_consumer.LitePullConsumer.pause)
    resume = on_loop(lite_pull_consumer.LitePullConsumer.resume)
    position = on_loop(lite_pull_consumer.LitePullConsumer.position)
    commit = waits(lite_pull_consumer.LitePullConsumer.commit)
    committed = waits(lite_pull_consumer.LitePullConsumer.committed)
    offset_for_time = waits(lite_pull_consumer.LitePullConsumer.offset_for_time)

    @property
    def assigned(self) -> list[MessageQueue]:
        """Queues assigned to this consumer now, sorted."""
        return self._ready().assigned


class SimpleConsumer(ClientOfGroup[simple_consumer.SimpleConsumer]):
    """Simple consumer whose methods block the calling thread.

    Settings, methods and errors are those of ``turbopump.client.simple_consumer.SimpleConsumer``.
    """

    _survives_fork = False

    @made_as(simple_consumer.SimpleConsumer)
    def __init__(self, _settings: Mapping[str, Any]) -> None: ...

    subscribe = waits_anytime(simple_consumer.SimpleConsumer.subscribe)
    unsubscribe = waits_anytime(simple_consumer.SimpleConsumer.unsubscribe)
    receive = waits(simple_consumer.SimpleConsumer.receive)
    ack = waits(simple_consumer.SimpleConsumer.ack)
    change_invisible_time = waits(simple_consumer.SimpleConsumer.change_invisible_time)

    @property
    def subscriptions(self) -> Mapping[str, Wanted]:
        """Subscribed topics, with the tags or filter of each."""
        return self._ready().subscriptions


class MessageFinder(OnLoopThread[message_finder.MessageFinder]):
    """Finder of single messages whose methods block the calling thread.

    Settings, methods and errors are those of ``turbopump.client.message_finder.MessageFinder``.
    """

    @made_as(message_finder.MessageFinder)
    def __init__(self, _settings: Mapping[str, Any]) -> None: ...

    queues = waits(message_finder.MessageFinder.queues)
    view = waits(message_finder.MessageFinder.view)
    at = waits(message_finder.MessageFinder.at)
    by_key = waits(message_finder.MessageFinder.by_key)
    by_unique_id = waits(message_finder.MessageFinder.by_unique_id)
    by_time = waits(message_finder.MessageFinder.by_time)


class IdempotentConsumer(idempotence.IdempotentConsumer):
    """Wrapper of message handlers for the blocking consumers. It handles each business key once.

    Settings and guarantees are those of ``turbopump.client.idempotence.IdempotentConsumer``.
    """

    def close(self) -> None:
        """Close the store of the keys, with its files and connections."""
        the_loop_thread().call(self._store.close)

    @contextmanager
    def handling(self, message: ReceivedMessage) -> Iterator[bool]:  # type: ignore[override]
        """Return a context manager. Its value is True if the message has to be handled.

        Use it as ``with idempotent.handling(message) as first: if first: …``. The key of the
        message is claimed until the block ends. An exception in the block means that the message is
        not done. Raises TwinWaitError if another consumer has claimed the key for longer than
        ``wait``.
        """
        if self.key_of(message) is None:
            yield True
            return
        loop = the_loop_thread()
        visit = loop.call(self.claim, message)
        if visit is None:
            yield False
            return
        done = False
        try:
            yield True
            done = True
        finally:
            loop.call(self.end_claim, visit, done=done)
