"""Growing offset that wakes waiting callbacks.

Every wait in the store is for an offset to reach a value: flushed, dispatched, end of a queue. This
module has no loop, no lock and no clock; the broker does the awaiting and the deadlines. Callbacks
run inside ``advance`` and must be short.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

CANCELLED_KEPT: Final = 32
"""Number of cancelled waiters that are kept, because removing fewer is not worth the cost."""


class Waiter:
    """Callback that waits for a watermark to reach a threshold."""

    __slots__ = ("_watermark", "order", "threshold", "wake")

    def __init__(
        self, watermark: Watermark, threshold: int, order: int, wake: Callable[[], None]
    ) -> None:
        self._watermark = watermark
        self.threshold = threshold
        self.order = order
        self.wake: Callable[[], None] | None = wake

    def cancel(self) -> None:
        if self.wake is not None:
            self.wake = None
            self._watermark._one_cancelled()

    def __lt__(self, other: Waiter) -> bool:
        return (self.threshold, self.order) < (other.threshold, other.order)


class Watermark:
    """Growing offset that wakes waiting callbacks.

    ``advance`` raises ``value``. ``fail`` sets ``error`` once and for good.
    """

    __slots__ = ("_cancelled", "_order", "_waiters", "error", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.error: Exception | None = None
        self._waiters: list[Waiter] = []
        self._order = 0
        self._cancelled = 0

    def when(self, threshold: int, wake: Callable[[], None]) -> Waiter:
        """Call ``wake`` when ``value`` reaches ``threshold``, or when the watermark fails.

        ``wake`` must check ``error``. It is never called before this method returns.
        """
        self._order += 1
        waiter = Waiter(self, threshold, self._order, wake)
        heapq.heappush(self._waiters, waiter)
        return waiter

    def advance(self, value: int) -> None:
        """Raise ``value`` to this offset, and wake the waiters whose threshold is reached.

        The waiter with the lowest threshold comes first. A lower offset does not change ``value``.
        """
        if value > self.value:
            self.value = value
        waiters = self._waiters
        while waiters and waiters[0].threshold <= value:
            _wake(heapq.heappop(waiters))

    def fail(self, error: Exception) -> None:
        """Record that ``value`` will not grow any more, and wake all waiters."""
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in sorted(waiters):
            _wake(waiter)

    @property
    def waiting(self) -> int:
        """Number of registered waiters, including cancelled waiters until their removal."""
        return len(self._waiters)

    def _one_cancelled(self) -> None:
        """Count a cancelled waiter, and remove the cancelled waiters once they outnumber the
        others.

        Polls on a queue that never grows are cancelled endlessly.
        """
        self._cancelled += 1
        if self._cancelled > CANCELLED_KEPT and self._cancelled > len(self._waiters) // 2:
            self._waiters[:] = [waiter for waiter in self._waiters if waiter.wake is not None]
            heapq.heapify(self._waiters)
            self._cancelled = 0


def _wake(waiter: Waiter) -> None:
    wake, waiter.wake = waiter.wake, None
    if wake is not None:
        wake()
