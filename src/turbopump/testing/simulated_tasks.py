"""Tasks and futures of the simulated loop: they hash by serial number, so that sets of them iterate
alike in every run.

asyncio keeps tasks in sets (`TaskGroup`, `all_tasks`, `asyncio.wait`), and the default hash is an
address. Knows the process a task belongs to, and nothing of the loop but that it hands out serial
numbers.
"""

import asyncio
import contextvars
import warnings
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

from turbopump.testing.simulated_process import current_process

_FAREWELLS_MAX = 100


class _Numbering(Protocol):
    def next_serial(self) -> int: ...


class NumberedFuture(asyncio.Future[Any]):
    """What `SimulatedLoop.create_future` makes."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, serial: int) -> None:
        super().__init__(loop=loop)
        self._serial = serial

    def __hash__(self) -> int:
        return self._serial


class NumberedTask(asyncio.Task[Any]):
    """What `SimulatedLoop.create_task` makes."""

    def __init__(
        self, coro: Any, *, loop: asyncio.AbstractEventLoop, serial: int, **kwargs: Any
    ) -> None:
        # Before super(): asyncio puts the task into a set while it constructs it.
        self._serial = serial
        super().__init__(coro, loop=loop, **kwargs)

    def __hash__(self) -> int:
        return self._serial


def create_numbered_task(loop: Any, coro: Any, **kwargs: Any) -> "asyncio.Task[Any]":
    """The task factory: numbers the task and registers it with the process in which it is
    created."""
    numbering: _Numbering = loop
    task = NumberedTask(coro, loop=loop, serial=numbering.next_serial(), **kwargs)
    context: contextvars.Context | None = kwargs.get("context")
    process = current_process.get() if context is None else context.get(current_process)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


def bury(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Close the coroutines of tasks that will never run again, so that none is reported as lost.

    What they do on their way out (`except BaseException: await self.close()`) finds no running
    loop; that is not the program's mistake, so no warning of it is let through.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                _close(coroutine)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """End a coroutine that will not run again, however often it awaits on its way out."""
    for _ in range(_FAREWELLS_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it answered GeneratorExit by awaiting something
        except BaseException:
            return
        return


def describe_task(task: "asyncio.Task[Any]") -> str:
    """One line: the coroutine's name and the line it waits at."""
    stack = task.get_stack(limit=1)
    where = f" at {stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else ""
    coroutine = task.get_coro()
    return f"waiting: {getattr(coroutine, '__qualname__', coroutine)}{where}"


def describe_handle(handle: asyncio.Handle) -> str:
    """A name that is the same on every Python: coroutine and number for a task's step, else the
    callback's."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{getattr(owner.get_coro(), '__qualname__', '')}#{hash(owner)}"
    name = getattr(callback, "__qualname__", None)
    return name if isinstance(name, str) else type(callback).__name__
