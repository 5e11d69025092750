"""Running a user's handler on messages, a coroutine function: how many at once, and what its end
means. (Plain functions: ``handler_threads.py``.)

One rule: a handler that returns has succeeded, whatever it returns, unless that is ``Retry``; an
exception is a failure. It must not know offsets or queues.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from turbopump.client.consuming.delivery import Delivery, Retry, is_retry
from turbopump.client.consuming.delivery_batch import Handled, keys_of
from turbopump.client.consuming.ready_batches import ReadyBatches
from turbopump.client.consuming.ready_messages import NoMoreMessages, ReadyMessages
from turbopump.client.function_failure import awaited, failure_of, meant

log = logging.getLogger(__name__)

Handler = Callable[[Delivery], object]
"""A coroutine function (runs on the consumer's loop) or a plain function (runs in a thread)."""
COMES_AGAIN: Final = "will be delivered again"
"""What mostly becomes of a message that failed."""
REPLACE_S: Final = 1.0
"""A worker that somebody else ended is replaced after so long: mostly everything is being
cancelled, and the loop ends before."""
CANCELLED_S: Final = 1.0
"""So long a handler that a close has cancelled may take to end, however short the close's patience
is."""
NAMED_MAX: Final = 5
"""Messages that a line of the log names."""


class HandlerPool:
    """``concurrency`` workers, or as many as ``resize`` says since. ``handler`` is called with what
    ``ready`` hands out: a message, or a batch. ``fate``: what becomes of messages that fail."""

    def __init__(
        self,
        handler: Callable[[Any], object],
        ready: ReadyMessages | ReadyBatches,
        *,
        concurrency: int,
        fate: str | None = None,
    ) -> None:
        self.concurrency = concurrency
        self._call: Callable[[Handled], Awaitable[object]] = handler  # type: ignore[assignment]
        self._ready = ready
        self._fate = fate or COMES_AGAIN
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._in_hand: dict[asyncio.Task[None], Handled] = {}
        """What each busy worker handles, or has handled a moment ago."""
        self._started = self._stopping = self._abandoned = False

    def start(self) -> None:
        """Begin to take messages."""
        self._started = True
        self._fill()

    def resize(self, concurrency: int) -> None:
        """So many at once from now on: more begin at once, those that are too many end with their
        messages."""
        self.concurrency = concurrency
        if self._started and not self._stopping:
            self._fill()
            for task in list(self._idle)[: max(len(self._tasks) - concurrency, 0)]:
                self._tasks.discard(task)
                task.cancel()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._tasks) < self.concurrency:
            task = loop.create_task(self._work(), name=f"turbopump handler {len(self._tasks)}")
            task.add_done_callback(self._ended)
            self._tasks.add(task)

    def in_hand(self) -> list[Handled]:
        """What is being handled, and perhaps some that is settled."""
        return list(self._in_hand.values())

    def has(self, task: asyncio.Task[object], _thread: int | None) -> bool:
        """Whether the handler is running in this task."""
        return task in self._tasks

    async def stop(self, patience: float) -> None:
        """Let the handlers that run now finish, ``patience`` seconds at most; then cancel them.
        Those that go on all the same are left after as long again, and what they say later does not
        count. The messages that wait must have been closed before, so that no new ones begin."""
        self._stopping = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            if late:
                log.warning(
                    "handlers cancelled at close, their messages will be delivered again count=%d",
                    len(late),
                )
                go_on = await cancelled(late, patience)
                self._abandoned = True
                tell_going_on(
                    [message for task in go_on if (message := self._in_hand.get(task)) is not None]
                )

    async def call(self, message: Delivery) -> object:
        """Run the handler once, beside the others; what it returns. Raises what it raises, as
        ``failure_of`` says."""
        return meant(await awaited(self._call(message)))

    async def _work(self) -> None:
        this = asyncio.current_task()
        assert this is not None
        ready, call, in_hand = self._ready, self._call, self._in_hand
        while len(self._tasks) <= self.concurrency or self._stopping:
            message: Handled | None = ready.now()
            if message is None:
                self._idle.add(this)
                in_hand.pop(this, None)
                try:
                    message = await ready.take()
                except NoMoreMessages:
                    return
                finally:
                    self._idle.discard(this)
            in_hand[this] = message
            cancels = this.cancelling()
            try:
                result = await call(message)
            except asyncio.CancelledError as error:
                if this.cancelling() > cancels:
                    raise
                # something that it awaited was cancelled, not this worker
                failed(message, error, self._fate)
            except GeneratorExit:  # the loop has ended
                raise
            except BaseException as error:
                if self._abandoned:
                    return
                failed(message, failure_of(error, in_thread=False), self._fate)
            else:
                if self._abandoned:
                    return
                if result is None:
                    message.done()
                else:
                    settle(message, result, self._fate)
        self._tasks.discard(this)
        in_hand.pop(this, None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        message = self._in_hand.pop(task, None)
        error = (
            asyncio.CancelledError("its worker was cancelled")
            if task.cancelled()
            else task.exception()
        )
        if message is not None and (message.settled or not message.taken):
            message = None
        if error is not None and task in self._tasks and not self._stopping:
            self._tasks.discard(task)
            asyncio.get_running_loop().call_later(REPLACE_S, self._replace, message, error)
        elif message is not None:
            message.left()

    def _replace(self, message: Handled | None, error: BaseException) -> None:
        """A worker has ended that nobody here has told to."""
        if self._stopping:
            if message is not None:
                message.left()
            return
        log.error(
            "a worker of the handler was ended from outside, another takes its place cause=%r",
            error,
        )
        if message is not None:
            failed(message, error, self._fate)
        self._fill()


async def cancelled(
    tasks: Collection[asyncio.Task[None]], patience: float
) -> set[asyncio.Task[None]]:
    """Cancel these; which of them go on all the same, after ``patience`` seconds, or a second if
    that is longer."""
    for task in tasks:
        task.cancel()
    _, go_on = await asyncio.wait(tasks, timeout=max(patience, CANCELLED_S))
    return go_on


def tell_going_on(messages: Sequence[Handled]) -> None:
    """What the handlers have in hand that a close cannot end."""
    if messages:
        log.warning(
            "handlers go on though the close has cancelled them, their messages will be "
            "delivered again count=%d %s%s",
            *(len(messages), "; ".join(keys_of(message) for message in messages[:NAMED_MAX])),
            "; …" if len(messages) > NAMED_MAX else "",
        )


def failed(message: Handled, error: BaseException, fate: str) -> None:
    """Its handler raised ``error``."""
    if not message.settled:
        log.warning("handler failed, the message %s %s", fate, keys_of(message), exc_info=error)
        message.retry(reason=error)


def settle(message: Handled, result: object, fate: str) -> None:
    """By what the handler returned; what it cannot have meant is a failure."""
    try:
        if isinstance(result, Retry):
            message.retry(result.delay, level=result.level, reason=result.reason)
        elif is_retry(result):
            message.retry()
        else:
            meant(result)
            message.done()
    except Exception as error:
        failed(message, error, fate)


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine: an ``async def``, a partial of one, or an object with
    an ``async def __call__``."""
    if inspect.iscoroutinefunction(handler):
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
