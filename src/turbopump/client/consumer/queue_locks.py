"""Locks at brokers. A group member locks the queues that it handles in order.

One rule: a lock is valid for 30 s after the last granted request was *sent*. The broker keeps the
lock for 60 s, so the next owner starts after this member has stopped. Source: apache/rocketmq
``RebalanceImpl.lockAll``, ``ProcessQueue.isLockExpired``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from turbopump.client.instance import ClientInstance
from turbopump.errors import ProtocolError, RemotingError
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests import assignment as requests
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_locked = RepeatedLine(
    log, logging.WARNING, "queues not locked group=%s broker=%s queues=%d cause=%s"
)

RENEWAL_INTERVAL_S: Final = 20.0
RELIANCE_S: Final = 30.0
KEPT_S: Final = 55.0
"""Seconds for which no other member can have the lock, so that offsets may be committed. The broker
keeps a lock for 60 s."""
LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two checks for locks that are lost or need renewal."""


class GrantedLock:
    """Lock of a queue that a broker has granted to this member.

    ``since`` is the event loop time at which the last granted request was sent.
    """

    __slots__ = ("_loop", "revoked", "since")

    def __init__(self, loop: asyncio.AbstractEventLoop, since: float) -> None:
        self._loop = loop
        self.since = since
        self.revoked = False

    @property
    def valid(self) -> bool:
        """True while this member holds the lock: handlers can start on messages of the queue."""
        return not self.revoked and self._loop.time() < self.since + RELIANCE_S

    @property
    def kept(self) -> bool:
        """True while no other member can have the lock."""
        return not self.revoked and self._loop.time() < self.since + KEPT_S


class MemberLocks:
    """Locks of the queues that this member handles in order.

    ``on_lost`` is called with each queue whose lock has become invalid. The lock is removed then.
    """

    def __init__(
        self, instance: ClientInstance, group: str, on_lost: Callable[[MessageQueue], None]
    ) -> None:
        self._instance = instance
        self._group = group
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._held: dict[MessageQueue, GrantedLock] = {}
        self._renewing: set[str] = set()

    async def acquire(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, GrantedLock]:
        """Lock queues at their brokers, and return the granted locks.

        A broker that does not answer grants none.
        """
        granted: dict[MessageQueue, GrantedLock] = {}
        for answer in await asyncio.gather(
            *(self._request_locks(broker, ours) for broker, ours in _by_broker(queues).items())
        ):
            if answer is not None:
                since, locked = answer
                granted |= {queue: GrantedLock(self._loop, since) for queue in locked}
        self._held |= granted
        return granted

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of queues at their brokers.

        A broker that does not get the request releases the locks after a minute.
        """
        for queue in (queues := list(queues)):
            self._held.pop(queue, None)
        await asyncio.gather(
            *(self._unlock(broker, ours) for broker, ours in _by_broker(queues).items())
        )

    def forget(self, queue: MessageQueue) -> None:
        """Stop renewing the lock of a queue, without releasing the lock."""
        self._held.pop(queue, None)

    async def renew_for_ever(self) -> None:
        """Renew all locks of this member every 20 s, until cancelled."""
        # A member must stop delivering before the broker can give its lock to another one. The
        # broker counts 60 s from the arrival of the last request, this member 30 s from its
        # *sending* (``since``), so its lock ends first however long the request took. An unanswered
        # renewal changes nothing: it is tried again each second, until 30 s are over. A renewal
        # runs in a task of its own, one for each broker, because a silent broker must not delay the
        # check of the other locks.
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for queue, lock in list(self._held.items()):
                if not lock.valid:
                    self._lose_lock(queue, "it could not be renewed for 30 s")
            due = self._loop.time() - RENEWAL_INTERVAL_S
            old = [queue for queue, lock in self._held.items() if lock.since <= due]
            for broker in _by_broker(old):
                if broker not in self._renewing:
                    self._instance.spawn(self._renew_locks(broker), name=f"renew locks at {broker}")

    async def _renew_locks(self, broker: str) -> None:
        self._renewing.add(broker)
        try:
            before = {
                queue: lock for queue, lock in self._held.items() if queue.broker_name == broker
            }
            answer = await self._request_locks(broker, list(before))
        finally:
            self._renewing.discard(broker)
        if answer is None:
            return
        since, locked = answer
        for queue, lock in before.items():
            if self._held.get(queue) is not lock:
                continue
            if queue not in locked:
                lock.revoked = True
                self._lose_lock(queue, "its broker does not renew it")
            elif lock.valid:
                lock.since = since

    def _lose_lock(self, queue: MessageQueue, cause: str) -> None:
        log.warning(
            "lock of a queue lost, its messages wait for a new lock queue=%s cause=%s", queue, cause
        )
        self._held.pop(queue, None)
        self._on_lost(queue)

    async def _request_locks(
        self, broker: str, queues: Collection[MessageQueue]
    ) -> tuple[float, Collection[MessageQueue]] | None:
        since = self._loop.time()
        try:
            address = self._address(broker, queues)
            await self._instance.introduced(address)
            since = self._loop.time()
            reply = await self._instance.remoting.call(
                address,
                requests.LockBatchMq(),
                self._body(queues),
                timeout=self._instance.call_timeout,
            )
        except (RemotingError, ProtocolError) as error:
            _not_locked(self._group, broker, len(queues), error, kind=(self._group, broker))
            return None
        return since, [queue for queue in queues if queue in reply.locked]

    async def _unlock(self, broker: str, queues: Collection[MessageQueue]) -> None:
        try:
            address = self._address(broker, queues)
            await self._instance.remoting.call(
                address,
                requests.UnlockBatchMq(),
                self._body(queues),
                timeout=self._instance.call_timeout,
            )
        except RemotingError as error:
            log.info(
                "queues not unlocked, the broker unlocks them within a minute broker=%s cause=%s",
                broker,
                error,
            )

    def _address(self, broker: str, queues: Collection[MessageQueue]) -> str:
        return self._instance.routes.require_address(broker, topic=next(iter(queues)).topic)

    def _body(self, queues: Collection[MessageQueue]) -> requests.LockBatchRequestBody:
        return requests.LockBatchRequestBody(
            consumer_group=self._group, client_id=self._instance.client_id, mq_set=tuple(queues)
        )


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
