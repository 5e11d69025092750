"""What runs under one roof in a simulation: a process on a named host, which can be killed or
paused.

A process is a `contextvars.Context` in which `current_process` is set: every task, timer and
callback made inside inherits it, so the loop can tell whose turn each handle is. Its one rule:
after `kill` no line of the process's code runs again, not even a `finally`, as after a power cut.
It knows nothing of networks and disks: those who hold something for a process register in
`at_kill`.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

current_process: contextvars.ContextVar["SimulatedProcess | None"] = contextvars.ContextVar(
    "turbopump_simulated_process", default=None
)


class ProcessKilled(Exception):  # noqa: N818
    """Raised where a task of a process is awaited that was killed meanwhile."""


class SimulatedProcess:
    """One life of one program on `host`; a restart is a new SimulatedProcess on the same host."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, name: str) -> None:
        self.host = host
        self.name = name
        self.alive = True
        self.paused = False
        self.at_kill: dict[Hashable, Callable[[], None]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.held: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(current_process.set, self)
        self._loop = loop
        self._awaited: set[asyncio.Future[Any]] = set()

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> "asyncio.Future[T]":
        """Run `work` inside this process; the future is for someone outside to await.

        It ends as the work ends, or with ProcessKilled. Cancelling it cancels the work.
        """
        if not self.alive:
            work.close()
            raise ProcessKilled(f"process {self.name} is dead")
        task = self._loop.create_task(work, name=name, context=self.context)
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._awaited.add(outcome)
        task.add_done_callback(lambda done: _copy_outcome(done, outcome))
        outcome.add_done_callback(lambda done: self._release(done, task))
        return outcome

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a plain function as this process would: its tasks and connections belong to the
        process."""
        return self.context.copy().run(function, *args)

    def kill(self) -> None:
        """End the process at once: none of its handles, tasks or timers runs again."""
        if not self.alive:
            return
        self.alive = False
        self.held.clear()
        for release in list(self.at_kill.values()):
            release()
        for outcome in list(self._awaited):
            if not outcome.done():
                outcome.set_exception(ProcessKilled(f"process {self.name} was killed"))

    def pause(self) -> None:
        """Stop running it, as SIGSTOP does: its kernel still takes bytes, and time goes on without
        it."""
        self.paused = True

    def resume(self) -> None:
        """Let a paused process go on; what became ready meanwhile runs now, in order."""
        self.paused = False
        held, self.held = self.held, []
        self._loop._ready.extend(held)  # type: ignore[attr-defined]

    def _release(self, outcome: "asyncio.Future[Any]", task: "asyncio.Task[Any]") -> None:
        self._awaited.discard(outcome)
        if outcome.cancelled() and self.alive:
            task.cancel()

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "paused" if self.paused else "running"
        return f"<SimulatedProcess {self.name} on {self.host}, {state}>"


def _copy_outcome(task: "asyncio.Task[T]", outcome: "asyncio.Future[T]") -> None:
    if outcome.done():
        if not task.cancelled():
            task.exception()  # marks it as seen
        return
    if task.cancelled():
        outcome.cancel()
        return
    failure = task.exception()
    if failure is not None:
        outcome.set_exception(failure)
    else:
        outcome.set_result(task.result())
