"""For every test: hypothesis draws the same examples each time, and a slow machine is no failure:
a broker on a real loop waits longer for its disk than users would.
The header tells which functions run, and on whose loop. ``TURBOPUMP_TEST_LOOP=uvloop`` in the
environment: on uvloop's, as programs do that use it, every fourth of them in ``make test`` and all
in continuous integration, without those on a simulation's loop, which would be the same again."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.fuzzing import FACTOR, examples, some
from tests.simulation.world.loop import SimulatedLoop

from turbopump.broker import housekeeping, saved_table
from turbopump.cli.log_output import WAITED_FOR
from turbopump.compiled import KIND
from turbopump.repeated_line import report_all

settings.register_profile("turbopump", parent=examples())
settings.load_profile("turbopump")

LOOP = os.environ.get("TURBOPUMP_TEST_LOOP", "asyncio")
if LOOP == "uvloop":
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background: the programs that tests start and interrupt would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if LOOP == "asyncio":
        return
    kept = some(
        item
        for item in items
        if not getattr(getattr(item, "function", None), "in_virtual_time", False)
    )
    left_out = set(items).difference(kept)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = kept


SAVE_WAIT_S = 30.0
"""How long a change of topics or groups waits for a real disk, which other tests use as well."""
STALL_S = 60.0
"""How long a broker stands still before it says so: the log of many a test has nothing else."""


@pytest.fixture(scope="session", autouse=True)
def _patience_with_the_machine() -> Iterator[None]:
    in_time = saved_table.in_time

    async def patiently(seconds: float | None, *rounds: asyncio.Future[bool]) -> None:
        if not isinstance(asyncio.get_running_loop(), SimulatedLoop):
            seconds = SAVE_WAIT_S
        await in_time(seconds, *rounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_table, "in_time", patiently)
        patch.setattr(housekeeping, "STALL_S", STALL_S)
        yield


def pytest_report_header() -> str:
    return (
        f"turbopump: {LOOP}'s loop, hot functions are {KIND}, {FACTOR} × the usual examples "
        "of arbitrary input"
    )


@pytest.fixture(autouse=True)
def _no_log_is_left() -> Iterator[None]:
    """A command that ran in this process would log to its standard error, which is closed, for all
    that come after it. A loop in another thread would log the lines that it counted ten seconds
    later, in another test."""
    loggers = [logging.getLogger(name) for name in ("turbopump", *WAITED_FOR)]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    report_all()
