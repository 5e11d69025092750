"""Waits for what a loop brings in its own time: ``await until_count(seen, 3)``.

A wait that is in vain fails after a minute, on a simulation's loop after ten virtual ones. None of
them knows what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sized
from operator import contains, eq

import pytest
from tests.simulation.world.loop import SimulatedLoop

PATIENCE_S, VIRTUAL_PATIENCE_S = 60.0, 600.0
VIRTUAL_PAUSE_S, PAUSE_S = 0.01, 0.001
TURNS_WITHOUT_PAUSE = 1000
"""On a real loop. Most conditions hold after a few turns of it, others need a thread or a peer."""


async def until(condition: Callable[..., object], *arguments: object) -> None:
    """Wait until ``condition(*arguments)`` is true."""
    virtual = isinstance(asyncio.get_running_loop(), SimulatedLoop)
    pauses = VIRTUAL_PAUSE_S if virtual else PAUSE_S
    turns = 0
    async with asyncio.timeout(VIRTUAL_PATIENCE_S if virtual else PATIENCE_S):
        while not condition(*arguments):
            turns += 1
            await asyncio.sleep(pauses if virtual or turns > TURNS_WITHOUT_PAUSE else 0)


async def until_count(things: Sized, count: int) -> None:
    """Wait until a collection that grows or shrinks has this size."""
    await until(has_count, things, count)


async def until_some(things: Sized) -> None:
    """Wait until a collection has something in it."""
    await until(len, things)


async def until_none(things: Sized) -> None:
    """Wait until a collection is empty."""
    await until_count(things, 0)


async def until_has(things: Container[object], thing: object) -> None:
    """Wait until a collection has ``thing`` in it."""
    await until(contains, things, thing)


async def until_equal(changing: object, wanted: object) -> None:
    """Wait until a list or another object that changes is equal to ``wanted``."""
    await until(eq, changing, wanted)


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until ``text`` is in the log."""
    await until(is_logged, caplog, text)


def has_count(things: Sized, count: int) -> bool:
    return len(things) == count


def is_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text
