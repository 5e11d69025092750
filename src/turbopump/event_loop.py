"""Choice of the event loop: uvloop or asyncio. uvloop is used if the extra ``fast`` is installed
and works in this process.

The command line and the thread of the blocking clients use this choice. Applications choose their
own loops.
"""

from __future__ import annotations

import _thread
import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType


class PureThreads(ThreadPoolExecutor):
    """Thread pool for pure functions: they only compute a value from their arguments.

    A simulation runs these functions in its own loop instead. The threads end when the last
    reference to the pool is gone.
    """


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory for ``asyncio.Runner``, or None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop for a thread within another program's process.

    The loop is one of uvloop, except in two kinds of processes:

    - Processes with closed standard descriptors. libuv aborts when it closes one of their
      numbers.
    - Processes with green threads. The patches of gevent and eventlet do not reach libuv, which
      would block all green threads.
    """
    factory = loop_factory() if _threads_are_real() and _standard_descriptors_are_open() else None
    return asyncio.new_event_loop() if factory is None else factory()


def _threads_are_real() -> bool:
    return isinstance(_thread.start_new_thread, BuiltinFunctionType)


def _standard_descriptors_are_open() -> bool:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            return False
    return True
