"""The one background thread with an event loop on which the clients of ``turbopump.blocking`` live.

One rule: a thread that asks waits on a bare lock and nothing else, for that is what makes the
blocking face cheap. It must not know producers or consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from turbopump.event_loop import new_event_loop

T = TypeVar("T")

log = logging.getLogger(__name__)

_ENDED: Final = (
    "the loop of all blocking clients was stopped from outside (loop.stop() in a handler or "
    "callback); start new clients"
)


class LoopThread:
    """The background thread and its loop; started by the first call, ends with the process."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.ended = False
        """Whether somebody stopped the loop: nothing runs on it any more."""
        self._called: set[_PendingCall] = set()
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = self._waker()
        self._thread = threading.Thread(target=self._run, name="turbopump-loop", daemon=True)
        self._thread.start()

    def _waker(self) -> Callable[[], object]:
        """What makes the loop look at what was posted: an eventfd where there is one, for asyncio's
        own pair of sockets costs a tenth of a send and its answer more."""
        if not hasattr(os, "eventfd"):
            return lambda: self.loop.call_soon_threadsafe(self._do_posted)
        number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

        def woken() -> None:
            # the loop calls this twice for one wake if something breaks out of it in between
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(number)
            self._do_posted()

        self.loop.add_reader(number, woken)
        return lambda: os.eventfd_write(number, 1)

    def post(self, call: Callable[[], None]) -> None:
        """Have it called on the loop, after all that was posted before."""
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
        """Run until the loop is stopped (True), or something breaks out of it, which is logged."""
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            log.error(
                "the loop of all blocking clients goes on, though something on it raised %r; "
                "sys.exit() belongs on the main thread",
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
        """Raises RuntimeError on this very thread, which must not wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a handler on the client's own loop called the blocking client, which would wait "
                "for itself; use await"
            )

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """Run ``function(*args)`` on the loop and return what it returns. An interrupt (Ctrl-C)
        cancels it. Raises RuntimeError if the loop was stopped."""
        self.refuse_itself()
        call = _PendingCall(function, args, kwargs)
        self._called.add(call)  # before it looks: the end of the thread looks in the other order
        if self.ended:
            self._called.discard(call)
            raise RuntimeError(_ENDED)
        try:
            self.post(call.start)
            call.ready.acquire()
        except BaseException:
            self.post(call.cancel)
            raise
        finally:
            self._called.discard(call)
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # no cycle through the traceback
        return call.value  # type: ignore[no-any-return]


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call on its way. A bare lock wakes the caller, for a concurrent Future costs three times
    as much."""

    _function: Callable[..., Coroutine[Any, Any, Any]]
    _args: Any
    _kwargs: Any
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The caller's: its span is the parent of ours."""
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
            # or it dies on the caller's thread, in a callback that swallows what a signal's handler
            # raises
            self._task = None
            self.ready.release()

    def fail(self, error: Exception) -> None:
        """It will never run to its end."""
        self.error = error
        with contextlib.suppress(RuntimeError):  # it has ended at this very moment
            self.ready.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


_loop_thread: LoopThread | None = None
_loop_thread_lock = threading.Lock()
_left_behind: list[object] = []
_stopped: Final[weakref.WeakSet[asyncio.AbstractEventLoop]] = weakref.WeakSet()


def the_loop_thread() -> LoopThread:
    """The process's one; started now if there is none that runs."""
    global _loop_thread
    with _loop_thread_lock:
        if _loop_thread is None or _loop_thread.ended:
            _loop_thread = LoopThread()
        return _loop_thread


def never_runs_again(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether ``loop`` is closed, or was that of a loop thread that has ended."""
    return loop.is_closed() or loop in _stopped


def refuse_on_loop_thread() -> None:
    """Raises RuntimeError if the caller is on the loop thread."""
    if _loop_thread is not None:
        _loop_thread.refuse_itself()


def leave_behind(inherited: object) -> None:
    """Never finalize here what a fork copied: its sockets and epoll are the parent's."""
    _left_behind.append(inherited)


def _after_fork() -> None:
    """In the child there is no such thread; its loop must not be touched, not even finalized."""
    global _loop_thread, _loop_thread_lock
    leave_behind(_loop_thread)
    _loop_thread = None
    _loop_thread_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
