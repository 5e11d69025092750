"""The simple consumer: its user asks for messages, each of which is his for a while, and says of
each that it is done, or when it is to come again.

One rule: nothing is done by itself: what is not acknowledged in its time comes again, to whoever of
the group asks then. This file is the life of a consumer and its user's calls. It must not know how
messages are got. Source: apache/rocketmq-clients ``SimpleConsumer``; on the wire, apache/rocketmq's
POP.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Iterable, Mapping
from typing import Final

from turbopump.client.consuming.consumer_rules import INVISIBLE_RULES, RECEIVE_RULES, SIMPLE_RULES
from turbopump.client.consuming.offset_store import ConsumeFrom
from turbopump.client.consuming.send_back import SendBack
from turbopump.client.consuming.subscription import (
    ALL,
    SQL92,
    Sql,
    Subscription,
    first_subscriptions,
    topic_subscription,
)
from turbopump.client.environment import environment_of, name_server_addresses
from turbopump.client.heartbeat import Member
from turbopump.client.identity import Credentials, InstanceSettings
from turbopump.client.in_context import InContext
from turbopump.client.instance import ClientInstance
from turbopump.client.lifecycle import Lifecycle
from turbopump.client.namespace import unwrap, wrap
from turbopump.client.popping.acks import PopAcks
from turbopump.client.popping.pop import ATTEMPTS_MAX, BATCH_MAX, init_mode_of
from turbopump.client.popping.popped import PoppedMessage
from turbopump.client.popping.receipts import TIMEOUT_S as CALL_TIMEOUT_S
from turbopump.client.popping.receipts import Receipts
from turbopump.client.popping.sources import PopSources
from turbopump.client.setting_rules import check, check_timeout, group_in
from turbopump.client.shared_instances import join_instance
from turbopump.clock import Clock
from turbopump.errors import ConfigError
from turbopump.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)

__all__ = ["PoppedMessage", "SimpleConsumer"]

INVISIBLE_S: Final = 60.0
TIMEOUT_S: Final = 15.0
CLOSE_PATIENCE_S: Final = 3.0


class SimpleConsumer(InContext):
    """Receives messages of ``group`` one by one, whoever else does. Use it as ``async with
    SimpleConsumer("127.0.0.1:9876", group="g", topic="t") as consumer:``, then ``await
    consumer.receive()`` and ``await consumer.ack(message)``.

    ``topic`` and ``tags`` (``*``, ``A || B`` or ``Sql(…)``): what to receive; ``subscribe`` adds
    more. ``consume_from``: where a group begins in a queue it has no place in. ``ordered``: nobody
    of the group gets more of a queue until all that was received of it is acknowledged, or comes
    again, from the first on that is not. ``max_reconsume_times``: what comes again after so many
    retries becomes a dead letter (None: it comes again without limit; so it does if it is ordered,
    whatever this says). The other settings are those of ``PushConsumer``. Raises ConfigError for
    unusable settings.

    Brokers hand out messages one by one, in no order unless told so, and keep what is done: no
    queue is divided among the members, and any number of tasks may receive. Apache's brokers do so
    from 5.0 on. Methods may raise a RemotingError, NotStartedError before ``start`` and after
    ``close``.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        topic: str | None = None,
        tags: str | Sql = ALL,
        consume_from: ConsumeFrom = ConsumeFrom.LAST,
        ordered: bool = False,
        max_reconsume_times: int | None = ATTEMPTS_MAX,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        local_ip: str | None = None,
    ) -> None:
        self._group = group_in(namespace, group)
        check(SIMPLE_RULES, locals())
        self.group = group
        self._namespace = namespace
        self._settings = InstanceSettings(
            name_server_addresses(namesrv), instance_name, unit_name, credentials, namespace_v2
        )
        self._consume_from = consume_from
        self._ordered = ordered
        self._max_reconsume_times = max_reconsume_times
        self._environment = environment_of(clock, random, local_ip)
        self._subscriptions = first_subscriptions(
            namespace, topic, tags, self._environment.clock.now_ms()
        )
        self._life: Lifecycle[_Running] = Lifecycle("SimpleConsumer")

    # --- life
    # ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the group known to the brokers.

        Raises RouteNotFoundError if no name server answers (a topic that does not exist yet is
        waited for), NotStartedError after ``close``. A start that fails or is cancelled may be
        called again.
        """
        if not self._life.begins():
            return
        member = Member(self._group, consumer=self._consumer_data)
        instance = join_instance(self._settings, self._environment, member)
        self._life.running = _Running(
            *(instance, member, self._subscriptions),
            consume_from=self._consume_from,
            max_reconsume_times=self._max_reconsume_times,
            ordered=self._ordered,
            namespace=self._namespace,
        )
        try:
            await instance.routes.find(list(self._subscriptions))
            await instance.introduce_all()
        except BaseException:
            await self._life.undo(_Running.close)
            raise

    async def close(self) -> None:
        """Whoever waits in ``receive`` gets nothing; what is not acknowledged comes again in its
        time. May be called twice."""
        await self._life.end(_Running.close)

    @property
    def client_id(self) -> str:
        """What brokers know this client by. Raises NotStartedError before ``start``."""
        return self._life.ready().instance.client_id

    # --- what it receives
    # ----------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, tags: str | Sql = ALL) -> None:
        """Receive messages of ``topic`` too (or with other tags); before ``start`` or after. Raises
        ConfigError."""
        self._subscribe(topic, tags)
        if self._life.running is not None:
            await self._life.ready().instance.introduce_all()

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more of ``topic``; says nothing if it was not subscribed to."""
        self._subscriptions.pop(wrap(self._namespace, topic), None)
        if self._life.running is not None:
            await self._life.ready().instance.introduce_all()

    @property
    def subscriptions(self) -> Mapping[str, str | Sql]:
        """Topics, and what is wanted of each."""
        return {
            unwrap(self._namespace, one.topic): Sql(one.expression)
            if one.kind == SQL92
            else one.expression
            for one in self._subscriptions.values()
        }

    async def receive(
        self,
        max_messages: int = BATCH_MAX,
        invisible_seconds: float = INVISIBLE_S,
        timeout: float = TIMEOUT_S,
    ) -> list[PoppedMessage]:
        """Messages, as soon as there is one, ``max_messages`` at most, all of one topic and broker;
        none after ``timeout`` seconds, or once closed. They are invisible to the rest of the group
        for ``invisible_seconds``: acknowledge each in that time, or have it changed.

        If it is cancelled, what was about to come is given back. Raises ConfigError; RemotingError
        or RouteNotFoundError if nobody could be asked until the time was over.
        """
        check(RECEIVE_RULES, locals())
        if not self._subscriptions:
            raise ConfigError("nothing to receive: give topic=… or call subscribe(topic)")
        return await self._life.ready().sources.receive(max_messages, invisible_seconds, timeout)

    # --- what becomes of a message
    # -------------------------------------------------------------------------------------------

    async def ack(
        self, messages: PoppedMessage | Iterable[PoppedMessage], *, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """It is done, or they are, and will not come again. Returns when the brokers have it.

        Several go as one request to each broker, which says nothing of each. Brokers answer one
        that comes too late, or twice, like any other. Raises ResponseError if a broker refuses
        (code 208: its queue has no such place), another RemotingError if it could not be told: then
        the message may come again.
        """
        check_timeout(timeout)
        running = self._life.ready()
        several = [messages] if isinstance(messages, PoppedMessage) else list(messages)
        for message in several:
            _refuse_others(message)
        await running.receipts.acknowledge(several, timeout=timeout)

    async def change_invisible_time(
        self, message: PoppedMessage, seconds: float, *, timeout: float = CALL_TIMEOUT_S
    ) -> str:
        """Have it again ``seconds`` from now instead; returns its new handle, which
        ``message.handle`` is from then on.

        To have more time, or to have it later; it counts as another attempt only when it comes
        again. Raises ConfigError, RemotingError.
        """
        check(INVISIBLE_RULES, {"seconds": seconds})
        check_timeout(timeout)
        _refuse_others(message)
        message.handle = await self._life.ready().receipts.change_invisible_time(
            message, seconds, timeout=timeout
        )
        return message.handle

    # --- inside
    # ----------------------------------------------------------------------------------------------

    def _subscribe(self, topic: str, tags: str | Sql) -> None:
        subscription = topic_subscription(
            self._namespace, topic, tags, self._environment.clock.now_ms()
        )
        self._subscriptions[subscription.topic] = subscription

    def _consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_POP,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere(self._consume_from.value),
            subscription_data_set=tuple(
                subscription.data() for subscription in self._subscriptions.values()
            ),
            ordered=self._ordered,
        )


class _Running:
    """What exists from start to close. ``subscriptions``: by topic, as they are at any time."""

    def __init__(
        self,
        instance: ClientInstance,
        member: Member,
        subscriptions: Mapping[str, Subscription],
        *,
        consume_from: ConsumeFrom,
        max_reconsume_times: int | None,
        ordered: bool,
        namespace: str | None,
    ) -> None:
        self.instance = instance
        self.member = member
        self.closing = False
        self.receipts = Receipts(instance, member.group, namespace)
        self._acks = PopAcks(instance, self.receipts)
        self._backs = SendBack(instance, member.group, max_reconsume_times, namespace)
        self.sources = PopSources(
            *(
                instance,
                member.group,
                subscriptions,
                init_mode_of(consume_from),
                self.receipts,
                self._acks,
                self._backs,
            ),
            retries_max=max_reconsume_times,
            ordered=ordered,
            namespace=namespace,
        )

    async def close(self) -> None:
        """Receive nothing more, finish what is being told, leave the group, whatever fails on the
        way."""
        self.sources.close()
        try:
            await self.sources.finish(CLOSE_PATIENCE_S)
            await self._backs.finish(CLOSE_PATIENCE_S)
            await self._acks.finish(CLOSE_PATIENCE_S)
        finally:
            await self.instance.leave(self.member)


def _refuse_others(message: object) -> None:
    if not isinstance(message, PoppedMessage):
        raise TypeError(
            f"{message!r:.80} is no message of a SimpleConsumer: give what `receive` returned"
        )
