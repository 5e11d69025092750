"""Handlers of operators' requests to a running consumer. A broker passes each request on to the
client.

The codes are 220 (reset offsets), 221 (report offsets), 307 (report the state, with stacks of
threads and tasks) and 309 (handle a message now). One rule: a reset takes effect at once and
overrides commits that are being sent. This module must not know how a consumer works. Source:
apache/rocketmq ``ClientRemotingProcessor``, ``MQClientInstance.resetOffset``,
``ConsumerRunningInfo``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.heartbeat import InstanceMember, Operated
from turbopump.errors import StoredMessageError
from turbopump.message.codec import decode_entry
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import CURRENT_VERSION, ResponseCode
from turbopump.protocol.requests import consumers
from turbopump.protocol.requests.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)
from turbopump.protocol.requests.offsets import (
    GetConsumerStatusBody,
    GetConsumerStatusFromClient,
    ResetConsumerOffset,
    ResetOffsetBody,
)
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import RequestContext, Router

STACK_MAX: Final = 256 * 1024
"""Maximum number of characters in the stacks that an answer contains."""


def add_operator_requests(router: Router, members: Callable[[], Sequence[InstanceMember]]) -> None:
    """Register the handlers of operators' requests to the consumers in ``members``."""

    def find(group: str) -> Operated | Refusal:
        for member in members():
            if member.group == group and member.operated is not None and not member.left:
                return member.operated
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return refusal(ResponseCode.SYSTEM_ERROR, remark)

    def reset(
        request: ResetConsumerOffset, body: ResetOffsetBody, _context: RequestContext
    ) -> Response[None]:
        consumer = find(request.group)
        if isinstance(consumer, Response):
            return consumer
        consumer.reset(_of_topic(request.topic, body.offset_table))
        return Response()

    def status(
        request: GetConsumerStatusFromClient, _context: RequestContext
    ) -> Response[GetConsumerStatusBody]:
        consumer = find(request.group)
        if isinstance(consumer, Response):
            return consumer
        offsets = _of_topic(request.topic, consumer.done_offsets())
        return Response(GetConsumerStatusBody(message_queue_table=offsets))

    def running(
        request: consumers.GetConsumerRunningInfo, _context: RequestContext
    ) -> Response[consumers.ConsumerRunningInfo]:
        consumer = find(request.consumer_group)
        if isinstance(consumer, Response):
            return consumer
        info = consumer.running_info()
        if request.jstack_enable:
            info.jstack = stacks()
        return Response(info)

    async def directly(
        request: consumers.ConsumeMessageDirectly, context: RequestContext
    ) -> Response[consumers.ConsumeMessageDirectlyResult]:
        consumer = find(request.consumer_group)
        if isinstance(consumer, Response):
            return consumer
        try:
            message = decode_entry(context.body, message_type=Delivery)
        except StoredMessageError as error:
            remark = f"the message in the request cannot be read: {error}"
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        assert isinstance(message, Delivery)
        message.broker_name = request.broker_name or ""
        return Response(await consumer.consume_directly(message))

    router.add_with_body(ResetConsumerOffset, reset)
    router.add(GetConsumerStatusFromClient, status)
    router.add(consumers.GetConsumerRunningInfo, running)
    router.add(consumers.ConsumeMessageDirectly, directly)


def _of_topic(topic: str | None, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    return {queue: offset for queue, offset in offsets.items() if queue.topic == topic}


def running_info(
    name_servers: Sequence[str],
    consumer: ConsumerData,
    queues: Mapping[MessageQueue, consumers.ProcessQueueInfo | consumers.PopProcessQueueInfo],
    *,
    concurrency: int,
    ordered: bool,
    started_ms: int,
    statuses: Mapping[str, consumers.ConsumeStatus],
) -> consumers.ConsumerRunningInfo:
    """Return the settings, queues and statistics of a consumer. Their names are those in Apache's
    tools."""
    subscriptions = consumer.subscription_data_set
    return consumers.ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(name_servers),
            "PROP_CONSUME_TYPE": (consumer.consume_type or ConsumeType.CONSUME_PASSIVELY).value,
            "PROP_CONSUMEORDERLY": "true" if ordered else "false",
            "messageModel": (consumer.message_model or MessageModel.CLUSTERING).value,
            "consumeFromWhere": (
                consumer.consume_from_where or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            ).value,
            "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            "PROP_CLIENT_VERSION": str(CURRENT_VERSION),
        },
        subscription_set=tuple(subscriptions),
        mq_table={
            queue: info
            for queue, info in queues.items()
            if isinstance(info, consumers.ProcessQueueInfo)
        },
        mq_pop_table={
            queue: info
            for queue, info in queues.items()
            if isinstance(info, consumers.PopProcessQueueInfo)
        },
        status_table={
            one.topic: statuses.get(one.topic, consumers.ConsumeStatus())
            for one in subscriptions
            if one.topic
        },
    )


def stacks() -> str:
    """Return a text with the stack of every thread in this process and of every task on the running
    event loop."""
    out = StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}\n")
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        out.write(f"task {task.get_name()}\n")
        waits: object = task.get_coro()
        while waits is not None:  # from the task's own function to the innermost that waits
            suspended = getattr(waits, "cr_frame", None)
            if suspended is not None:
                out.write("".join(traceback.format_stack(suspended, limit=1)))
            waits = getattr(waits, "cr_await", None)
    text = out.getvalue()
    return text if len(text) <= STACK_MAX else text[:STACK_MAX] + "…"
