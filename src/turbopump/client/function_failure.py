"""What counts as the failure of a user's function, whatever it raised.

One rule: what a function raises ends neither a thread nor a loop; only a cancellation, and Ctrl-C where it really comes, go their way. It
must not know what the function was called for.
"""

from __future__ import annotations

import threading


def failure_of(error: BaseException, *, in_thread: bool) -> Exception:
    """The failure of a function that raised ``error``: itself, or a RuntimeError from it if a Future or a task cannot carry it.

    StopIteration is refused by asyncio's futures, and whoever waits for one is never woken; SystemExit (``sys.exit()``, argparse, click)
    and KeyboardInterrupt break out of the loop, and stop everything on it. ``in_thread``: the function ran in a thread of its own, where
    nobody cancels and no signal comes. Raises ``error`` if it is not the function's own.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    interrupted = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
    if not in_thread and (interrupted or not isinstance(error, StopIteration | SystemExit | KeyboardInterrupt)):
        raise error
    failure = RuntimeError(f"the function raised {error!r:.200}; that is its failure, and ends nothing else")
    failure.__cause__ = error
    return failure
