"""Event loop of a client command: it ends after Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from turbopump.event_loop import loop_factory
from turbopump.stop_signals import TERMINATION, handled

T = TypeVar("T")


def run_client(work: Coroutine[Any, Any, T]) -> T:
    """Run the work of a client command in an event loop. Return the result of the work.

    Ctrl-C and SIGTERM cancel the work, so that its `async with` blocks close. After that,
    KeyboardInterrupt is raised.
    """

    async def cancelled_by_signals() -> T:
        task = asyncio.current_task()
        assert task is not None
        wake = asyncio.get_running_loop().call_soon_threadsafe
        with handled(lambda _number: wake(task.cancel), TERMINATION):
            return await work

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(cancelled_by_signals())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
