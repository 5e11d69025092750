"""Programs on hosts of a simulation that are started again, a while after each end: what worlds of
a test have in common."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable

from tests.simulation.world.process import ProcessKilled
from tests.simulation.world.simulation import Simulation

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import TurbopumpError
from turbopump.namesrv.server import NameServer


class KeptPrograms:
    """``rest_s``: how many virtual seconds a program rests at most. On the hosts that ``may_fail``
    it may also end with an error: nobody answered at its start."""

    def __init__(
        self, simulation: Simulation, *, rest_s: float, may_fail: Collection[str] = ()
    ) -> None:
        self.simulation = simulation
        self._rest_s = rest_s
        self._may_fail = may_fail
        self._tasks: list[asyncio.Task[None]] = []

    def check_alive(self) -> None:
        """Raise what ended a program that nobody killed."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        """Keep nothing any longer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep(self, host: str, program: Callable[[str], Awaitable[None]]) -> None:
        """Run the program on this host, again and again."""
        self._tasks.append(asyncio.create_task(self._supervise(host, program), name=f"keep {host}"))

    async def until_wanted(self, host: str) -> None:
        """Wait until the program of a host should be started."""

    async def name_server(self, host: str) -> None:
        """A program: a name server that goes on until it is killed."""
        await NameServer(
            NamesrvConfig(bind_address=host), clock=self.simulation.clock(host)
        ).start()
        await asyncio.Event().wait()

    def source(self, host: str) -> random.Random:
        """A random source for one life of the program on a host: from now on."""
        return self.simulation.source(f"{host} from {self.simulation.loop.time()}")

    def cut(self, ways: Iterable[tuple[str, str]], *, longest_s: float) -> None:
        """Nothing goes these ways (from a host to a host) any longer, each for a second or up to so
        many."""
        for way in ways:
            self.simulation.network.cut(*way)
            self.simulation.loop.call_later(
                self.simulation.random.uniform(1, longest_s), self.simulation.network.heal, *way
            )

    async def _supervise(self, host: str, program: Callable[[str], Awaitable[None]]) -> None:
        async def main() -> None:
            await program(host)

        while True:
            await self.until_wanted(host)
            process = self.simulation.boot(host)
            try:
                await process.start(main())
                self.simulation.end(host, power_cut=False)
            except ProcessKilled:
                pass
            except TurbopumpError:
                if host not in self._may_fail:
                    raise
                self.simulation.end(host, power_cut=False)
            await asyncio.sleep(self.simulation.random.uniform(0.1, self._rest_s))
