"""Running a user's handler on messages, a coroutine function or a plain one: how many at once, and
what its end means.

One rule: a handler that returns has succeeded, whatever it returns, unless that is ``Retry``; an
exception is a failure. It must not know offsets or queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from threading import get_ident
from time import monotonic
from typing import Any, Final, NamedTuple

from turbopump.client.consumer.delivery import Delivery, Handled, Retry, is_retry, keys_of
from turbopump.client.consumer.ready_messages import TURN_MAX_S, NoMoreMessages, ReadyMessages
from turbopump.client.user_function import CallThreads, awaited, checked_result, failure_of, in_pool
from turbopump.repeated_line import RepeatedLine

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
        ready: ReadyMessages,
        *,
        concurrency: int,
        fate: str | None = None,
    ) -> None:
        self.concurrency = concurrency
        self._call: Callable[[Handled], Awaitable[object]] = handler  # type: ignore[assignment]
        self._ready = ready
        self._verdicts = Verdicts(fate)
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
                log_going_on(
                    [message for task in go_on if (message := self._in_hand.get(task)) is not None]
                )
        self._verdicts.close()

    async def call(self, message: Delivery) -> object:
        """Run the handler once, beside the others; what it returns. Raises what it raises, as
        ``failure_of`` says."""
        return checked_result(await awaited(self._call(message)))

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
                self._verdicts.failed(message, error)
            except GeneratorExit:  # the loop has ended
                raise
            except BaseException as error:
                if self._abandoned:
                    return
                self._verdicts.failed(message, failure_of(error, in_thread=False))
            else:
                if self._abandoned:
                    return
                if result is None:
                    message.done()
                else:
                    self._verdicts.settle(message, result)
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
        """A worker has ended that nothing here has ended."""
        if self._stopping:
            if message is not None:
                message.left()
            return
        log.error(
            "a worker of the handler was ended from outside, another takes its place cause=%r",
            error,
        )
        if message is not None:
            self._verdicts.failed(message, error)
        self._fill()


async def cancelled(
    tasks: Collection[asyncio.Task[None]], patience: float
) -> set[asyncio.Task[None]]:
    """Cancel these tasks. Returns those that still run after ``patience`` seconds, or after
    ``CANCELLED_S`` if that is longer."""
    for task in tasks:
        task.cancel()
    _, go_on = await asyncio.wait(tasks, timeout=max(patience, CANCELLED_S))
    return go_on


def log_going_on(messages: Sequence[Handled]) -> None:
    """Log the messages of handlers that still run after a close."""
    if messages:
        log.warning(
            "handlers still run after the close has cancelled them; their messages will be "
            "delivered again count=%d %s",
            len(messages),
            named(messages),
        )


def named(messages: Sequence[Handled]) -> str:
    """The first of them, for the log."""
    names = "; ".join(keys_of(message) for message in messages[:NAMED_MAX])
    return f"{names}; …" if len(messages) > NAMED_MAX else names


class Verdicts:
    """What the end of a handler means for its message. ``fate``: what becomes of one that fails.
    One handler's failures of a kind have a traceback in the log for the first, and are counted
    then."""

    def __init__(self, fate: str | None) -> None:
        self._fate = fate or COMES_AGAIN
        self._failed = RepeatedLine(
            log, logging.WARNING, "handler failed, the message %s %s cause=%s"
        )

    def failed(self, message: Handled, error: BaseException) -> None:
        """Its handler raised ``error``."""
        if not message.settled:
            cause = repr(error)
            kind = type(error), _raised_at(error)
            self._failed(self._fate, keys_of(message), cause, kind=kind, exc_info=error)
            message.retry(reason=error)

    def settle(self, message: Handled, result: object) -> None:
        """By what the handler returned; what it cannot have meant is a failure."""
        try:
            if isinstance(result, Retry):
                message.retry(result.delay, level=result.level, reason=result.reason)
            elif is_retry(result):
                message.retry()
            else:
                checked_result(result)
                message.done()
        except Exception as error:
            self.failed(message, error)

    def close(self) -> None:
        """Log what was counted."""
        self._failed.report()


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """File and line where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


# --- Plain functions, in threads. A thread takes a message at the moment its handler begins, and
# goes on with the next: none waits behind another that is slow while a thread is idle.


SLOW_S: Final = 0.00005
"""A handler that takes longer gets a thread for each message that is ready; for others to begin a
thread costs as much as the handler."""
NOTED_MAX_S: Final = 5 * SLOW_S
"""What a call counts at most in the mean: one that was held up by the machine, or by the loop, says
little of the handler."""
WEIGHT: Final = 1 / 32
"""Of the newest call in the mean."""
LOOK_AGAIN_S: Final = 0.001
"""So long messages wait at most for a thread that turns out to be busy with a slow one; then others
begin, twice as many each time."""
RUN_MAX_S: Final = 0.1
"""A thread that always finds a message ready goes back so often: operators' messages wait for it,
and the end of the process."""


class _HandlerCall(NamedTuple):
    message: Handled
    result: object
    error: Exception | None
    seconds: float


class _Run:
    """One thread's work on message after message. ``begun``: it has looked for its first.
    ``message``: it is being handled, in ``thread`` unless that has returned a coroutine."""

    __slots__ = ("begun", "message", "thread")

    def __init__(self) -> None:
        self.begun = False
        self.thread: int | None = None
        self.message: Handled | None = None


class HandlerThreads:
    """``concurrency`` calls of ``handler`` at once, or as many as ``resize`` says since, each with
    what ``ready`` hands out: a message, or a batch. ``fate``: what becomes of messages that
    fail."""

    def __init__(
        self,
        handler: Callable[[Any], object],
        ready: ReadyMessages,
        *,
        concurrency: int,
        fate: str | None = None,
    ) -> None:
        self.concurrency = concurrency
        self._handler = handler
        self._ready = ready
        self._verdicts = Verdicts(fate)
        self._loop = asyncio.get_running_loop()
        self._threads = _threads(concurrency)
        self.runs: dict[_Run, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._outcomes: deque[_HandlerCall] = deque()
        self._called = False
        """Whether the loop was called because there are outcomes, and has not begun to look."""
        self._collected = self._collected_before = 0
        self._mean_s = NOTED_MAX_S
        self._going = self._abandoned = self._over = False

    # --- on the loop

    def start(self) -> None:
        """Begin to take messages."""
        self._going = True
        self._ready.listen(self._look)
        self._look()

    def resize(self, concurrency: int) -> None:
        """So many at once from now on: more begin at once, those that are too many end with their
        messages."""
        if concurrency > self.concurrency:
            before, self._threads = self._threads, _threads(concurrency)
            before.shutdown(wait=False)  # what runs in it, or was handed to it, is finished
        self.concurrency = concurrency
        self._look()

    def in_hand(self) -> list[Handled]:
        """What is being handled."""
        return [message for run in self.runs if (message := run.message) is not None]

    def has(self, task: asyncio.Task[object], thread: int | None) -> bool:
        """Whether the handler is running in this task, or in this thread."""
        return task in self.runs.values() or any(
            run.thread == thread is not None for run in self.runs
        )

    async def stop(self, patience: float) -> None:
        """Let the handlers that run now finish, ``patience`` seconds at most; what later ones say
        does not count. A coroutine that one has returned is cancelled then, and left after as long
        again if it goes on all the same. The messages that wait must have been closed before, so
        that no new ones begin."""
        self._going = False
        if self._timer is not None:
            self._timer.cancel()
        if self.runs:
            _, late = await asyncio.wait(self.runs.values(), timeout=patience)
            while self._outcomes:
                self._collect()
            self._abandoned = True
            if late:
                self._threads.leave_after(max(patience, CANCELLED_S))
                left = [
                    message
                    for run, task in self.runs.items()
                    if task in late and (message := run.message)
                ]
                log.warning(
                    "handlers left alone at close, their messages will be delivered again "
                    "count=%d %s",
                    len(late),
                    named(left),
                )
                go_on = await cancelled(late, patience)
                self._over = True
                log_going_on(
                    [
                        message
                        for run, task in self.runs.items()
                        if task in go_on and (message := run.message)
                    ]
                )
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._verdicts.close()

    async def call(self, message: Delivery) -> object:
        """Run the handler once, beside the others; what it returns. Raises what it raises, as
        ``failure_of`` says."""
        result = await in_pool(self._threads, self._handler, message)
        return checked_result(await awaited(result) if inspect.isawaitable(result) else result)

    def _look(self) -> None:
        """Messages may wait: begin as many runs as they are worth."""
        waiting, room = self._ready.waiting, self.concurrency - len(self.runs)
        if not self._going or not waiting or room <= 0:
            return
        if self._mean_s > SLOW_S:
            self._begin(min(waiting - sum(not run.begun for run in self.runs), room))
        elif not self.runs:
            self._begin(1)
        if self._timer is None:
            self._collected_before = self._collected + len(self._outcomes)
            self._timer = self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """If messages still wait and no thread gets on, others are needed, however fast the handler
        was so far."""
        self._timer = None
        handled = self._collected + len(self._outcomes) - self._collected_before
        if handled <= len(self.runs) and self._going:
            self._begin(
                min(max(len(self.runs), 1), self._ready.waiting, self.concurrency - len(self.runs))
            )
        self._look()

    def _begin(self, count: int) -> None:
        for _ in range(count):
            run = _Run()
            try:
                left = self._loop.run_in_executor(self._threads, self._work, run)
            except RuntimeError as error:
                if "cannot schedule new futures" in str(error):  # the process ends
                    self._going = False
                elif not self.runs:
                    raise
                return  # there are no more threads to be had: those that run go on
            task = self.runs[run] = self._loop.create_task(
                self._follow(run, left), name="turbopump handler thread"
            )
            task.add_done_callback(lambda _, run=run: self._ended(run))  # type: ignore[misc]

    async def _follow(self, run: _Run, left: Awaitable[_HandlerCall | None]) -> None:
        """Until it has ended. A plain function may return a coroutine, such as a lambda round one:
        that is awaited here."""
        outcome = await left
        if outcome is None:
            return
        message, awaitable = outcome.message, outcome.result
        assert inspect.isawaitable(awaitable)
        try:
            result = await awaited(awaitable)
        except Exception as error:
            if not self._over:
                self._verdicts.failed(message, error)
        else:
            if not self._over:
                self._verdicts.settle(message, result)

    def _ended(self, run: _Run) -> None:
        del self.runs[run]
        self._look()

    def _collect(self) -> None:
        """Settle what was handled since the last time."""
        self._called = False
        outcomes, mean = self._outcomes, self._mean_s
        end = monotonic() + TURN_MAX_S
        try:
            while outcomes and not self._abandoned and monotonic() < end:
                message, result, error, seconds = outcomes.popleft()
                self._collected += 1
                mean += (min(seconds, NOTED_MAX_S) - mean) * WEIGHT
                if error is not None:
                    self._verdicts.failed(message, error)
                elif result is None:
                    message.done()
                else:
                    self._verdicts.settle(message, result)
        finally:
            self._mean_s = mean
            # other work has its turn, or a message could not be settled
            if outcomes and not self._abandoned:
                self._called = True
                self._loop.call_soon(self._collect)

    # --- in a thread

    def _work(self, run: _Run) -> _HandlerCall | None:
        """Handle messages while there are any. What it returns is still to be awaited; it counts as
        being handled until then."""
        ready, handler, runs = self._ready, self._handler, self.runs
        result: object
        run.thread = get_ident()
        now = monotonic()
        end = now + RUN_MAX_S
        while now < end and len(runs) <= self.concurrency and not self._abandoned:
            message: Handled | None = ready.begin()
            run.begun = True
            if message is None:
                break
            error = None
            run.message = message
            began = monotonic()
            try:
                result = handler(message)
            except BaseException as raised:
                result, error = None, failure_of(raised, in_thread=True)
            now = monotonic()
            seconds = message.handled_s = now - began
            if result is not None and inspect.isawaitable(result):
                message.handled_s = run.thread = None
                return _HandlerCall(message, result, None, seconds)
            run.message = None
            self._report(_HandlerCall(message, result, error, seconds))
        return None

    def _report(self, outcome: _HandlerCall) -> None:
        if self._abandoned:
            return
        self._outcomes.append(outcome)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._collect)


def _threads(count: int) -> CallThreads:
    return CallThreads(count, "turbopump-handler")
