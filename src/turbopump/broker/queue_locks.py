"""Locks of queues. Only one client of a group consumes a locked queue.

A queue of a group has at most one holder at any time, also across a restart. If the holder is
unknown, no client gets the lock until every possible holder must have stopped. A lock expires 60 s
after it was granted or renewed, and a client relies on it for 30 s. All times are seconds of a
monotonic clock. Source: apache/rocketmq ``RebalanceLockManager``, which loses every lock in a
restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from turbopump.broker.saved_table import EncodedMap, SavedTable
from turbopump.clock import Clock
from turbopump.disk.json_table import JsonTable
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.remoting.turns import Turns
from turbopump.store.watermark import Watermark

log = logging.getLogger(__name__)

LIFE_S: Final = 60.0
"""Seconds after which a lock expires if it is not renewed."""
RELIANCE_S: Final = 30.0
"""Seconds for which a client relies on a lock that it cannot renew
(``ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME``)."""
LOCKS_MAX: Final = 100_000
"""Maximum number of locks. Beyond that new locks are refused, so that clients cannot fill the
memory."""
CLEAN_UP_S: Final = 10.0
"""Seconds between two searches for expired locks."""
CLEAN_UP_MAX: Final = 5000

Holders = Mapping[tuple[str, MessageQueue], str]
"""Client id of the holder of each lock, by group and queue."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    expires: float
    change: int
    """Number of the change that made this client the holder of the lock."""


class QueueLocks:
    """Table of the queue locks of all consumer groups.

    - ``now``: the present time, in monotonic seconds.
    - ``holders``: the holders before a restart of the broker. Each of them has 60 s to renew
      its lock.
    - ``closed_until``: the time before which no lock is granted.
    - ``on_change``: a function that gets the group, the queue, and True for a new holder or
      False for a lost one.
    """

    def __init__(
        self,
        now: float,
        holders: Holders = {},  # noqa: B006 - not changed
        *,
        closed_until: float = 0.0,
        on_change: Callable[[str, MessageQueue, bool], None] = lambda _group, _queue, _held: None,
    ) -> None:
        self.changes = 0
        """Number of times that a holder has changed."""
        self.closed_until = closed_until
        self._on_change = on_change
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._next_clean_up = now + CLEAN_UP_S
        self.put_holders(holders, now)

    def put_holders(self, holders: Holders, now: float) -> None:
        """Grant locks to these holders, as if all of them had renewed their locks now."""
        for (group, queue), client_id in holders.items():
            self._set_holder(group, queue, _Lock(client_id, now + LIFE_S, 0))

    def __len__(self) -> int:
        return self._count

    def holder(self, group: str, queue: MessageQueue) -> str:
        """Return the client id of the last holder of a queue. The lock may have expired."""
        return self._locks[group][queue].client_id

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now: float
    ) -> dict[MessageQueue, int]:
        """Lock queues for a client of a group, or renew its locks.

        Return the queues that the client has locked now. Each has the number of the change that
        made the client the holder.
        """
        if now < self.closed_until:
            return {}
        if now >= self._next_clean_up:
            self._next_clean_up = now + CLEAN_UP_S
            # a client that is late may still renew what nobody else has asked for
            self._forget_expired(now if self._count > LOCKS_MAX // 2 else now - LIFE_S)
        # Each lock is returned with the number of the change that granted it, also at a renewal.
        # The answer waits until that change is on the disk (``LocksHandler``). With 0 for a
        # renewal, a client could rely on a lock that a crash gives to another client.
        granted: dict[MessageQueue, int] = {}
        locks = self._locks.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or (lock.expires <= now and lock.client_id != client_id):
                if lock is None and self._count >= LOCKS_MAX:
                    continue
                self.changes += 1
                lock = _Lock(client_id, 0.0, self.changes)
                locks = self._set_holder(group, queue, lock)
            elif lock.client_id != client_id:
                continue
            lock.expires = now + LIFE_S
            granted[queue] = lock.change
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock the given queues. A queue that another client has locked stays locked."""
        for queue in queues:
            lock = self._locks.get(group, {}).get(queue)
            if lock is not None and lock.client_id == client_id:
                self._drop_lock(group, queue)
                self.changes += 1

    def put_holder(
        self, group: str, queue: MessageQueue, client_id: str | None, now: float
    ) -> None:
        """Set the holder of a queue, as another broker has granted the lock. None unlocks."""
        if client_id is not None:
            self._set_holder(group, queue, _Lock(client_id, now + LIFE_S, 0))
        elif queue in self._locks.get(group, {}):
            self._drop_lock(group, queue)

    def any_held(self, group: str, now: float) -> bool:
        """Return True if a member of the group holds a lock.

        Such a group consumes in order.
        """
        return any(lock.expires > now for lock in self._locks.get(group, {}).values())

    def _set_holder(
        self, group: str, queue: MessageQueue, lock: _Lock
    ) -> dict[MessageQueue, _Lock]:
        locks = self._locks.setdefault(group, {})
        self._count += queue not in locks
        locks[queue] = lock
        self._on_change(group, queue, True)
        return locks

    def _drop_lock(self, group: str, queue: MessageQueue) -> None:
        locks = self._locks[group]
        del locks[queue]
        if not locks:
            del self._locks[group]
        self._count -= 1
        self._on_change(group, queue, False)

    def _forget_expired(self, then: float) -> None:
        """Remove the locks that expired by the time ``then``. One call removes at most CLEAN_UP_MAX
        locks."""
        expired = [
            (group, queue)
            for group, locks in self._locks.items()
            for queue, lock in locks.items()
            if lock.expires <= then
        ]
        for group, queue in expired[:CLEAN_UP_MAX]:
            self._drop_lock(group, queue)
        if len(expired) > CLEAN_UP_MAX:
            self._next_clean_up = 0.0


class HeldLocks(msgspec.Struct, kw_only=True, rename="camel"):
    """Contents of the file of queue locks.

    ``locks`` has the client id of each holder, by ``queueId@group@topic@brokerName``.
    """

    locks: dict[str, str] = {}


class SavedLocks(SavedTable[HeldLocks]):
    """Table of queue locks that saves the holders. After a restart no second client gets a held
    queue.

    - ``locks``: the table of the locks.
    - ``saved_change``: the number of the last change of ``locks`` that is on the disk.
    - ``used``: True if the store is not new.

    The file is ``config/queueLocks.json``. A lock counts once the file names its holder. The file
    is written when a holder changes, never for a renewal. A used store without the file belonged to
    Apache's broker, which has no such file, or to a slave that has not copied it. In that case no
    lock is granted until all earlier holders must have stopped.
    """

    def __init__(
        self, file: JsonTable, clock: Clock, turns: Turns | None = None, *, used: bool
    ) -> None:
        super().__init__(file, HeldLocks, turns)
        self._clock = clock
        self._used = used
        self._complete = True
        """True if all holders are known. A slave knows them after it has copied its master's
        table."""
        self._number = 0  # of the change that is being saved
        self.locks = QueueLocks(0.0)
        self.saved_change = Watermark()
        self._entries = EncodedMap(self._holder_of)
        self._maps = {"locks": self._entries}

    def _holder_of(self, key: str) -> str:
        return self.locks.holder(*_queue_of(key))

    def follow_master(self) -> None:
        """Turn this table into a slave's table. Without a file, it is not saved until the first
        ``copy``."""
        self._complete = False

    def copy(self, table: HeldLocks, *, whole: bool) -> None:
        """Copy the lock holders of a master.

        If ``whole`` is True, ``table`` has all holders of the master, and other locks are removed
        here.
        """
        now = self._clock.monotonic()
        if whole:
            self._entries = EncodedMap(self._holder_of)
            self._maps = {"locks": self._entries}
            self.locks = QueueLocks(now, on_change=self._changed)
        self.locks.put_holders({_queue_of(key): holder for key, holder in table.locks.items()}, now)
        self._complete = self._dirty = True
        super().save()

    def apply_change(self, key: str, client_id: str | None) -> None:
        """Apply a change of the master's locks that the log has brought. None unlocks."""
        self.locks.put_holder(*_queue_of(key), client_id, self._clock.monotonic())
        self._dirty = True
        if self._complete:
            super().save()

    def load(self) -> None:
        """Read the lock holders from the file, or create the file in a new store.

        Raises OSError if the file cannot be read.
        """
        now = self._clock.monotonic()
        holders = self._file.load(_holders_in, lambda: None)
        if holders is not None and not self._file.damaged:
            self.locks = QueueLocks(now, holders, on_change=self._changed)
            self._complete = True
        elif not self._complete:
            self.locks = QueueLocks(now, on_change=self._changed)
        elif self._used:  # a copy from before the damage may name another holder than the last one
            self.locks = QueueLocks(now, closed_until=now + RELIANCE_S, on_change=self._changed)
            log.warning(
                "lock holders are unknown (no queueLocks.json, or it is damaged): no queue can be "
                "locked for a while seconds=%.0f",
                RELIANCE_S,
            )
        else:
            self.locks = QueueLocks(now, on_change=self._changed)
            self._dirty = True
            super().save()

    def save(self) -> None:
        """Save the lock holders outside of the event loop, if a holder has changed."""
        self._dirty = self._dirty or self._failing or self._number < self.locks.changes
        super().save()

    def save_now(self) -> None:
        # else the next start, too, must not take it for complete
        if self._complete and self._clock.monotonic() >= self.locks.closed_until:
            super().save_now()

    def _save_started(self) -> None:
        self._number = self.locks.changes

    def _save_ended(self) -> None:
        self.saved_change.advance(self._number)

    def _changed(self, group: str, queue: MessageQueue, held: bool) -> None:
        key = f"{queue.queue_id}@{group}@{queue.topic}@{queue.broker_name}"
        if held:
            self._entries.add(key)
        else:
            self._entries.remove(key)
        if self.note_change is not None:
            self.note_change(key, self.locks.holder(group, queue) if held else None)

    def _content(self) -> HeldLocks:
        return HeldLocks()


def _holders_in(data: bytes) -> Holders | None:
    """Decode the contents of the file of queue locks.

    Raises ValueError for a key that names no queue.
    """
    locks = fastjson.decode(data, HeldLocks).locks
    return {_queue_of(key): client_id for key, client_id in locks.items()}


def _queue_of(key: str) -> tuple[str, MessageQueue]:
    """Parse a key of the file of queue locks. Return its group and its queue."""
    queue_id, group, topic, broker_name = key.split("@", 3)
    return group, MessageQueue(topic, broker_name, int(queue_id))
