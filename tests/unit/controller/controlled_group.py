"""Our controller and three of our replicas together, on the simulated loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.loops import on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.replica.groups import CONTROLLER, HOSTS, Group

from turbopump.config.controller_config import ControllerConfig
from turbopump.controller import Controller


class ControlledGroup(Group):
    """A group whose controller is ours, on a disk of its own."""

    decides: Controller

    async def start_controller(self) -> None:
        simulation = self.simulation
        simulation.network.unsilence(CONTROLLER)
        self.decides = Controller(
            ControllerConfig(bind_address=CONTROLLER, controller_store_path="/controller"),
            clock=simulation.clock(CONTROLLER),
            disk=simulation.disk(CONTROLLER).mount(),
        )
        await self._run(CONTROLLER, self.decides.start, self.decides.close)

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The sync state set, as the controller knows it."""
        group = self.decides.groups.get("broker-a")
        return () if group is None else group.sync_state_set

    async def until_in_sync(self, count: int) -> None:
        async with asyncio.timeout(60.0):
            while len(self.in_sync) != count:
                await asyncio.sleep(0.05)

    async def until_elected(self, epoch: int) -> int:
        """Wait until a master of this epoch or a later one was elected, and return its id."""
        async with asyncio.timeout(60.0):
            while True:
                group = self.decides.groups.get("broker-a")
                assert group is not None
                if group.master_epoch >= epoch and group.master is not None:
                    return group.master
                await asyncio.sleep(0.01)


def with_controller(story: Callable[..., Any], *, seed: int = 1, **config: Any) -> None:
    """Run a story with a name server, our controller and three replicas with these settings."""

    async def run(simulation: Simulation) -> None:
        group = ControlledGroup(simulation)
        await group.name_server()
        await group.start_controller()
        for host in HOSTS:
            await group.replica(host, **config)
        await story(group)
        await group.close()

    on_a_client_s_host(run, seed=seed)
