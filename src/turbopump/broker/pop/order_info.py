"""Record of ordered pops: for each queue, the messages of its last ordered pop.

The record is saved in ``config/consumerOrderInfo.json``.

A queue is blocked for its group until each of these messages is acknowledged or visible again. The
group's offset is that of the first unacknowledged message. So messages that become visible again
are delivered again from there, in order, and with a count. Ordered pops write no checkpoints.
Source: apache/rocketmq ``ConsumerOrderInfoManager``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from turbopump.broker.pop.group_queue import GroupQueue
from turbopump.broker.saved_table import SavedTable
from turbopump.disk.json_table import JsonTable
from turbopump.message.handles import QueueKey, message_key, queue_key, queue_kind_of
from turbopump.message.java import Int64


class OrderedPop(msgspec.Struct, kw_only=True):
    """Record of the last ordered pop of a queue, with its messages.

    - ``distances`` (``o`` in the file): the first queue offset, then the distance of each further
      message from it.
    - ``invisible``: the time in ms for which the messages are invisible.
    - ``visible_at``: times of single messages that differ from this, by queue offset.
    - ``counts``: the number of earlier deliveries, by queue offset.
    - ``done``: a bit for each acknowledged message.
    - ``following`` (``next`` in the file, not known to RocketMQ): the next offset of the queue, if
      damaged messages were skipped.
    """

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
        """Return the queue offsets of the popped messages."""
        if not self.distances:
            return []
        first, *rest = self.distances
        return [first, *(first + distance for distance in rest)]

    def unacknowledged(self) -> list[int]:
        """Return the queue offsets of messages that were popped but not acknowledged."""
        return [offset for bit, offset in enumerate(self.offsets()) if not self.done >> bit & 1]

    def blocked_until(self, now_ms: int) -> int | None:
        """Return the time when the last unacknowledged message becomes visible again.

        The time is in ms since 1970. Return None if all unacknowledged messages are visible.
        """
        base = self.pop_time + (self.invisible or 0)
        times = [(self.visible_at or {}).get(offset, base) for offset in self.unacknowledged()]
        return max((time for time in times if time > now_ms), default=None)


class OrderInfoTable(msgspec.Struct, kw_only=True):
    """Contents of ``consumerOrderInfo.json``: for each queue, its last ordered pop.

    The first key is ``topic@group``, the second the queue id.
    """

    table: dict[str, dict[int, OrderedPop]] = msgspec.field(default_factory=dict)


class OrderInfo(SavedTable[OrderInfoTable]):
    """Table of the last ordered pops, by group and queue."""

    def __init__(self, file: JsonTable) -> None:
        super().__init__(file, OrderInfoTable)
        self._table: dict[str, dict[int, OrderedPop]] = {}

    def load(self) -> None:
        """Read ``consumerOrderInfo.json``. Raises OSError."""
        self._table = self._load().table

    def copy(self, table: OrderInfoTable, *, whole: bool) -> None:
        """Replace this table by the table of the master. The master always sends the ``whole``
        table."""
        assert whole
        self._table = table.table
        self._changed()

    def blocked_until(
        self, queue: GroupQueue, now_ms: int, attempt_id: str | None = None
    ) -> int | None:
        """Return the time at which ordered pops of a queue can continue. Return None if the queue
        is not blocked.

        The time is in ms since 1970. A pop with the attempt id of the last pop is never blocked,
        because its client did not receive the answer to that pop.
        """
        taken = self._find(queue)
        if taken is None or (attempt_id is not None and taken.attempt_id == attempt_id):
            return None
        return taken.blocked_until(now_ms)

    def record_pop(
        self, queue: GroupQueue, offsets: Sequence[int], taken: OrderedPop, following: int
    ) -> list[tuple[QueueKey, int]]:
        """Record the messages of an ordered pop, and count their deliveries.

        Return entries for the header field ``orderCountInfo``: the number of earlier deliveries of
        each message.

        - ``offsets``: the queue offsets of the messages.
        - ``taken``: the record of the pop. Its other fields are filled here.
        - ``following``: the offset at which the next pop of the queue continues.
        """
        last = self._find(queue)
        counts: dict[int, int] = {}
        if last is not None:
            known = last.counts or {}
            if last.attempt_id is not None and last.attempt_id == taken.attempt_id:
                counts = dict(known)
            else:
                again = frozenset(last.offsets()).intersection(offsets)
                counts = {offset: known.get(offset, 0) + 1 for offset in sorted(again)}
        first = offsets[0]
        end = offsets[-1] + 1
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
        """Acknowledge a message of an ordered pop. Return the group's new offset.

        Return None if the group's offset does not change, for example because the message was
        popped again. Raises LookupError if the last pop did not include the message.

        - ``stands``: the present offset of the group.

        A kill may lose the record of the pop. RocketMQ then lets the group continue behind any
        acknowledged message, so no consumer gets earlier unacknowledged ones. Here the group
        continues only if ``offset`` is its present offset. The others are delivered again.
        """
        taken = self._find(queue)
        if taken is None:
            return offset + 1 if offset == stands else None
        if taken.pop_time != pop_time_ms:
            return None
        offsets = taken.offsets()
        if offset not in offsets:
            raise LookupError(f"the last pop of the queue did not include offset {offset}")
        taken.done |= 1 << offsets.index(offset)
        self._changed()
        left = taken.unacknowledged()
        if left:
            return left[0]
        return taken.following or offsets[-1] + 1

    def change_visibility(
        self, queue: GroupQueue, offset: int, pop_time_ms: int, visible_at_ms: int
    ) -> None:
        """Change the time at which a message of an ordered pop becomes visible again."""
        taken = self._find(queue)
        if taken is not None and taken.pop_time == pop_time_ms:
            taken.visible_at = {**(taken.visible_at or {}), offset: visible_at_ms}
            self._changed()

    def forget_queue(self, queue: GroupQueue) -> None:
        """Forget the last ordered pop of a queue after a reset of the group's offset."""
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

    def _find(self, queue: GroupQueue) -> OrderedPop | None:
        return self._table.get(f"{queue.topic}@{queue.group}", {}).get(queue.queue_id)
