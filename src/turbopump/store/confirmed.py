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

A replica (a broker in controller mode) is never alone. Its sync state set confirms: at the master
that set says what is copied, at a slave the master does. Every member of the set has what is
confirmed, and the next master comes from the set. No reader therefore sees a message that is lost
when the master changes. The offset survives restarts in the checkpoint. After one, readers see no
more than before, until the set or the master has confirmed more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from turbopump.store.log.commit_log import CommitLog
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, ConsumeQueue
from turbopump.store.watermark import Waiter, Watermark

_EVERYTHING: Final = 1 << 62


class Confirmed:
    """Confirmed, durable and copied offsets of a log.

    - ``flushed_only``: an offset is confirmed only after it is durable.
    - ``copied_only``: an offset is confirmed only after enough slaves have it, unless the
      broker is alone.
    - ``is_replica``: the sync state set confirms. This implies ``copied_only``.
    - ``shows_all``: readers of a replica see messages before they are confirmed.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        flushed_only: bool,
        copied_only: bool = False,
        is_replica: bool = False,
        shows_all: bool = False,
    ) -> None:
        copied_only = copied_only or is_replica
        self._log = log
        self._flushed_only = flushed_only
        self.is_replica = is_replica
        self._copied_only = copied_only
        self.durable = Watermark()
        self._copied = 0
        self._confirmed = Watermark() if copied_only else self.durable
        self._acknowledged = self._confirmed
        self._enough_copied = 0
        """Offset that enough replicas have to answer sends, if all are not needed for that."""
        self.alone = copied_only and not is_replica
        """True while too few slaves are in sync. Messages are then confirmed without them."""
        self.sole = False
        """True while the sync state set of a replica is the replica itself. Its own log then
        confirms."""
        self.hidden: deque[tuple[int, ConsumeQueue, int]] | None = (
            deque() if (flushed_only or copied_only) and not shows_all else None
        )
        """Queue units that readers do not see yet, in log order. None if readers see each unit at
        once.

        Each item is the end of the entry in the log, the queue, and the end of the queue including
        the unit.
        """

    @property
    def value(self) -> int:
        """Confirmed offset of the log."""
        waits = self._flushed_only or self._copied_only
        return self._confirmed.value if waits else self._log.end

    @property
    def visible(self) -> int:
        """Offset before which readers see the log. It is the confirmed one, unless readers see
        everything."""
        return self._log.end if self.hidden is None else self._confirmed.value

    @property
    def acknowledged(self) -> int:
        """Offset before which sends are answered.

        It is the confirmed one, except at a replica that asks for fewer acknowledgements.
        """
        waits = self._flushed_only or self._copied_only
        return self._acknowledged.value if waits else self._log.end

    @property
    def copied(self) -> int:
        """Log offset up to which enough slaves have the log to answer sends. If no slaves are
        required, it lies beyond every offset."""
        if not self._copied_only or self.sole:
            return _EVERYTHING
        return max(self._copied, self._acknowledged.value if self.is_replica else 0)

    @property
    def error(self) -> Exception | None:
        """Error that has ended all confirmation, or None while confirmation continues."""
        return self.durable.error

    def when(self, offset: int, wake: Callable[[], None]) -> Waiter:
        """Call ``wake`` when ``offset`` is confirmed, or when confirmation has failed for good.

        ``wake`` must check ``error``. ``offset`` must not be confirmed yet.
        """
        return self._confirmed.when(offset, wake)

    def when_acknowledged(self, offset: int, wake: Callable[[], None]) -> Waiter:
        """Call ``wake`` when sends before ``offset`` may be answered. Otherwise as ``when``."""
        return self._acknowledged.when(offset, wake)

    def acknowledge_early(self) -> None:
        """Answer sends by ``acknowledged`` of ``note_replicas``. Call it before any wait."""
        self._acknowledged = Watermark(self._confirmed.value)

    def begin_at(self, offset: int, queues: Iterable[ConsumeQueue]) -> None:
        """Set what was confirmed before the start of a replica. Show readers only these messages.

        Recovery is done, and no queue has shown a unit yet. Costs one read for each queue, and one
        for each message that is not confirmed.
        """
        self._confirmed.advance(offset)
        self._copied = offset
        hidden = list[tuple[int, ConsumeQueue, int]]()
        for queue in queues:
            index = queue.max_index
            while self.hidden is not None and index > queue.min_index:
                unit = queue.unit(index - 1)
                if unit is None:
                    break
                end = unit[0] if unit[1] == NO_MESSAGE_SIZE else unit[0] + unit[1]
                if end <= offset:
                    break
                hidden.append((end, queue, index))
                index -= 1
            queue.end.advance(index)
        if self.hidden is not None:
            self.hidden.extend(sorted(hidden, key=_end_and_index))

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

    def note_replicas(self, end: int, *, sole: bool, acknowledged: int | None = None) -> None:
        """Set the log offset up to which every replica of the sync state set has the log.

        - ``sole``: True if the set is this replica alone.
        - ``acknowledged``: the offset that enough other members have to answer sends. None if all
          members are needed.

        The call shows readers the newly confirmed messages.
        """
        self._copied = max(self._copied, end)
        self.sole = sole
        if acknowledged is not None:
            self._enough_copied = acknowledged
        self.show_confirmed()

    def fail(self, error: Exception) -> None:
        """Stop all confirmation for good: set ``error``, and wake all waiters."""
        self.durable.fail(error)
        for one in (self._confirmed, self._acknowledged):
            if one.error is None:
                one.fail(error)

    def show_confirmed(self) -> None:
        """Show newly confirmed messages to readers, and wake the callbacks that wait for them."""
        end = self.durable.value
        if self._copied_only:
            end = self._own_end
            if not (self.alone or self.sole):
                end = min(end, self._copied)
            if end > self._confirmed.value:
                self._confirmed.advance(end)
            end = self._confirmed.value
            if self._acknowledged is not self._confirmed:
                self._acknowledged.advance(min(self._own_end, self._enough_copied))
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

    @property
    def _own_end(self) -> int:
        """End of this broker's log as far as it counts: the durable one under SYNC_FLUSH."""
        return self.durable.value if self._flushed_only else self._log.end


def _end_and_index(hidden: tuple[int, ConsumeQueue, int]) -> tuple[int, int]:
    return hidden[0], hidden[2]
