"""Offset up to which the log is confirmed. This module alone decides what readers may see.

::

    durable     on this disk: everything before it survives a power cut
    copied      enough slaves have it (SYNC_MASTER with inSyncReplicas of 2 or more)
    confirmed   readers see it, and its senders have their answer:
                under SYNC_FLUSH durable, otherwise all that is written;
                if sends wait for slaves, also copied

``durable`` moves with every sync. A failed sync ends it, and with it all writing. A message may be
forgotten (a delivered delay, an acknowledged message) only when its copy is ``durable``, for every
flush type. Answers to clients wait for ``confirmed``.

While too few slaves are in sync the broker is ``alone``: readers see its messages, and senders
learn that no slave has them. So readers continue, and nobody takes an unsafe message for a safe
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from turbopump.store.log.commit_log import CommitLog
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.watermark import Waiter, Watermark

_EVERYTHING: Final = 1 << 62


class Confirmed:
    """Offsets of ``log``. ``flushed_only``: nothing is confirmed before it is durable;
    ``copied_only``: nor before enough slaves have it, unless the broker is alone."""

    def __init__(self, log: CommitLog, *, flushed_only: bool, copied_only: bool = False) -> None:
        self._log = log
        self._flushed_only = flushed_only
        self._copied_only = copied_only
        self.durable = Watermark()
        self._copied = 0
        self._confirmed = Watermark() if copied_only else self.durable
        self.alone = copied_only
        """True if too few slaves are in sync to wait for them."""
        self.hidden: deque[tuple[int, ConsumeQueue, int]] | None = (
            deque() if flushed_only or copied_only else None
        )
        """Units that readers do not see yet, in the order of the log: the end of the entry, its
        queue, and the queue's end with it. None: units are seen at once."""

    @property
    def value(self) -> int:
        """Readers may see what lies before this offset."""
        return self._log.end if self.hidden is None else self._confirmed.value

    @property
    def copied(self) -> int:
        """Enough slaves have what lies before this offset; everything, if none is asked for."""
        return self._copied if self._copied_only else _EVERYTHING

    @property
    def error(self) -> Exception | None:
        """The reason why nothing more will be confirmed, or None."""
        return self.durable.error

    def when(self, offset: int, wake: Callable[[], None]) -> Waiter:
        """Call ``wake`` once an offset that is not confirmed yet is, or ``error`` is set."""
        return self._confirmed.when(offset, wake)

    def flushed(self, end: int) -> None:
        """The log is on the disk up to ``end``: show what that confirms, and wake who waits."""
        self.durable.advance(end)
        self.look()

    def copied_to(self, end: int, *, alone: bool) -> None:
        """Enough slaves have the log up to ``end``; or, ``alone``, too few of them are in sync to
        say when they will."""
        self._copied = max(self._copied, end)
        self.alone = alone
        self.look()

    def fail(self, error: Exception) -> None:
        """Stop ``durable`` for good."""
        self.durable.fail(error)
        if self._confirmed is not self.durable:
            self._confirmed.fail(error)

    def look(self) -> None:
        """Show what is confirmed by now, and wake who waits."""
        end = self.durable.value
        if self._copied_only:
            end = end if self._flushed_only else self._log.end
            end = end if self.alone else min(end, self._copied)
            if end > self._confirmed.value:
                self._confirmed.advance(end)
            end = self._confirmed.value
        hidden = self.hidden
        shown: dict[ConsumeQueue, int] = {}
        while hidden and hidden[0][0] <= end:
            _, queue, queue_end = hidden.popleft()
            shown[queue] = queue_end
        for queue, queue_end in shown.items():
            queue.end.advance(queue_end)
