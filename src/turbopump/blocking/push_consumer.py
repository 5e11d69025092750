"""``turbopump.client.push_consumer`` without await, and its messages as a plain iterator."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Unpack

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.client import push_consumer as asyncio_push_consumer
from turbopump.client.allocation import Strategy
from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.delivery_batch import BatchHandler
from turbopump.client.consuming.handling import Handler
from turbopump.client.consuming.offset_store import ConsumeFrom
from turbopump.client.consuming.ready_messages import NoMoreMessages
from turbopump.client.consuming.subscription import ALL, Sql
from turbopump.client.loop_thread import the_loop_thread
from turbopump.client.sending.send_result import SendResult
from turbopump.client.settings import Surrounding
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.running import ConsumeStatus
from turbopump.store.disk import Disk

SETTLE_AT_ONCE: Final = 16
"""Messages of which a reader reports together that they are done: to report one by one would cost a thread switch each."""
SETTLE_INTERVAL_S: Final = 0.05
"""What a reader has finished is reported at least this often, between two messages."""


class PushConsumerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.push_consumer.PushConsumer``."""

    handler: Handler | BatchHandler | None
    handler_batch: int | None
    consume_from: ConsumeFrom | datetime
    concurrency: int
    ordered: bool
    suspend_time: float
    consume_timeout: float
    broadcast: bool
    offsets_directory: str | Path | None
    disk: Disk | None
    max_reconsume_times: int | None
    namespace: str | None
    allocation: str | Strategy
    close_timeout: float
    pull_batch: int
    queue_messages_max: int
    queue_bytes_max: int
    queue_span_max: int
    topic_messages_max: int | None
    topic_bytes_max: int | None
    client_rebalance: bool
    pop_invisible_time: float
    pop_batch: int
    pop_threshold: int
    trace: bool | str


class PushConsumer(OnLoopThread[asyncio_push_consumer.PushConsumer]):
    """``turbopump.client.push_consumer.PushConsumer`` without await: ``for message in consumer:``, or a ``handler`` and ``wait_closed``.

    The same settings, methods and errors. Several threads may iterate; each message goes to one of them. A plain handler runs in a
    thread of its own pool, a coroutine function on the client's loop.
    """

    _survives_fork = False

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        topic: str | None = None,
        tags: str | Sql = ALL,
        **settings: Unpack[PushConsumerSettings],
    ) -> None:
        super().__init__(lambda: asyncio_push_consumer.PushConsumer(namesrv, group=group, topic=topic, tags=tags, **settings))

    @property
    def group(self) -> str:
        return self._client.group

    def set_concurrency(self, concurrency: int) -> None:
        """So many handler calls at once from now on. Raises ConfigError, also without a handler."""

        async def change() -> None:
            self._ready().set_concurrency(concurrency)

        self._call(change)

    def pause(self) -> None:
        """Pull no messages and hand none out until ``resume``."""

        async def pause() -> None:
            self._ready().pause()

        self._call(pause)

    def resume(self) -> None:
        """Go on after ``pause``."""

        async def resume() -> None:
            self._ready().resume()

        self._call(resume)

    @property
    def paused(self) -> bool:
        return self._ready().paused

    def statistics(self) -> dict[str, ConsumeStatus]:
        """As ``turbopump.client.push_consumer.PushConsumer.statistics``."""

        async def look() -> dict[str, ConsumeStatus]:
            return self._ready().statistics()

        return self._call(look)

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours at the moment, sorted."""
        return self._ready().queues

    def subscribe(self, topic: str, tags: str | Sql = ALL) -> None:
        """Consume ``topic`` too; before ``start`` or after."""
        client = self._ready()
        if self._thread is None:
            the_loop_thread().call(client.subscribe, topic, tags)
        else:
            self._call(client.subscribe, topic, tags)

    def unsubscribe(self, topic: str) -> None:
        """Consume ``topic`` no longer; before ``start`` or after, and from a handler in its thread. See the asyncio ``unsubscribe``."""
        client = self._ready()
        if self._thread is None:
            the_loop_thread().call(client.unsubscribe, topic)
        else:
            self._call(client.unsubscribe, topic)

    def commit(self, *, acknowledged: bool = False) -> None:
        """Tell the brokers what is done, now."""
        self._call(self._ready().commit, acknowledged=acknowledged)

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Answer a message that was sent by a producer's ``request``; also from a plain handler in its thread."""
        return self._call(self._ready().reply, request, body, properties=properties, timeout=timeout)

    def wait_closed(self) -> None:
        """Wait until another thread closes this consumer, or Ctrl-C: for programs with a handler."""
        self._call(self._ready().wait_closed)

    def __iter__(self) -> Iterator[Delivery]:
        return _Messages(self)

    def take(self, count: int) -> list[Delivery]:
        """At least one message and at most ``count``; each must be settled with ``done()`` or ``retry()``. Raises NoMoreMessages."""
        return self._call(self._ready().take, count)

    def _begin(self) -> Delivery | None:
        """The next message, if one is ready."""
        return self._ready()._begin()

    def _settle(self, finished: list[Delivery], left: list[Delivery]) -> None:
        """From any thread, without waiting: these are done, those go back."""
        thread = self._thread
        if thread is None or self._pid != os.getpid() or not (finished or left):
            return

        def settle() -> None:
            for message in finished:
                message.done()
            self._client.give_back(left)

        thread.loop.call_soon_threadsafe(settle)


class _Messages(Iterator[Delivery]):
    """One blocking reader: takes what is ready from its own thread, and waits on the loop only if nothing is. What it has finished is
    reported when it waits, after some messages, or every 50 ms."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._current: Delivery | None = None
        self._began = self._reported = time.monotonic()
        self._finished: list[Delivery] = []
        self._first = True
        """The first comes by way of the loop, behind what the reader before has put back."""

    def __iter__(self) -> _Messages:
        return self

    def __next__(self) -> Delivery:
        now = time.monotonic()
        current, self._current = self._current, None
        if current is not None:
            if not current.settled:
                current.handled_s = now - self._began
            self._finished.append(current)
            if len(self._finished) >= SETTLE_AT_ONCE or now - self._reported > SETTLE_INTERVAL_S:
                self._report(now)
        message = None if self._first else self._consumer._begin()
        if message is None:
            self._first = False
            self._report(now)
            try:
                (message,) = self._consumer.take(1)
            except NoMoreMessages:
                raise StopIteration from None
            now = time.monotonic()
        self._current, self._began = message, now
        return message

    def __del__(self) -> None:
        self._consumer._settle(self._finished, [] if self._current is None else [self._current])

    def _report(self, now: float) -> None:
        finished, self._finished = self._finished, []
        self._consumer._settle(finished, [])
        self._reported = now
