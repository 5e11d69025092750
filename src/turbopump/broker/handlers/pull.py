"""Answers to 11 and 361: messages of one queue, or a place to wait for them.

Order of checks and codes: apache/rocketmq ``PullMessageProcessor``. A pull that finds nothing and
may be suspended is held until its queue grows (``held_pulls.py``); messages that it does not want
move its place on without waking the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from turbopump.broker.cold_flow import ColdFlow
from turbopump.broker.consumers import (
    TAG,
    ClientTable,
    Subscription,
    no_property_filter,
    read_subscription,
)
from turbopump.broker.groups import GroupTable
from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.statistics import Statistics
from turbopump.broker.topics import TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.filtering.tag import code_filter
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import JSON, Frame
from turbopump.protocol.requests.clients import ConsumeType, MessageModel, SubscriptionData
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.protocol.requests.topics import PERM_READ
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import Outcome, RequestContext, Response, failure
from turbopump.store.log.cold_reads import Later
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import GetResult, GetStatus
from turbopump.store.queues.queue_reader import Accept, Wanted

SUSPEND_MAX_S: Final = 120.0
"""Longest that a pull is held, whatever it asks for."""

COLD_HOLD_S: Final = 3.0
"""For how long a consumer that pulls by itself is kept waiting (``coldHoldTimeoutMillis``), and
COLD_HELD_MAX how many at most."""
COLD_HELD_MAX: Final = 10_000

log = logging.getLogger(__name__)

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


_READ: Final = Frame(JSON, b"", b"")
"""Stands for the frame of a pull that was decoded and is held."""


class _Waiting:
    """A held pull: one small object, no closures, for there may be tens of thousands. ``deadline``
    in the loop's seconds."""

    __slots__ = ("context", "deadline", "handler", "offset", "request", "wants")

    def __init__(
        self,
        handler: PullHandler,
        request: PullMessage,
        context: RequestContext,
        wants: Wants,
        offset: int,
        deadline: float,
    ) -> None:
        self.handler = handler
        self.request = request
        self.context = context
        self.wants = wants
        self.offset = offset
        self.deadline = deadline

    def again(self, expired: bool) -> None:
        self.handler._again(self, expired)


class PullHandler:
    """Reads queues for consumers."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        clients: ClientTable[Connection],
        held: HeldPulls,
        statistics: Statistics,
        cold: ColdFlow,
    ) -> None:
        self._config = config
        self._store = store
        self._checks = PullChecks(config, topics, groups, clients)
        self._offsets = offsets
        self._clients = clients
        self._held = held
        self._statistics = statistics
        self._cold = cold
        self._cold_held = 0

    def pull(self, request: PullMessage, context: RequestContext) -> Outcome:
        """Answer with messages, or hold."""
        refused = self._checks.refusal(request)
        if refused is not None:
            return refused
        wants = self._checks.wants(request)
        if isinstance(wants, Response):
            return wants
        if self._offsets.any_reset:
            group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
            place = self._offsets.reset_for(
                group, topic, queue_id, request.queue_offset, context.peer
            )
            if place is not None:
                return self._moved(request, place)
        flags = request.sys_flag
        if flags & PullSysFlag.COMMIT_OFFSET:
            self._offsets.commit(
                request.consumer_group, request.topic, request.queue_id, request.commit_offset
            )
        if self._cold.enabled and not self._store.is_hot(
            request.topic, request.queue_id, request.queue_offset
        ):
            return self._read_cold(request, context, wants)
        return self._read(
            request,
            context,
            wants,
            request.queue_offset,
            lambda result: self._judge(request, context, wants, request.queue_offset, result),
        )

    # --- readers of a backlog
    # ----------------------------------------------------------------------------------------------

    def _read_cold(
        self, request: PullMessage, context: RequestContext, wants: Wants
    ) -> Response | None:
        """A pull of what may not be in memory: a group that has read too much of it comes again
        later, or gets one message, later."""
        if not self._cold.must_wait(request.consumer_group):
            return self._count_cold(request, context, wants)
        group = self._clients.groups.get(request.consumer_group)
        if group is not None and group.consume_type is ConsumeType.CONSUME_PASSIVELY:
            remark = "This consumer group is reading cold data. It has been flow control"
            return Response(code=ResponseCode.SYSTEM_BUSY, remark=remark)
        request.max_msg_nums = 1
        if self._cold_held >= COLD_HELD_MAX:
            return self._count_cold(request, context, wants)
        self._cold_held += 1
        asyncio.get_running_loop().call_later(
            COLD_HOLD_S, self._read_held_cold, request, context, wants
        )
        return None

    def _read_held_cold(self, request: PullMessage, context: RequestContext, wants: Wants) -> None:
        self._cold_held -= 1
        if not context.peer.closed:
            response = self._count_cold(request, context, wants)
            if response is not None:
                context.answer(response)

    def _count_cold(
        self, request: PullMessage, context: RequestContext, wants: Wants
    ) -> Response | None:
        def judge(result: GetResult) -> Response | None:
            self._cold.read(request.consumer_group, len(result.data))
            return self._judge(request, context, wants, request.queue_offset, result)

        return self._read(request, context, wants, request.queue_offset, judge)

    # --- reading
    # ----------------------------------------------------------------------------------------------

    def _read(
        self,
        request: PullMessage,
        context: RequestContext,
        wants: Wants,
        offset: int,
        judge: Callable[[GetResult], Response | None],
    ) -> Response | None:
        """What ``judge`` makes of the read, now or, as an answer of its own, when a thread has read
        what is not in memory."""

        def later(result: GetResult) -> None:
            try:
                response = judge(result)
            except Exception as error:  # as the connection does for an answer at once
                response = failure(error, context)
            if response is not None:
                context.answer(response)

        result = self._store.reader.start(
            request.topic,
            request.queue_id,
            offset,
            request.max_msg_nums,
            wants.accept,
            later,
            matches=wants.matches,
            wanted=lambda: not context.peer.closed,
        )
        if result is Later.PENDING:
            return None
        if result is Later.REFUSED:
            return Response(
                code=ResponseCode.FLOW_CONTROL,
                remark="too many reads wait for the broker's disk; ask again in a moment",
            )
        return judge(result)

    def _judge(
        self,
        request: PullMessage,
        context: RequestContext,
        wants: Wants,
        offset: int,
        result: GetResult,
    ) -> Response | None:
        """The answer to the first read of a pull; None if it is held."""
        code = _code_of(result, offset)
        if (
            code == ResponseCode.PULL_NOT_FOUND
            and request.sys_flag & PullSysFlag.SUSPEND
            and result.unreadable is None
            and not context.peer.closed
        ):
            return self._hold(request, context, wants, offset, self._suspend_seconds(request))
        return self._answer(request, offset, result)

    def _answer(self, request: PullMessage, offset: int, result: GetResult) -> Response:
        """The answer to a pull; what was passed over is logged."""
        if result.unreadable is not None:
            log.error(
                "pull cannot be answered group=%s topic=%s queue=%d offset=%d cause=%s",
                *(
                    request.consumer_group,
                    request.topic,
                    request.queue_id,
                    offset,
                    result.unreadable,
                ),
            )
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=result.unreadable)
        if result.count:
            self._statistics.got(
                request.consumer_group, request.topic, result.count, len(result.data)
            )
        else:
            self._statistics.missed += 1
        for damage in result.damages:
            log.error(
                "damaged message topic=%s queue=%d offset=%d log_offset=%d cause=%s",
                *(
                    request.topic,
                    request.queue_id,
                    damage.queue_offset,
                    damage.offset,
                    damage.fault,
                ),
            )
        if result.gaps:
            log.warning(
                "damaged messages passed over group=%s topic=%s queue=%d from=%d to=%d count=%d",
                *(
                    request.consumer_group,
                    request.topic,
                    request.queue_id,
                    offset,
                    result.next_offset,
                    result.gaps,
                ),
            )
        return _response(result, _code_of(result, offset))

    def _moved(self, request: PullMessage, place: int) -> Response:
        """An operator has reset the group's place. RocketMQ: ``GetMessageStatus.OFFSET_RESET``."""
        first = self._store.min_offset(request.topic, request.queue_id)
        end = self._store.max_offset(request.topic, request.queue_id)
        reply = PullMessageReply(next_begin_offset=place, min_offset=first, max_offset=end)
        return Response(reply, code=ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_RESET")

    # --- holding
    # ----------------------------------------------------------------------------------------------

    def _hold(
        self,
        request: PullMessage,
        context: RequestContext,
        wants: Wants,
        offset: int,
        seconds: float,
    ) -> Response | None:
        """Hold the pull; or its answer, if messages have come since it was read."""
        queue = self._store.queues.find_or_make(request.topic, request.queue_id)
        if queue.end.value > offset:  # it grew, or its messages did not match, since it was read
            return self._read(
                request,
                context,
                wants,
                offset,
                lambda result: self._grown(request, context, wants, offset, seconds, result),
            )
        context.frame = _READ  # half a KiB that nobody asks for again
        waiting = _Waiting(self, request, context, wants, offset, context.peer.now() + seconds)
        self._held.hold(queue, offset, seconds, waiting.again)
        return None

    def _grown(
        self,
        request: PullMessage,
        context: RequestContext,
        wants: Wants,
        offset: int,
        seconds: float,
        result: GetResult,
    ) -> Response | None:
        if result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset > offset:
            return self._hold(request, context, wants, result.next_offset, seconds)
        return self._answer(request, offset, result)

    def _again(self, waiting: _Waiting, expired: bool) -> None:
        """Read once more for a pull that was held."""
        context = waiting.context
        if context.peer.closed:
            return
        if not waiting.request.sys_flag & PullSysFlag.SUBSCRIPTION:
            # The group may want others by now. RocketMQ: ``executeRequestWhenWakeup`` asks anew.
            wants = self._checks.wants(waiting.request)
            if not isinstance(wants, Response):
                waiting.wants = wants
        response = self._read(
            waiting.request,
            context,
            waiting.wants,
            waiting.offset,
            lambda result: self._judge_again(waiting, expired, result),
        )
        if response is not None:
            context.answer(response)

    def _judge_again(self, waiting: _Waiting, expired: bool, result: GetResult) -> Response | None:
        request, offset = waiting.request, waiting.offset
        left = waiting.deadline - waiting.context.peer.now()
        nothing = _code_of(result, offset) in (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        )
        if not expired and left > 0 and nothing and not result.gaps and result.unreadable is None:
            return self._hold(request, waiting.context, waiting.wants, result.next_offset, left)
        return self._answer(request, offset, result)

    def _suspend_seconds(self, request: PullMessage) -> float:
        ms = (
            request.suspend_timeout_millis
            if self._config.long_polling_enable
            else self._config.short_polling_time_mills
        )
        return min(max(ms, 0) / 1000, SUSPEND_MAX_S)


def _code_of(result: GetResult, offset: int) -> int:
    if result.status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]


def _response(result: GetResult, code: int) -> Response:
    header = PullMessageReply(
        suggest_which_broker_id=0,
        next_begin_offset=result.next_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    return Response(header, code=code, remark=result.status.value, body=result.data)


# --- What is asked of a pull before a queue is read: whether it may be, and which messages it is to be
# given.
#
# Order of checks and codes: apache/rocketmq ``PullMessageProcessor``. It must not know how queues are
# read or who waits.

FORBIDDEN_BROKER: Final = 1
FORBIDDEN_GROUP: Final = 2
FORBIDDEN_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4


class Wants(NamedTuple):
    """Which messages a pull is to be given: judges of tag codes and of properties, None where
    everything will do."""

    accept: Accept
    matches: Wanted | None


class PullChecks:
    """By the broker's settings, its topics and groups, and what groups subscribe to."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable[Connection],
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._clients = clients

    def refusal(self, request: PullMessage) -> Response | None:
        """Why this pull may not be, or None."""
        config = self._config
        if not config.broker_permission & PERM_READ:
            return forbidden(
                FORBIDDEN_BROKER, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if request.sys_flag & PullSysFlag.LITE_PULL and not config.lite_pull_message_enable:
            return forbidden(
                FORBIDDEN_BROKER,
                f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden",
            )
        group = self._groups.find(request.consumer_group)
        if group is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group [{request.consumer_group[:128]}] does not exist; "
                "create it, use a legal name, "
                "or set autoCreateSubscriptionGroup=true on the broker",
            )
        if not group.consume_enable:
            return forbidden(
                FORBIDDEN_GROUP, f"subscription group no permission, {request.consumer_group}"
            )
        topic = self._topics.find(request.topic)
        if topic is None:
            return Response(
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=f"topic[{request.topic[:128]}] not exist, apply first please! Create it "
                "(turbopump topic create)",
            )
        if not topic.readable:
            return forbidden(
                FORBIDDEN_TOPIC, f"the topic[{request.topic}] pulling message is forbidden"
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            return Response(
                code=ResponseCode.INVALID_PARAMETER,
                remark=f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{request.consumer_group}]",
            )
        return None

    def wants(self, request: PullMessage) -> Wants | Response:
        """What this pull is to be given: from the request itself, or from the group's heartbeat."""
        if request.sys_flag & PullSysFlag.SUBSCRIPTION:
            data = SubscriptionData(
                topic=request.topic,
                sub_string=request.subscription,
                expression_type=request.expression_type,
            )
            try:
                subscription = read_subscription(data)
            except ValueError as error:
                return Response(
                    code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    remark=f"parse the consumer's subscription failed: {error}",
                )
            return self._judges(subscription, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
        group = self._clients.groups.get(request.consumer_group)
        if group is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"the consumer's group info not exist: {request.consumer_group}; send a "
                "heartbeat first",
            )
        config = self._groups.find(request.consumer_group)
        if (
            config is not None
            and not config.consume_broadcast_enable
            and group.message_model is MessageModel.BROADCASTING
        ):
            return forbidden(
                FORBIDDEN_BROADCAST,
                f"the consumer group[{request.consumer_group}] can not consume by broadcast way",
            )
        known = group.subscriptions.get(request.topic)
        if known is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"the consumer's subscription not exist: group {request.consumer_group}, "
                f"topic {request.topic}",
            )
        if known.data.sub_version < request.sub_version:
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
                remark="the consumer's subscription not latest",
            )
        return self._judges(known, ResponseCode.FILTER_DATA_NOT_EXIST)

    def _judges(self, subscription: Subscription, fault_code: int) -> Wants | Response:
        kind = subscription.data.expression_type
        if kind not in (None, "", TAG) and not self._config.enable_property_filter:
            return no_property_filter(kind)
        if subscription.fault is not None:
            return Response(
                code=fault_code,
                remark="parse the consumer's subscription failed, your expression may be wrong: "
                f"{subscription.fault}",
            )
        return Wants(code_filter(subscription.codes), subscription.matches)


def forbidden(kind: int, remark: str) -> Response:
    header = PullMessageReply(next_begin_offset=0, min_offset=0, max_offset=0, forbidden_type=kind)
    return Response(header, code=ResponseCode.NO_PERMISSION, remark=remark)
