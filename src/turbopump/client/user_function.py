"""Calling a user's function for an answer: a coroutine function on the loop, a plain one in a thread of its own pool.

One rule: a plain function never runs on the loop. It must not know what is asked. (Handlers of messages: ``handling.py``.)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from turbopump.client.consuming.handling import is_coroutine_function


class UserFunction:
    """``threads``: how many calls of a plain function run at the same time; others wait."""

    def __init__(self, function: Callable[..., object], *, threads: int, name: str) -> None:
        self._function = function
        self._pool = None
        if not is_coroutine_function(function):
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"turbopump-{name}")

    async def call(self, *args: object) -> object:
        """What it returns. Raises what it raises."""
        if self._pool is None:
            result = self._function(*args)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, self._function, *args)
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Start no more calls; those that run are left to end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
