"""Handler of requests to pop messages (200050), and of related requests.

The others are peek (200052), a notice of messages to pop (200054), and the number of waiting pops
(200055). The order of checks and the codes are those of apache/rocketmq ``PopMessageProcessor``,
``PeekMessageProcessor``, ``NotificationProcessor``, ``PollingInfoProcessor``.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, TypeVar

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.pop.group_queue import ANY_QUEUE, GroupQueue, TopicGroup
from turbopump.broker.pop.pop import Pop
from turbopump.broker.pop.reader import PoppedEntries, PopQuery, peek
from turbopump.broker.pop.records import COUNT_MAX
from turbopump.broker.read_checks import (
    ban_remark,
    no_group_remark,
    no_queue_remark,
    no_topic_remark,
)
from turbopump.broker.stored import Stored
from turbopump.broker.subscriptions import (
    TAG,
    SubscriptionFilter,
    no_property_filter,
    read_subscription,
)
from turbopump.broker.topic_attributes import is_batch_cq
from turbopump.errors import StoreError
from turbopump.message.handles import ORDER_REVIVE_QUEUE, encode_numbers, encode_offsets
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Reply
from turbopump.protocol.requests.clients import SubscriptionData
from turbopump.protocol.requests.pop import (
    Notification,
    NotificationReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopMessage,
    PopMessageReply,
)
from turbopump.protocol.requests.topics import PERM_READ
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, Ready, RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.store.queues.consume_queue_table import unserved_text

HeaderT = TypeVar("HeaderT", bound=Reply)

LATE_MS: Final = 500
"""Milliseconds after its deadline from which a pop gets no messages, because its client no longer
waits."""
EARLY_S: Final = 0.05
"""Seconds before its deadline at which a waiting pop is answered without messages."""
HOLD_MAX_S: Final = 120.0
"""Maximum seconds for which a pop waits for messages."""
_POP_AT_SLAVE: Final = (
    "this broker is a slave (brokerRole=SLAVE) and cannot record pops; pop from its "
    "master, or pull from here"
)


_QueueRequest = PopMessage | PeekMessage | Notification | PollingInfo


class PopHandler:
    """Handler of requests to pop or peek messages, or to be notified of messages."""

    def __init__(self, stored: Stored, pop: Pop, forwarding: Forwarding) -> None:
        self._config = stored.config
        self._store = stored.store
        self._topics = stored.tables.topics
        self._groups = stored.tables.groups
        self._pop = pop
        self._forwarding = forwarding
        self._clock = stored.clock
        self._random = stored.random
        self._woken: set[asyncio.Task[None]] = set()

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(PopMessage, self.pop)
        router.add(PeekMessage, self.peek)
        router.add(Notification, self.notify)
        router.add(PollingInfo, self.waiting)

    async def pop(self, request: PopMessage, context: RequestContext) -> Ready[PopMessageReply]:
        """Return messages and make them invisible to other consumers for a while.

        If there are no messages, the request waits.
        """
        born_ms = request.born_time or self._clock.now_ms()
        if self._clock.now_ms() - born_ms - request.poll_time > LATE_MS:
            remark = f"the broker[{self._config.broker_ip1}] pop message is timeout too much"
            return Response(PopMessageReply(), code=ResponseCode.POLLING_TIMEOUT, remark=remark)
        # RocketMQ: gives messages and stores no checkpoint, so they come again and again
        if self._config.is_slave and not (self._pop.acts and request.order):
            return Response(PopMessageReply(), code=ResponseCode.SYSTEM_ERROR, remark=_POP_AT_SLAVE)
        refused = self._refusal(request, request.max_msg_nums, "pop", PopMessageReply())
        refused = refused or self._time_refusal(request)
        subscription = refused or self._subscription(request)
        if isinstance(subscription, Response):
            return subscription
        query = PopQuery(
            group=request.consumer_group,
            topic=request.topic,
            count_max=max(request.max_msg_nums, 1),
            invisible_ms=request.invisible_time,
            init_mode=request.init_mode,
            subscription=subscription,
            pause=context.served.turns.pause,
            ordered=bool(request.order),
            attempt_id=request.attempt_id or None,
            revocations=self._pop.held.revocations,
        )
        left_s = min(
            (born_ms + request.poll_time - self._clock.now_ms()) / 1000,
            request.poll_time / 1000,
            HOLD_MAX_S,
        )
        deadline = context.peer.now() + left_s - EARLY_S
        return await self._pop_messages(
            query,
            max(request.queue_id, ANY_QUEUE),
            context,
            deadline,
            expired=request.poll_time <= 0,
        )

    async def _pop_messages(
        self,
        query: PopQuery,
        queue_id: int,
        context: RequestContext,
        deadline: float,
        *,
        expired: bool,
    ) -> Ready[PopMessageReply]:
        """Return messages or an empty answer. Return HELD if the request waits for messages."""
        if self._groups.is_banned(query.group, query.topic):  # perhaps while it waited
            remark = ban_remark(query.group, query.topic)
            return Response(PopMessageReply(), code=ResponseCode.NO_PERMISSION, remark=remark)
        pop = self._pop
        line = TopicGroup(query.topic, query.group)
        revive_queue_id = ORDER_REVIVE_QUEUE if query.ordered else pop.revive_log.next_queue()
        taken = PoppedEntries(self._clock.now_ms(), revive_queue_id)
        if query.revocations != pop.held.revocations:  # the next pop is authorised again
            pop.held.wake_line(line)
            return _nothing(query, taken, ResponseCode.POLLING_TIMEOUT)
        queues = self._drawn_queues(line, queue_id, retries=not query.ordered)
        try:
            await pop.reader.read_queues(query, queues, taken)
            if taken.checkpoint_stored is not None:
                await self._forwarding.confirmed(taken.checkpoint_stored)
        except StoreError as error:
            pop.held.wake_line(line)
            return Response(PopMessageReply(), code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        except asyncio.CancelledError:
            pop.held.wake_line(line)
            raise
        pop.held.wake_line(line)  # not in a finally: of a loop that has ended nobody waits
        if taken.count:
            return _found(query, taken)
        if taken.refused is not None:
            return Response(PopMessageReply(), code=ResponseCode.SYSTEM_ERROR, remark=taken.refused)
        left = deadline - context.peer.now()
        if expired or left <= 0 or query.revocations != pop.held.revocations:
            return _nothing(query, taken, ResponseCode.POLLING_TIMEOUT)
        if not self._hold_pop(query, queue_id, context, deadline, left):
            return _nothing(query, taken, ResponseCode.POLLING_FULL)
        return HELD

    def _hold_pop(
        self, query: PopQuery, queue_id: int, context: RequestContext, deadline: float, left: float
    ) -> bool:
        """Let a pop wait until messages arrive, but at most ``left`` seconds.

        Return False if too many pops wait already.
        """
        held = self._pop.held
        line = TopicGroup(query.topic, query.group)

        def again(expired: bool) -> None:
            if context.peer.closed:
                return
            if context.served.full:  # it is answered later, and what is there is for others
                context.served.when_room(partial(again, expired))
                held.wake_line(line)
                return
            task = asyncio.ensure_future(
                context.settle_awaited(
                    self._pop_messages(query, queue_id, context, deadline, expired=expired)
                )
            )
            self._woken.add(task)
            task.add_done_callback(self._woken.discard)

        context.suspended = held.hold_pop(
            line, queue_id, left, again, context.served, ordered=query.ordered
        )
        return context.suspended

    def _drawn_queues(self, line: TopicGroup, queue_id: int, *, retries: bool) -> list[GroupQueue]:
        """Return the queues that a pop reads, in random order.

        With ``retries``, the queues of the retry topic come before or after the queues of the
        topic.
        """
        draw = self._random.randrange(100)
        queues = self._pop.view.topic_queues(line, queue_id, draw)
        if not retries:
            return queues
        again = self._pop.view.retry_topics.queues(line)
        first = draw < self._config.pop_from_retry_probability
        if first:
            return again + queues
        return queues + again

    # --- looking for messages

    async def peek(
        self, request: PeekMessage, context: RequestContext
    ) -> Response[PopMessageReply]:
        """Return the messages of the next pop, but leave them visible."""
        refused = self._refusal(request, request.max_msg_nums, "peeking", PopMessageReply())
        if refused is not None:
            return refused
        line = TopicGroup(request.topic, request.consumer_group)
        queues = self._drawn_queues(line, max(request.queue_id, ANY_QUEUE), retries=True)
        try:
            data, left = await peek(
                self._store,
                self._pop.offsets,
                queues,
                max(request.max_msg_nums, 1),
                context.served.turns.pause,
            )
        except StoreError as error:
            return Response(PopMessageReply(), code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        code = ResponseCode.SUCCESS if data else ResponseCode.PULL_NOT_FOUND
        return Response(
            PopMessageReply(rest_num=left), code=code, remark="FOUND" if data else None, body=data
        )

    def notify(self, request: Notification, context: RequestContext) -> Outcome[NotificationReply]:
        """Return True as soon as there are messages to pop. The request may wait for them."""
        refused = self._refusal(request, 1, "notification", NotificationReply())
        return refused or self._notify_or_hold(request, context)

    def _notify_or_hold(
        self, request: Notification, context: RequestContext
    ) -> Steps[Ready[NotificationReply]]:
        line = TopicGroup(request.topic, request.consumer_group)
        queue_id = max(request.queue_id, ANY_QUEUE)
        ordered = bool(request.order)
        found = yield from self._look_for_messages(line, queue_id, ordered=ordered)
        now = self._clock.now_ms()
        left = (
            min((request.born_time or now) + request.poll_time - now, request.poll_time) / 1000
            - EARLY_S
        )
        if found or left <= 0:
            return Response(NotificationReply(has_msg=found))

        def again(_expired: bool) -> None:
            if not context.peer.closed:
                context.settle(self._notify_again(line, queue_id, ordered=ordered))

        left = min(left, HOLD_MAX_S)
        context.suspended = self._pop.held.hold_pop(
            line, queue_id, left, again, context.served, takes=False, ordered=ordered
        )
        if not context.suspended:
            return Response(NotificationReply(has_msg=False, polling_full=True))
        return HELD

    def _notify_again(
        self, line: TopicGroup, queue_id: int, *, ordered: bool
    ) -> Steps[Response[NotificationReply]]:
        found = yield from self._look_for_messages(line, queue_id, ordered=ordered)
        return Response(NotificationReply(has_msg=found))

    def _look_for_messages(self, line: TopicGroup, queue_id: int, *, ordered: bool) -> Steps[bool]:
        """Return True if a pop would find a message. Yield after each queue."""
        for queue in self._pop.view.queues(line, queue_id, ordered=ordered):
            if self._pop.view.has_more(queue):
                return True
            yield
        return False

    def waiting(self, request: PollingInfo, _context: RequestContext) -> Response[PollingInfoReply]:
        """For a group and a topic, return the number of pops that wait for messages."""
        refused = self._refusal(request, 1, "polling info", PollingInfoReply())
        line = TopicGroup(request.topic, request.consumer_group)
        return refused or Response(
            PollingInfoReply(
                polling_num=self._pop.held.count_waiting(line, max(request.queue_id, ANY_QUEUE))
            )
        )

    # --- checks

    def _refusal(
        self, request: _QueueRequest, count: int, what: str, header: HeaderT
    ) -> Response[HeaderT] | None:
        """Return a refusal if a request is not allowed. Otherwise return None.

        ``header`` is the header of the refusal, and ``what`` names the request in its remark.
        """
        config = self._config
        group_name = request.consumer_group
        topic_name = request.topic

        def refuse(code: int, remark: str) -> Response[HeaderT]:
            return Response(header, code=code, remark=remark)

        if not config.broker_permission & PERM_READ:
            return refuse(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] {what} message is forbidden",
            )
        if count > COUNT_MAX:
            return refuse(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{config.broker_ip1}] {what} message's num is greater than {COUNT_MAX}",
            )
        if not config.timer_wheel_enable:
            return refuse(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{config.broker_ip1}] {what} message is forbidden because "
                "timerWheelEnable is false",
            )
        topic = self._topics.find(topic_name)
        if topic is None:
            return refuse(ResponseCode.TOPIC_NOT_EXIST, no_topic_remark(topic_name))
        if is_batch_cq(topic):
            return refuse(ResponseCode.INVALID_PARAMETER, unserved_text(topic_name))
        if not topic.readable:
            return refuse(
                ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] {what} message is forbidden"
            )
        if request.queue_id >= topic.read_queue_nums:
            return refuse(
                ResponseCode.INVALID_PARAMETER, no_queue_remark(request.queue_id, topic, group_name)
            )
        group = self._groups.find_or_create(group_name)
        if group is None:
            return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, no_group_remark(group_name))
        if not group.consume_enable:
            return refuse(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}"
            )
        if self._groups.is_banned(group_name, topic_name):  # RocketMQ: a pop is not asked for it
            return refuse(ResponseCode.NO_PERMISSION, ban_remark(group_name, topic_name))
        return None

    def _time_refusal(self, request: PopMessage) -> Response[PopMessageReply] | None:
        """Refuse a pop whose invisible time is too long for a timer. Otherwise return None.

        RocketMQ accepts such a pop, and loses the messages if they are not acknowledged.
        """
        most = self._config.timer_max_delay_sec * 1000
        if 0 <= request.invisible_time <= most:
            return None
        remark = (
            f"invisibleTime {request.invisible_time} ms is not from 0 to {most} ms "
            "(timerMaxDelaySec of the broker)"
        )
        return Response(PopMessageReply(), code=ResponseCode.INVALID_PARAMETER, remark=remark)

    def _subscription(self, request: PopMessage) -> SubscriptionFilter | Response[PopMessageReply]:
        kind = request.exp_type or TAG
        if kind != TAG and not self._config.enable_property_filter:
            return no_property_filter(kind)
        data = SubscriptionData(
            topic=request.topic, sub_string=request.exp or "*", expression_type=kind
        )
        try:
            subscription = read_subscription(data)
        except ValueError as error:
            subscription = SubscriptionFilter(data, frozenset(), fault=str(error))
        if subscription.fault is not None:
            remark = f"parse the consumer's subscription failed: {subscription.fault}"
            return Response(
                PopMessageReply(), code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=remark
            )
        return subscription


def _header(query: PopQuery, taken: PoppedEntries) -> PopMessageReply:
    return PopMessageReply(
        pop_time=taken.pop_time_ms,
        invisible_time=query.invisible_ms,
        revive_qid=taken.revive_queue_id,
        rest_num=taken.left,
        start_offset_info=encode_numbers(taken.starts),
        msg_offset_info=encode_offsets(taken.offsets),
        order_count_info=encode_numbers(taken.order_counts) if query.ordered else None,
    )


def _found(query: PopQuery, taken: PoppedEntries) -> Response[PopMessageReply]:
    return Response(_header(query, taken), remark="FOUND", body=b"".join(taken.parts))


def _nothing(query: PopQuery, taken: PoppedEntries, code: int) -> Response[PopMessageReply]:
    return Response(_header(query, taken), code=code, remark="NO_MESSAGE_IN_QUEUE")
