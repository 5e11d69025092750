"""Waiting messages of all queues of a consumer. Handlers and readers get them in order of arrival.

One rule: a message that is settled, or whose queue is lost, is not delivered. This module must not
know how a message is handled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from turbopump.client.consumer.delivery import Delivery, DeliveryBatch, Handled, messages_in

TURN_MAX_S: Final = 0.01
"""Maximum seconds for which a busy reader keeps the event loop. Heartbeats must be sent whatever
the handlers do."""


class NoMoreMessages(Exception):  # noqa: N818 - an end, not an error
    """Raised when a reader waits for messages of a closed consumer."""


class ReadyMessages:
    """Queue of ready messages. Each waits for a handler or reader.

    The limits of the pulls bound the size of the queue.

    - ``batch``: maximum number of messages of one queue that are delivered together. A batch has
      the messages that are ready now, and does not wait for more. None delivers single messages.
    - ``ordered``: True if each queue is handled in order, as ``DeliveryBatch`` describes.
    - ``on_take``: called with each delivered message or batch, also from threads.
    """

    def __init__(
        self,
        on_take: Callable[[Handled], None] | None = None,
        *,
        batch: int | None = None,
        ordered: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_take = on_take
        self.batch = batch
        self._ordered = ordered
        self._ready: deque[Delivery] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.paused = False
        self._closed = False
        self._waking = 0
        self._listener: Callable[[], None] | None = None
        self.turn_end = self._loop.time() + TURN_MAX_S
        """Loop time at which readers must let the event loop run."""
        self._one_taker = Lock()
        """Lock of the one thread that collects a batch. Other threads get no batch meanwhile. With
        no-op handlers this costs 2.5 µs a message in lists of four, and 10 µs if they waited. With
        slow handlers they rarely meet."""

    def set_listener(self, listener: Callable[[], None]) -> None:
        """Set a function that is called whenever messages may be ready.

        The listener can get them by ``next_ready``.
        """
        self._listener = listener

    def add_messages(self, messages: Iterable[Delivery]) -> None:
        """Add messages for waiting and future readers."""
        if self._closed:
            return
        self._ready.extend(messages)
        if not self._waking:
            self._waking = 1
            self._wake_more()
        if self._listener is not None:
            self._listener()

    def give_back(self, message: Delivery) -> None:
        """Put an unhandled message back at the front of the queue.

        A message that is not wanted any more is abandoned.
        """
        if self._closed or not message.wanted:
            message.abandon()
            return
        message.taken = False
        self._ready.appendleft(message)
        self._wake_readers(1)
        if self._listener is not None:
            self._listener()

    def pause(self) -> None:
        """Deliver no messages until ``resume`` is called. Added messages are kept."""
        self.paused = True

    def resume(self) -> None:
        """Deliver messages again."""
        self.paused = False
        self._wake_readers(len(self._ready))
        if self._listener is not None:
            self._listener()

    def close(self) -> None:
        """Deliver no more messages, and end the waiting of all readers."""
        self._closed = True
        self._ready.clear()
        self._wake_readers(len(self._waiters))

    async def next_turn(self) -> None:
        """Let other tasks of the event loop run."""
        await asyncio.sleep(0)
        self.turn_end = self._loop.time() + TURN_MAX_S

    async def take_next(self) -> Handled:
        """Wait for the next message or batch, and return it.

        Raises NoMoreMessages once the consumer is closed.
        """
        while True:
            if self._loop.time() > self.turn_end:
                await self.next_turn()
            message = self.next_ready()
            if message is not None:
                return message
            if self._closed:
                raise NoMoreMessages
            await self._wait_for_more()

    async def take_some(self, count: int) -> list[Delivery]:
        """Wait until messages are ready, and return at most ``count`` of them.

        The list has at least one message. The method is not for use with batches. Raises
        NoMoreMessages once the consumer is closed.
        """
        messages = [*messages_in(await self.take_next())]
        while len(messages) < count and (handed := self.next_ready()) is not None:
            messages += messages_in(handed)
        return messages

    @property
    def waiting(self) -> int:
        """Number of handler calls that the waiting messages need.

        Some of these messages may not be wanted any more. The number is 0 while delivery is paused.
        """
        if self.paused:
            return 0
        return -(-len(self._ready) // (self.batch or 1))  # rounded up

    def next_ready(self) -> Handled | None:
        """Return the next message or batch, or None if the queue has no ready message. Any thread
        may call this method."""
        if self.batch is not None:
            return self._next_batch(self.batch)
        while not self.paused:
            try:
                message = self._ready.popleft()
            except IndexError:
                return None
            # In a thread, the queue may be dropped now. Either the queue sees that the message is
            # taken, or this code sees that the message is not wanted.
            message.taken = True
            if message.wanted:
                if self._on_take is not None:
                    self._on_take(message)
                return message
            message.abandon()
        return None

    def _next_batch(self, count: int) -> Handled | None:
        if not self._one_taker.acquire(blocking=False):
            return None
        try:
            messages = self._take_together(count)
        finally:
            self._one_taker.release()
        if not messages:
            return None
        batch = DeliveryBatch(messages, ordered=self._ordered)
        if self._on_take is not None:
            self._on_take(batch)
        return batch

    def _take_together(self, count: int) -> list[Delivery]:
        """Return the next messages of one queue, at most ``count``.

        If this runs in a thread, the event loop may add messages or close the consumer meanwhile.
        """
        ready = self._ready
        together = list[Delivery]()
        while len(together) < count and not self.paused and not self._closed:
            try:
                message = ready.popleft()
            except IndexError:
                break
            if together and not message.goes_with(together[0]):
                ready.appendleft(message)
                break
            message.taken = True
            if message.wanted:
                together.append(message)
            else:
                message.abandon()
        return together

    async def _wait_for_more(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_readers(1)  # it was for a taker that was cancelled
            else:
                # a reader that was to be woken in the cycle of the cancellation was skipped
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
            raise
        self.turn_end = self._loop.time() + TURN_MAX_S

    def _wake_more(self) -> None:
        """Wake waiting readers: one in the first cycle of the event loop, then twice as many in
        each cycle.

        This ends when no message is left. If handlers never wait, one reader is enough for all
        messages.
        """
        if self._ready and self._waiters and not self.paused:
            self._wake_readers(self._waking)
            self._waking *= 2
            self._loop.call_soon(self._wake_more)
        else:
            self._waking = 0

    def _wake_readers(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1


class MessageStream:
    """Iterator of ``async for message in consumer`` for one reader.

    A message is done when the reader asks for the next one. Several readers may share a consumer,
    and each message goes to one of them. ``ready`` must not have batches.
    """

    def __init__(self, ready: ReadyMessages) -> None:
        self._ready = ready
        self._current: Delivery | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Delivery:
        current = self._current
        self._current = None
        if current is not None:
            current.done()
        try:
            message: Delivery = await self._ready.take_next()  # type: ignore[assignment]
        except NoMoreMessages:
            raise StopAsyncIteration from None
        self._current = message
        return message

    def __del__(self) -> None:
        # The loop body was left by break or by an exception: nothing else holds the stream then.
        message = self._current
        self._current = None
        if message is not None and not message.settled:
            self._ready.give_back(message)
