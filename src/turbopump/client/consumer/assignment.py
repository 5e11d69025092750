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
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from datetime import datetime
from typing import Final

from turbopump.client.consumer.assigned_queue import PULL_BATCH, AssignedQueue
from turbopump.client.consumer.offsets import ConsumeFrom, LocalOffsets, OffsetStore
from turbopump.client.consumer.ordered import HeldLock, InOrder, QueueLocks
from turbopump.client.consumer.ordered_popped_queue import OrderedPopQueue
from turbopump.client.consumer.pop import init_mode_of
from turbopump.client.consumer.popped_queue import PopQueue
from turbopump.client.consumer.process_queue import USUAL_LIMITS, PullLimits
from turbopump.client.consumer.ready_messages import AnyReady
from turbopump.client.consumer.rebalance import Change
from turbopump.client.consumer.receipts import PopAcks, Receipts
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.settings import PopSettings
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import ALL, Subscription, tag_subscription
from turbopump.client.instance import CALL_TIMEOUT_S, ClientInstance
from turbopump.errors import RemotingError, ResponseError, RouteNotFoundError
from turbopump.message.handles import pop_retry_topic
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.consumers import PopProcessQueueInfo, ProcessQueueInfo

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 5.0


class Assignment:
    """``subscriptions`` by topic, as they are at any time. ``backs`` None: it is broadcast.
    ``order`` None: not in order; in order, queues are locked unless it is broadcast. ``namespace``:
    users get messages with topics without it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        consume_from: ConsumeFrom | datetime,
        ready: AnyReady,
        offsets: OffsetStore | LocalOffsets,
        backs: SendBack | None,
        *,
        order: InOrder | None,
        namespace: str | None,
        consumption: Consumption,
        limits: PullLimits = USUAL_LIMITS,
        batch: int = PULL_BATCH,
    ) -> None:
        self._consumption = consumption
        self._limits = limits
        self._batch = batch
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._consume_from = consume_from
        self._ready = ready
        self._offsets = offsets
        self._backs = backs
        self._order = order
        self._namespace = namespace
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._handing_over: dict[MessageQueue, asyncio.Task[None]] = {}
        self._closing = False
        self.locks: QueueLocks | None = None
        if order is not None and backs is not None:
            self.locks = QueueLocks(instance, group, self._lock_lost)

    @property
    def queues(self) -> Collection[MessageQueue]:
        """Our queues."""
        return self._assigned.keys()

    def of_topic(self, topic: str) -> Collection[MessageQueue]:
        """Our queues of one topic."""
        return [queue for queue in self._assigned if queue.topic == topic]

    async def apply(self, change: Change) -> bool:
        """Make a rebalance real; False if a gained queue could not be begun yet."""
        if self._order is not None:
            for queue in change.lost:
                self._hand_over(queue)
        else:
            await asyncio.gather(*(self._lose(queue) for queue in change.lost))
        for topic in {queue.topic for queue in change.lost}:
            self._share(topic)
        # one that is begun keeps the lock it has
        new = [queue for queue in change.gained if queue not in self._assigned]
        gained = [queue for queue in new if queue not in self._handing_over]
        if self.locks is None:
            begun = await asyncio.gather(*(self._gain(queue, None) for queue in gained))
        else:
            held = await self.locks.acquire(gained) if gained else {}
            begun = await asyncio.gather(
                *(self._gain(queue, held[queue]) for queue in gained if queue in held)
            )
        return sum(begun) == len(new)

    def stop_pulling(self, topic: str | None = None) -> None:
        """Nothing new comes, of ``topic`` or at all; what is in flight may still be done."""
        self._closing = self._closing or topic is None
        for queue, assigned in self._assigned.items():
            if topic in (None, queue.topic):
                assigned.stop_pulling()

    async def close(self, patience: float) -> None:
        """Commit, and drop every queue. In order, each whose messages nobody handles any more, for
        which ``patience`` seconds are waited, is free for others then; the rest after a minute."""
        queues = list(self._assigned)
        await self.commit(final=True)
        if self._order is not None:
            for queue in queues:
                self._hand_over(queue)
            if self._handing_over:
                await asyncio.wait(list(self._handing_over.values()), timeout=patience)
        else:
            for queue in queues:
                self._assigned.pop(queue).drop()
        await self._offsets.flush(acknowledged=True)

    # --- getting and losing
    # ----------------------------------------------------------------------------------------------

    async def _gain(self, queue: MessageQueue, lock: HeldLock | None) -> bool:
        try:
            start = await self._offsets.starting_offset(queue, self._consume_from)
        except RemotingError as error:
            log.warning("queue not begun yet queue=%s group=%s cause=%s", queue, self._group, error)
            await self._free(queue)
            return False
        if queue in self._assigned:
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
        self, queue: MessageQueue, offset: int, known_offset: int | None, lock: HeldLock | None
    ) -> None:
        assigned = AssignedQueue(
            *(
                self._instance,
                self._group,
                self._subscriptions,
                self._ready,
                self._backs,
                queue,
                offset,
            ),
            on_moved=self._moved,
            namespace=self._namespace,
            order=self._order,
            lock=lock,
            consumption=self._consumption,
            limits=self._limits,
            batch=self._batch,
        )
        assigned.sent_offset = known_offset
        self._assigned[queue] = assigned
        self._share(queue.topic)
        assigned.start()

    def _share(self, topic: str) -> None:
        """Our queues of ``topic`` are more or fewer now."""
        if not self._limits.has_topic:
            return
        ours = self.of_topic(topic)
        for queue in ours:
            self._assigned[queue].limit(self._limits.shared(len(ours)))

    async def _lose(self, queue: MessageQueue) -> None:
        assigned = self._assigned.pop(queue, None)
        if assigned is not None:
            assigned.drop()
            await self._commit(assigned, final=True)

    def _hand_over(self, queue: MessageQueue) -> None:
        """In order: no further message; the queue is free when who has one is done with it."""
        assigned = self._assigned.pop(queue, None)
        if assigned is None:
            return
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

    def _moved(self, assigned: AssignedQueue, offset: int) -> None:
        """The broker has other offsets than we thought: go on where it says. RocketMQ: code 21,
        ``OFFSET_ILLEGAL``."""
        if self._assigned.get(assigned.queue) is not assigned:
            return
        assigned.drop()
        if self._order is None:
            self._begin(assigned.queue, offset, None, None)
            return

        waits = assigned.moves_to is not None
        assigned.moves_to = offset

        async def go_on() -> None:
            await assigned.idle()
            if self._assigned.get(assigned.queue) is assigned and not self._closing:
                assert assigned.moves_to is not None
                self._begin(assigned.queue, assigned.moves_to, None, assigned.lock)

        if not waits:
            self._instance.spawn(go_on(), name=f"go on with {assigned.queue}")

    # --- for operators
    # ----------------------------------------------------------------------------------------------

    def places(self) -> dict[MessageQueue, int]:
        """Up to where each queue is done."""
        return {queue: assigned.commit_offset for queue, assigned in self._assigned.items()}

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Each queue as an operator sees it."""
        return {queue: assigned.info() for queue, assigned in self._assigned.items()}

    def reset(self, places: Mapping[MessageQueue, int]) -> None:
        """Go on there: what was pulled before counts no more, and a commit that is on its way is
        followed by one of the new place."""
        for queue, offset in places.items():
            assigned = self._assigned.get(queue)
            if assigned is not None:
                log.info(
                    "offset reset queue=%s group=%s from=%d to=%d",
                    queue,
                    self._group,
                    assigned.commit_offset,
                    offset,
                )
                self._moved(assigned, offset)
        self._instance.spawn(self.commit(final=True), name="commit after a reset")

    # --- committing
    # ----------------------------------------------------------------------------------------------

    async def commit_for_ever(self) -> None:
        """Every five seconds."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self, *, final: bool = False) -> None:
        """Tell what is done. ``final``: nobody will tell it again soon, so a broker that cannot be
        told is worth a warning."""
        await asyncio.gather(
            *(self._commit(queue, final=final) for queue in list(self._assigned.values()))
        )
        await self._offsets.flush(acknowledged=final)

    def told_nothing(self, queues: Iterable[MessageQueue]) -> None:
        """The broker of these queues may have forgotten what it was told: tell it again."""
        told = [queue for queue in queues if queue in self._assigned]
        for queue in told:
            self._assigned[queue].sent_offset = None
        self._offsets.told_nothing(told)

    async def _commit(self, assigned: AssignedQueue, *, final: bool) -> None:
        offset = assigned.commit_offset
        if offset == assigned.sent_offset or (assigned.lock is not None and not assigned.lock.kept):
            return
        try:
            await self._offsets.commit(assigned.queue, offset)
            assigned.sent_offset = offset
        except RemotingError as error:
            # Every 5 s while a broker is away, and the pull has said so already: only the last one,
            # at a close, is news.
            level = logging.WARNING if final else logging.DEBUG
            log.log(
                level,
                "offset not committed queue=%s offset=%d cause=%s",
                assigned.queue,
                offset,
                error,
            )


# --- A division of queues that brokers make (400): which of a topic's queues are ours, and whether we
# pull them or pop them.
#
# One rule: a broker that cannot say changes nothing. One that knows no such question (Apache's 4.9)
# has the group divide the queues itself. It must not know what having a queue means. Source:
# apache/rocketmq ``RebalanceImpl.getRebalanceResultFromBroker``, ``updateMessageQueueAssignment``.


class BrokerDivision:
    """``pulled`` and ``popped``: our queues, by how we read them. ``fallback`` divides a topic
    without the broker. ``subscriptions``: a topic that is pulled has its POP retry topic pulled
    too, for what was popped of it before."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: MutableMapping[str, Subscription],
        pulled: Assignment,
        popped: PopAssignment,
        fallback: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._pulled = pulled
        self._popped = popped
        self._fallback = fallback
        self._falls_back = False
        self._told: dict[str, str] = {}

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
        pops = {one.message_queue for one in assignments if one.mode is MessageRequestMode.POP}
        pulls = {one.message_queue for one in assignments if one.mode is not MessageRequestMode.POP}
        complete = await self._look_after_retries(topic, pulls=bool(pulls), pops=bool(pops))
        pull, pop = (
            _change(self._pulled.of_topic(topic), pulls),
            _change(self._popped.of_topic(topic), pops),
        )
        self._tell(topic, pull, pop)
        if pop.gained or pop.lost:
            await self._popped.apply(pop)
        if pull.gained or pull.lost:
            complete &= await self._pulled.apply(pull)
        return complete

    async def _ask(
        self, topic: str, addresses: Sequence[str]
    ) -> Sequence[MessageQueueAssignment] | None:
        body = fastjson.encode(
            QueryAssignmentRequestBody(
                topic=topic,
                consumer_group=self._group,
                client_id=self._instance.client_id,
                strategy_name=self._popped.settings.strategy,
                message_model=MessageModel.CLUSTERING,
            )
        )
        failure: RemotingError | None = None
        for address in addresses:
            try:
                await self._instance.introduced(address)
                command = await self._instance.remoting.exchange(
                    address, QueryAssignment(), body, timeout=CALL_TIMEOUT_S
                )
                if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    self._fall_back(address)
                    return None
                if command.code != ResponseCode.SUCCESS:
                    raise ResponseError(
                        command.code, command.remark, request="QueryAssignment", address=address
                    )
            except RemotingError as error:
                failure = error
                continue
            assignments = fastjson.decode(
                command.body, QueryAssignmentResponseBody
            ).message_queue_assignments
            if assignments is None and not topic.startswith(RETRY_PREFIX):
                self._instance.forget_introduction(address)
            return assignments
        if failure is not None:
            raise failure
        raise RouteNotFoundError("the topic has no broker at the moment")

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
                await self._pulled.apply(Change((), list(self._pulled.of_topic(retries))))
            return True
        if retries in self._subscriptions:
            return True
        self._subscriptions[retries] = tag_subscription(
            retries, ALL, self._subscriptions[topic].version
        )
        return False

    def _tell(self, topic: str, pull: Change, pop: Change) -> None:
        if not (pull.gained or pull.lost or pop.gained or pop.lost):
            self._told.pop(topic, None)
            return
        words = [
            f"{name}={' '.join(map(str, queues)) or '-'}" for name, queues in _named(pull, pop)
        ]
        text = " ".join(words)
        if self._told.get(topic) != text:  # once, however often it is tried again
            self._told[topic] = text
            log.info("rebalanced by a broker group=%s topic=%s %s", self._group, topic, text)


def _change(before: Collection[MessageQueue], now: Collection[MessageQueue]) -> Change:
    return Change(sorted(set(now).difference(before)), sorted(set(before).difference(now)))


def _named(pull: Change, pop: Change) -> list[tuple[str, Sequence[MessageQueue]]]:
    return [
        ("pull", pull.gained),
        ("pull_no_more", pull.lost),
        ("pop", pop.gained),
        ("pop_no_more", pop.lost),
    ]


# --- The queues that a push consumer pops at the moment, because brokers told it to.
#
# One rule: a queue that is lost hands out nothing more; what somebody has of it may still be done. It
# must not know how queues are divided, or who handles messages. (Queues that are pulled:
# ``assignment.py``.)


class PopAssignment:
    """``subscriptions`` by topic, as they are at any time. ``backs`` None: it is broadcast, and
    nothing is popped. ``order``: in order, and how. ``namespace``: users get messages with topics
    without it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        consume_from: ConsumeFrom | datetime,
        ready: AnyReady,
        settings: PopSettings,
        backs: SendBack | None,
        consumption: Consumption,
        *,
        order: InOrder | None,
        namespace: str | None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._init_mode = init_mode_of(consume_from)
        self._ready = ready
        self._backs = backs
        self.settings = settings
        self._order = order
        self._namespace = namespace
        self._consumption = consumption
        self._receipts = Receipts(instance, group, namespace)
        self._acks = PopAcks(instance, self._receipts)
        self._popped: dict[MessageQueue, PopQueue] = {}
        self._lost: list[PopQueue] = []
        self._closing = False

    @property
    def queues(self) -> Collection[MessageQueue]:
        """Our queues."""
        return self._popped.keys()

    def of_topic(self, topic: str) -> Collection[MessageQueue]:
        """Our queues of one topic."""
        return [queue for queue in self._popped if queue.topic == topic]

    def infos(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Each queue as an operator sees it."""
        return {queue: popped.info for queue, popped in self._popped.items()}

    async def apply(self, change: Change) -> bool:
        """Make a change real."""
        for queue in change.lost:
            popped = self._popped.pop(queue, None)
            if popped is not None:
                popped.drop()
                self._lost = [other for other in self._lost if other.info.wait_ack_count]
                self._lost.append(popped)
        for queue in change.gained:
            if (
                queue not in self._popped
                and queue.topic in self._subscriptions
                and not self._closing
            ):
                self._begin(queue)
        return True

    def stop_popping(self) -> None:
        """Nothing new comes; what somebody has may still be done."""
        self._closing = True
        for popped in self._popped.values():
            popped.stop()

    async def close(self, patience: float, *, give_back_taken: bool) -> None:
        """Acknowledge what is done, give back what nobody has begun (and what somebody has, too),
        for ``patience`` seconds at most."""
        for popped in (*self._popped.values(), *self._lost):
            popped.close(give_back_taken=give_back_taken)
        self._popped.clear()
        self._lost.clear()
        await self._acks.finish(patience)

    def _begin(self, queue: MessageQueue) -> None:
        assert self._backs is not None
        parts = (
            *(self._instance, self._group, self._subscriptions, self._ready, queue, self.settings),
            *(self._init_mode, self._receipts, self._acks, self._backs, self._consumption),
        )
        if self._order is None:
            popped = PopQueue(*parts, namespace=self._namespace)
        else:
            popped = OrderedPopQueue(*parts, order=self._order, namespace=self._namespace)
        self._popped[queue] = popped
        popped.start()
