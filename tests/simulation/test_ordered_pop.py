"""Ordered consumption over POP through kills, power cuts, lost connections and members that come and go: no handler begins with a message
before the one ahead of it succeeded. While the broker dies no worse than by a clean stop, it is one handler of a queue at a time, too.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from tests.simulation.test_ordered import BROKER, CONSUMERS, FAILURES, QUEUES, World

from turbopump.config.popping import DefaultRequestMode
from turbopump.testing.simulation import Simulation, simulate

WHOLE_SEEDS = 2
"""So many seeds have all the failures of `make sim`, the others the sample."""


class PoppingWorld(World):
    broker_settings: ClassVar[dict[str, Any]] = {"default_message_request_mode": DefaultRequestMode.POP}
    consumer_settings: ClassVar[dict[str, Any]] = {"client_rebalance": False, "pop_invisible_time": 20}

    async def fail_gently(self, times: int) -> None:
        """Break so many things, and the broker's process none of them."""
        network, rng = self.simulation.network, self.simulation.random
        for _ in range(times):
            await asyncio.sleep(rng.uniform(3, 60))
            self.check_alive()
            deed, host = rng.random(), rng.choice(CONSUMERS)
            if deed < 0.15:
                self.stop(BROKER)
            elif deed < 0.35:
                self.simulation.end(host, power_cut=False)
            elif deed < 0.5:
                self.stop(host)
            elif deed < 0.65:
                network.reset(BROKER, host)
            else:
                ways = rng.choice((((BROKER, host),), ((host, BROKER),), ((BROKER, host), (host, BROKER))))
                for way in ways:
                    network.cut(*way)
                    self.simulation.loop.call_later(rng.uniform(1, 100), network.heal, *way)


def test_through_every_failure_no_handler_begins_before_the_message_ahead_succeeded(seed: int) -> None:
    async def war(simulation: Simulation) -> World:
        world = PoppingWorld(simulation, failing=0.1)
        world.start()
        await asyncio.sleep(20)
        await world.fail(FAILURES if seed <= WHOLE_SEEDS else 8)
        await asyncio.sleep(120)
        await world.drain()
        await world.end()
        return world

    world = simulate(seed, war)
    assert [wrong for wrong in world.watch.wrong if "succeeded" in wrong] == []
    assert world.missing == 0
    assert sum(map(len, world.watch.succeeded.values())) > 100
    assert len(world.watch.succeeded) == QUEUES


def test_while_the_broker_forgets_nothing_a_queue_has_one_handler_at_a_time(seed: int) -> None:
    async def war(simulation: Simulation) -> World:
        world = PoppingWorld(simulation, failing=0.1)
        world.start()
        await asyncio.sleep(20)
        await world.fail_gently(FAILURES if seed <= WHOLE_SEEDS else 8)
        await asyncio.sleep(120)
        await world.drain()
        await world.end()
        return world

    world = simulate(seed, war)
    assert world.watch.wrong == []
    assert world.missing == 0
    assert sum(map(len, world.watch.succeeded.values())) > 100
