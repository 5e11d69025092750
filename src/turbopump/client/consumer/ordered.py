"""The messages of one queue in line: the next ones are handed out when those before are done. And
the locks that keep other members from doing the same.

One rule: what failed comes again, together, before everything else of the queue, in its order.
Source: apache/rocketmq ``ProcessQueue.takeMessages``, ``makeMessageToConsumeAgain``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.instance import ClientInstance
from turbopump.errors import ConnectError, ProtocolError, RemotingError
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests import assignment as requests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How a message that failed is retried in place: after so many seconds, and how often (None:
    until it succeeds). ``batch``: so many messages of a queue at a time, for a handler that takes
    several at once; None: one."""

    suspend_s: float
    retries_max: int | None
    batch: int | None = None


class OrderedLine:
    """Hands messages to ``ready``, up to ``count`` at a time, until it is stopped."""

    def __init__(self, ready: ReadyMessages, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = ready
        self._count = count
        self._waiting: deque[Delivery] = deque()
        self._out: dict[Delivery, None] = {}
        """Handed out, or soon will be, and neither dealt with nor failed."""
        self._failed: list[Delivery] = []
        self._delay = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._idle: list[asyncio.Future[None]] = []

    def put(self, messages: Iterable[Delivery]) -> None:
        """Messages that follow those that were put before."""
        if not self._stopped:
            self._waiting.extend(messages)
            if not self._out and not self._failed:
                self._hand_out()

    def done(self, message: Delivery) -> None:
        """It has been dealt with: when all that were handed out with it are, the next may go."""
        if message in self._out:
            del self._out[message]
            self._go_on()

    def again(self, message: Delivery, delay: float) -> None:
        """It has failed: when the others that were handed out with it are dealt with, it comes
        again after so many seconds, the longest that was said of any of them."""
        message.taken = False
        if message in self._out:
            del self._out[message]
            self._failed.append(message)
            self._delay = max(self._delay, delay)
            self._go_on()

    def left(self) -> None:
        """The handler that had a message has ended."""
        if self._idle and not self._in_hand:
            waiters, self._idle = self._idle, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def stop(self) -> None:
        """Hand nothing out any more. A handler that has a message may still deal with it."""
        self._stopped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    async def idle(self) -> None:
        """Wait, after ``stop``, until nobody has a message of this queue in hand."""
        while self._in_hand:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    @property
    def _in_hand(self) -> bool:
        return any(message.taken for message in self._out)

    def _go_on(self) -> None:
        if not self._out and not self._stopped:
            if self._failed:
                self._timer = self._loop.call_later(self._delay, self._hand_out_again)
            else:
                self._hand_out()
        self.left()

    def _hand_out(self) -> None:
        """The first ones, as many as may go into one call of a handler."""
        waiting, batch = self._waiting, list[Delivery]()
        while waiting and len(batch) < self._count:
            if batch and not waiting[0].goes_with(batch[0]):
                break
            batch.append(waiting.popleft())
        if batch:
            self._out = dict.fromkeys(batch)
            self._ready.put(batch)

    def _hand_out_again(self) -> None:
        self._timer = None
        failed = sorted(self._failed, key=lambda message: message.queue_offset)
        self._failed, self._delay = [], 0.0
        for message in reversed(failed):
            # a handler that has asked for it again may still say something, of that delivery
            again = copy(message)
            again.deliver_again()
            self._waiting.appendleft(again)
        self._hand_out()


# --- The queues that a member of a group has locked at their brokers. A lock is relied on for 30 s
# since the request was *sent* that granted it last; the broker keeps it for 60 s, so that the
# next owner begins after we have stopped. RocketMQ: ``lockAll``, ``ProcessQueue.isLockExpired``.

RENEWAL_INTERVAL_S: Final = 20.0
RELIANCE_S: Final = 30.0
KEPT_S: Final = 55.0
"""The broker keeps it for 60 s; until then nobody else has it, and what was done with it may be
committed."""
LOOK_INTERVAL_S: Final = 1.0
"""How often is looked for locks that are to be renewed, again if it failed, or are lost."""


class GrantedLock:
    """A lock that was granted to us. ``since``: loop time at which the request was sent that was
    granted last."""

    __slots__ = ("_loop", "revoked", "since")

    def __init__(self, loop: asyncio.AbstractEventLoop, since: float) -> None:
        self._loop = loop
        self.since = since
        self.revoked = False

    @property
    def valid(self) -> bool:
        """Whether a handler may begin."""
        return not self.revoked and self._loop.time() < self.since + RELIANCE_S

    @property
    def kept(self) -> bool:
        """Whether nobody else can have it yet."""
        return not self.revoked and self._loop.time() < self.since + KEPT_S


class MemberLocks:
    """The locks of one member. ``on_lost`` is called with a queue whose lock is no longer valid; it
    is forgotten here then."""

    def __init__(
        self, instance: ClientInstance, group: str, on_lost: Callable[[MessageQueue], None]
    ) -> None:
        self._instance = instance
        self._group = group
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._held: dict[MessageQueue, GrantedLock] = {}
        self._renewing: set[str] = set()
        self._complaints: dict[str, str] = {}

    async def acquire(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, GrantedLock]:
        """Lock queues; which could be. Brokers that do not answer grant nothing."""
        granted: dict[MessageQueue, GrantedLock] = {}
        for answer in await asyncio.gather(
            *(self._ask(broker, ours) for broker, ours in _by_broker(queues).items())
        ):
            if answer is not None:
                since, locked = answer
                granted |= {queue: GrantedLock(self._loop, since) for queue in locked}
        self._held |= granted
        return granted

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back. A broker that does not hear of it frees them after a minute."""
        for queue in (queues := list(queues)):
            self._held.pop(queue, None)
        await asyncio.gather(
            *(self._unlock(broker, ours) for broker, ours in _by_broker(queues).items())
        )

    def forget(self, queue: MessageQueue) -> None:
        """Renew it no longer, without giving it back yet."""
        self._held.pop(queue, None)

    async def keep(self) -> None:
        """Renew what is held every 20 s, for ever."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for queue, lock in list(self._held.items()):
                if not lock.valid:
                    self._lose(queue, "it could not be renewed for 30 s")
            due = self._loop.time() - RENEWAL_INTERVAL_S
            old = [queue for queue, lock in self._held.items() if lock.since <= due]
            for broker in _by_broker(old):
                if broker not in self._renewing:
                    self._instance.spawn(self._renew(broker), name=f"renew locks at {broker}")

    async def _renew(self, broker: str) -> None:
        self._renewing.add(broker)
        try:
            before = {
                queue: lock for queue, lock in self._held.items() if queue.broker_name == broker
            }
            answer = await self._ask(broker, list(before))
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
                self._lose(queue, "its broker does not renew it")
            elif lock.valid:
                lock.since = since

    def _lose(self, queue: MessageQueue, cause: str) -> None:
        log.warning(
            "lock of a queue is lost, its messages wait until it is locked again queue=%s cause=%s",
            queue,
            cause,
        )
        self._held.pop(queue, None)
        self._on_lost(queue)

    async def _ask(
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
            # once per cause: it is asked again and again
            if self._complaints.get(broker) != str(error):
                self._complaints[broker] = str(error)
                log.warning(
                    "queues not locked group=%s broker=%s queues=%d cause=%s",
                    self._group,
                    broker,
                    len(queues),
                    error,
                )
            return None
        self._complaints.pop(broker, None)
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
                "queues not unlocked, their broker frees them in a minute broker=%s cause=%s",
                broker,
                error,
            )

    def _address(self, broker: str, queues: Collection[MessageQueue]) -> str:
        address = self._instance.routes.address_of(broker, topic=next(iter(queues)).topic)
        if address is None:
            raise ConnectError(f"no address is known for broker {broker}")
        return address

    def _body(self, queues: Collection[MessageQueue]) -> requests.LockBatchRequestBody:
        return requests.LockBatchRequestBody(
            consumer_group=self._group, client_id=self._instance.client_id, mq_set=tuple(queues)
        )


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
