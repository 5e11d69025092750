"""The pull consumer: reads queues where and when its user says, and keeps a group's place in them if asked to.

One rule: it does nothing by itself: no message is fetched and no offset committed but by a call. It must not know rebalancing.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from types import TracebackType
from typing import Final

import msgspec

from turbopump.client.heartbeat import Member
from turbopump.client.identity import Credentials, InstanceSettings
from turbopump.client.instance import ClientInstance
from turbopump.client.offset_store import OffsetStore
from turbopump.client.pulled_messages import DamagedMessage, pulled_messages, tell_of
from turbopump.client.shared_instances import join_instance
from turbopump.client.subscription import ALL, Subscription, tag_subscription
from turbopump.client.surroundings import name_server_addresses, surroundings_of
from turbopump.clock import Clock
from turbopump.errors import ConfigError, ConnectError, NotStartedError, ResponseError
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import group_fault
from turbopump.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag

PULL_BATCH: Final = 32


class PullStatus(Enum):
    """How a pull went; ``next_offset`` says in every case where to go on."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The queue no longer (or not yet) has that offset."""


class PullResult(msgspec.Struct, frozen=True):
    """``messages`` in the order of the queue; ``min_offset`` is the oldest the queue has, ``max_offset`` one past its newest.

    ``damaged`` came too, but failed their check (CRC) and are not among the messages; each has been logged as an error.
    """

    status: PullStatus
    messages: Sequence[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: Sequence[DamagedMessage] = ()


_STATUS_BY_CODE: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class PullConsumer:
    """Reads queues by offset. Use it as ``async with PullConsumer("127.0.0.1:9876", group="g") as consumer:``.

    The settings are those of ``PushConsumer``. Every method that asks a broker may raise a RemotingError (ResponseError: the broker
    refuses, with a code and a remark), RouteNotFoundError or NotStartedError.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        namespace_v2: str | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        local_ip: str | None = None,
    ) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ConfigError(fault)
        self.group = group
        self._settings = InstanceSettings(name_server_addresses(namesrv), instance_name, unit_name, credentials, namespace_v2)
        self._surroundings = surroundings_of(clock, random, local_ip)
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._instance: ClientInstance | None = None
        self._member = Member(group, consumer=self._consumer_data, announced=False)
        self._offsets: OffsetStore | None = None

    # --- life ----------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Make ready; connections are opened by the first call. Nothing happens if it is started already."""
        if self._instance is not None:
            self._instance.check_usable("PullConsumer", self._member)
            return
        instance = join_instance(self._settings, self._surroundings, self._member)
        self._offsets = OffsetStore(instance, self.group)
        self._instance = instance

    async def close(self) -> None:
        """Leave the group and close the connections; nothing is committed. May be called twice."""
        if self._instance is not None:
            await self._instance.leave(self._member)

    @property
    def client_id(self) -> str:
        """What brokers know this client by. Raises NotStartedError before ``start``."""
        return self._ready().client_id

    # --- reading -------------------------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted; asked for anew each time."""
        return list((await self._ready().routes.refresh(topic)).subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = PULL_BATCH,
        *,
        tags: str = ALL,
        wait: float = 0.0,
        timeout: float = 10.0,
    ) -> PullResult:
        """Messages of ``queue`` from ``offset`` on, ``max_messages`` at most (brokers give 32 at most by default, fewer if large).

        ``tags``: ``*`` or ``A || B``. ``wait``: seconds that the broker may wait for a message if there is none now. ``timeout``:
        seconds for the answer, beyond ``wait``.
        """
        instance = self._ready()
        subscription = self._subscription(queue.topic, tags)
        address = await self._address(queue)
        instance.announce(self._member)
        await instance.introduced(address)
        request = PullMessage(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=int(PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if wait > 0 else 0)),
            suspend_timeout_millis=int(wait * 1000),
            subscription=subscription.expression,
            sub_version=subscription.version,
            expression_type="TAG",
        )
        command = await instance.remoting.exchange(address, request, timeout=wait + timeout)
        status = _STATUS_BY_CODE.get(command.code)
        if status is None:
            raise ResponseError(command.code, command.remark, request="PullMessage", address=address)
        reply = command.header(PullMessageReply)
        messages: list[ReceivedMessage] = []
        damaged: list[DamagedMessage] = []
        if status is PullStatus.FOUND:
            found, damaged = pulled_messages(command.body, queue, offset, reply.next_begin_offset, ReceivedMessage)
            tell_of(damaged)
            for message in found:
                if subscription.wants(message):
                    message.broker_name = queue.broker_name
                    messages.append(message)
            if not messages:
                status = PullStatus.NO_MATCHED_MESSAGE  # the broker compares hashes of tags only
        return PullResult(status, messages, reply.next_begin_offset, reply.min_offset, reply.max_offset, damaged)

    # --- offsets -------------------------------------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message the queue has."""
        return await (await self._offsets_of(queue)).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message of the queue."""
        return await (await self._offsets_of(queue)).max_offset(queue)

    async def offset_at(self, queue: MessageQueue, when: int | datetime) -> int:
        """The first message stored at or after ``when``: ms since 1970 UTC, or a datetime."""
        timestamp_ms = int(when.timestamp() * 1000) if isinstance(when, datetime) else when
        return await (await self._offsets_of(queue)).offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's place in the queue (the next message it wants); None if it has none yet."""
        return await (await self._offsets_of(queue)).committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's place: the offset of the next message it wants. Returns when the broker has it."""
        store = await self._offsets_of(queue)
        instance = self._ready()
        instance.announce(self._member)
        await instance.introduced(await self._address(queue))  # a broker creates the group when it first hears of it
        await store.commit(queue, offset)

    # --- inside --------------------------------------------------------------------------------------------------------------

    def _ready(self) -> ClientInstance:
        if self._instance is None:
            raise NotStartedError(
                "this PullConsumer is not started; use `async with PullConsumer(...)` or `await consumer.start()`"
            )
        self._instance.check_usable("PullConsumer", self._member)
        return self._instance

    async def _address(self, queue: MessageQueue) -> str:
        routes = self._ready().routes
        address = (await routes.get(queue.topic)).readable_address(queue.broker_name)
        if address is None:
            address = (await routes.refresh(queue.topic)).readable_address(queue.broker_name)
        if address is None:
            raise ConnectError(f"topic {queue.topic!r} has no queue on a broker {queue.broker_name!r} at the moment")
        return address

    async def _offsets_of(self, queue: MessageQueue) -> OffsetStore:
        await self._address(queue)
        assert self._offsets is not None
        return self._offsets

    def _subscription(self, topic: str, tags: str) -> Subscription:
        subscription = self._subscriptions.get((topic, tags))
        if subscription is None:
            subscription = tag_subscription(topic, tags, self._surroundings.clock.now_ms())
            self._subscriptions[topic, tags] = subscription
        return subscription

    def _consumer_data(self) -> ConsumerData:
        topics = dict.fromkeys(topic for topic, _ in self._subscriptions)
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=tuple(tag_subscription(topic, ALL, 0).data() for topic in topics),
        )
