"""For every test: hypothesis draws the same examples each time, and a slow machine is no failure.
The header tells which functions run, and on whose loop. ``TURBOPUMP_TEST_LOOP=uvloop`` in the
environment: on uvloop's, as programs do that use it, every fourth of them in ``make test`` and all
in continuous integration, without those on a simulation's loop, which would be the same again."""

import asyncio
import os
import signal

import pytest
from hypothesis import settings
from tests.fuzzing import FACTOR, examples, some

from turbopump.compiled import KIND

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


def pytest_report_header() -> str:
    return (
        f"turbopump: {LOOP}'s loop, hot functions are {KIND}, {FACTOR} × the usual examples "
        "of arbitrary input"
    )
