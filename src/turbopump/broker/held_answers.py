"""Answers to sends that wait for the disk: stored already, told when the flush has passed them.

Messages reach the disk in the order in which they were stored, so the answers stand in one line,
with one waiter at the flush and one timer for all of them. It must not know what is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from turbopump.protocol.codes import ResponseCode
from turbopump.remoting.router import RequestContext, Response
from turbopump.store.watermark import Watermark

_Held = tuple[int, float, RequestContext, bytes, Callable[[], Response]]
"""End in the log, deadline, whose request, its answer, what makes the answer for one that is late.
A plain tuple: one a message."""


class HeldAnswers:
    """The answers that wait for ``flushed``, each at most ``seconds``."""

    def __init__(self, flushed: Watermark, seconds: float) -> None:
        self._flushed = flushed
        self._seconds = seconds
        self._line: deque[_Held] = deque()
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def hold(
        self, log_end: int, context: RequestContext, frame: bytes, late: Callable[[], Response]
    ) -> None:
        """Answer with ``frame`` once the flush has passed ``log_end``, which is never less than
        that of the answer before; with what ``late`` makes if it does not in time, with the error
        if it fails."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        self._line.append((log_end, deadline, context, frame, late))
        if not self._watching:
            self._watch()
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)

    async def hold_both(
        self, log_end: int, saved: Awaitable[bool], frame: bytes, late: Callable[[], Response]
    ) -> Response | bytes:
        """The same for an answer that must wait for something else to be ``saved``, too."""
        flushed = self._flushed
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not reached.done():
                reached.set_result(None)

        waiter = flushed.when(log_end, wake)
        try:
            async with asyncio.timeout(self._seconds):
                there = await saved
                if flushed.value < log_end and flushed.error is None:
                    await reached
        except TimeoutError:
            there = False
        finally:
            waiter.cancel()
        if flushed.error is not None:
            return Response(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(flushed.error))
        return frame if there else late()

    def _watch(self) -> None:
        self._watching = True
        self._flushed.when(self._line[0][0], self._reached)

    def _reached(self) -> None:
        self._watching = False
        line, error, value = self._line, self._flushed.error, self._flushed.value
        while line and (error is not None or line[0][0] <= value):
            _, _, context, frame, _ = line.popleft()
            if error is None:
                context.peer.send_frame(frame)
            else:
                context.answer(Response(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error)))
        if line:
            self._watch()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        loop, line = asyncio.get_running_loop(), self._line
        now = loop.time()
        while line and line[0][1] <= now:
            _, _, context, _, late = line.popleft()
            context.answer(late())
        self._timer = loop.call_at(line[0][1], self._expire) if line else None
