"""Lines that peers can cause as often as they like: one at once, then how many there were."""

import asyncio
import gc
import logging
import weakref

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation

from turbopump import repeated_line
from turbopump.repeated_line import KEPT_SIZE, PERIOD_S, PERIODS_MAX, RepeatedLine, report_all

log = logging.getLogger("turbopump.test_repeated_line")


@in_loop(simulated)
async def test_the_first_is_logged_at_once_and_the_others_are_counted(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    line = RepeatedLine(log, logging.WARNING, "bad frame peer=%s")
    for number in range(24_000):
        line(f"peer-{number}")
    assert caplog.messages == ["bad frame peer=peer-0"]
    await asyncio.sleep(PERIOD_S + 1)
    assert caplog.messages[1:] == ["bad frame peer=peer-23999 more=23999 in_seconds=10"]
    line("within the next period")
    await asyncio.sleep(PERIOD_S)
    assert caplog.messages[2:] == ["bad frame peer=within the next period more=1 in_seconds=10"]
    await asyncio.sleep(PERIOD_S)
    line("after a quiet period")
    assert caplog.messages[3:] == ["bad frame peer=after a quiet period"]


@in_loop(simulated)
async def test_what_goes_on_for_long_is_logged_in_full_again(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    line = RepeatedLine(log, logging.WARNING, "failed number=%d")
    for number in range(int(PERIODS_MAX * PERIOD_S) + 5):
        line(number, exc_info=ValueError("it"))
        await asyncio.sleep(1)
    in_full = [record.getMessage() for record in caplog.records if record.exc_info]
    assert in_full == ["failed number=0", f"failed number={int(PERIODS_MAX * PERIOD_S)}"]
    assert len(caplog.messages) == PERIODS_MAX + 2


@in_loop(simulated)
async def test_kinds_are_counted_apart_as_far_as_there_are_few(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_kinds = 30
    monkeypatch.setattr(repeated_line, "KINDS_MAX", few_kinds)
    line = RepeatedLine(log, logging.WARNING, "failed code=%d")
    for _ in range(3):
        line(1, kind="one")
        line(2, kind="two")
    assert caplog.messages == ["failed code=1", "failed code=2"]
    for number in range(3 * few_kinds):
        line(number, kind=("peer", number))
    assert len(caplog.messages) <= few_kinds + 1
    await asyncio.sleep(PERIOD_S + 1)
    counted = [text for text in caplog.messages if "in_seconds=10" in text]
    few = {f"failed code={code} more=2 in_seconds=10" for code in (1, 2)}
    assert few < set(counted)
    (others,) = set(counted) - few
    assert f"more={3 * few_kinds - (few_kinds - 2) - 1} " in others


@in_loop(simulated)
async def test_what_is_counted_when_a_process_ends_is_logged(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    line = RepeatedLine(log, logging.ERROR, "failed cause=%s")
    line("one")
    line("two")
    report_all()
    report_all()
    assert [record.getMessage() for record in caplog.records if record.name == log.name] == [
        "failed cause=one",
        "failed cause=two more=1 in_seconds=10",
    ]


class LongError(Exception):
    """Has an attribute dictionary, so that it can be referred to weakly."""


def fail(line: RepeatedLine) -> weakref.ref[LongError]:
    try:
        raise LongError("x" * 100_000)
    except LongError as error:
        line(error, exc_info=True)
        return weakref.ref(error)


@in_loop(simulated)
async def test_a_traceback_is_logged_once_and_long_arguments_are_not_kept(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    line = RepeatedLine(log, logging.ERROR, "failed cause=%s")
    kept = [fail(line) for _ in range(3)]
    gc.collect()
    assert [error() is None for error in kept[1:]] == [True, True]
    await asyncio.sleep(PERIOD_S + 1)
    first, counted = caplog.records
    assert first.exc_info
    assert not counted.exc_info
    assert len(counted.getMessage()) < KEPT_SIZE + 100


async def twice(line: RepeatedLine) -> None:
    line("a")
    line("b")


def test_each_loop_counts_anew(caplog: pytest.LogCaptureFixture) -> None:
    line = RepeatedLine(log, logging.WARNING, "bad frame peer=%s")

    asyncio.run(twice(line))
    asyncio.run(twice(line))
    assert caplog.messages == ["bad frame peer=a"] * 2
