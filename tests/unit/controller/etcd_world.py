"""Three members of a simulated etcd, and the decisions of controllers on their hosts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.world.simulation import Simulation
from tests.unit.controller.simulated_etcd import SimulatedEtcd, SimulatedMember
from tests.waits import until

from turbopump.clock import Clock
from turbopump.config.etcd import Etcd
from turbopump.controller.etcd_client import EtcdClient
from turbopump.controller.etcd_decisions import EtcdDecisions, attempt_s

LEASE_S = 3
ETCD = ("10.0.9.1", "10.0.9.2", "10.0.9.3")
ONE, TWO = "10.0.0.1", "10.0.0.2"


class StoppableClock:
    """A clock that may stand still, as that of a frozen machine does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stopped_at: float | None = None

    def stop(self) -> None:
        self._stopped_at = self._clock.monotonic()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic() if self._stopped_at is None else self._stopped_at


class Controllers:
    """Three members of an etcd, and the decisions of controllers on their hosts."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.etcd = SimulatedEtcd()
        self.members: list[SimulatedMember] = []
        self.of: dict[str, EtcdDecisions] = {}
        self.clocks: dict[str, StoppableClock] = {}

    async def start_etcd(self) -> None:
        for host in ETCD:
            member = SimulatedMember(self.etcd)
            await self.simulation.boot(host).start(member.listen(host, 2379))
            self.members.append(member)

    async def controller(self, host: str, on_change: Callable[[], object] = int) -> EtcdDecisions:
        process = self.simulation.boot(host)
        calls = EtcdClient(Etcd(tuple((member, 2379) for member in ETCD)), attempt_s(LEASE_S))
        clock = self.clocks[host] = StoppableClock(self.simulation.clock(host))
        self.of[host] = EtcdDecisions(calls, "group", LEASE_S, clock)
        await process.start(self.of[host].open(f"{host}:9878", on_change))
        return self.of[host]

    async def leader(self, host: str) -> EtcdDecisions:
        """The decisions of a controller that leads and has loaded."""
        decisions = await self.controller(host)
        await until(lambda: decisions.term)
        await self.run(host, decisions.load())
        return decisions

    async def run(self, host: str, work: Coroutine[Any, Any, Any]) -> Any:
        """What work gives in the process of a controller."""
        return await self.simulation.process(host).start(work)

    def cut(self, host: str) -> None:
        for member in ETCD:
            self.simulation.network.cut(host, member)
            self.simulation.network.cut(member, host)

    def heal(self, host: str) -> None:
        for member in ETCD:
            self.simulation.network.heal(host, member)
            self.simulation.network.heal(member, host)
