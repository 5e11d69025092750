"""Helpers for background tasks: wait for a watermark, stop a task, retry after an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from turbopump.errors import StoreError
from turbopump.log_keys import LogKeys
from turbopump.protocol.request import Request
from turbopump.store.confirmed import Confirmed
from turbopump.store.watermark import Watermark

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Request[Any])

RETRY_PAUSE_S: Final = 1.0
"""Seconds between a failed call and the next one."""
TURN_S: Final = 5.0
"""Maximum seconds to wait for the end of a turn before a task is interrupted."""


async def wait_for(
    *wanted: tuple[Watermark | Confirmed, int], seconds: float | None = None
) -> None:
    """Wait until the first watermark reaches its threshold or fails. Return after ``seconds`` at
    the latest."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    waiters = [watermark.when(threshold, wake) for watermark, threshold in wanted]
    timer = None if seconds is None else loop.call_later(seconds, wake)
    if any(watermark.value >= threshold for watermark, threshold in wanted):
        wake()
    try:
        await woken
    finally:
        for waiter in waiters:
            waiter.cancel()
        if timer is not None:
            timer.cancel()


async def stop_task(task: asyncio.Task[None] | None) -> None:
    """Cancel ``task``, unless it is None, and wait until the task has ended."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stop_after_turn(turn: asyncio.Lock, stop: Callable[[], Awaitable[None]]) -> None:
    """Call ``stop`` when the holder of ``turn`` has ended its turn, or after TURN_S."""
    try:
        async with asyncio.timeout(TURN_S), turn:
            await stop()
    except TimeoutError:
        await stop()


class RetryingTask:
    """Background task that repeats an async function until the task is stopped.

    After an error, for example on a full disk, the task pauses and calls the function again.

    - ``step``: the function.
    - ``failing``: the text that is logged at the first error of a series.
    - ``again``: the text that is logged when the owner calls ``works`` after an error.
    - ``keys``: keys of both log lines.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[None]],
        log: logging.Logger,
        *,
        failing: str,
        again: str,
        keys: LogKeys | None = None,
    ) -> None:
        self._name = name
        self._step = step
        self._log = log
        self._texts = (failing, again)
        self._keys = keys or LogKeys()
        self._fails = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Cancel the task and wait for its end. The method may be called twice."""
        await stop_task(self._task)

    def works(self) -> None:
        if self._fails:
            self._fails = False
            self._log.info("%s %s", self._texts[1], self._keys)

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except Exception as error:
                if not self._fails:
                    self._fails = True
                    unexpected = not isinstance(error, StoreError | OSError)
                    self._log.warning(
                        "%s %s cause=%s", self._texts[0], self._keys, error, exc_info=unexpected
                    )
                await asyncio.sleep(RETRY_PAUSE_S)
