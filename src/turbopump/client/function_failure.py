"""What counts as the failure of a user's function, whatever it raised.

One rule: what a function raises ends neither a thread nor a loop; only a cancellation, and Ctrl-C
where it really comes, go their way. It must not know what the function was called for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from types import AsyncGeneratorType, CoroutineType, GeneratorType


def failure_of(error: BaseException, *, in_thread: bool) -> Exception:
    """The failure of a function that raised ``error``: itself, or a RuntimeError from it if a
    Future or a task cannot carry it.

    StopIteration is refused by asyncio's futures, and whoever waits for one is never woken;
    SystemExit (``sys.exit()``, argparse, click) and KeyboardInterrupt break out of the loop, and
    stop everything on it. ``in_thread``: the function ran in a thread of its own, where nobody
    cancels and no signal comes. Raises ``error`` if it is not the function's own.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    interrupted = (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )
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


def meant(result: object) -> object:
    """What a function returned, if it can have meant that. Raises TypeError for what shows that its
    body, or a part of it, never ran."""
    if isinstance(result, CoroutineType):
        result.close()  # else Python warns of it, too
        raise TypeError(
            f"the function returned the coroutine {result.__qualname__}, which never "
            "ran: an await is missing"
        )
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        raise TypeError(
            f"the function returned the generator {result.__qualname__}, which never "
            "ran: there is a yield in it"
        )
    return result
