"""Unacknowledged messages of the checkpoints in one revive queue.

The input is the records of the revive queue in their order. The module uses no I/O, event loop or
clock.

A checkpoint opens an entry, and acknowledgements remove messages from it. The entry is closed after
its time, when no earlier acknowledgement can be missing. The messages left in it are then delivered
again. An acknowledgement that comes before its checkpoint waits for it.

``position`` never passes a record that is still needed, so that a start from there reaches the same
state. RocketMQ: ``PopReviveService.consumeReviveMessage``, ``mergeAndRevive``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from turbopump.broker.pop import records


@dataclass(slots=True, eq=False)
class OpenCheckpoint:
    """State of one pop: its messages, and the acknowledgements read so far.

    - ``visible_at_ms``: the time when unacknowledged messages become visible again, in ms since
      1970.
    - ``checkpoint``: the record, or None while only acknowledgements were read.
    - ``left``: the queue offsets of the messages that are not acknowledged.
    - ``acknowledged``: the queue offsets of the messages that are acknowledged.
    - ``timers_mark``, ``queue_mark``: the ends of two queues that must be read before the
      checkpoint can be settled (see ``Reviving``).
    """

    key: records.PopKey
    visible_at_ms: int
    first: int
    """Offset in the revive queue of the first record of this pop."""
    checkpoint: records.Checkpoint | None = None
    left: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    timers_mark: int | None = None
    queue_mark: int | None = None


class OpenCheckpoints:
    """All checkpoints of one revive queue whose messages are not all acknowledged.

    - ``read``: the offset in the revive queue after the last record that was read.
    """

    def __init__(self, broker_name: str, read: int) -> None:
        self._broker_name = broker_name
        self._open: dict[records.PopKey, OpenCheckpoint] = {}
        self.read = read

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: records.PopKey) -> bool:
        return key in self._open

    def entries(self, keys: Iterable[records.PopKey]) -> list[OpenCheckpoint]:
        """Return the open checkpoints with these keys. The earliest comes first."""
        return sorted((self._open[key] for key in keys if key in self._open), key=_order)

    @property
    def position(self) -> int:
        """Lowest offset of the revive queue at which a record is still needed."""
        return min((entry.first for entry in self._open.values()), default=self.read)

    @property
    def next_time_ms(self) -> int | None:
        """Time when the next messages become visible again, in ms since 1970. None without
        messages."""
        return min((entry.visible_at_ms for entry in self._open.values()), default=None)

    def add_checkpoint(self, record: records.Checkpoint, revive_offset: int) -> None:
        """Add a checkpoint that was read from the revive queue.

        The timers may deliver a checkpoint twice after a crash. The second one changes nothing.
        """
        key = record.key(self._broker_name)
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = OpenCheckpoint(key, record.visible_at_ms, revive_offset)
        elif entry.checkpoint is not None and len(entry.checkpoint.offsets()) >= len(
            record.offsets()
        ):
            return
        entry.checkpoint = record
        entry.visible_at_ms = record.visible_at_ms
        entry.left = [
            offset for offset in record.unacknowledged() if offset not in entry.acknowledged
        ]
        if not entry.left:
            del self._open[key]

    def add_acknowledgement(
        self, record: records.Acknowledgement, visible_at_ms: int, revive_offset: int
    ) -> None:
        """Add an acknowledgement that was read from the revive queue.

        - ``visible_at_ms``: the time when the messages would become visible again without it.
        """
        key = record.key(self._broker_name)
        offsets = {record.offset} if record.offsets is None else set(record.offsets)
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = OpenCheckpoint(key, visible_at_ms, revive_offset)
        entry.acknowledged |= offsets
        if entry.checkpoint is not None:
            entry.left = [offset for offset in entry.left if offset not in offsets]
            if not entry.left:
                del self._open[key]

    def ripe_entries(self, now_ms: int) -> list[OpenCheckpoint]:
        """Return the checkpoints that are due: their messages become visible again. The earliest
        comes first."""
        return sorted(
            (entry for entry in self._open.values() if entry.visible_at_ms <= now_ms), key=_order
        )

    def close_entry(self, entry: OpenCheckpoint) -> None:
        """Remove a checkpoint, after the copies of its unacknowledged messages were stored.

        Also remove acknowledgements this way if their checkpoint never came.
        """
        self._open.pop(entry.key, None)


def _order(entry: OpenCheckpoint) -> tuple[int, int]:
    return entry.visible_at_ms, entry.first
