"""The queues that a push consumer pops at the moment, because brokers told it to.

One rule: a queue that is lost hands out nothing more; what somebody has of it may still be done. It
must not know how queues are divided, or who handles messages. (Queues that are pulled:
``assignment.py``.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from turbopump.client.consuming.consumption import Consumption
from turbopump.client.consuming.offset_store import ConsumeFrom
from turbopump.client.consuming.ordered_line import InOrder
from turbopump.client.consuming.ready_messages import AnyReady
from turbopump.client.consuming.rebalance import Change
from turbopump.client.consuming.send_back import SendBack
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.popping.acks import PopAcks
from turbopump.client.popping.ordered_queue import OrderedPopQueue
from turbopump.client.popping.pop import init_mode_of
from turbopump.client.popping.queue import PopQueue
from turbopump.client.popping.receipts import Receipts
from turbopump.client.popping.settings import PopSettings
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.running import PopProcessQueueInfo


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
