"""``turbopump.client.push_consumer`` without await, and its messages as a plain iterator."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Unpack

from turbopump.blocking.on_loop_thread import OnLoopThread, Surrounding
from turbopump.client import push_consumer as asyncio_push_consumer
from turbopump.client.delivery import Delivery
from turbopump.client.handling import Handler
from turbopump.client.loop_thread import the_loop_thread
from turbopump.client.offset_store import ConsumeFrom
from turbopump.client.ready_messages import NoMoreMessages
from turbopump.client.subscription import ALL
from turbopump.message.message_queue import MessageQueue

PREFETCH: Final = 16
"""Messages a blocking reader takes over at once: handing over one by one would cost a thread switch each."""
SETTLE_INTERVAL_S: Final = 0.05
"""What a reader has finished is reported at least this often, between two messages."""


class PushConsumerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.push_consumer.PushConsumer``."""

    handler: Handler | None
    consume_from: ConsumeFrom | datetime
    concurrency: int
    allocation: str
    close_timeout: float


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
        tags: str = ALL,
        **settings: Unpack[PushConsumerSettings],
    ) -> None:
        super().__init__(lambda: asyncio_push_consumer.PushConsumer(namesrv, group=group, topic=topic, tags=tags, **settings))

    def __enter__(self) -> PushConsumer:
        self.start()
        return self

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours at the moment, sorted."""
        return self._ready().queues

    def subscribe(self, topic: str, tags: str = ALL) -> None:
        """Consume ``topic`` too; before ``start`` or after."""
        client = self._ready()
        if self._thread is None:
            the_loop_thread().call(client.subscribe, topic, tags)
        else:
            self._call(client.subscribe, topic, tags)

    def commit(self, *, acknowledged: bool = False) -> None:
        """Tell the brokers what is done, now."""
        self._call(self._ready().commit, acknowledged=acknowledged)

    def wait_closed(self) -> None:
        """Wait until another thread closes this consumer, or Ctrl-C: for programs with a handler."""
        self._call(self._ready().wait_closed)

    def __iter__(self) -> Iterator[Delivery]:
        return _Messages(self)

    def take(self, count: int) -> list[Delivery]:
        """At least one message and at most ``count``; each must be settled with ``done()`` or ``retry()``. Raises NoMoreMessages."""
        return self._call(self._ready().take, count)

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
    """One blocking reader: takes over a few messages at a time; what it has finished is reported
    with the next hand-over, or every 50 ms."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._batch: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._finished: list[Delivery] = []
        self._reported = time.monotonic()

    def __iter__(self) -> _Messages:
        return self

    def __next__(self) -> Delivery:
        current, self._current = self._current, None
        if current is not None:
            self._finished.append(current)
        while True:
            if not self._batch:
                self._report()
                try:
                    self._batch.extend(self._consumer.take(PREFETCH))
                except NoMoreMessages:
                    raise StopIteration from None
            elif time.monotonic() - self._reported > SETTLE_INTERVAL_S:
                self._report()
            message = self._batch.popleft()
            if message.wanted:
                self._current = message
                return message

    def __del__(self) -> None:
        left = [] if self._current is None else [self._current]
        self._consumer._settle(self._finished, [*left, *self._batch])

    def _report(self) -> None:
        finished, self._finished = self._finished, []
        self._consumer._settle(finished, [])
        self._reported = time.monotonic()
