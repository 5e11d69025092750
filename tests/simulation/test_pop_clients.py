"""Our consumers over POP, push and simple, through kills and power cuts of the broker, lost
connections and members that die with messages in their hands: nothing is lost. What was in such
hands comes twice.
"""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.figures import Figures
from tests.simulation.pop_clients import World
from tests.simulation.world.simulation import Simulation

WHOLE = "TURBOPUMP_SIM_MINUTES" in os.environ
FAILURES = 100 if WHOLE else 3
"""In each seed; `make sim` has a hundred in each of the first three seeds and five in each
of the next seventeen."""


@in_loop(simulated)
async def test_through_every_failure_both_kinds_of_consumers_get_every_message(
    simulation: Simulation, /, seed: int, figures: Figures
) -> None:
    if seed > 20 and WHOLE:
        pytest.skip("so many such runs are enough")
    failures = FAILURES if seed <= 3 else 5
    world = World(simulation)
    world.start()
    await asyncio.sleep(20)
    await world.fail(failures)
    await asyncio.sleep(60)
    await world.drain()
    assert world.missing == {}
    assert len(world.sent) > 50
    for group, done in world.done.items():
        assert done.total() < 3 * len(done), (
            f"{group}: what comes twice is what was in somebody's hands"
        )
    figures.count(failures=failures, messages_to_two_groups=len(world.sent), lost=0)
    figures.count(came_twice=sum(done.total() - len(done) for done in world.done.values()))
