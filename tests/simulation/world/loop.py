"""An asyncio event loop in virtual time, in which one seed decides every order that real life
leaves open.

When nothing is ready it jumps to the next timer; what is ready runs in an order drawn from the
seed; nothing ready and no timer left is a deadlock, and said so. Threads, executors, real sockets,
signals and child processes are refused. Its one rule: the same program and seed make the same run,
on every Python it supports (`trace_hash` tells). It knows nothing of the network but two methods
(`create_connection`, `create_server` are passed on), and touches these private hooks of asyncio,
pinned by tests/simulation/world/test_asyncio_hooks.py:
`BaseEventLoop._run_once/_ready/_scheduled/_stopping/_timer_handle_cancelled`,
`Handle._run/_cancelled/_context/ _callback/_args`, `TimerHandle._when/_scheduled`.

Which orders are open? asyncio promises that what *one* callback schedules runs in the order it was
scheduled, so siblings keep their order here; handles of different parents, and timers, are
interleaved at random.

Two things outside the loop still make runs differ: doing things in the order of a set of strings
(sort it), and `asyncio.wait_for`, which takes more turns on 3.11 than later (`asyncio.timeout` is
the same everywhere). Tasks and futures hash by serial number here, so sets of them iterate alike in
every run.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import socket
import struct
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from tests.simulation.world.process import SimulatedProcess, current_process

from turbopump.event_loop import PureThreads

if TYPE_CHECKING:
    from tests.simulation.world.network import SimulatedNetwork

T = TypeVar("T")

TURNS_PER_INSTANT_MAX = 200_000
"""Turns at one virtual instant after which the run is called a livelock."""

_CANCELLED_TIMERS_MIN = 100


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set, and the run has not ended: nobody will ever wake
    anybody."""


class LivelockError(RuntimeError):
    """Callbacks keep scheduling callbacks and virtual time stands still."""


class ForbiddenInSimulationError(RuntimeError):
    """The program asked for something whose outcome a seed cannot decide: a thread, a socket, a
    signal."""


def _forbid(what: str) -> NoReturn:
    raise ForbiddenInSimulationError(
        f"a simulation has no {what.removeprefix('a ').removeprefix('an ')}"
    )


def _forbidden(what: str) -> Any:
    """A method that refuses."""
    return lambda *args, **kwargs: _forbid(what)


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `time()` is virtual seconds since the start of the run.

    `seed` decides the order of ready handles. `network` is set by the network that is made for this
    loop.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, int, asyncio.TimerHandle]]
    _stopping: bool

    def __init__(self, seed: int | str = 0) -> None:
        super().__init__()
        self.network: SimulatedNetwork | None = None
        self.processes: list[SimulatedProcess] = []
        self.turns = 0
        self.trace_to: TextIO | None = None
        """Where to write the trace as text, a line for each entry: compare two runs that should be
        equal and are not.
        """
        self._order = random.Random(f"{seed}/loop")
        self._now = 0.0
        self._turns_at_instant = 0
        self._trace = blake2b(digest_size=16)
        self._trace_ended = False
        self._parent = 0  # serial of the callback that runs now
        self._handle_serial = 0
        self._future_serial = 0
        self._timer_serial = 0
        self._cancelled_timers = 0
        self._thread = threading.get_ident()
        self.set_task_factory(create_numbered_task)

    def time(self) -> float:
        return self._now

    @property
    def trace_hash(self) -> str:
        """Hex digest over every callback run so far, its time and its name: equal runs have equal
        hashes."""
        return self._trace.hexdigest()

    def trace(self, label: str) -> None:
        """Add something that happened (a delivery, a write, a fault) to the trace."""
        if self._trace_ended:
            return
        self._trace.update(struct.pack("<d", self._now))
        self._trace.update(label.encode())
        if self.trace_to is not None:
            self.trace_to.write(f"{self._now:.9f} {label}\n")

    def end_trace(self) -> None:
        """The story is over: how what is left gets cancelled is not part of it, and differs between
        Pythons."""
        self._trace_ended = True

    def create_process(self, host: str, name: str | None = None) -> SimulatedProcess:
        """A new process on `host`; see SimulatedProcess."""
        process = SimulatedProcess(self, host, name or f"{host}#{len(self.processes)}")
        self.processes.append(process)
        return process

    def _run_once(self) -> None:
        self._drop_cancelled_timers()
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise DeadlockError(self._describe_deadlock())
            self._advance_to(self._scheduled[0][0])
        self._count_turn()
        self._collect_due_timers()
        for handle in self._shuffled():
            if handle._cancelled:
                continue
            process: SimulatedProcess | None = handle._context.get(current_process)  # type: ignore[attr-defined]
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.held.append(handle)
                    continue
            self._handle_serial += 1
            self._parent = self._handle_serial
            if not self._trace_ended:
                self.trace(describe_handle(handle))
            handle._run()
            self._parent = 0

    def _advance_to(self, when: float) -> None:
        if when > self._now:
            self._now = when
            self._turns_at_instant = 0

    def _count_turn(self) -> None:
        self.turns += 1
        self._turns_at_instant += 1
        if self._turns_at_instant > TURNS_PER_INSTANT_MAX:
            raise LivelockError(
                f"{TURNS_PER_INSTANT_MAX} turns at virtual second {self._now:.6f}; ready next: "
                + ", ".join(describe_handle(handle) for handle in list(self._ready)[:10])
            )

    def _drop_cancelled_timers(self) -> None:
        timers = self._scheduled
        if len(timers) > _CANCELLED_TIMERS_MIN and self._cancelled_timers * 2 > len(timers):
            kept = [entry for entry in timers if not entry[2].cancelled()]
            for _, _, timer in timers:
                if timer.cancelled():
                    timer._scheduled = False  # type: ignore[attr-defined]
            heapq.heapify(kept)
            self._scheduled = kept
            self._cancelled_timers = 0
        while self._scheduled and self._scheduled[0][2].cancelled():
            heapq.heappop(self._scheduled)[2]._scheduled = False  # type: ignore[attr-defined]
            self._cancelled_timers -= 1

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]
            self._cancelled_timers += 1

    def _collect_due_timers(self) -> None:
        while self._scheduled and self._scheduled[0][0] <= self._now:
            timer = heapq.heappop(self._scheduled)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer.cancelled():
                self._cancelled_timers -= 1
            else:
                self._ready.append(timer)

    def _shuffled(self) -> list[asyncio.Handle]:
        """The ready handles in a random order that keeps siblings in theirs; every such order is
        equally likely."""
        ready = list(self._ready)
        self._ready.clear()
        if len(ready) < 2:
            return ready
        families: dict[int, deque[asyncio.Handle]] = {}
        order: list[int] = []
        for position, handle in enumerate(ready):
            # A timer has no siblings: it is a family of its own (negative, so that it meets no
            # serial).
            family = handle.parent if isinstance(handle, _SiblingHandle) else -1 - position
            families.setdefault(family, deque()).append(handle)
            order.append(family)
        if len(families) == 1:
            return ready
        self._order.shuffle(order)
        return [families[family].popleft() for family in order]

    def _describe_deadlock(self) -> str:
        lines = [
            f"deadlock at virtual second {self._now:.6f}: nothing is ready and no timer is set"
        ]
        paused = [process.name for process in self.processes if process.paused and process.held]
        if paused:
            lines.append("paused with work waiting: " + ", ".join(paused))
        lines += sorted(describe_task(task) for task in self.living_tasks())
        return "\n  ".join(lines)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_serial += 1
        heapq.heappush(self._scheduled, (when, self._timer_serial, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = _SiblingHandle(callback, args, self, context)
        handle.parent = self._parent
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise ForbiddenInSimulationError("another thread calls into the simulated loop")
        return self.call_soon(callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self, serial=self.next_serial())

    def next_serial(self) -> int:
        """A number for a task or future, the same in every run of the same program."""
        self._future_serial += 1
        return self._future_serial

    def living_tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks that can still run: all but those of killed processes."""
        return asyncio.all_tasks(self).difference(
            *(process.tasks for process in self.processes if not process.alive)
        )

    def close(self) -> None:
        if not self.is_closed():
            buried: set[asyncio.Task[Any]] = set()
            # Closing a coroutine may run an `except BaseException` of it that starts more tasks.
            while fresh := asyncio.all_tasks(self) - buried:
                bury(fresh)
                buried |= fresh
        super().close()

    def __del__(self) -> None:
        """No warning if it was not closed: it holds nothing of the machine's."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector here."""

    def _process_events(self, event_list: object) -> None:
        """There are no events but timers."""

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if self.network is None or not _plain(options) or host is None or port is None:
            _forbid("a real connection (TLS and ready-made sockets stay outside the simulation)")
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        start_serving: bool = True,
        **options: object,
    ) -> asyncio.AbstractServer:
        if self.network is None or not _plain(options):
            _forbid("a real server (TLS and ready-made sockets stay outside the simulation)")
        return self.network.listen(protocol_factory, host, port or 0, start_serving)

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: object, **options: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if self.network is None or not _plain(options):
            _forbid("a real connection (TLS stays outside the simulation)")
        return self.network.take(protocol_factory, sock)

    def add_reader(self, fd: object, callback: Callable[..., object], *args: object) -> None:
        if self.network is None or not self.network.watch(fd, partial(callback, *args)):
            _forbid("a file descriptor to watch")

    def remove_reader(self, fd: object) -> bool:
        return self.network is not None and self.network.watch(fd, None)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_options: object
    ) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]]:
        if self.network is None:
            _forbid("the resolver")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))
            for address in self.network.names.get(host, (host,))
        ]

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: object
    ) -> asyncio.Future[Any]:
        if not isinstance(executor, PureThreads):
            _forbid(
                f"a thread for {func!r}: use the seam that the simulation replaces (disk, clock)"
            )
        future = self.create_future()
        future.set_result(func(*args))
        return future

    set_default_executor = _forbidden("an executor")
    add_signal_handler = _forbidden("a signal handler")
    add_writer = _forbidden("a file descriptor to watch")
    create_datagram_endpoint = _forbidden("a datagram socket")
    subprocess_exec = subprocess_shell = _forbidden("a child process")


def _plain(options: dict[str, object]) -> bool:
    return not options.get("ssl") and options.get("sock") is None


class _SiblingHandle(asyncio.Handle):
    """A handle that remembers which callback scheduled it."""

    __slots__ = ("parent",)
    parent: int


def run_in(loop: SimulatedLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on `loop`, cancel what it left behind (in order of creation) and close
    the loop."""
    threads_before = threading.active_count()
    try:
        result = loop.run_until_complete(main)
        loop.end_trace()
        loop.run_until_complete(_end(sorted(loop.living_tasks(), key=hash)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    if threading.active_count() > threads_before:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise ForbiddenInSimulationError(f"the run started a thread; there are now: {names}")
    return result


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Tasks and futures of the simulated loop: they hash by serial number, so that sets of them
# iterate alike in every run. asyncio keeps tasks in sets (`TaskGroup`, `all_tasks`,
# `asyncio.wait`), and the default hash is an address. Knows the process a task belongs to, and
# nothing of the loop but that it hands out serial numbers.
_FAREWELLS_MAX = 100


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


def create_numbered_task(loop: Any, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    """The task factory: numbers the task and registers it with the process in which it is
    created."""
    task = NumberedTask(coro, loop=loop, serial=loop.next_serial(), **kwargs)
    context: contextvars.Context | None = kwargs.get("context")
    process = current_process.get() if context is None else context.get(current_process)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


def bury(tasks: Iterable[asyncio.Task[Any]]) -> None:
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


def describe_task(task: asyncio.Task[Any]) -> str:
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
