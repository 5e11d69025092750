"""One simulated world from one seed: loop, network, and for each host a clock and a disk.

Its one rule: every random choice of a run descends from `seed`, each part of the world drawing from
a source of its own, so that a change in one does not reorder the others. It must not know what is
run in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop, run_in
from tests.simulation.world.mount import PowerCut
from tests.simulation.world.network import SimulatedNetwork
from tests.simulation.world.pipe import Link
from tests.simulation.world.process import SimulatedProcess

T = TypeVar("T")

TRACE_VARIABLE = "TURBOPUMP_TRACE"
"""Environment variable: a file to write the trace of the last simulation to."""

PID = 4711
"""What ``os.getpid`` gives in a simulation. Client ids and files carry the number: with the
machine's, a run would depend on how many digits it has."""


class Simulation:
    """A world to run programs in; see `simulate`."""

    def __init__(self, seed: int, link: Link | None = None) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed)
        self.network = SimulatedNetwork(self.loop, self.source("network"), link)
        self.random = self.source("scenario")
        """For the scenario's own choices: when to break what."""
        self.unexpected: list[BaseException] = []
        """Exceptions that reached the loop because nobody caught them; `simulate` raises the
        first."""
        self.loop.set_exception_handler(self._uncaught)
        self._clocks: dict[str, SimulatedClock] = {}
        self._disks: dict[str, SimulatedDisk] = {}
        self._processes: dict[str, SimulatedProcess] = {}

    def source(self, name: str) -> random.Random:
        """A random source of its own for `name`, the same in every run of this seed."""
        return random.Random(f"{self.seed}/{name}")

    def clock(self, host: str) -> SimulatedClock:
        """The wall clock of a host."""
        if host not in self._clocks:
            self._clocks[host] = SimulatedClock(self.loop)
        return self._clocks[host]

    def disk(self, host: str) -> SimulatedDisk:
        """The disk of a host; it outlives the host's processes."""
        if host not in self._disks:
            disk = SimulatedDisk(self.loop, self.source(f"disk {host}"), self.clock(host))
            disk.on_power_cut = lambda: self.end(host, power_cut=True)
            self._disks[host] = disk
        return self._disks[host]

    def boot(self, host: str) -> SimulatedProcess:
        """Start the program of a host: a process to run things in. The one before must have
        ended."""
        before = self._processes.get(host)
        assert before is None or not before.alive, f"{host} is up"
        self.network.unsilence(host)
        self._processes[host] = self.loop.create_process(host)
        return self._processes[host]

    def process(self, host: str) -> SimulatedProcess:
        """The process that was last booted on a host."""
        return self._processes[host]

    def end(self, host: str, *, power_cut: bool) -> None:
        """Kill the host's process: by kill -9 (peers notice, the disk keeps all), or by a power
        cut (neither)."""
        process = self._processes[host]
        if not process.alive:
            return
        if power_cut:
            self.network.silence(host)
        process.kill()
        disk = self._disks.get(host)
        if disk is not None and disk.mounted is not None:
            if power_cut:
                disk.power_cut()
            else:
                disk.kill()

    def _uncaught(self, _loop: object, context: dict[str, Any]) -> None:
        failure = context.get("exception") or RuntimeError(context["message"])
        if not isinstance(failure, PowerCut):
            failure.add_note(f"reported to the event loop as: {context['message']}")
            self.unexpected.append(failure)


def simulate(
    seed: int, scenario: Callable[[Simulation], Coroutine[Any, Any, T]], link: Link | None = None
) -> T:
    """Run `scenario` in a world made from `seed`; returns what it returns.

    Raises what it raises; DeadlockError, LivelockError or ForbiddenInSimulationError for what a
    simulation does not allow.
    """
    return run_simulation(Simulation(seed, link), scenario)


def run_simulation(
    simulation: Simulation, scenario: Callable[[Simulation], Coroutine[Any, Any, T]]
) -> T:
    """As `simulate`, for those who want to look at the world afterwards (its trace hash, its
    disks)."""
    trace_file = os.environ.get(TRACE_VARIABLE)
    # The cycle collector runs finalizers at moments that depend on the history of the whole
    # interpreter.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_one_process_id())
            if trace_file:
                simulation.loop.trace_to = stack.enter_context(open(trace_file, "w"))
            result = run_in(simulation.loop, scenario(simulation))
        if simulation.unexpected:
            raise simulation.unexpected[0]
        return result
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _one_process_id() -> Iterator[None]:
    """Within the block, ``os.getpid()`` is PID in this thread; in a fork it tells the truth."""
    of_the_machine, here = os.getpid, (os.getpid(), threading.get_ident())

    def getpid() -> int:
        number = of_the_machine()
        return PID if (number, threading.get_ident()) == here else number

    os.getpid = getpid
    try:
        yield
    finally:
        os.getpid = of_the_machine


# A `turbopump.clock.Clock` for simulations: wall time that starts on a fixed day, runs with
# the loop and can be made to jump. Its one rule: `monotonic` is the loop's virtual time whatever
# happens to `now_ms`, as on a real machine.
START_MS = 1_700_000_000_000
"""Wall time at the start of a run: 2023-11-14 22:13:20 UTC, in milliseconds."""


class SimulatedClock:
    """The clocks of one host. `start_ms` is wall time, in epoch milliseconds, when the loop's time
    is 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_ms: int = START_MS) -> None:
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back if negative."""
        self._start_ms += milliseconds
