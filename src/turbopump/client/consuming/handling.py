"""Running a user's handler on messages, a coroutine function: how many at once, and what its end means. (Plain functions:
``handler_threads.py``.)

One rule: a handler that returns has succeeded, whatever it returns, unless that is ``Retry``; an exception is a failure. It must not
know offsets or queues.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from turbopump.client.consuming.delivery import Delivery, Retry
from turbopump.client.consuming.ready_messages import NoMoreMessages, ReadyMessages
from turbopump.client.function_failure import failure_of

log = logging.getLogger(__name__)

Handler = Callable[[Delivery], object]
"""A coroutine function (runs on the consumer's loop) or a plain function (runs in a thread)."""
COMES_AGAIN: Final = "will be delivered again"
"""What mostly becomes of a message that failed."""


class HandlerPool:
    """``concurrency`` workers, or as many as ``resize`` says since. ``fate``: what becomes of messages that fail."""

    def __init__(self, handler: Handler, ready: ReadyMessages, *, concurrency: int, fate: str | None = None) -> None:
        self.concurrency = concurrency
        self._call: Callable[[Delivery], Awaitable[object]] = handler  # type: ignore[assignment]
        self._ready = ready
        self._fate = fate or COMES_AGAIN
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._started = self._stopping = False

    def start(self) -> None:
        """Begin to take messages."""
        self._started = True
        self._fill()

    def resize(self, concurrency: int) -> None:
        """So many at once from now on: more begin at once, those that are too many end with their messages."""
        self.concurrency = concurrency
        if self._started and not self._stopping:
            self._fill()
            for task in list(self._idle)[: max(len(self._tasks) - concurrency, 0)]:
                self._tasks.discard(task)
                task.cancel()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._tasks) < self.concurrency:
            self._tasks.add(loop.create_task(self._work(), name=f"turbopump handler {len(self._tasks)}"))

    def has(self, task: asyncio.Task[object]) -> bool:
        """Whether this task is one of the workers."""
        return task in self._tasks

    async def stop(self, patience: float) -> None:
        """Let the handlers that run now finish, ``patience`` seconds at most; then cancel them. The messages that wait
        must have been closed before, so that no new ones begin."""
        self._stopping = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            for task in late:
                task.cancel()
            if late:
                log.warning("handlers cancelled at close, their messages will be delivered again count=%d", len(late))
                await asyncio.wait(late)

    async def call(self, message: Delivery) -> object:
        """Run the handler once, beside the others; what it returns. Raises what it raises, as ``failure_of`` says."""
        try:
            return await self._call(message)
        except (SystemExit, KeyboardInterrupt) as error:
            raise failure_of(error, in_thread=False) from error

    async def _work(self) -> None:
        this = asyncio.current_task()
        assert this is not None
        ready, call = self._ready, self._call
        while len(self._tasks) <= self.concurrency or self._stopping:
            message = ready.now()
            if message is None:
                self._idle.add(this)
                try:
                    message = await ready.take()
                except NoMoreMessages:
                    return
                finally:
                    self._idle.discard(this)
            try:
                result = await call(message)
            except asyncio.CancelledError:
                message.left()
                raise
            except Exception as error:
                failed(message, error, self._fate)
            except (SystemExit, KeyboardInterrupt) as error:
                failed(message, failure_of(error, in_thread=False), self._fate)
            else:
                if result is None:
                    message.done()
                else:
                    settle(message, result)
        self._tasks.discard(this)


def failed(message: Delivery, error: Exception, fate: str) -> None:
    """Its handler raised ``error``."""
    if message.settled:
        return
    log.warning(
        "handler failed, the message %s msg_id=%s topic=%s queue=%s:%d offset=%d attempt=%d",
        *(fate, message.msg_id, message.topic, message.broker_name, message.queue_id, message.queue_offset, message.attempt),
        exc_info=error,
    )
    message.retry(reason=error)


def settle(message: Delivery, result: object) -> None:
    """By what the handler returned."""
    if result.__class__ is Retry:
        message.retry(result.delay, level=result.level, reason=result.reason)
    elif result is Retry:
        message.retry()
    else:
        message.done()


def is_coroutine_function(handler: Handler) -> bool:
    """Whether calling it gives a coroutine: an ``async def``, a partial of one, or an object with an ``async def __call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
