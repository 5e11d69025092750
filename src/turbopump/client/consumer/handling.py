"""Worker pool of a consumer. Workers call the user's handler, and settle each message when its call
ends.

One rule: a handler that returns has succeeded, unless it returns ``Retry``; an exception is a
failure. This module must not know offsets or queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import copy_context
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Final, NamedTuple, cast

from turbopump.client.consumer.delivery import (
    BatchHandler,
    Delivery,
    Handled,
    LateHandlerError,
    Retry,
    is_retry,
    keys_of,
    messages_in,
)
from turbopump.client.consumer.ready_messages import TURN_MAX_S, ReadyMessages
from turbopump.client.user_function import (
    CallThreads,
    awaited,
    checked_result,
    failure_of,
    in_pool,
    is_coroutine_function,
)
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)

Handler = Callable[[Delivery], object]
"""Handler of one message.

A coroutine function runs on the consumer's event loop, a plain function in a thread.
"""
COMES_AGAIN: Final = "will be delivered again"
"""Text for log lines about the usual consequence of a failure."""
REPLACE_S: Final = 1.0
"""Seconds before a worker that was cancelled from outside is replaced. Workers are usually
cancelled shortly before the loop ends."""
CANCELLED_S: Final = 1.0
"""Minimum seconds that a close gives a cancelled handler to end."""
LATE_LEVEL: Final = 3
"""Delay level for the message of a late handler: 10 s by Apache's table."""
NAMED_MAX: Final = 5
"""Maximum number of messages named in a log line."""
SLOW_S: Final = 0.00005
"""Handler time in seconds above which a plain handler gets one thread per ready message. For a
faster handler, starting a thread costs as much as the call."""
NOTED_MAX_S: Final = 5 * SLOW_S
"""Seconds to which the time of one call is limited in the mean handler time. Longer calls are
usually delays of the machine or loop, not of the handler."""
WEIGHT: Final = 1 / 32
"""Weight of the newest call in the mean handler time."""
LOOK_AGAIN_S: Final = 0.001
"""Seconds after which waiting messages get further threads because the existing ones are busy. The
number of threads doubles each time."""
RUN_MAX_S: Final = 0.1
"""Maximum seconds for which a thread handles messages without a break. Operators' messages and the
end of the process wait for that."""


class _HandlerCall(NamedTuple):
    message: Handled
    result: object
    error: Exception | None
    seconds: float


class _Worker:
    """Worker that handles messages one at a time, in a task or a thread.

    - ``begun``: True once the worker has asked for its first message.
    - ``message``: message that is being handled.
    - ``thread``: id of the thread of a plain function. None while a coroutine is running.
    """

    __slots__ = ("begun", "message", "thread")

    def __init__(self) -> None:
        self.begun = False
        self.thread: int | None = None
        self.message: Handled | None = None

    @property
    def unsettled(self) -> Handled | None:
        """Message in the worker's handler call, or None without an unsettled message."""
        message = self.message
        return message if message is not None and message.taken and not message.settled else None


class HandlerPool:
    """Pool of workers that call the user's handler with ready messages.

    - ``handler``: function of one message, or of a list of messages if ``ready`` has batches.
    - ``ready``: queue of the messages to handle.
    - ``concurrency``: maximum number of concurrent calls.
    - ``consequence``: text for log lines, which says what happens to a message after a failure.
    """

    # A worker handles one message after another, and ends when none is ready. For a coroutine
    # function it is a task. For a plain function it is one call in an executor. A thread gets a
    # message only when its handler starts. So no message waits behind a slow one while a thread is
    # idle, and no message costs a change of threads.
    #
    # One worker is enough for handlers that never wait. So one starts when messages arrive. While
    # messages are left, the number of workers doubles: in each cycle of the loop, or for threads,
    # which would only contend, each LOOK_AGAIN_S. A plain handler that was slow so far gets a
    # thread for every message at once.

    def __init__(
        self,
        handler: Handler | BatchHandler,
        ready: ReadyMessages,
        *,
        concurrency: int,
        consequence: str | None = None,
    ) -> None:
        self.concurrency = concurrency
        self._call = cast(Callable[[Handled], object], handler)
        if ready.batch is not None:
            self._call = called_with_lists(cast(BatchHandler, handler))
        self._ready = ready
        self._consequence = consequence or COMES_AGAIN
        self._failed = RepeatedLine(
            log, logging.WARNING, "handler failed, the message %s %s cause=%s"
        )
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._threads: CallThreads | None = None
        if not is_coroutine_function(handler):
            self._threads = CallThreads(concurrency, "turbopump-handler")
        self.workers: dict[_Worker, asyncio.Task[None]] = {}
        self._idle: asyncio.Future[None] | None = None
        """Future of the one idle worker on the loop. Waking it is cheaper than starting another."""
        self._timer: asyncio.Handle | None = None
        self._outcomes: deque[_HandlerCall] = deque()
        self._called = False
        """True if the loop was asked to collect outcomes and has not started yet."""
        self._collected = self._collected_before = 0
        self._mean_s = NOTED_MAX_S
        self._going = False
        self._abandoned = False
        """True if the outcomes of calls in threads are ignored from now on."""
        self._over = False
        """True if all outcomes are ignored from now on."""

    def start(self) -> None:
        """Start to call the handler with ready messages."""
        self._going = True
        self._ready.set_listener(self._start_needed)
        self._start_needed()

    def resize(self, concurrency: int) -> None:
        """Change the maximum number of concurrent calls. A surplus worker ends after its current
        message."""
        if self._threads is not None:
            self._threads.count = max(self._threads.count, concurrency)
        self.concurrency = concurrency
        self._start_needed()

    def handled_now(self) -> list[Handled]:
        """Return the messages and batches that are being handled."""
        return [message for worker in self.workers if (message := worker.unsettled) is not None]

    def is_handling_in(self, task: asyncio.Task[object], thread: int | None) -> bool:
        """Return True if this task or thread is running the handler."""
        return task in self.workers.values() or any(
            worker.thread == thread is not None for worker in self.workers
        )

    async def stop(self, patience: float) -> None:
        """Wait at most ``patience`` seconds for running handlers, and then abandon them.

        A late coroutine is cancelled, and has the same time again to end, but at least one second.
        A late plain function is abandoned at once. The caller must close ``ready`` first, so that
        no new handler starts.
        """
        self._going = False
        self._wake_idle()
        if self._timer is not None:
            self._timer.cancel()
        if self.workers:
            _, late = await asyncio.wait(self.workers.values(), timeout=patience)
            while self._outcomes:
                self._collect_outcomes()
            self._abandoned = True
            if late:
                await self._cancel_late(late, patience)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._failed.report()

    async def _cancel_late(self, late: set[asyncio.Task[None]], patience: float) -> None:
        if self._threads is not None:
            self._threads.leave_after(max(patience, CANCELLED_S))
        log.warning(
            "handlers have not ended at close, their messages will be delivered again count=%d "
            "messages=%s",
            len(late),
            named(self.handled_now()),
        )
        go_on = await cancelled(late, patience)
        self._over = True
        if go_on:
            log.warning(
                "handlers still run after the close has cancelled them; their messages will be "
                "delivered again count=%d messages=%s",
                len(go_on),
                named(self.handled_now()),
            )

    async def call(self, message: Delivery) -> object:
        """Run the handler once with ``message``, and return the result.

        Other handler calls may run at the same time. Raises the handler's exception as
        ``failure_of`` describes.
        """
        if self._threads is None:
            result = self._call(message)
        else:
            result = await in_pool(self._threads, self._call, message)
        if inspect.isawaitable(result):
            result = await awaited(result)
        return checked_result(result)

    async def give_back_late(self, timeout: float) -> None:
        """Send back every message whose handler call lasts ``timeout`` seconds. Runs until
        cancelled.

        RocketMQ: ``ProcessQueue.cleanExpiredMsg``.
        """
        while True:
            now = self._loop.time()
            next_due = now + timeout
            for message in self.handled_now():
                due = message.taken_at + timeout
                if due > now:
                    next_due = min(next_due, due)
                    continue
                seconds = now - message.taken_at
                log.warning(
                    "handler has not ended, its message was sent back and its later result is "
                    "ignored seconds=%.0f %s",
                    seconds,
                    keys_of(message),
                )
                late = LateHandlerError(f"its handler had not ended after {seconds:.0f} s")
                message.retry(level=LATE_LEVEL, reason=late)
            await asyncio.sleep(max(next_due - now, 0.001))

    # --- workers

    def _start_needed(self) -> None:
        """Start workers for the waiting messages."""
        waiting = self._ready.waiting
        if not self._going or not waiting:
            return
        self._wake_idle()
        room = self.concurrency - len(self.workers)
        if room <= 0:
            return
        coming = sum(not worker.begun for worker in self.workers)
        if self._threads is not None and self._mean_s > SLOW_S:
            self._start_workers(min(waiting - coming, room))
        elif not coming and (self._threads is None or not self.workers):
            self._start_workers(1)
        if self._timer is None:
            self._collected_before = self._collected + len(self._outcomes)
            if self._threads is None:
                self._timer = self._loop.call_soon(self._start_more)
            else:
                self._timer = self._loop.call_later(LOOK_AGAIN_S, self._start_more)

    def _wake_idle(self) -> None:
        idle = self._idle
        self._idle = None
        if idle is not None and not idle.done():
            idle.set_result(None)

    def _start_more(self) -> None:
        """Start more workers if messages are waiting and the present workers make little
        progress."""
        self._timer = None
        if not self._ready.waiting:
            return
        handled = self._collected + len(self._outcomes) - self._collected_before
        if (
            handled <= len(self.workers)
            and self._going
            and all(worker.begun for worker in self.workers)
        ):
            room = self.concurrency - len(self.workers)
            self._start_workers(min(max(len(self.workers), 1), self._ready.waiting, room))
        self._start_needed()

    def _start_workers(self, count: int) -> None:
        for _ in range(count):
            worker = _Worker()
            if self._threads is None:
                work = self._handle_on_loop(worker)
            else:
                try:
                    left = self._loop.run_in_executor(self._threads, self._handle_in_thread, worker)
                except RuntimeError as error:
                    if "cannot schedule new futures" in str(error):  # the process ends
                        self._going = False
                    elif not self.workers:
                        raise
                    return  # the system has no more threads: the running workers continue
                work = self._await_worker(worker, left)
            task = self._loop.create_task(
                work, name="turbopump handler", context=self._context.copy()
            )
            self.workers[worker] = task
            task.add_done_callback(partial(self._worker_ended, worker))

    def _worker_ended(self, worker: _Worker, task: asyncio.Task[None]) -> None:
        del self.workers[worker]
        if self._idle is not None and self._idle.cancelled():
            self._idle = None
        message = worker.unsettled
        if task.cancelled():
            error: BaseException | None = asyncio.CancelledError("its worker was cancelled")
        else:
            error = task.exception()
        if error is not None and self._going:
            self._loop.call_later(REPLACE_S, self._replace_worker, message, error)
            return
        if message is not None and worker.thread is None:
            message.abandon()
        self._start_needed()

    def _replace_worker(self, message: Handled | None, error: BaseException) -> None:
        """Start a new worker after another worker has ended unexpectedly.

        The ended worker's message counts as failed. If the consumer was closed meanwhile, no worker
        is started.
        """
        if self._going:
            log.error(
                "a handler's worker was cancelled from outside, another replaces it cause=%r", error
            )
            if message is not None:
                self._fail(message, error)
            self._start_needed()
        elif message is not None:
            message.abandon()

    async def _handle_on_loop(self, worker: _Worker) -> None:
        """Await the handler for each ready message. If no message is ready, one worker waits and
        others return."""
        this = asyncio.current_task()
        assert this is not None
        ready = self._ready
        workers = self.workers
        time = self._loop.time
        begin = ready.next_ready
        cancelling = this.cancelling
        call = cast(Callable[[Handled], Awaitable[object]], self._call)
        worker.begun = True
        ready.turn_end = time() + TURN_MAX_S
        while len(workers) <= self.concurrency:
            if time() > ready.turn_end:
                await ready.next_turn()
            message: Handled | None = begin()
            if message is None:
                if self._idle is not None or not self._going:
                    return
                worker.message = None
                worker.begun = False
                self._idle = self._loop.create_future()
                await self._idle
                worker.begun = True
                ready.turn_end = time() + TURN_MAX_S
                continue
            worker.message = message
            cancels = cancelling()
            try:
                result = await call(message)
            except asyncio.CancelledError as error:
                if cancelling() > cancels:
                    raise
                # an object that the handler awaited was cancelled, not this worker
                self._fail(message, error)
            except GeneratorExit:  # the loop has ended
                raise
            except BaseException as error:
                if self._over:
                    return
                self._fail(message, failure_of(error, in_thread=False))
            else:
                if self._over:
                    return
                if result is None:
                    message.done()
                else:
                    self._settle(message, result)

    async def _await_worker(self, worker: _Worker, left: Awaitable[_HandlerCall | None]) -> None:
        """Wait for a worker in a thread. If its handler has returned a coroutine, await the
        coroutine.

        A lambda is a plain function that may return a coroutine.
        """
        outcome = await left
        if outcome is None:
            return
        message = outcome.message
        awaitable = outcome.result
        assert inspect.isawaitable(awaitable)
        try:
            result = await awaited(awaitable)
        except Exception as error:
            if not self._over:
                self._fail(message, error)
        else:
            if not self._over:
                self._settle(message, result)

    def _handle_in_thread(self, worker: _Worker) -> _HandlerCall | None:
        """Call the handler in this thread for each ready message. Return when no message is ready,
        or after ``RUN_MAX_S`` seconds.

        Return a call whose result is a coroutine, because only the event loop can await it. Return
        None in all other cases.
        """
        ready = self._ready
        handler = self._call
        workers = self.workers
        result: object
        worker.thread = get_ident()
        now = monotonic()
        end = now + RUN_MAX_S
        while now < end and len(workers) <= self.concurrency and not self._abandoned:
            message: Handled | None = ready.next_ready()
            worker.begun = True
            if message is None:
                break
            error = None
            worker.message = message
            began = monotonic()
            try:
                result = handler(message)
            except BaseException as raised:
                result = None
                error = failure_of(raised, in_thread=True)
            now = monotonic()
            seconds = message.handled_s = now - began
            if result is not None and inspect.isawaitable(result):
                message.handled_s = worker.thread = None
                return _HandlerCall(message, result, None, seconds)
            worker.message = None
            self._report(_HandlerCall(message, result, error, seconds))
        return None

    def _report(self, outcome: _HandlerCall) -> None:
        """Ask the loop to settle the message of a finished call. Runs in the handler's thread."""
        if self._abandoned:
            return
        self._outcomes.append(outcome)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._collect_outcomes)

    # --- the end of a call

    def _collect_outcomes(self) -> None:
        """Settle messages whose handler calls have ended in threads."""
        # Threads append to ``_outcomes`` and ask for one call of this method; ``_called`` keeps
        # them from asking again. It is cleared first: an outcome appended after the loop below has
        # seen an empty queue then asks for another call, so none is forgotten. A handler of 1 µs
        # fills the queue faster than the loop empties it, so the method stops after TURN_MAX_S.
        self._called = False
        outcomes = self._outcomes
        mean = self._mean_s
        end = monotonic() + TURN_MAX_S
        try:
            while outcomes and not self._abandoned and monotonic() < end:
                message, result, error, seconds = outcomes.popleft()
                self._collected += 1
                mean += (min(seconds, NOTED_MAX_S) - mean) * WEIGHT
                if error is not None:
                    self._fail(message, error)
                elif result is None:
                    message.done()
                else:
                    self._settle(message, result)
        finally:
            self._mean_s = mean
            # other work has its turn, or a message could not be settled
            if outcomes and not self._abandoned:
                self._called = True
                self._loop.call_soon(self._collect_outcomes)

    def _fail(self, message: Handled, error: BaseException) -> None:
        """Have a message delivered again after its handler raised ``error``.

        The first failure of a kind is logged with its traceback. Further failures are counted.
        """
        if not message.settled:
            kind = type(error), _raised_at(error)
            cause = repr(error)
            self._failed(self._consequence, keys_of(message), cause, kind=kind, exc_info=error)
            message.retry(reason=error)

    def _settle(self, message: Handled, result: object) -> None:
        """Settle a message according to the handler's result. An unexpected type of result counts
        as a failure."""
        try:
            if isinstance(result, Retry):
                message.retry(result.delay, level=result.level, reason=result.reason)
            elif is_retry(result):
                message.retry()
            else:
                checked_result(result)
                message.done()
        except Exception as error:
            self._fail(message, error)


async def cancelled(
    tasks: Collection[asyncio.Task[None]], patience: float
) -> set[asyncio.Task[None]]:
    """Cancel tasks and wait for their end. Return the tasks that are still running afterwards.

    The wait is ``patience`` seconds at most, or ``CANCELLED_S`` if that is longer.
    """
    for task in tasks:
        task.cancel()
    _, go_on = await asyncio.wait(tasks, timeout=max(patience, CANCELLED_S))
    return go_on


def called_with_lists(handler: BatchHandler) -> Callable[[Handled], object]:
    """Return a function that calls ``handler`` with a list of messages.

    Each call gets a new list, which the handler may change.
    """

    def call(handled: Handled) -> object:
        return handler(list(messages_in(handled)))

    return call


def named(messages: Sequence[Handled]) -> str:
    """Return a text that identifies the first messages in a log line."""
    names = "; ".join(str(keys_of(message)) for message in messages[:NAMED_MAX])
    return f"{names}; …" if len(messages) > NAMED_MAX else names


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """Return the file and line where the error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
