"""Which event loop ours run on: uvloop's, if the extra ``fast`` is installed and can be trusted
here, else asyncio's own.

Loops of users are theirs: this is for the programs of the command line, and for the thread of the
blocking clients.
"""

from __future__ import annotations

import _thread
import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType


class PureThreads(ThreadPoolExecutor):
    """Threads for functions of values alone, which a simulation calls in its own loop. They end
    when nobody refers to this any more."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, None where it is not installed: what ``asyncio.Runner`` is given."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for a thread within somebody else's process. uvloop's is not taken in two kinds of
    them, where it would end or hang the process: standard descriptors that are closed (libuv aborts
    when it closes one of their numbers), and threads that are green (gevent's and eventlet's
    patches do not reach libuv, which would wait with all of them)."""
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
