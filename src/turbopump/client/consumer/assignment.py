"""The queues that are ours at the moment: getting and losing them, and committing what is done of
each.

One rule: a queue is begun where the group stands, and left when what is done is committed; in
order, it is begun under a lock, and the lock is given back when nobody handles a message of it any
more. It must not know how queues are divided, or who handles messages. Source: apache/rocketmq
``RebalanceImpl.updateProcessQueueTableInRebalance``,
``RebalancePushImpl.removeUnnecessaryMessageQueue``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime

from turbopump.client.consumer.assigned_queue import AssignedQueue
from turbopump.client.consumer.offsets import ConsumeFrom, LocalOffsets, OffsetStore
from turbopump.client.consumer.ordered import GrantedLock, MemberLocks
from turbopump.client.consumer.ordered_popped_queue import OrderedPopQueue
from turbopump.client.consumer.pop import init_mode_of
from turbopump.client.consumer.pop_requests import PopRequests
from turbopump.client.consumer.popped_queue import PopMembership, PopQueue
from turbopump.client.consumer.process_queue import PullLimits
from turbopump.client.consumer.queue_loop import Membership
from turbopump.client.consumer.queue_table import CommittedTable, QueueTable
from turbopump.client.consumer.rebalance import QueueChange, ask_one
from turbopump.client.consumer.settings import PopSettings
from turbopump.client.consumer.subscription import ALL, tag_subscription
from turbopump.errors import RemotingError
from turbopump.message.handles import pop_retry_topic
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import reply_in
from turbopump.protocol.requests import assignment as requests
from turbopump.protocol.requests.clients import MessageModel
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_no_start = RepeatedLine(log, logging.WARNING, "queue has no start yet queue=%s group=%s cause=%s")
_rebalanced = RepeatedLine(log, logging.INFO, "rebalanced by a broker group=%s topic=%s %s")


class Assignment(CommittedTable[AssignedQueue]):
    """Queues that are pulled. In order, they are locked unless it is broadcast."""

    def __init__(
        self,
        shared: Membership,
        consume_from: ConsumeFrom | datetime,
        offsets: OffsetStore | LocalOffsets,
        limits: PullLimits,
        batch: int,
    ) -> None:
        super().__init__(shared.instance, shared.group, shared.subscriptions, offsets)
        self._shared = shared
        self._limits = limits
        self._batch = batch
        self._consume_from = consume_from
        self._ordered = shared.order is not None
        self._handing_over: dict[MessageQueue, asyncio.Task[None]] = {}
        self.locks: MemberLocks | None = None
        if self._ordered and shared.backs is not None:
            self.locks = MemberLocks(shared.instance, shared.group, self._lock_lost)

    async def apply(self, change: QueueChange) -> bool:
        """Make a rebalance real; False if a gained queue could not be begun yet."""
        if self._ordered:
            for queue in change.lost:
                self._hand_over(queue)
        else:
            await asyncio.gather(*(self._lose(queue) for queue in change.lost))
        for topic in {queue.topic for queue in change.lost}:
            self._share(topic)
        # one that is begun keeps the lock it has
        new = [queue for queue in change.gained if queue not in self._queues]
        gained = [queue for queue in new if queue not in self._handing_over]
        if self.locks is None:
            begun = await asyncio.gather(*(self._gain(queue, None) for queue in gained))
        else:
            held = await self.locks.acquire(gained) if gained else {}
            begun = await asyncio.gather(
                *(self._gain(queue, held[queue]) for queue in gained if queue in held)
            )
        return sum(begun) == len(new)

    async def close(self, patience: float) -> None:
        """Commit, and drop every queue. In order, each whose messages nobody handles any more, for
        which ``patience`` seconds are waited, is free for others then; the rest after a minute."""
        queues = list(self._queues)
        await self.commit(final=True)
        if self._ordered:
            for queue in queues:
                self._hand_over(queue)
            if self._handing_over:
                await asyncio.wait(list(self._handing_over.values()), timeout=patience)
        else:
            for queue in queues:
                self._queues.pop(queue).drop()
        await self._offsets.flush(acknowledged=True)

    # --- getting and losing

    async def _gain(self, queue: MessageQueue, lock: GrantedLock | None) -> bool:
        try:
            start = await self._offsets.starting_offset(queue, self._consume_from)
        except RemotingError as error:
            _no_start(queue, self._group, error, kind=self._group)
            await self._free(queue)
            return False
        if queue in self._queues:
            return True
        if queue.topic not in self._subscriptions:  # it was given up meanwhile
            await self._free(queue)
            return True
        if self._closing or (lock is not None and not lock.valid):
            await self._free(queue)
            return self._closing
        self._begin(queue, start.offset, start.offset if start.stored else None, lock)
        return True

    def _begin(
        self, queue: MessageQueue, offset: int, known_offset: int | None, lock: GrantedLock | None
    ) -> None:
        assigned = self._queues[queue] = AssignedQueue(
            self._shared,
            queue,
            offset,
            on_moved=self._go_to,
            lock=lock,
            limits=self._limits,
            batch=self._batch,
        )
        assigned.sent_offset = known_offset
        self._share(queue.topic)
        assigned.start()

    def _share(self, topic: str) -> None:
        """Our queues of ``topic`` are more or fewer now."""
        if not self._limits.has_topic:
            return
        ours = self.of_topic(topic)
        for queue in ours:
            self._queues[queue].limit(self._limits.shared(len(ours)))

    async def _lose(self, queue: MessageQueue) -> None:
        assigned = self._queues.pop(queue, None)
        if assigned is not None:
            assigned.drop()
            await self._commit(assigned, final=True)

    def _hand_over(self, queue: MessageQueue) -> None:
        """In order: no further message; the queue is free when the handler that has one is done
        with it."""
        assigned = self._queues.pop(queue, None)
        if assigned is None:
            return
        # In order, the next owner may not begin while a handler here still has a message: both
        # would handle the same one, or the next one too early. The lock at the broker is what it
        # waits for, so the lock is released last, after the handler has ended and its offset is
        # committed. Nobody waits for that here: other queues are gained and lost meanwhile. A lock
        # that the broker has given to another already (``revoked``) is not ours to release.
        assigned.drop()
        if self.locks is not None:
            self.locks.forget(queue)

        async def hand_over() -> None:
            try:
                await assigned.idle()
                await self._commit(assigned, final=True)
                if assigned.lock is None or not assigned.lock.revoked:
                    await self._free(queue)
            finally:
                del self._handing_over[queue]

        self._handing_over[queue] = self._instance.spawn(hand_over(), name=f"hand over {queue}")

    async def _free(self, queue: MessageQueue) -> None:
        if self.locks is not None:
            await self.locks.release([queue])

    def _lock_lost(self, queue: MessageQueue) -> None:
        if not self._closing:
            self._hand_over(queue)

    def _go_to(self, assigned: AssignedQueue, offset: int) -> None:
        if self._queues.get(assigned.queue) is not assigned:
            return
        assigned.drop()
        if not self._ordered:
            self._begin(assigned.queue, offset, None, None)
            return

        waits = assigned.moves_to is not None
        assigned.moves_to = offset

        async def go_on() -> None:
            await assigned.idle()
            if self._queues.get(assigned.queue) is assigned and not self._closing:
                assert assigned.moves_to is not None
                self._begin(assigned.queue, assigned.moves_to, None, assigned.lock)

        if not waits:
            self._instance.spawn(go_on(), name=f"go on with {assigned.queue}")


# --- Queues that brokers divide (400). A broker that cannot say changes nothing; where it knows no
# such question (Apache's 4.9), the group divides them. RocketMQ: ``getRebalanceResultFromBroker``.


class BrokerDivision:
    """``pulled`` and ``popped``: our queues, by how we read them. ``fallback`` divides a topic
    without the broker. A topic that is pulled has its POP retry topic subscribed to and pulled too,
    for what was popped of it before."""

    def __init__(
        self,
        shared: Membership,
        pulled: Assignment,
        popped: PopAssignment,
        fallback: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._instance = shared.instance
        self._group = shared.group
        self._subscriptions = shared.subscriptions
        self._pulled = pulled
        self._popped = popped
        self._fallback = fallback
        self._falls_back = False
        self._logged: dict[str, str] = {}

    async def look(self, topic: str) -> bool:
        """Ask a broker of ``topic``, and do as it says; False if that could not be done. Raises
        RemotingError, RouteNotFoundError, BodyError."""
        route = await self._instance.routes.get(topic)
        masters = sorted(route.every_address(slaves=False))
        self._instance.environment.random.shuffle(masters)
        slaves = sorted(route.every_address(slaves=True).difference(masters))
        assignments = await self._ask(topic, [*masters, *slaves])
        if self._falls_back:
            return await self._fallback(topic)
        if assignments is None:
            return False
        if topic not in self._subscriptions:  # it was given up meanwhile
            return True
        pops = {
            one.message_queue for one in assignments if one.mode is requests.MessageRequestMode.POP
        }
        pulls = {
            one.message_queue
            for one in assignments
            if one.mode is not requests.MessageRequestMode.POP
        }
        complete = await self._look_after_retries(topic, pulls=bool(pulls), pops=bool(pops))
        pull, pop = (
            _change(self._pulled.of_topic(topic), pulls),
            _change(self._popped.of_topic(topic), pops),
        )
        self._log(topic, pull, pop)
        if pop.gained or pop.lost:
            await self._popped.apply(pop)
        if pull.gained or pull.lost:
            complete &= await self._pulled.apply(pull)
        return complete

    async def _ask(
        self, topic: str, addresses: Sequence[str]
    ) -> Sequence[requests.MessageQueueAssignment] | None:
        request = requests.QueryAssignment()
        body = requests.QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=self._group,
            client_id=self._instance.client_id,
            strategy_name=self._popped.settings.strategy,
            message_model=MessageModel.CLUSTERING,
        )
        address, command = await ask_one(
            self._instance,
            addresses,
            request,
            body,
            answers=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._fall_back(address)
            return None
        assignments = reply_in(command, request).message_queue_assignments
        if assignments is None and not topic.startswith(RETRY_PREFIX):
            self._instance.forget_introduction(address)
        return assignments

    def _fall_back(self, address: str) -> None:
        if not self._falls_back:
            log.warning(
                "broker %s divides no queues (it is older than 5.0): the group divides them "
                "itself group=%s",
                address,
                self._group,
            )
        self._falls_back = True

    async def _look_after_retries(self, topic: str, *, pulls: bool, pops: bool) -> bool:
        """Of a topic that is pulled, pull the POP retry topic too; False if that has just begun,
        and is to be looked at soon."""
        if topic.startswith(RETRY_PREFIX) or pulls == pops:
            return True
        retries = pop_retry_topic(topic, self._group)
        if pops:
            if self._subscriptions.pop(retries, None) is not None:
                await self._pulled.apply(QueueChange((), list(self._pulled.of_topic(retries))))
            return True
        if retries in self._subscriptions:
            return True
        self._subscriptions[retries] = tag_subscription(
            retries, ALL, self._subscriptions[topic].version
        )
        return False

    def _log(self, topic: str, pull: QueueChange, pop: QueueChange) -> None:
        named = {
            "pull": pull.gained,
            "pull_no_more": pull.lost,
            "pop": pop.gained,
            "pop_no_more": pop.lost,
        }
        if not any(named.values()):
            self._logged.pop(topic, None)
            return
        text = " ".join(f"{name}={' '.join(map(str, its)) or '-'}" for name, its in named.items())
        if self._logged.get(topic) != text:  # once, however often it is tried again
            self._logged[topic] = text
            _rebalanced(self._group, topic, text, kind=(self._group, topic))


def _change(before: Collection[MessageQueue], now: Collection[MessageQueue]) -> QueueChange:
    return QueueChange(sorted(set(now).difference(before)), sorted(set(before).difference(now)))


class PopAssignment(QueueTable[PopQueue]):
    """Queues that are popped, because brokers said so. One that is lost hands out nothing more;
    what somebody has of it may still be done."""

    def __init__(
        self, shared: Membership, consume_from: ConsumeFrom | datetime, settings: PopSettings
    ) -> None:
        super().__init__(shared.instance, shared.group, shared.subscriptions)
        self._shared = shared
        self.settings = settings
        self._requests = PopRequests(
            shared.instance, shared.group, init_mode_of(consume_from), shared.namespace
        )
        self._parts = PopMembership(settings, self._requests)
        self._lost: list[PopQueue] = []

    async def apply(self, change: QueueChange) -> bool:
        kind = PopQueue if self._shared.order is None else OrderedPopQueue
        for queue in change.lost:
            popped = self._queues.pop(queue, None)
            if popped is not None:
                popped.drop()
                self._lost = [other for other in self._lost if other.info().wait_ack_count]
                self._lost.append(popped)
        for queue in change.gained:
            if self._may_begin(queue):
                popped = self._queues[queue] = kind(self._shared, queue, self._parts)
                popped.start()
        return True

    async def close(self, patience: float, *, give_back_taken: bool) -> None:
        """Acknowledge what is done, give back what nobody has begun (and what somebody has, too),
        for ``patience`` seconds at most."""
        for popped in (*self._queues.values(), *self._lost):
            popped.close(give_back_taken=give_back_taken)
        self._queues.clear()
        self._lost.clear()
        await self._requests.finish(patience)
