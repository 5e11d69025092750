"""Which messages are popped and not acknowledged: the one state machine of POP, fed with the
records of one revive queue in their order.

A checkpoint opens an entry, acknowledgements take messages out of it. When its time has come, and
nothing that was acknowledged before can be missing any more, what is left in it goes back to
consumers and it is closed. An acknowledgement that comes before its checkpoint waits for it. One
rule: ``place`` never passes a record that is still needed, so that whoever starts there again knows
the same. Values in, values out; it must not know the log, the clock or the timers. RocketMQ:
``PopReviveService.consumeReviveMessage``, ``mergeAndRevive``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turbopump.broker.pop.records import Acknowledgement, Checkpoint, PopKey


@dataclass(slots=True, eq=False)
class OpenCheckpoint:
    """``left`` are the queue offsets of messages that are not acknowledged; ``visible_at_ms`` when
    they are to come back. ``checkpoint`` is None while only acknowledgements have come."""

    key: PopKey
    visible_at_ms: int
    first: int
    """The revive offset of the first record about it."""
    checkpoint: Checkpoint | None = None
    left: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    timers_mark: int | None = None
    queue_mark: int | None = None


class OpenCheckpoints:
    """Of one revive queue. ``read`` is the revive offset behind the last record that was taken
    in."""

    def __init__(self, broker_name: str, read: int) -> None:
        self._broker_name = broker_name
        self._open: dict[PopKey, OpenCheckpoint] = {}
        self.read = read

    def __len__(self) -> int:
        return len(self._open)

    @property
    def place(self) -> int:
        """The revive offset before which nothing is needed any more."""
        return min((entry.first for entry in self._open.values()), default=self.read)

    @property
    def next_time_ms(self) -> int | None:
        """When the first messages are to come back."""
        return min((entry.visible_at_ms for entry in self._open.values()), default=None)

    def checkpoint(self, record: Checkpoint, revive_offset: int) -> None:
        """Take in a checkpoint. One that comes a second time, after a crash of the timers, changes
        nothing."""
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

    def acknowledge(self, record: Acknowledgement, visible_at_ms: int, revive_offset: int) -> None:
        """Take in an acknowledgement, for messages that are to come back at ``visible_at_ms``."""
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

    def ripe(self, now_ms: int) -> list[OpenCheckpoint]:
        """Entries whose time has come, the oldest first."""
        return sorted(
            (entry for entry in self._open.values() if entry.visible_at_ms <= now_ms), key=_order
        )

    def close(self, entry: OpenCheckpoint) -> None:
        """Its messages are back, or its acknowledgements belong to nothing."""
        self._open.pop(entry.key, None)


def _order(entry: OpenCheckpoint) -> tuple[int, int]:
    return entry.visible_at_ms, entry.first
