"""Tasks of a broker that run until it stops: how they wait, fail and end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from turbopump.errors import StoreError
from turbopump.protocol.request import ReplyT, Request
from turbopump.remoting.router import HELD, Outcome, RequestContext
from turbopump.store.confirmed import Confirmed
from turbopump.store.watermark import Watermark

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Request[Any])

SHARE_S: Final = 0.01
"""Of one turn of the loop."""
SHARE_WAITING_MAX: Final = 20_000
"""Requests that may wait for a turn; what comes then is handled at once."""

RETRY_PAUSE_S: Final = 1.0
"""After how long a step that failed is tried again."""


async def wait_for(
    *wanted: tuple[Watermark | Confirmed, int], seconds: float | None = None
) -> None:
    """Return when one of the watermarks has reached its threshold or has failed, and after
    ``seconds`` at the latest."""
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
    """Cancel the task, if there is one, and wait until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TurnShare:
    """The share of each turn of the loop that goes to requests which may come in thousands at once.
    Those that do not fit wait for the next turn, in the order in which they came. ``now`` in
    seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left = SHARE_S
        self._begun = False
        self._waiting: deque[tuple[Callable[[Any, RequestContext], Any], Any, RequestContext]]
        self._waiting = deque()

    def of(
        self, handler: Callable[[RequestT, RequestContext], Outcome[ReplyT]]
    ) -> Callable[[RequestT, RequestContext], Outcome[ReplyT]]:
        """The handler of such requests, within the share."""

        def handle(request: RequestT, context: RequestContext) -> Outcome[ReplyT]:
            if not self._begun:
                self._begun = True
                asyncio.get_running_loop().call_soon(self._turn)
            if (self._left <= 0 or self._waiting) and len(self._waiting) < SHARE_WAITING_MAX:
                self._waiting.append((handler, request, context))
                return HELD
            began = self._now()
            try:
                return handler(request, context)
            finally:
                self._left -= self._now() - began

        return handle

    def _turn(self) -> None:
        self._left = SHARE_S
        ends = self._now() + SHARE_S
        while self._waiting and self._now() < ends:
            handler, request, context = self._waiting.popleft()
            if context.peer.closed:
                continue
            context.settle_call(partial(handler, request), context)
        self._left = ends - self._now()
        self._begun = bool(self._waiting)
        if self._begun:
            asyncio.get_running_loop().call_soon(self._turn)


class RetryingTask:
    """Calls ``step`` for ever. A step that fails (most likely the disk is full) is tried again
    after a pause. The log gets ``failing`` at the first failure of a series, and ``again`` when the
    owner calls ``works``."""

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[None]],
        log: logging.Logger,
        *,
        failing: str,
        again: str,
    ) -> None:
        self._name = name
        self._step = step
        self._log = log
        self._texts = (failing, again)
        self._fails = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Cancel the step under way. May be called twice."""
        task, self._task = self._task, None
        await stop_task(task)

    def works(self) -> None:
        if self._fails:
            self._fails = False
            self._log.info(self._texts[1])

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except Exception as error:
                if not self._fails:
                    self._fails = True
                    unexpected = not isinstance(error, StoreError | OSError)
                    self._log.warning("%s cause=%s", self._texts[0], error, exc_info=unexpected)
                await asyncio.sleep(RETRY_PAUSE_S)
