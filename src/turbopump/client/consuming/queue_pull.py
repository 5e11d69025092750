"""One pull of one queue: the request, and what its answer means.

One rule: it says how the pull went and where to go on, and decides nothing. It must not know why
the queue is pulled. Source: apache/rocketmq ``PullAPIWrapper``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec
from msgspec.structs import replace

from turbopump.client.consuming.pulled_messages import DamagedMessage, pulled_messages
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap, unwrapped
from turbopump.errors import ResponseError
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.route import MASTER_ID
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
    """``messages`` in the order of the queue; ``min_offset`` is the oldest the queue has,
    ``max_offset`` one past its newest.

    ``damaged`` came too, but failed their check (CRC) and are not among the messages; each has been
    logged as an error. ``broker_id``: which of the broker's members the next pull should ask (0:
    the master).
    """

    status: PullStatus
    messages: Sequence[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: Sequence[DamagedMessage] = ()
    broker_id: int = MASTER_ID


_STATUS_BY_CODE: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


async def pull_queue(
    instance: ClientInstance,
    group: str,
    subscription: Subscription,
    queue: MessageQueue,
    offset: int,
    max_messages: int,
    *,
    address: str,
    wait: float,
    timeout: float,
    namespace: str | None,
) -> PullResult:
    """Ask the broker at ``address``, which must have been introduced, for ``queue`` (as brokers
    know it) from ``offset`` on.

    ``wait``: seconds that it may hold the pull; ``timeout``: seconds for the answer, beyond
    ``wait``. Messages and damage come without ``namespace``. Nothing is logged. Raises
    ResponseError for any other answer, or another RemotingError.
    """
    request = PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=int(PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if wait > 0 else 0)),
        suspend_timeout_millis=int(wait * 1000),
        subscription=subscription.expression,
        sub_version=subscription.version,
        expression_type=subscription.kind,
    )
    command = await instance.remoting.exchange(address, request, timeout=wait + timeout)
    status = _STATUS_BY_CODE.get(command.code)
    if status is None:
        raise ResponseError(command.code, command.remark, request="PullMessage", address=address)
    reply = command.header(PullMessageReply)
    messages: list[ReceivedMessage] = []
    damaged: list[DamagedMessage] = []
    if status is PullStatus.FOUND:
        found, damaged = pulled_messages(
            command.body, queue, offset, reply.next_begin_offset, ReceivedMessage
        )
        if namespace:
            for message in found:
                message.topic = unwrap(namespace, message.topic)
            damaged = [replace(one, queue=unwrapped(namespace, one.queue)) for one in damaged]
        for message in found:
            if subscription.wants(message):
                message.broker_name = queue.broker_name
                messages.append(message)
        if not messages:
            status = PullStatus.NO_MATCHED_MESSAGE  # the broker compares hashes of tags only
    return PullResult(
        *(
            status,
            messages,
            reply.next_begin_offset,
            reply.min_offset,
            reply.max_offset,
            damaged,
            reply.suggest_which_broker_id,
        )
    )
