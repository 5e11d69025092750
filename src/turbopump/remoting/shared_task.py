"""Waiting for a task that several wait for: who gives up does not end it for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def outcome_of(task: asyncio.Future[T], ended: Callable[[], Exception]) -> T:
    """What the task returns, or raises. ``ended`` makes what is raised if the task itself was
    cancelled, and not who waits for it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise ended() from None
        raise
