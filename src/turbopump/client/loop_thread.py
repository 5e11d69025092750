"""Background thread that runs the event loop for all clients of ``turbopump.blocking``. A process
has one such thread.

One rule: a calling thread waits on a bare lock and nothing else, which keeps calls cheap. This
module must not know producers or consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from turbopump.event_loop import new_event_loop

T = TypeVar("T")

log = logging.getLogger(__name__)

WAIT_S: Final = 0.2 if sys.platform == "win32" else -1
"""Seconds for which a thread waits at a time, -1 for no limit. Windows runs no signal handler while
a thread waits for a lock, so Ctrl-C would have to wait too."""
_ENDED: Final = (
    "the loop of all blocking clients was stopped from outside (loop.stop() in a handler or "
    "callback); start new clients"
)


class LoopThread:
    """Background thread that runs an event loop until the process ends."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.ended = False
        """True if the event loop was stopped. Nothing runs on the loop any more."""
        self._called: set[_PendingCall] = set()
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = self._waker()
        self._thread = threading.Thread(target=self._run, name="turbopump-loop", daemon=True)
        self._thread.start()

    def _waker(self) -> Callable[[], object]:
        """Return a function that wakes the event loop. A thread calls it after posting a call.

        The function uses an eventfd where the system has one. With asyncio's own socket pair, a
        send with its answer takes a tenth longer.
        """
        if sys.platform != "linux" or not hasattr(os, "eventfd"):
            return lambda: self.loop.call_soon_threadsafe(self._do_posted)
        number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

        def woken() -> None:
            # the loop calls this twice for one wake if an exception ends the loop in between
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(number)
            self._do_posted()

        self.loop.add_reader(number, woken)
        return lambda: os.eventfd_write(number, 1)

    def post(self, call: Callable[[], None]) -> None:
        """Schedule ``call`` on the event loop, after all earlier posts. Any thread may post."""
        self._posted.append(call)
        self._wake()

    def _do_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._has_run():
                pass
        finally:
            self.ended = True
            _stopped.add(self.loop)
            for call in list(self._called):
                call.fail(RuntimeError(_ENDED))

    def _has_run(self) -> bool:
        """Run the event loop, and return True if it was stopped.

        The result is False if an exception ended the loop, which is logged.
        """
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            log.error(
                "the loop of all blocking clients continues after an exception was raised on it; "
                "call sys.exit() on the main thread cause=%r",
                error,
                exc_info=error,
            )
            return False
        log.error(
            "the loop of all blocking clients was stopped from outside; they cannot be used any "
            "more"
        )
        return True

    def refuse_itself(self) -> None:
        """Raise RuntimeError if the caller is on the loop thread, which must not wait for
        itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a handler on the client's own loop called the blocking client, which would wait "
                "for itself; use await"
            )

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """Run ``function(*args, **kwargs)`` on the event loop, wait for the result and return it.

        An interrupt of the waiting thread (Ctrl-C) cancels the call. Raises RuntimeError if the
        loop was stopped.
        """
        self.refuse_itself()
        call = _PendingCall(function, args, kwargs)
        # The call is added before ``ended`` is read. The thread sets ``ended`` before it reads the
        # calls, so at least one of the two notices the other.
        self._called.add(call)
        if self.ended:
            self._called.discard(call)
            raise RuntimeError(_ENDED)
        try:
            self.post(call.start)
            while not call.ready.acquire(timeout=WAIT_S):
                pass
        except BaseException:
            self.post(call.cancel)
            raise
        finally:
            self._called.discard(call)
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # otherwise the traceback and the call form a cycle
        return call.value  # type: ignore[no-any-return]


@dataclass(slots=True, eq=False)
class _PendingCall:
    """Call of a coroutine function. Another thread is waiting for its result.

    The thread waits on a bare lock: a ``concurrent.futures.Future`` would make the wait three times
    as expensive.
    """

    _function: Callable[..., Coroutine[Any, Any, Any]]
    _args: Any
    _kwargs: Any
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Context of the calling thread, so that spans of the client become children of the caller's
    span."""
    _task: asyncio.Task[Any] | None = None
    value: Any = None
    error: BaseException | None = None
    ready: threading.Lock = field(init=False)

    def __post_init__(self) -> None:
        self.ready = threading.Lock()
        self.ready.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        try:
            self.value = await self._function(*self._args, **self._kwargs)
        except BaseException as error:
            self.error = error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            # otherwise it is freed on the caller's thread, in a callback that swallows exceptions
            # of signal handlers
            self._task = None
            self.ready.release()

    def fail(self, error: Exception) -> None:
        """End a pending call with ``error``, because the event loop will never complete the
        call."""
        self.error = error
        with contextlib.suppress(RuntimeError):  # the call has just ended
            self.ready.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


_loop_thread: LoopThread | None = None
_loop_thread_lock = threading.Lock()
_left_behind: list[object] = []
_stopped: Final[weakref.WeakSet[asyncio.AbstractEventLoop]] = weakref.WeakSet()


def the_loop_thread() -> LoopThread:
    """Return the loop thread of this process. A new thread is started if none is running."""
    global _loop_thread
    with _loop_thread_lock:
        if _loop_thread is None or _loop_thread.ended:
            _loop_thread = LoopThread()
        return _loop_thread


def never_runs_again(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if ``loop`` is closed or its loop thread has ended."""
    return loop.is_closed() or loop in _stopped


def refuse_on_loop_thread() -> None:
    """Raise RuntimeError if the caller is on the loop thread."""
    if _loop_thread is not None:
        _loop_thread.refuse_itself()


def leave_behind(inherited: object) -> None:
    """Prevent finalization of an object inherited through a fork. Its sockets and epoll belong to
    the parent process."""
    _left_behind.append(inherited)


def _after_fork() -> None:
    """Forget the loop thread in a forked child, where this thread does not exist.

    The loop must be neither used nor finalized in the child.
    """
    global _loop_thread, _loop_thread_lock
    leave_behind(_loop_thread)
    _loop_thread = None
    _loop_thread_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
