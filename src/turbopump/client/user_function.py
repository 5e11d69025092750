"""Calls of functions that a user has passed to a client.

A coroutine function runs on the event loop. A plain function runs in a thread of a separate pool,
in the caller's context, never on the loop. Message handlers are called by ``handling.py``.

A plain function that hangs cannot be ended. The end of the process waits for it only a limited time
(``CallThreads``).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from turbopump.errors import NotStartedError

EXIT_PATIENCE_S: Final = 5.0
"""Maximum time in seconds for which the end of the process waits for a running function whose owner
was not closed."""

log = logging.getLogger(__name__)


class NotCalledError(NotStartedError):
    """Raised if the client was closed before it called the user's function."""


class UserFunction:
    """Function that a user has passed to a client. A plain function is called in a thread pool.

    - ``threads``: maximum number of concurrent calls of a plain function. Further calls wait.
    """

    def __init__(self, function: Callable[..., object], *, threads: int, name: str) -> None:
        self._function = function
        self._threads = threads
        self._name = name
        self._pool = None
        if not is_coroutine_function(function):
            self._pool = CallThreads(threads, f"turbopump-{name}")

    @property
    def plain(self) -> bool:
        """True if the function is called in a thread."""
        return self._pool is not None

    async def call(self, *args: object) -> object:
        """Call the user's function, wait for its end, and return its result.

        Raises the errors of ``failure_of`` and ``checked_result``, and NotCalledError after the
        close.
        """
        if self._pool is None:
            result = self._function(*args)
        else:
            result = await in_pool(self._pool, copy_context().run, self._function, *args)
        if inspect.isawaitable(result):
            result = await awaited(result)
        return checked_result(result)

    def anew(self) -> UserFunction:
        """Return a new object for the same function. It stays usable when this object is closed."""
        return UserFunction(self._function, threads=self._threads, name=self._name)

    def close(self) -> None:
        """Start no more calls of a plain function. Waiting calls raise NotCalledError."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class CallThreads(Executor):
    """Thread pool for users' functions. Its threads cannot keep the process alive.

    With the standard library's pool, the end of the process waits without limit. One function that
    hangs (a socket without a timeout, a lock) would keep the process alive. With this pool, the end
    of the process waits for the time set by ``leave_after``, logs the names of threads that still
    run a function, and exits. At most ``count`` threads are started, when needed.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        """Maximum number of threads; it may be increased later."""
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.closed = False
        self._leave_at: float | None = None
        self.threads: list[threading.Thread] = []
        self.busy: set[threading.Thread] = set()
        """Threads that are running a function."""
        _pools.add(self)

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Call ``function`` in a thread of the pool, and return the future of its result.

        Raises RuntimeError after the shutdown, and if the system cannot start a thread.
        """
        with self._lock:
            if self.closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future: Future[Any] = Future()
            call = partial(_call, future, function, args, named)
            if self._idle.acquire(blocking=False) or len(self.threads) >= self.count:
                self._calls.put(call)
            else:
                name = f"{self._name}-{len(self.threads)}"
                thread = threading.Thread(target=self._serve, args=(call,), name=name, daemon=True)
                thread.start()
                self.threads.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self.closed = True
            if cancel_futures:
                with contextlib.suppress(Empty):
                    while True:
                        waiting = self._calls.get_nowait()
                        if isinstance(waiting, partial):
                            waiting.args[0].cancel()
            self._calls.put(None)
        for thread in self.threads if wait else ():
            thread.join()

    def leave_after(self, seconds: float) -> None:
        """Limit the wait at the end of the process: running functions get ``seconds`` from now."""
        self._leave_at = monotonic() + seconds

    def end(self) -> list[str]:
        """Wait for running functions at the end of the process.

        Returns the names of threads that are still running.
        """
        self.shutdown(wait=False, cancel_futures=True)
        leave_at = self._leave_at if self._leave_at is not None else monotonic() + EXIT_PATIENCE_S
        for thread in list(self.busy):
            thread.join(max(leave_at - monotonic(), 0.0))
        return sorted(thread.name for thread in list(self.busy) if thread.is_alive())

    def _serve(self, call: Callable[[], None] | None) -> None:
        this = threading.current_thread()
        while call is not None:
            self.busy.add(this)
            call()
            call = None  # free the call and its arguments while the thread waits
            self.busy.discard(this)
            try:
                call = self._calls.get_nowait()
            except Empty:
                self._idle.release()
                call = self._calls.get()
        self._calls.put(None)  # ends the next thread


def _call(
    future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **named)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_pools: Final[weakref.WeakSet[CallThreads]] = weakref.WeakSet()


@atexit.register
def _end_calls() -> None:
    """Wait for the functions of all pools at the end of the process. A Ctrl-C ends the wait."""
    names: list[str] = []
    try:
        for pool in list(_pools):
            names += pool.end()
    except KeyboardInterrupt:
        names.append("and perhaps others")
    if names:
        log.warning(
            "process ends and stops functions that still run in threads threads=%s",
            ", ".join(names),
        )


async def in_pool(pool: CallThreads, function: Callable[..., object], *args: object) -> object:
    """Call a plain function in a thread, wait for its end, and return its result.

    Raises the errors of ``failure_of``, and NotCalledError if the pool was closed before.
    """
    this = asyncio.current_task()
    assert this is not None
    cancels = this.cancelling()
    loop = asyncio.get_running_loop()
    try:
        result, failure = await loop.run_in_executor(pool, _ended, function, args)
    except asyncio.CancelledError:
        if this.cancelling() > cancels:
            raise
        raise NotCalledError(
            "the function was not called: it still waited for a thread at the close"
        ) from None
    except RuntimeError as error:
        if "cannot schedule new futures" not in str(error):
            raise
        raise NotCalledError("the function was not called after the close") from None
    if failure is not None:
        raise failure
    return result


def _ended(
    function: Callable[..., object], args: tuple[object, ...]
) -> tuple[object, Exception | None]:
    """Call the function, and return its result or its exception.

    Nothing is raised, because some exceptions would not reach the event loop.
    """
    try:
        return function(*args), None
    except BaseException as error:
        return None, failure_of(error, in_thread=True)


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Return True if a call of ``handler`` returns a coroutine.

    This is so for an ``async def``, a partial of one, or an object with an ``async def __call__``.
    """
    if inspect.iscoroutinefunction(handler):
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def failure_of(error: BaseException, *, in_thread: bool) -> Exception:
    """Return the exception that reports the failure of a user's function. The function has raised
    ``error``.

    The result is ``error`` itself, or a RuntimeError if a Future or a task cannot carry ``error``.
    Asyncio's futures refuse StopIteration, and a task that waits for such a future is never woken.
    SystemExit (``sys.exit()``, argparse, click) and KeyboardInterrupt would end the loop with
    everything on it.

    ``in_thread`` is True if the function ran in a pool thread, where no cancellation or signal
    arrives. Raises ``error`` if the function is not its source.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    on_main = threading.current_thread() is threading.main_thread()
    interrupted = isinstance(error, KeyboardInterrupt) and on_main
    if not in_thread and (interrupted or isinstance(error, asyncio.CancelledError | GeneratorExit)):
        raise error
    failure = RuntimeError(
        f"the function raised {error!r:.200}; that is its failure, and ends nothing else"
    )
    failure.__cause__ = error
    return failure


async def awaited(awaitable: Awaitable[object]) -> object:
    """Await the awaitable returned by a user's function, and return its result.

    Raises the errors of ``failure_of``. A cancellation counts as a failure unless the waiting task
    itself was cancelled.
    """
    this = asyncio.current_task()
    assert this is not None
    cancels = this.cancelling()
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        if this.cancelling() > cancels:
            raise
        raise RuntimeError("the function awaited something that somebody else cancelled") from error
    except BaseException as error:
        failure = failure_of(error, in_thread=False)
        if failure is error:
            raise
        raise failure from error


def checked_result(result: object) -> object:
    """Return the result of a user's function, after checking that the function has run.

    Raises TypeError if ``result`` is a coroutine or generator, because the function's body never
    ran.
    """
    if isinstance(result, CoroutineType):
        result.close()  # otherwise Python warns about the coroutine, too
        what = f"the coroutine {result.__qualname__}, which never ran: an await is missing"
        raise TypeError(f"the function returned {what}")
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        what = f"the generator {result.__qualname__}, which never ran: there is a yield in it"
        raise TypeError(f"the function returned {what}")
    return result
