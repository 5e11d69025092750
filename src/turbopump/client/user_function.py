"""Calling a user's function: a coroutine function on the loop, a plain one in a thread of its own
pool and the caller's context, never on the loop. (Handlers of messages: ``handling.py``.)"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType

from turbopump.errors import NotStartedError


class NotCalledError(NotStartedError):
    """The function was not called: whose it is was closed before."""


class UserFunction:
    """``threads``: how many calls of a plain function run at the same time; others wait."""

    def __init__(self, function: Callable[..., object], *, threads: int, name: str) -> None:
        self._function = function
        self._threads, self._name = threads, name
        self._pool = None
        if not is_coroutine_function(function):
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"turbopump-{name}")

    @property
    def plain(self) -> bool:
        """Whether it is called in a thread."""
        return self._pool is not None

    async def call(self, *args: object) -> object:
        """What it returns. Raises as ``failure_of`` and ``checked_result`` say, and
        NotCalledError."""
        if self._pool is None:
            result = self._function(*args)
        else:
            result = await in_pool(self._pool, copy_context().run, self._function, *args)
        return checked_result(await awaited(result) if inspect.isawaitable(result) else result)

    def anew(self) -> UserFunction:
        """The same, to be called after the close of this one."""
        return UserFunction(self._function, threads=self._threads, name=self._name)

    def close(self) -> None:
        """Start no more calls of a plain function: those that wait end with NotCalledError."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


async def in_pool(
    pool: ThreadPoolExecutor, function: Callable[..., object], *args: object
) -> object:
    """What a plain function returns, called in a thread. Raises as ``failure_of`` says, and
    NotCalledError if the pool was closed before."""
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
    """Never raises: not everything that is raised in a thread gets to the loop."""
    try:
        return function(*args), None
    except BaseException as error:
        return None, failure_of(error, in_thread=True)


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine: an ``async def``, a partial of one, or an object with
    an ``async def __call__``."""
    if inspect.iscoroutinefunction(handler):
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def failure_of(error: BaseException, *, in_thread: bool) -> Exception:
    """The failure of a function that raised ``error``: itself, or a RuntimeError from it if a
    Future or a task cannot carry it.

    StopIteration is refused by asyncio's futures, and a task that waits for one is never woken;
    SystemExit (``sys.exit()``, argparse, click) and KeyboardInterrupt break out of the loop, and
    stop everything on it. ``in_thread``: the function ran in a thread of its own, where nobody
    cancels and no signal comes. Raises ``error`` if it is not the function's own.
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
    """What it gives. Raises as ``failure_of`` says; a cancellation of something that it waited for,
    not of the task it runs in, is a failure like others."""
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
    """``result``, unless it shows that the function's body never ran: then TypeError is raised."""
    if isinstance(result, CoroutineType):
        result.close()  # else Python warns of it, too
        what = f"the coroutine {result.__qualname__}, which never ran: an await is missing"
        raise TypeError(f"the function returned {what}")
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        what = f"the generator {result.__qualname__}, which never ran: there is a yield in it"
        raise TypeError(f"the function returned {what}")
    return result
