"""Limit on a server's connection memory. The limit applies to all connections together.

Three things count: answers that peers have not read, requests that wait because of that, and parts
of unfinished frames. The rule: a peer that reads and sends in time is not closed because of other
connections. The first connection to be closed has the greatest product of bytes and seconds without
progress by its peer.

When memory is tight, few unfinished frames may grow at the same time. A complete frame makes room
for others, and a peer that sends very little in ``SLICE_S`` has to wait. So producers that together
send too much at once are slowed down, not closed.

Sizes are counted when they grow, and counted again before a connection is closed, because its peer
may have read meanwhile. The content of connections is unknown here.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

SIZE_MAX: Final = 128 * 1024 * 1024
"""Maximum bytes of memory that the connections of one server use together."""
TIGHT_SHARE: Final = 0.5
"""Share of the maximum from which memory is tight. A peer must then read all answers before its
next request is handled."""
KEPT_SHARE: Final = 0.9
"""Share of the maximum down to which connections are closed. The margin avoids a new check for
every few bytes."""
STEP_SHARE: Final = 1 / 16
"""Share of the maximum by which the total must grow before all sizes are counted again."""
GROWING_MAX: Final = 4
"""Unfinished frames that may grow at the same time when memory is tight. From ``SCARCE_SHARE`` on,
only one may grow."""
SCARCE_SHARE: Final = 0.7
SLICE_S: Final = 0.1
GROWTH_MIN: Final = 64 * 1024
"""Bytes by which a frame must grow in one slice of ``SLICE_S``. A slower frame waits behind the
others."""


class Holder(Protocol):
    """Methods of a connection that the memory limit uses."""

    def held_now(self, now: float) -> int:
        """Return the bytes of memory that the connection uses."""

    def weight(self, now: float) -> float:
        """Return the connection's bytes multiplied by the seconds since its peer last read or sent
        anything."""

    def close_for_memory(self, limit: int) -> None:
        """Drop all data and close the connection. ``limit`` is the exceeded maximum in bytes, for
        the log."""

    def grow_on(self) -> None:
        """Resume reading, because the connection's unfinished frame may grow again."""


class ConnectionMemory:
    """Counter of the memory of a server's connections. At the maximum it closes some of them.

    - ``size_max``: maximum bytes of all connections together.
    - ``total``: bytes of all connections now.
    - ``tight``: True if a peer must read all answers before its next request is handled.
    """

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self.size_max = size_max
        self.total = 0
        self.tight = False
        # dicts keep the order of arrival, so that a run can be replayed
        self._held: dict[Holder, int] = {}
        self._growing: dict[Holder, int] = {}
        """Connections whose frames may grow, with the bytes that each used when this slice
        began."""
        self._waiting: dict[Holder, None] = {}
        self._next_slice: asyncio.TimerHandle | None = None
        self._look_at = self._first_look = int(size_max * TIGHT_SHARE)

    def set_size(self, holder: Holder, size: int) -> None:
        """Record how many bytes a connection uses now.

        If the total is too large, this call closes connections, possibly this one.
        """
        self.total += size - self._held.get(holder, 0)
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)
        if self.total >= self._look_at:
            self._weigh_all()
        elif self.total < self._first_look:
            self.tight = False
            self._look_at = self._first_look

    def may_grow(self, holder: Holder) -> bool:
        """Return True if the connection's unfinished frame may grow now.

        On False, the caller stops reading until ``grow_on`` is called.
        """
        # While memory is scarce only the frame that has grown longest may go on: it ends first and
        # frees its bytes. If several went on, all of them could fill the memory and none would end.
        if holder in self._growing:
            if not self._is_scarce or holder is next(iter(self._growing)):
                return True
            del self._growing[holder]
        elif not self._waiting:
            if not self.tight:
                return True
            if self._another_may_grow:
                self._growing[holder] = self._held.get(holder, 0)
                return True
        self._waiting[holder] = None
        if self._next_slice is None:
            self._next_slice = asyncio.get_running_loop().call_later(SLICE_S, self._end_slice)
        return False

    def has_grown(self, holder: Holder) -> None:
        """Let another frame grow. This connection's frame is complete, or the connection has
        ended."""
        if holder in self._growing or holder in self._waiting:
            self._growing.pop(holder, None)
            self._waiting.pop(holder, None)
            self._let_grow()

    @property
    def _is_scarce(self) -> bool:
        return self.total >= self.size_max * SCARCE_SHARE

    @property
    def _another_may_grow(self) -> bool:
        if self._is_scarce:
            return not self._growing
        return len(self._growing) < GROWING_MAX

    def _end_slice(self) -> None:
        # Fast frames keep their permission: they end soon and make room. If all frames took turns,
        # all would grow and none would end. Slow frames ask again with their next bytes.
        self._next_slice = None
        held = {holder: self._held.get(holder, 0) for holder in self._growing}
        self._growing = {
            holder: size
            for holder, size in held.items()
            if size - self._growing[holder] >= GROWTH_MIN
        }
        self._let_grow()
        if self._waiting:
            self._next_slice = asyncio.get_running_loop().call_later(SLICE_S, self._end_slice)

    def _let_grow(self) -> None:
        while self._waiting and self._another_may_grow:
            holder = next(iter(self._waiting))
            del self._waiting[holder]
            self._growing[holder] = self._held.get(holder, 0)
            holder.grow_on()

    def _weigh_all(self) -> None:
        """Count the bytes of every connection again, and close connections if the total is too
        large."""
        now = asyncio.get_running_loop().time()
        for holder in self._held:
            self._held[holder] = holder.held_now(now)
        self.total = sum(self._held.values())
        if self.total >= self.size_max:
            self._close_the_heaviest(now)
        self.tight = self.total >= self._first_look
        # Counting visits every connection, so the next count comes only after more bytes.
        step = self.total + int(self.size_max * STEP_SHARE)
        self._look_at = min(max(step, self._first_look), self.size_max)

    def _close_the_heaviest(self, now: float) -> None:
        by_weight = sorted(self._held, key=lambda holder: holder.weight(now), reverse=True)
        for holder in by_weight:
            if self.total <= self.size_max * KEPT_SHARE:
                break
            holder.close_for_memory(self.size_max)
            self.total -= self._held.pop(holder)
