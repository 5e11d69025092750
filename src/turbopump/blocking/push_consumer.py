"""Push consumer with blocking methods. Its messages come from a plain iterator."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from turbopump.blocking.on_loop_thread import ClientOfGroup, made_as, on_loop, waits, waits_anytime
from turbopump.client import push_consumer as asyncio_push_consumer
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.ready_messages import NoMoreMessages
from turbopump.message.message import MessageQueue

SETTLE_AT_ONCE: Final = 16
"""Number of finished messages that a reader reports to the event loop together, because each report
costs a thread switch."""
SETTLE_INTERVAL_S: Final = 0.05
"""Time in seconds after which a reader's finished messages are reported, even if the reader is
busy."""


class PushConsumer(ClientOfGroup[asyncio_push_consumer.PushConsumer]):
    """Push consumer whose methods block the calling thread, for code without an event loop.

    Read it as ``for message in consumer:``, or pass a ``handler`` and call ``wait_closed``.
    Settings, methods and errors are those of ``turbopump.client.push_consumer.PushConsumer``.
    Several threads may iterate; each message goes to one of them. A plain handler runs in a thread
    of the consumer's pool, a coroutine function on the client's loop.
    """

    _survives_fork = False

    @made_as(asyncio_push_consumer.PushConsumer)
    def __init__(self, settings: Mapping[str, Any]) -> None:
        # an ordered queue waits for this message
        self._settle_at_once = 1 if settings.get("ordered") else SETTLE_AT_ONCE
        self._stopped = False
        self._unreported: set[_Finished] = set()
        """Finished messages of readers that are waiting for their timer. Only the loop's thread
        uses the set."""

    set_concurrency = on_loop(asyncio_push_consumer.PushConsumer.set_concurrency)
    pause = on_loop(asyncio_push_consumer.PushConsumer.pause)
    resume = on_loop(asyncio_push_consumer.PushConsumer.resume)
    statistics = on_loop(asyncio_push_consumer.PushConsumer.statistics)
    subscribe = waits_anytime(asyncio_push_consumer.PushConsumer.subscribe)
    unsubscribe = waits_anytime(asyncio_push_consumer.PushConsumer.unsubscribe)
    reply = waits(asyncio_push_consumer.PushConsumer.reply)
    wait_closed = waits(asyncio_push_consumer.PushConsumer.wait_closed)
    take = waits(asyncio_push_consumer.PushConsumer.take)

    @property
    def paused(self) -> bool:
        return self._ready().paused

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client."""
        return self._ready().client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """Queues assigned to this consumer now, sorted."""
        return self._ready().queues

    def commit(self, *, acknowledged: bool = False) -> None:
        """Commit the offsets of finished messages now.

        With ``acknowledged`` the call waits until the brokers have stored the offsets.
        """
        client = self._ready()

        async def commit() -> None:
            self._settle_finished()
            await client.commit(acknowledged=acknowledged)

        self._call(commit)

    def stop(self) -> None:
        """Deliver no more messages. The method does not wait, and may be called before ``start``.

        Loops over this consumer end after their current message, which is then done. Running
        handlers continue. The consumer stays in its group until ``close``. Any thread and handlers
        of signals may call this method. See ``stop_on_signals``.
        """
        self._stopped = True
        if self._pid == os.getpid():
            if self._thread is None:
                self._client.stop()
            else:
                self._thread.post(self._client.stop)

    def close(self) -> None:
        """Close the consumer, and commit the finished messages of all readers.

        A second call does nothing, and neither does a call in a forked child. If a plain handler
        calls this method, the call returns at once, and the close continues when the handler ends.
        """
        caller = threading.get_ident()

        async def close() -> bool:
            self._settle_finished()
            return await self._client._close(caller)

        if self._state != "started" or self._pid != os.getpid() or self._call(close):
            self._state = "closed"

    def __iter__(self) -> Iterator[Delivery]:
        return _Messages(self)

    def _on_loop(self, function: Callable[[], object]) -> None:
        """Schedule ``function`` on the event loop without waiting. Any thread may call this
        method."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.loop.call_soon_threadsafe(function)

    def _settle_finished(self) -> None:
        """Mark the finished messages of all readers as done. This runs on the event loop."""
        for finished in list(self._unreported):
            finished.settle_messages()


class _Finished:
    """Finished messages of one reader, before they are reported to the event loop.

    Many messages are reported at once, few after ``SETTLE_INTERVAL_S``. No lock is needed: the
    reader's thread only adds messages, and the loop only removes them. Each flag is cleared before
    the work that it announces.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._messages: deque[Delivery] = deque()
        self._timed = False
        """True if a timer is set or was requested, so that there is only one."""
        self._called = False

    def add_message(self, message: Delivery) -> None:
        """Add a finished message. This runs in the reader's thread."""
        self._messages.append(message)
        if len(self._messages) >= self._consumer._settle_at_once:
            self.report_soon()
        elif not self._timed:
            self._timed = True
            self._consumer._on_loop(self._set_timer)

    def report_soon(self) -> None:
        """Ask the event loop to report the finished messages now. This runs in the reader's
        thread."""
        if self._messages and not self._called:
            self._called = True
            self._consumer._on_loop(self._report_called)

    def settle_messages(self) -> None:
        for _ in range(len(self._messages)):
            self._messages.popleft().done()

    def _report_called(self) -> None:
        self._called = False
        self.settle_messages()

    def _set_timer(self) -> None:
        self._consumer._unreported.add(self)
        asyncio.get_running_loop().call_later(SETTLE_INTERVAL_S, self._report_in_time)

    def _report_in_time(self) -> None:
        self._consumer._unreported.discard(self)
        self._timed = False
        self.settle_messages()


class _Messages(Iterator[Delivery]):
    """Iterator over the messages of a push consumer, for one thread.

    The iterator gets ready messages in its own thread, and waits on the loop only if there is none.
    Finished messages are reported when the iterator waits, when there are many, or after 50 ms.
    With ``ordered`` they are reported at once.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._current: Delivery | None = None
        self._began = 0.0
        self._finished = _Finished(consumer)
        self._first = True
        """True before the first message. That message is fetched on the loop, after a previous
        reader's messages were put back."""

    def __iter__(self) -> _Messages:
        return self

    def __next__(self) -> Delivery:
        now = time.monotonic()
        current = self._current
        self._current = None
        if current is not None:
            if not current.settled:
                current.handled_s = now - self._began
            self._finished.add_message(current)
        message = None
        if not self._first and not self._consumer._stopped:
            message = self._consumer._ready()._begin_message()
        if message is None:
            self._first = False
            self._finished.report_soon()
            try:
                (message,) = self._consumer.take(1)
            except NoMoreMessages:
                raise StopIteration from None
            now = time.monotonic()
        self._current = message
        self._began = now
        return message

    def __del__(self) -> None:
        current = self._current
        client = self._consumer._client
        self._finished.report_soon()
        if current is not None:
            self._consumer._on_loop(lambda: client.give_back([current]))
