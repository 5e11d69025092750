"""Pull consumer. The user passes a queue and an offset, and gets the messages from there.

The consumer can also commit offsets of a group. One rule: every fetch and every commit is a call of
the user. This module must not know rebalancing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec.structs import replace

from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.consumer.pull import (
    PULL_BATCH,
    PullResult,
    PullStatus,
    log_damaged,
    pull,
    pull_request,
    wanted_messages,
)
from turbopump.client.consumer.subscription import (
    ALL,
    Subscription,
    Wanted,
    subscription_to,
    tag_subscription,
)
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.client.instrumentation import receiving
from turbopump.client.lifecycle import InContext, not_started
from turbopump.client.namespace import unwrapped, wrap, wrapped
from turbopump.client.setting_rules import OFFSET, TIMEOUT, SettingRule, is_a, is_whole, whole_from
from turbopump.client.settings import GroupSettings, keywords_of
from turbopump.client.shared_instances import join_instance
from turbopump.client.times import as_ms
from turbopump.errors import ConnectError
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.requests.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)

__all__ = ["PULL_BATCH", "PullConsumer", "PullResult", "PullStatus"]

_TIME: Final = SettingRule(
    lambda value: is_whole(value) or isinstance(value, datetime),
    "must be ms since 1970, or a datetime",
)
_QUEUE: Final = SettingRule(
    is_a(MessageQueue), "must be a MessageQueue: one of `await consumer.queues(topic)`"
)
_PULLED_OFFSET: Final = SettingRule(is_whole, "must be a whole number, an offset in the queue")
_MESSAGES: Final = whole_from(1)


class PullConsumer(InContext):
    """Consumer that reads from any queue, at any offset. The user chooses both for each pull.

    Use it as ``async with PullConsumer("127.0.0.1:9876", group="g") as consumer:``. The keywords
    are the fields of ``GroupSettings``; docs/reference/client-settings.md explains them. Every
    method that asks a broker may raise a RemotingError, RouteNotFoundError or NotStartedError. A
    ResponseError contains the code and remark of a broker that refused the request.
    """

    @keywords_of(GroupSettings)
    def __init__(self, settings: GroupSettings) -> None:
        self.group = settings.group
        self._group = settings.wire_group
        self._namespace = settings.namespace
        self._settings = settings
        self._environment = settings.environment()
        self._subscriptions: dict[tuple[str, Wanted], Subscription] = {}
        self._instance: ClientInstance | None = None
        self._member = InstanceMember(self._group, consumer=self._consumer_data, announced=False)
        self._offsets: OffsetStore | None = None

    # --- start and close

    async def start(self) -> None:
        """Start the consumer. The first request opens connections, and a second ``start`` does
        nothing."""
        if self._instance is not None:
            self._instance.check_usable("PullConsumer", self._member)
            return
        instance = join_instance(self._settings, self._environment, self._member)
        self._offsets = OffsetStore(instance, self._group)
        self._instance = instance

    async def close(self) -> None:
        """Leave the group and close the connections, without committing an offset.

        A second call does nothing.
        """
        if self._instance is not None:
            await self._instance.leave(self._member)

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client.

        Raises NotStartedError before ``start``.
        """
        return self._ready().client_id

    # --- reading

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted."""
        route = await self._ready().routes.refresh(wrap(self._namespace, topic))
        return [unwrapped(self._namespace, queue) for queue in route.subscribe_queues]

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = PULL_BATCH,
        *,
        tags: Wanted = ALL,
        wait: float = 0.0,
        timeout: float = 10.0,
    ) -> PullResult:
        """Return at most ``max_messages`` messages of ``queue``, starting at ``offset``.

        Brokers return at most 32 messages by default, fewer if the messages are large.

        - ``tags``: ``*``, ``A || B``, ``Tags`` or ``Sql``.
        - ``wait``: seconds that the broker may wait for the first message.
        - ``timeout``: seconds for the answer, in addition to ``wait``.
        """
        _QUEUE.check("queue", queue)
        _PULLED_OFFSET.check("offset", offset)
        _MESSAGES.check("max_messages", max_messages)
        TIMEOUT.check("wait", wait)
        TIMEOUT.check("timeout", timeout)
        instance = self._ready()
        given = queue
        queue = wrapped(self._namespace, queue)
        subscription = self._subscription(queue.topic, tags)
        address = await self._address(queue)
        instance.announce(self._member)
        request = pull_request(self._group, subscription, queue, offset, max_messages, wait)
        renewing = instance.routes.renewing_after_failure(queue.topic)
        with renewing, receiving(self.group) as messages:
            await instance.introduced(address)
            answer = await pull(instance, address, request, queue, ReceivedMessage, wait + timeout)
            messages += wanted_messages(answer, subscription, queue.broker_name, self._namespace)
        damaged = [replace(one, queue=given) for one in answer.damaged]
        log_damaged(damaged)
        reply = answer.reply
        status = answer.status
        if status is PullStatus.FOUND and not messages:
            status = PullStatus.NO_MATCHED_MESSAGE
        return PullResult(
            status,
            messages,
            reply.next_begin_offset,
            reply.min_offset,
            reply.max_offset,
            damaged,
            reply.suggest_which_broker_id,
        )

    # --- offsets

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        store, queue = await self._offsets_of(queue)
        return await store.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message in the queue."""
        store, queue = await self._offsets_of(queue)
        return await store.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, when: int | datetime) -> int:
        """Search a queue for the first message stored at or after ``when``. Return the message's
        offset.

        ``when`` is in ms since 1970 UTC, or a datetime. RocketMQ: brokers of version 4.9 return the
        message nearest to this time, which may be the one before
        (``ConsumeQueue.getOffsetInQueueByTime``).
        """
        _TIME.check("when", when)
        store, queue = await self._offsets_of(queue)
        return await store.offset_at(queue, as_ms(when))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset in this queue, as stored at the broker. The next
        message has this offset.

        The result is None if the group has committed no offset.
        """
        store, queue = await self._offsets_of(queue)
        return await store.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset in this queue, and wait until the broker has stored it.

        ``offset`` is that of the next message to read.
        """
        OFFSET.check("offset", offset)
        store, queue = await self._offsets_of(queue)
        instance = self._ready()
        instance.announce(self._member)
        # a broker creates the group at the first heartbeat with its name
        address = await self._address(queue)
        with instance.routes.renewing_after_failure(queue.topic):
            await instance.introduced(address)
        await store.commit(queue, offset)

    # --- internals

    def _ready(self) -> ClientInstance:
        if self._instance is None:
            raise not_started("PullConsumer", "consumer")
        self._instance.check_usable("PullConsumer", self._member)
        return self._instance

    async def _address(self, queue: MessageQueue) -> str:
        routes = self._ready().routes
        address = (await routes.get(queue.topic)).readable_address(queue.broker_name)
        if address is None:
            address = (await routes.refresh(queue.topic)).readable_address(queue.broker_name)
        if address is None:
            raise ConnectError(
                f"topic {queue.topic!r} has no queue on a broker "
                f"{queue.broker_name!r} at the moment"
            )
        return address

    async def _offsets_of(self, queue: MessageQueue) -> tuple[OffsetStore, MessageQueue]:
        """Return two values: the store of the group's offsets, and the queue under its name at
        brokers."""
        _QUEUE.check("queue", queue)
        queue = wrapped(self._namespace, queue)
        await self._address(queue)
        assert self._offsets is not None
        return self._offsets, queue

    def _subscription(self, topic: str, tags: Wanted) -> Subscription:
        subscription = self._subscriptions.get((topic, tags))
        if subscription is None:
            subscription = subscription_to(topic, tags, self._environment.clock.now_ms())
            self._subscriptions[topic, tags] = subscription
        return subscription

    def _consumer_data(self) -> ConsumerData:
        topics = dict.fromkeys(topic for topic, _ in self._subscriptions)
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=tuple(tag_subscription(topic, ALL, 0).data() for topic in topics),
        )
