"""Where the pops of each group are in each queue, and which queues are being popped just now.

A pop goes on behind the one before at once; the group's offset, which a restart begins at, follows
when the checkpoint is on the disk: what was popped is then either before the offset and in the log
of checkpoints, or not before it. RocketMQ: ``PopBufferMergeService.commitOffsets``,
``QueueLockManager``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.store.watermark import Watermark


class GroupQueue(NamedTuple):
    """A queue of a topic as one group sees it."""

    group: str
    topic: str
    queue_id: int


class FlushedOffsets:
    """Offsets that become the group's when the log is on the disk up to a place. ``settled`` is
    told after each."""

    def __init__(self, offsets: ConsumerOffsets, flushed: Watermark) -> None:
        self._offsets = offsets
        self._flushed = flushed
        self._ahead: dict[GroupQueue, deque[tuple[int, int]]] = {}
        self.settled: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._ahead)

    def ahead(self, place: GroupQueue) -> int | None:
        """The newest offset of a queue that is not the group's yet."""
        waiting = self._ahead.get(place)
        return waiting[-1][1] if waiting else None

    def commit(self, place: GroupQueue, offset: int, log_end: int) -> None:
        """Commit ``offset`` as soon as the log is on the disk up to ``log_end``, and those before
        it are committed."""
        waiting = self._ahead.get(place)
        if waiting:
            log_end = max(log_end, waiting[-1][0])
        elif self._flushed.value >= log_end:
            self._offsets.commit(*place, offset)
            return
        else:
            waiting = self._ahead[place] = deque()
        waiting.append((log_end, offset))
        if len(waiting) == 1:
            self._flushed.when(log_end, lambda: self._reached(place, waiting))

    def forget(self, place: GroupQueue) -> None:
        """Commit nothing more of what was to be committed."""
        self._ahead.pop(place, None)

    def _reached(self, place: GroupQueue, waiting: deque[tuple[int, int]]) -> None:
        if self._ahead.get(place) is not waiting or self._flushed.error is not None:
            return
        offset = None
        while waiting and waiting[0][0] <= self._flushed.value:
            offset = waiting.popleft()[1]
        if offset is not None:
            self._offsets.commit(*place, offset)
        if waiting:
            self._flushed.when(waiting[0][0], lambda: self._reached(place, waiting))
        else:
            del self._ahead[place]
        self.settled()


class PopPlaces:
    """Next offsets and locks."""

    def __init__(self, offsets: ConsumerOffsets, flushed: Watermark) -> None:
        self._offsets = offsets
        self.flushed_offsets = FlushedOffsets(offsets, flushed)
        self._locked: set[GroupQueue] = set()

    def find(self, place: GroupQueue) -> int | None:
        """The next offset to pop; None: the group has never been here."""
        ahead = self.flushed_offsets.ahead(place)
        committed = self._offsets.find(*place)
        if ahead is None or committed is None:
            return committed if ahead is None else ahead
        return max(ahead, committed)

    def take_reset(self, place: GroupQueue) -> int | None:
        """Where an operator wants the group to go on, once; None: nowhere else."""
        offset = self._offsets.take_reset(*place)
        if offset is not None:
            self.flushed_offsets.forget(place)
        return offset

    def begin(self, place: GroupQueue, offset: int) -> None:
        """Go on at ``offset``, which may be before the place until now."""
        self.flushed_offsets.forget(place)
        self._offsets.commit(*place, offset)

    def popped(self, place: GroupQueue, offset: int, log_end: int) -> None:
        """Go on at ``offset``: what is before it has a checkpoint, which ends at ``log_end`` of the
        log, or is not for this group."""
        self.flushed_offsets.commit(place, offset, log_end)

    def lock(self, place: GroupQueue) -> bool:
        """False if somebody has it."""
        if place in self._locked:
            return False
        self._locked.add(place)
        return True

    def unlock(self, place: GroupQueue) -> None:
        self._locked.discard(place)

    def is_locked(self, place: GroupQueue) -> bool:
        return place in self._locked
