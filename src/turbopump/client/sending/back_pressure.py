"""Back-pressure: a bound on what a producer has in flight, in messages and bytes; who wants more
waits his turn.

One rule: first come, first served, until his deadline. It must not know what is sent. Source:
apache/rocketmq ``enableBackpressureForAsyncMode``; better than there, where the wait holds a lock
that finished sends need.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from turbopump.client.setting_rules import Rule, check, is_whole

_BOUND: Final = Rule(
    lambda value: is_whole(value) and value > 0,
    "lets nothing through: a whole number above 0 is expected",
)
_RULES: Final[Mapping[str, Rule]] = {"messages": _BOUND, "size": _BOUND}


@dataclass(frozen=True, slots=True)
class BackPressure:
    """At most so many messages, and bytes of their bodies, in flight at once. Raises ConfigError if
    one is no whole number above 0."""

    messages: int = 10_000
    size: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        check(_RULES, {"messages": self.messages, "size": self.size})


class NoRoomError(Exception):
    """Why there was no room; whoever knows the message makes a SendError of it."""


class InFlightBound:
    """The bound and its line. A body larger than the whole bound goes alone."""

    def __init__(self, bound: BackPressure) -> None:
        self._bound = bound
        self.messages = 0
        self.size = 0
        self._line: deque[tuple[int, asyncio.Future[bool]]] = deque()
        """Who waits, and the word for him: come in, or (False) it is closed."""
        self._closed = False
        self._idle: asyncio.Event | None = None

    async def enter(self, size: int, timeout: float) -> None:
        """Wait for room. Raises NoRoomError if there is none within ``timeout`` seconds, or before
        it is closed."""
        if not self._line and self._fits(size):
            self._take(size)
            return
        # those that are in flight may all give up in the same moment
        messages, total = self.messages, self.size
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        let_in = False
        if not self._closed:
            self._line.append((size, turn))
        try:
            async with asyncio.timeout(timeout):
                let_in = not self._closed and await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave(size)  # let in at the very moment it gave up
            else:
                with contextlib.suppress(ValueError):  # the line may have passed over it already
                    self._line.remove((size, turn))
                self._let_in()
            if isinstance(error, TimeoutError):
                raise NoRoomError(
                    f"within {timeout:.3g} s there was no room among the {messages} messages "
                    f"({total} bytes) in flight; at most "
                    f"{self._bound.messages} ({self._bound.size} bytes) are allowed. "
                    "The brokers are slower than you send: send less at once, wait longer, or "
                    "raise back_pressure"
                ) from None
            raise
        if not let_in:
            raise NoRoomError(
                f"the producer was closed while it waited for room among the {messages} messages "
                f"({total} bytes) in flight. "
                "Nothing was stored"
            )

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight, and nobody waits."""
        while self.messages or self._line:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """Whoever waits, or finds no room from now on, gets a NoRoomError."""
        self._closed = True
        for _, turn in self._line:
            if not turn.done():
                turn.set_result(False)
        self._line.clear()

    async def enter_within(self, size: int, timeout: float) -> float:
        """``enter``; the seconds that are left then."""
        now = asyncio.get_running_loop().time
        began = now()
        await self.enter(size, timeout)
        return max(timeout - (now() - began), 0.001)

    def leave(self, size: int) -> None:
        """What was in flight has arrived or failed."""
        self.messages -= 1
        self.size -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._line:
            size, turn = self._line[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._take(size)
                turn.set_result(True)
            self._line.popleft()
        if self._idle is not None and not self.messages:
            self._idle.set()

    def _fits(self, size: int) -> bool:
        if self.messages == 0:
            return True
        return self.messages < self._bound.messages and self.size + size <= self._bound.size

    def _take(self, size: int) -> None:
        self.messages += 1
        self.size += size
