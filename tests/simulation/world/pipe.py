"""The one-way pipe of bytes between two ends of a simulated connection, and the link between hosts
it runs over.

A pipe is the kernel's part: a send window, a latency for each piece, order kept, bytes held while
the link is cut. It must not know names, ports or protocols.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.world.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.world.network import SimulatedTransport

RETRANSMISSION_TIMEOUT = 900.0
"""Seconds that bytes may wait for a cut link before the sender loses the connection (Linux:
tcp_retries2, about 15 min).
"""

EOF = "eof"
RESET = "reset"
_PIECE_GAP_MAX = 0.000_1


@dataclass(slots=True)
class Link:
    """One direction between two hosts. Change its fields at any time; `cut` by SimulatedNetwork.cut
    only."""

    latency_min: float = 0.000_2
    """Seconds."""
    latency_max: float = 0.002
    chunk_size_max: int | None = None
    """If set, bytes arrive in pieces of random size up to this, each after a latency of its own."""
    cut: bool = False

    def latency(self, rng: random.Random) -> float:
        return rng.uniform(self.latency_min, self.latency_max)


class Pipe:
    """Bytes on their way from one end to the other, in order."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, link: Link, label: str) -> None:
        self.link = link
        self.receiver: SimulatedTransport
        self.sender: SimulatedTransport
        self.unread = 0  # sent, and not yet taken by the receiver's protocol
        self._loop = loop
        self._rng = rng
        self._label = label
        self._on_the_way: deque[tuple[float, bytes | str]] = deque()
        self._last_arrival = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._given_up: asyncio.TimerHandle | None = None

    def send(self, item: bytes | str) -> None:
        """Take bytes, or the end, or a reset, for delivery after everything sent before."""
        if isinstance(item, bytes):
            self.unread += len(item)
            for piece in self._pieces(item):
                self._on_the_way.append((self._arrival(), piece))
        else:
            self._on_the_way.append((self._arrival(), item))
        self._schedule()

    def link_changed(self) -> None:
        """The link was cut or healed: bytes wait, or set out anew."""
        if not self.link.cut and self._on_the_way:
            items = [item for _, item in self._on_the_way]
            self._on_the_way.clear()
            self._last_arrival = self._loop.time()
            self._on_the_way.extend((self._arrival(), item) for item in items)
        self._schedule()

    def drop(self) -> None:
        """Forget what is on its way; nothing more arrives unless it is sent after this."""
        self._on_the_way.clear()
        for timer in (self._timer, self._given_up):
            if timer is not None:
                timer.cancel()
        self._timer = self._given_up = None

    def read(self, size: int) -> None:
        """The receiver took `size` bytes: the sender may send on."""
        self.unread -= size
        self.sender.window_opened()

    def _pieces(self, data: bytes) -> Iterable[bytes]:
        size_max = self.link.chunk_size_max
        if size_max is None:
            yield data
            return
        start = 0
        while start < len(data):
            size = self._rng.randint(1, size_max)
            yield data[start : start + size]
            start += size

    def _arrival(self) -> float:
        # Never before what was sent earlier: TCP keeps order, whatever the latency of each packet.
        # Pieces keep a gap, or all that were held up by a slow one would arrive as one again.
        gap = self._rng.uniform(0, _PIECE_GAP_MAX) if self.link.chunk_size_max is not None else 0.0
        self._last_arrival = max(
            self._last_arrival + gap, self._loop.time() + self.link.latency(self._rng)
        )
        return self._last_arrival

    def _schedule(self) -> None:
        if not self._on_the_way:
            return
        if self.link.cut:
            if self._given_up is None:
                self._given_up = self._loop.call_later(
                    RETRANSMISSION_TIMEOUT, self._give_up, context=contextvars.Context()
                )
            return
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None
        if self._timer is None:
            # An empty context: packets travel whether or not the process at either end lives.
            self._timer = self._loop.call_at(
                self._on_the_way[0][0], self._deliver, context=contextvars.Context()
            )

    def _deliver(self) -> None:
        self._timer = None
        while (
            self._on_the_way and not self.link.cut and self._on_the_way[0][0] <= self._loop.time()
        ):
            _, item = self._on_the_way.popleft()
            self._loop.trace(f"{self._label} {len(item) if isinstance(item, bytes) else item}")
            self.receiver.arrive(item)
        self._schedule()

    def _give_up(self) -> None:
        self._given_up = None
        failure = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self.sender.fail(failure)
