"""How far the log is confirmed: the one module that says what readers may see.

::

    durable     on this disk: what lies before it survives a power cut
    confirmed   readers see it, and its senders have their answer:
                under SYNC_FLUSH what is durable, else all that is written

``durable`` moves with every sync; a sync that fails ends it, and with it all writing. A message may
be forgotten (a delay that was delivered, a message that was acknowledged) only when its copy is
``durable``, whatever the flush. What a client may learn waits for ``confirmed``. Replication will
move both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from turbopump.store.log.commit_log import CommitLog
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.watermark import Waiter, Watermark


class Confirmed:
    """Offsets of ``log``. ``flushed_only``: nothing is confirmed before it is durable."""

    def __init__(self, log: CommitLog, *, flushed_only: bool) -> None:
        self._log = log
        self.durable = Watermark()
        self.hidden: deque[tuple[int, ConsumeQueue, int]] | None = deque() if flushed_only else None
        """Units that readers do not see yet, in the order of the log: the end of the entry, its
        queue, and the queue's end with it. None: units are seen at once."""

    @property
    def value(self) -> int:
        """Readers may see what lies before this offset."""
        return self._log.end if self.hidden is None else self.durable.value

    @property
    def error(self) -> Exception | None:
        """Why nothing more will be confirmed; None while it goes on."""
        return self.durable.error

    def when(self, offset: int, wake: Callable[[], None]) -> Waiter:
        """Call ``wake`` once an offset that is not confirmed yet is, or ``error`` is set."""
        return self.durable.when(offset, wake)

    def flushed(self, end: int) -> None:
        """The log is on the disk up to ``end``: show what that confirms, and wake who waits."""
        self.durable.advance(end)
        hidden, end = self.hidden, self.durable.value
        while hidden and hidden[0][0] <= end:
            _, queue, queue_end = hidden.popleft()
            queue.end.advance(queue_end)
