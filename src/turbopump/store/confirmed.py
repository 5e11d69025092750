"""Offset up to which the log is confirmed. Readers see only confirmed messages.

::

    durable     on this disk: everything before it survives a power cut
    copied      enough slaves have it (SYNC_MASTER with inSyncReplicas of 2 or more)
    confirmed   readers see it, and its senders have their answer:
                under SYNC_FLUSH durable, otherwise all that is written;
                if sends wait for slaves, also copied

``durable`` moves with every sync. After a failed sync it stops for good, and so does all writing. A
message may be forgotten (a delivered delay, an acknowledged message) only when its copy is
``durable``, for every flush type. Answers to clients wait for ``confirmed``.

While too few slaves are in sync, the broker is ``alone``. Readers then see its messages and
continue. Senders learn that no slave has their messages, so they do not count them as safe.
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
    """Confirmed, durable and copied offsets of a log.

    - ``flushed_only``: an offset is confirmed only after it is durable.
    - ``copied_only``: an offset is confirmed only after enough slaves have it, unless the
      broker is alone.
    """

    def __init__(self, log: CommitLog, *, flushed_only: bool, copied_only: bool = False) -> None:
        self._log = log
        self._flushed_only = flushed_only
        self._copied_only = copied_only
        self.durable = Watermark()
        self._copied = 0
        self._confirmed = Watermark() if copied_only else self.durable
        self.alone = copied_only
        """True while too few slaves are in sync. Messages are then confirmed without them."""
        self.hidden: deque[tuple[int, ConsumeQueue, int]] | None = (
            deque() if flushed_only or copied_only else None
        )
        """Queue units that readers do not see yet, in log order. None if readers see each unit at
        once.

        Each item is the end of the entry in the log, the queue, and the end of the queue including
        the unit.
        """

    @property
    def value(self) -> int:
        """Confirmed offset of the log. Readers see only entries before this offset."""
        return self._log.end if self.hidden is None else self._confirmed.value

    @property
    def copied(self) -> int:
        """Log offset up to which enough slaves have the log. If no slaves are required, it lies
        beyond every offset."""
        return self._copied if self._copied_only else _EVERYTHING

    @property
    def error(self) -> Exception | None:
        """Error that has ended all confirmation, or None while confirmation continues."""
        return self.durable.error

    def when(self, offset: int, wake: Callable[[], None]) -> Waiter:
        """Call ``wake`` when ``offset`` is confirmed, or when confirmation has failed for good.

        ``wake`` must check ``error``. ``offset`` must not be confirmed yet.
        """
        return self._confirmed.when(offset, wake)

    def note_flushed(self, end: int) -> None:
        """Set the durable offset of the log to ``end``.

        The call shows readers the newly confirmed messages, and wakes their waiters.
        """
        self.durable.advance(end)
        self.show_confirmed()

    def note_copied(self, end: int, *, alone: bool) -> None:
        """Set the log offset up to which enough slaves have copied the log.

        The call shows readers the newly confirmed messages. ``alone`` is True if too few slaves are
        in sync. Then messages are confirmed without waiting for slaves.
        """
        self._copied = max(self._copied, end)
        self.alone = alone
        self.show_confirmed()

    def fail(self, error: Exception) -> None:
        """Stop all confirmation for good: set ``error``, and wake all waiters."""
        self.durable.fail(error)
        if self._confirmed is not self.durable:
            self._confirmed.fail(error)

    def show_confirmed(self) -> None:
        """Show newly confirmed messages to readers, and wake the callbacks that wait for them."""
        end = self.durable.value
        if self._copied_only:
            end = end if self._flushed_only else self._log.end
            end = end if self.alone else min(end, self._copied)
            if end > self._confirmed.value:
                self._confirmed.advance(end)
            end = self._confirmed.value
        # Units are hidden in log order, and a queue's end only grows. So one pass over the
        # confirmed ones finds the last end of each queue, and its waiting readers wake once, not
        # once a message.
        hidden = self.hidden
        shown: dict[ConsumeQueue, int] = {}
        while hidden and hidden[0][0] <= end:
            _, queue, queue_end = hidden.popleft()
            shown[queue] = queue_end
        for queue, queue_end in shown.items():
            queue.end.advance(queue_end)
