"""Offsets of pops: for each group and queue, the next offset to pop.

The next pop starts at the end of the previous one. The committed offset, where a restart begins,
advances only when the checkpoint is on the disk. So a popped message either has a checkpoint, or is
delivered again. RocketMQ: ``PopBufferMergeService.commitOffsets``, ``QueueLockManager``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.group_queue import GroupQueue
from turbopump.store.watermark import Watermark


class PopOffsets:
    """Table of the next offsets to pop, by queue. A queue is locked during a pop.

    A new offset is committed only when the log is on the disk up to the end of its checkpoint. A
    commit that had to wait for the disk calls ``settled``.
    """

    def __init__(self, offsets: ConsumerOffsets, flushed: Watermark) -> None:
        self._offsets = offsets
        self._flushed = flushed
        self._ahead: dict[GroupQueue, deque[tuple[int, int]]] = {}
        """Offsets that are not committed yet, each after the end of its checkpoint in the log."""
        self._locked: set[GroupQueue] = set()
        self.settled: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> bool:
        """True while an offset cannot be committed, because its checkpoint is not on the disk."""
        return bool(self._ahead)

    @property
    def waiting_count(self) -> int:
        """Number of offsets that cannot be committed yet."""
        return sum(map(len, self._ahead.values()))

    def find(self, queue: GroupQueue) -> int | None:
        """Return the offset of the next message to pop. Return None if the group has no offset."""
        waiting = self._ahead.get(queue)
        committed = self._offsets.find(*queue)
        if not waiting:
            return committed
        return waiting[-1][1] if committed is None else max(waiting[-1][1], committed)

    def is_reset(self, queue: GroupQueue) -> bool:
        """Return True if an operator has reset the group's offset, and no pop has begun there."""
        return self._offsets.is_reset(*queue)

    def take_reset(self, queue: GroupQueue) -> int | None:
        """Return the offset of an operator's reset, or None without a reset.

        The call removes the reset, so it returns each reset once.
        """
        offset = self._offsets.take_reset(*queue)
        if offset is not None:
            self._ahead.pop(queue, None)
        return offset

    def set_next(self, queue: GroupQueue, offset: int) -> None:
        """Set the next offset to pop and commit it at once. The offset may be lower than before."""
        self._ahead.pop(queue, None)
        self._offsets.commit(*queue, offset)

    def commit(self, queue: GroupQueue, offset: int, log_end: int) -> None:
        """Set the next offset to pop. Commit it as soon as the log is on the disk up to
        ``log_end``.

        The checkpoint of the messages before ``offset`` ends at ``log_end``. Messages before
        ``offset`` without a checkpoint are not for this group. The offsets of a queue are committed
        in the order of the calls.
        """
        waiting = self._ahead.get(queue)
        if waiting:
            waiting.append((max(log_end, waiting[-1][0]), offset))
        elif self._flushed.value >= log_end:
            self._offsets.commit(*queue, offset)
        else:
            waiting = self._ahead[queue] = deque([(log_end, offset)])
            self._flushed.when(log_end, partial(self._commit_durable, queue, waiting))

    def _commit_durable(self, queue: GroupQueue, waiting: deque[tuple[int, int]]) -> None:
        """Commit each waiting offset whose checkpoint is on the disk now."""
        # ``waiting`` is another list if the offset was set (``set_next``) or reset meanwhile. The
        # old offsets must then not be committed.
        if self._ahead.get(queue) is not waiting or self._flushed.error is not None:
            return
        offset = None
        while waiting and waiting[0][0] <= self._flushed.value:
            offset = waiting.popleft()[1]
        if offset is not None:
            self._offsets.commit(*queue, offset)
        if waiting:
            self._flushed.when(waiting[0][0], partial(self._commit_durable, queue, waiting))
        else:
            del self._ahead[queue]
        self.settled()

    def lock(self, queue: GroupQueue) -> bool:
        """Lock a queue for one pop. Return False if another pop has locked the queue."""
        if queue in self._locked:
            return False
        self._locked.add(queue)
        return True

    def unlock(self, queue: GroupQueue) -> None:
        self._locked.discard(queue)

    def is_locked(self, queue: GroupQueue) -> bool:
        return queue in self._locked
