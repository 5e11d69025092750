"""Handler of messages that consumers send back after a failure (36).

Each message is delivered again later, or becomes a dead letter. The order of checks and the codes
are those of apache/rocketmq ``AbstractSendMessageProcessor.consumerSendMsgBack``. RocketMQ answers
before the copy is on the disk. This broker does so only under ASYNC_FLUSH, because the consumer
drops the message after the answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from turbopump.broker.dead_letters import (
    dead_letter_topic,
    retry_topic,
    sent_back_destination,
    sent_back_properties,
)
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.interceptors import Destination
from turbopump.broker.reading import entry_for, read
from turbopump.broker.statistics import SNDBCK_PUT_NUMS
from turbopump.broker.stored import Stored
from turbopump.errors import MessageError, StoreError
from turbopump.message.delivery_time import DelayLevels
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import RETRY_TOPIC, SysFlag
from turbopump.message.rules import DLQ_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.protocol.requests.send import ConsumerSendMsgBack
from turbopump.protocol.requests.topics import PERM_WRITE
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router


@dataclass(eq=False)
class SendBackHandler:
    """Handler of messages that consumers send back after a failure.

    If the members of a group have different maximum numbers of attempts, the number of the member
    that started last counts.
    """

    stored: Stored
    forwarding: Forwarding

    def __post_init__(self) -> None:
        self._levels = DelayLevels(self.stored.config.delay_levels_ms)

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(ConsumerSendMsgBack, self.send_back)

    def send_back(self, request: ConsumerSendMsgBack, context: RequestContext) -> Outcome[None]:
        """Store a copy of a message for a later delivery. A consumer could not process the
        message."""
        if self.stored.config.is_slave:  # before it makes a topic
            return refusal(
                ResponseCode.SYSTEM_ERROR,
                "no master available along with this broker, which is a slave: send the message to "
                "the group's retry topic on another broker",
            )
        group = self.stored.tables.groups.find_or_create(request.group)
        if group is None:
            return refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {request.group}; create it, or set "
                "autoCreateSubscriptionGroup=true on the broker",
            )
        if not self.stored.config.broker_permission & PERM_WRITE:
            return refusal(
                ResponseCode.NO_PERMISSION, "the broker's brokerPermission forbids writing"
            )
        if group.retry_queue_nums <= 0:
            return Response()  # RocketMQ: such a group's messages are not tried again
        topic = retry_topic(
            self.stored.tables.topics,
            request.group,
            group.retry_queue_nums,
            unit_mode=request.unit_mode,
        )
        if not topic.perm & PERM_WRITE:
            return refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic_name}] sending message is forbidden",
            )
        return self._return(request, group, context)

    async def _return(
        self, request: ConsumerSendMsgBack, group: SubscriptionGroupConfig, context: RequestContext
    ) -> Response[None]:
        try:
            entry = await read(
                self.stored.store.cold_reads,
                entry_for(context, self.stored.store.lookup, request.offset),
            )
            if entry is None or entry.fault is not None:
                remark = f"look message by offset failed, {request.offset}"
                if entry is not None:
                    remark += f": it is damaged ({entry.fault})"
                return refusal(ResponseCode.SYSTEM_ERROR, remark)
            message = entry.message
            refused = context.refused(message.topic, request.group)
            if refused is not None:
                return refused
            if message.sys_flag & SysFlag.INNER_BATCH:
                # RocketMQ: the retry topic does not take it, the client sends the message itself.
                remark = (
                    f"the entry at offset {request.offset} is an inner batch; send the "
                    "single message to the retry topic"
                )
                return refusal(ResponseCode.SYSTEM_ERROR, remark)
            destination = self._destination(request, group, message)
            stored = await self.forwarding.forward(
                message,
                destination.topic,
                destination.queue_id,
                properties=destination.properties,
                reconsume_times=message.reconsume_times + 1,
                for_client=True,
            )
            key = f"{message.properties.get(RETRY_TOPIC) or message.topic}@{request.group}"
            self.stored.statistics.add(SNDBCK_PUT_NUMS, key, 1)
            if destination.topic.startswith(DLQ_PREFIX):
                counts = self.stored.statistics.events.dead_letters
                counts.count(request.group, request.origin_topic or message.topic)
            async with asyncio.timeout(self.stored.config.sync_flush_timeout / 1000):
                await asyncio.shield(self.stored.tables.topics.new_saving())
                await self.forwarding.confirmed(stored)
        except TimeoutError:  # an OSError too
            return refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the disk has not answered within {self.stored.config.sync_flush_timeout} ms; "
                "the message may come again, or not",
            )
        except (OSError, StoreError, MessageError) as error:
            return refusal(ResponseCode.SYSTEM_ERROR, f"the message was not taken back: {error}")
        return Response()

    def _destination(
        self, request: ConsumerSendMsgBack, group: SubscriptionGroupConfig, message: ReceivedMessage
    ) -> Destination:
        attempts_max = self.stored.clients.retries_max(request.group)
        if attempts_max is None:
            attempts_max = request.max_reconsume_times
        if attempts_max is None:
            attempts_max = group.retry_max_times
        topic = retry_topic(self.stored.tables.topics, request.group, group.retry_queue_nums)
        assert topic.topic_name is not None
        queue_id = self.stored.random.randrange(
            max(min(group.retry_queue_nums, topic.write_queue_nums), 1)
        )
        retry = Destination(
            topic.topic_name,
            queue_id,
            sent_back_properties(message, request.failure, dead=False),
            message.sys_flag,
        )
        level = request.delay_level or self._level_of(group, message.reconsume_times)
        again = sent_back_destination(message, retry, level, attempts_max, self._levels)
        if again is not None:
            return again
        dead = dead_letter_topic(self.stored.tables.topics, request.group)
        assert dead.topic_name is not None
        return Destination(
            dead.topic_name,
            0,
            sent_back_properties(message, request.failure, dead=True),
            message.sys_flag,
        )

    def _level_of(self, group: SubscriptionGroupConfig, attempts: int) -> int:
        """Return the delay level for an attempt, according to the retry policy of a group.

        Return 0 if the group has no policy. RocketMQ: its proxy obeys the policy, its broker does
        not.
        """
        policy = group.group_retry_policy
        wait = policy.wait_ms(attempts) if policy is not None else None
        if wait is None:
            return 0
        return self._levels.lasting(wait)
