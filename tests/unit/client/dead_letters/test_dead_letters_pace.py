"""The rate at which dead letters are resent, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation

from turbopump.client.dead_letters.resending import ResendRate


async def turn(loop: Any, pace: ResendRate, times: list[float]) -> None:
    await pace.wait_turn()
    times.append(loop.time())


@pytest.mark.parametrize(
    ("rate", "within", "seconds"), [(10, 10, 1), (100, 100, 1), (2.5, 2, 0.8), (0.5, 1, 2)]
)
@in_loop(simulated)
async def test_no_second_has_more_turns_than_the_rate_even_after_a_pause(
    simulation: Simulation, /, rate: float, within: int, seconds: float
) -> None:
    loop = simulation.loop
    pace = ResendRate(rate)
    times: list[float] = []

    for pause in (0, 0.3, 5.0):
        await asyncio.sleep(pause)
        await asyncio.gather(*(turn(loop, pace, times) for _ in range(50)))
    assert all(
        later - earlier > seconds - 1e-6
        for earlier, later in zip(times, times[within:], strict=False)
    )
    assert times[49] - times[0] == pytest.approx(49 / rate), "and they are spread"
    assert times[99] - times[0] == pytest.approx(99 / rate), (
        "what a short pause has missed is made up for"
    )
