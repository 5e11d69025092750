"""Running a user's handler on messages: how many at once, on the loop or in threads, and what its end means.

One rule: a handler that returns has succeeded, whatever it returns, unless that is ``Retry``; an exception is a failure. It must not
know offsets or queues.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from turbopump.client.delivery import Delivery, Retry
from turbopump.client.ready_messages import NoMoreMessages, ReadyMessages

log = logging.getLogger(__name__)

Handler = Callable[[Delivery], object]
"""A coroutine function (runs on the consumer's loop) or a plain function (runs in a thread)."""


class HandlerPool:
    """``concurrency`` workers. Threads exist only if the handler is a plain function."""

    def __init__(self, handler: Handler, ready: ReadyMessages, *, concurrency: int) -> None:
        self._ready = ready
        self._concurrency = concurrency
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: list[asyncio.Task[None]] = []
        call: Callable[[Delivery], Awaitable[object]]
        if is_coroutine_function(handler):
            call = handler  # type: ignore[assignment]
        else:
            self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="turbopump-handler")
            call = self._in_thread(handler, self._threads)
        self._call = call

    def start(self) -> None:
        """Begin to take messages."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work(), name=f"turbopump handler {i}") for i in range(self._concurrency)]

    async def stop(self, patience: float) -> None:
        """Let the handlers that run now finish, ``patience`` seconds at most; then cancel those on the loop. The messages that wait
        must have been closed before, so that no new ones begin."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            for task in late:
                task.cancel()
            if late:
                log.warning("handlers cancelled at close, their messages will be delivered again count=%d", len(late))
                await asyncio.wait(late)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while True:
            try:
                message = await self._ready.take()
            except NoMoreMessages:
                return
            await self._handle(message)

    async def _handle(self, message: Delivery) -> None:
        try:
            result = await self._call(message)
        except Exception:
            if not message.settled:
                log.warning(
                    "handler failed, the message will be delivered again msg_id=%s topic=%s queue=%s:%d offset=%d attempt=%d",
                    *(
                        message.msg_id,
                        message.topic,
                        message.broker_name,
                        message.queue_id,
                        message.queue_offset,
                        message.attempt,
                    ),
                    exc_info=True,
                )
                message.retry()
            return
        if result.__class__ is Retry:
            message.retry(result.delay)
        elif result is Retry:
            message.retry()
        else:
            message.done()

    @staticmethod
    def _in_thread(handler: Handler, threads: ThreadPoolExecutor) -> Callable[[Delivery], Awaitable[object]]:
        async def call(message: Delivery) -> object:
            result = await asyncio.get_running_loop().run_in_executor(threads, handler, message)
            if inspect.isawaitable(result):  # a plain function that returns a coroutine, such as a lambda round one
                result = await result
            return result

        return call


def is_coroutine_function(handler: Handler) -> bool:
    """Whether calling it gives a coroutine: an ``async def``, a partial of one, or an object with an ``async def __call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
