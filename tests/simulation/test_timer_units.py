"""Units of the timer log that do not fit their messages: none of these is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.kept_timers import SMALL, files, send
from tests.simulation.one_broker import one_broker
from tests.simulation.world.mount import SimulatedMount
from tests.simulation.world.simulation import Simulation

from turbopump.protocol.requests.send import RecallMessage
from turbopump.store.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL


def flip(field: int, mask: int, mount: SimulatedMount) -> None:
    segment = mount.open_segment(Path("/store/timerlog") / f"{0:020d}")
    segment.buffer[20 * 52 + field] ^= mask
    segment.sync()


@pytest.mark.parametrize(
    ("field", "mask"),
    [
        pytest.param(32 + 5, 1, id="offset"),
        pytest.param(12 + 3, MAGIC_DELETE, id="recalls"),
        pytest.param(12 + 3, MAGIC_ROLL, id="rolls"),
    ],
)
@in_loop(on_a_client_s_host)
async def test_a_unit_of_the_timer_log_that_does_not_fit_its_message_hides_none(
    simulation: Simulation, /, field: int, mask: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, **SMALL) as world:
        handles = [await send(world, b"far %d" % number, 60) for number in range(50)]
        await world.client.ask(RecallMessage(topic="T", recall_handle=handles[7] or ""))
        await asyncio.sleep(5)
        await world.stop()

        files(world, partial(flip, field, mask))
        await world.up()
        await asyncio.sleep(70)
        wanted = [b"far %d" % number for number in range(50) if number != 7]
        assert sorted(await world.delivered()) == sorted(wanted)
        assert world.broker.parts.delivering.timers.numbers.skipped == 0  # type: ignore[union-attr]
    assert [
        record
        for record in caplog.records
        if "the timer log is damaged: a unit" in record.getMessage()
    ]


def copy(mount: SimulatedMount) -> None:
    segment = mount.open_segment(Path("/store/timerlog") / f"{0:020d}")
    of_seven, of_twenty = (slice(number * 52 + 32, number * 52 + 44) for number in (7, 20))
    segment.buffer[of_seven] = segment.buffer[of_twenty]
    segment.sync()


@in_loop(on_a_client_s_host)
async def test_a_unit_that_points_to_another_message_hides_none(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, **SMALL) as world:
        for number in range(30):
            await send(world, b"far %d" % number, 60 + number % 2 * 10)
        await asyncio.sleep(5)
        await world.stop()

        files(world, copy)
        await world.up()
        await asyncio.sleep(90)
        assert sorted(await world.delivered()) == sorted(b"far %d" % number for number in range(30))
    assert [
        record
        for record in caplog.records
        if "the timer log is damaged: a unit" in record.getMessage()
    ]
