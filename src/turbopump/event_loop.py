"""Choice of the event loop: uvloop if the extra ``fast`` is installed and works in this process,
else asyncio.

Users choose their own loops: this is for the programs of the command line, and for the thread of
the blocking clients.
"""

from __future__ import annotations

import _thread
import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType


class PureThreads(ThreadPoolExecutor):
    """Thread pool for pure functions, which a simulation calls in its own loop. The threads end
    when the last reference is gone."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, None where it is not installed: what ``asyncio.Runner`` is given."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make a loop for a thread within another program's process. uvloop is not used in two kinds of
    processes, which it would end or block: processes with closed standard descriptors (libuv aborts
    when it closes one of their numbers), and processes with green threads (gevent's and eventlet's
    patches do not reach libuv, which would block all of them)."""
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
