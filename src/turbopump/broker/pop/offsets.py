"""Next offset to pop of each group in each queue, and the queues that are being popped now.

The next pop starts at the end of the previous one. The committed offset, where a restart begins,
advances only when the checkpoint is on the disk. So a popped message either has a checkpoint, or is
delivered again. RocketMQ: ``PopBufferMergeService.commitOffsets``, ``QueueLockManager``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.saved_table import SavedTable
from turbopump.disk.json_table import JsonTable
from turbopump.message.handles import QueueKey, message_key, queue_key, queue_kind_of
from turbopump.message.java import Int64
from turbopump.store.watermark import Watermark


class GroupQueue(NamedTuple):
    """A queue of a topic as one group sees it."""

    group: str
    topic: str
    queue_id: int


class PopOffsets:
    """Next offset to pop in each queue, and the locks. An offset is committed when the log is on
    the disk up to the end of its checkpoint; then ``settled`` is called."""

    def __init__(self, offsets: ConsumerOffsets, flushed: Watermark) -> None:
        self._offsets = offsets
        self._flushed = flushed
        self._ahead: dict[GroupQueue, deque[tuple[int, int]]] = {}
        """(end of the log, offset) of offsets that are not committed yet."""
        self._locked: set[GroupQueue] = set()
        self.settled: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> bool:
        """True if an offset waits for the disk."""
        return bool(self._ahead)

    def find(self, queue: GroupQueue) -> int | None:
        """Return the next offset to pop, or None if the group has no offset in the queue."""
        waiting = self._ahead.get(queue)
        committed = self._offsets.find(*queue)
        if not waiting:
            return committed
        return waiting[-1][1] if committed is None else max(waiting[-1][1], committed)

    def is_reset(self, queue: GroupQueue) -> bool:
        """Return True if an operator has reset the group's offset."""
        return self._offsets.is_reset(*queue)

    def take_reset(self, queue: GroupQueue) -> int | None:
        """Return the offset set by an operator, once; None if there is none."""
        offset = self._offsets.take_reset(*queue)
        if offset is not None:
            self._ahead.pop(queue, None)
        return offset

    def begin(self, queue: GroupQueue, offset: int) -> None:
        """Set the next offset to pop, which may be lower than the present one."""
        self._ahead.pop(queue, None)
        self._offsets.commit(*queue, offset)

    def commit(self, queue: GroupQueue, offset: int, log_end: int) -> None:
        """Set the next offset to pop. The messages before it have a checkpoint, which ends at
        ``log_end`` of the log, or are not for this group. The committed offset follows in order,
        once the log is flushed to ``log_end``."""
        waiting = self._ahead.get(queue)
        if waiting:
            waiting.append((max(log_end, waiting[-1][0]), offset))
        elif self._flushed.value >= log_end:
            self._offsets.commit(*queue, offset)
        else:
            waiting = self._ahead[queue] = deque([(log_end, offset)])
            self._flushed.when(log_end, lambda: self._reached(queue, waiting))

    def _reached(self, queue: GroupQueue, waiting: deque[tuple[int, int]]) -> None:
        if self._ahead.get(queue) is not waiting or self._flushed.error is not None:
            return
        offset = None
        while waiting and waiting[0][0] <= self._flushed.value:
            offset = waiting.popleft()[1]
        if offset is not None:
            self._offsets.commit(*queue, offset)
        if waiting:
            self._flushed.when(waiting[0][0], lambda: self._reached(queue, waiting))
        else:
            del self._ahead[queue]
        self.settled()

    def lock(self, queue: GroupQueue) -> bool:
        """Lock a queue. Return False if the queue is locked already."""
        if queue in self._locked:
            return False
        self._locked.add(queue)
        return True

    def unlock(self, queue: GroupQueue) -> None:
        self._locked.discard(queue)

    def is_locked(self, queue: GroupQueue) -> bool:
        return queue in self._locked


# --- How many messages of a queue are popped and neither acknowledged nor put back.
#
# Only what was popped since the start is counted, and nothing if there is no limit; nor what is
# popped in order, where no more is taken of a queue while some is out. RocketMQ:
# ``PopInflightMessageCounter``, which keeps a number alone, and counts an acknowledgement that
# comes twice twice.


class InFlight:
    """Popped messages without an acknowledgement. A group does not pop a queue that has more than
    ``limit`` of them. None: no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._out: dict[GroupQueue, set[int]] = {}

    def count(self, queue: GroupQueue) -> int:
        """Count the popped messages that are not acknowledged."""
        return len(self._out.get(queue, ()))

    def is_full(self, queue: GroupQueue) -> bool:
        """Return True if more messages are unacknowledged than allowed."""
        return self._limit is not None and self.count(queue) > self._limit

    def took(self, queue: GroupQueue, offsets: Iterable[int]) -> None:
        """Record these queue offsets as popped."""
        if self._limit is not None:
            self._out.setdefault(queue, set()).update(offsets)

    def ended(self, queue: GroupQueue, offsets: Iterable[int]) -> bool:
        """Record these queue offsets as acknowledged or put back. Return True if the queue may be
        popped again now."""
        out = self._out.get(queue)
        if out is None:
            return False
        was_full = self.is_full(queue)
        out.difference_update(offsets)
        if not out:
            del self._out[queue]
        return was_full and not self.is_full(queue)

    def forget(self, queue: GroupQueue) -> None:
        """Forget the popped messages of a queue, because the group's offset was reset."""
        self._out.pop(queue, None)


# --- Which messages of a queue an ordered pop has taken: ``config/consumerOrderInfo.json``.
#
# A queue is blocked for its group while one of them is neither acknowledged nor visible again. The
# group's offset is that of the first that is not acknowledged; so what comes back comes again from
# there, in order, and is counted. No checkpoints are written. Source: apache/rocketmq
# ``ConsumerOrderInfoManager``.


class TakenInOrder(msgspec.Struct, kw_only=True):
    """Messages of a queue's last ordered pop. ``o`` in the file: the first offset and the distances
    of the others. ``following``, a field of ours: the queue's next offset, if damaged messages were
    skipped."""

    pop_time: Int64 = msgspec.field(default=0, name="popTime")
    invisible: Int64 | None = msgspec.field(default=None, name="i")
    distances: list[int] | None = msgspec.field(default=None, name="o")
    visible_at: dict[int, int] | None = msgspec.field(default=None, name="ot")
    counts: dict[int, int] | None = msgspec.field(default=None, name="oc")
    last_consumed: Int64 = msgspec.field(default=0, name="l")
    done: Int64 = msgspec.field(default=0, name="cm")
    attempt_id: str | None = msgspec.field(default=None, name="a")
    following: int | None = msgspec.field(default=None, name="next")

    def offsets(self) -> list[int]:
        first, *rest = self.distances or [0]
        return [first, *(first + distance for distance in rest)] if self.distances else []

    def left(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for bit, offset in enumerate(self.offsets()) if not self.done >> bit & 1]

    def blocked_until(self, now_ms: int) -> int | None:
        """Return the time when the last of them becomes visible again, or None if all are
        visible."""
        base = self.pop_time + (self.invisible or 0)
        times = [(self.visible_at or {}).get(offset, base) for offset in self.left()]
        return max((time for time in times if time > now_ms), default=None)


class OrderInfoTable(msgspec.Struct, kw_only=True):
    """Contents of the file: the last ordered pop by ``topic@group`` and queue id."""

    table: dict[str, dict[int, TakenInOrder]] = msgspec.field(default_factory=dict)


class OrderInfo(SavedTable[OrderInfoTable]):
    """Messages of the last ordered pops, by group and queue."""

    def __init__(self, file: JsonTable) -> None:
        super().__init__(file, OrderInfoTable)
        self._table: dict[str, dict[int, TakenInOrder]] = {}

    def load(self) -> None:
        """Read the file. Raises OSError."""
        self._table = self._load().table

    def copy(self, table: OrderInfoTable) -> None:
        """Replace the table by a master's."""
        self._table = table.table
        self._changed()

    def blocked_until(
        self, queue: GroupQueue, now_ms: int, attempt_id: str | None = None
    ) -> int | None:
        """Return the time until which ordered pops of the queue are blocked, or None.

        A pop with the attempt id of the last pop is never blocked, because its client did not
        receive the answer.
        """
        taken = self._find(queue)
        if taken is None or (attempt_id is not None and taken.attempt_id == attempt_id):
            return None
        return taken.blocked_until(now_ms)

    def took(
        self, queue: GroupQueue, offsets: Sequence[int], taken: TakenInOrder, following: int
    ) -> list[tuple[QueueKey, int]]:
        """Record the messages ``taken`` by an ordered pop, and the queue's next offset. Return
        entries for ``orderCountInfo``: the number of deliveries of each message."""
        last = self._find(queue)
        counts: dict[int, int] = {}
        if last is not None:
            known = last.counts or {}
            if last.attempt_id is not None and last.attempt_id == taken.attempt_id:
                counts = dict(known)
            else:
                again = frozenset(last.offsets()).intersection(offsets)
                counts = {offset: known.get(offset, 0) + 1 for offset in sorted(again)}
        first, end = offsets[0], offsets[-1] + 1
        taken.distances = [first, *(offset - first for offset in offsets[1:])]
        taken.counts = counts
        taken.following = following if following > end else None
        self._table.setdefault(f"{queue.topic}@{queue.group}", {})[queue.queue_id] = taken
        self._changed()
        kind = queue_kind_of(queue.topic)
        entries = [
            (message_key(kind, queue.queue_id, offset), count) for offset, count in counts.items()
        ]
        least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
        return [*entries, (queue_key(kind, queue.queue_id), least)]

    def acknowledge(
        self, queue: GroupQueue, offset: int, pop_time_ms: int, stands: int | None
    ) -> int | None:
        """Acknowledge a message and return the group's new offset. Return None if the offset stays
        at ``stands``, because the message was popped again. Raises LookupError if the last pop did
        not include the message.

        A kill may lose the record of the pop. RocketMQ: then the group continues behind any
        acknowledged message, and nobody gets earlier unacknowledged ones. Here the group continues
        only behind the next message; the others are delivered again.
        """
        taken = self._find(queue)
        if taken is None:
            return offset + 1 if offset == stands else None
        if taken.pop_time != pop_time_ms:
            return None
        offsets = taken.offsets()
        if offset not in offsets:
            raise LookupError(f"offset {offset} was not taken by the last pop of its queue")
        taken.done |= 1 << offsets.index(offset)
        self._changed()
        left = taken.left()
        return left[0] if left else taken.following or offsets[-1] + 1

    def change(self, queue: GroupQueue, offset: int, pop_time_ms: int, visible_at_ms: int) -> None:
        """Change the time at which a popped message becomes visible again."""
        taken = self._find(queue)
        if taken is not None and taken.pop_time == pop_time_ms:
            taken.visible_at = {**(taken.visible_at or {}), offset: visible_at_ms}
            self._changed()

    def forget(self, queue: GroupQueue) -> None:
        """Forget the last pop of a queue, because the group's offset was reset."""
        queues = self._table.get(f"{queue.topic}@{queue.group}", {})
        if queues.pop(queue.queue_id, None) is not None:
            self._changed()

    def save_now(self) -> None:
        if self._table or self._dirty:
            super().save_now()

    def _changed(self) -> None:
        self._dirty = True
        self.revision += 1

    def _content(self) -> OrderInfoTable:
        return OrderInfoTable(table=self._table)

    def _find(self, queue: GroupQueue) -> TakenInOrder | None:
        return self._table.get(f"{queue.topic}@{queue.group}", {}).get(queue.queue_id)
