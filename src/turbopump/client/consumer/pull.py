"""One pull of one queue: the request and its answer.

One rule: this module reports the outcome and decides nothing. This module must not know why the
queue is pulled. Source: apache/rocketmq ``PullAPIWrapper``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from turbopump import errors
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap
from turbopump.message.batch import Unpacking
from turbopump.message.codec import decode_entry
from turbopump.message.entry import queue_offset_of
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.pulled import pulled_entries, unread_messages
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.remoting.client import RemotingClient, refused_by
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_left_out = RepeatedLine(
    log, logging.ERROR, "damaged message left out topic=%s broker=%s queue=%d offset=%d cause=%s"
)

PULL_BATCH: Final = 32

MessageT = TypeVar("MessageT", bound=ReceivedMessage)


class PullStatus(Enum):
    """Outcome of a pull. In every case ``next_offset`` is the offset of the next pull."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The offset is before the queue's first message or beyond its end."""


class DamagedMessage(msgspec.Struct, frozen=True):
    """Position and fault of a message that arrived damaged.

    If the offset itself is damaged, ``queue_offset`` is the lowest possible one.
    """

    queue: MessageQueue
    queue_offset: int
    fault: str


class PullResult(msgspec.Struct, frozen=True):
    """Messages and offsets that a pull has returned.

    - ``messages``: messages in the order of the queue.
    - ``next_offset``: offset of the next pull.
    - ``min_offset``: offset of the oldest message in the queue.
    - ``max_offset``: offset after the newest message in the queue.
    - ``damaged``: messages that failed the CRC check. Each is logged as an error and is not in
      ``messages``.
    - ``broker_id``: member of the broker to ask next. 0 is the master.
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


class PullAnswer(NamedTuple, Generic[MessageT]):
    """Answer of a broker to a pull.

    - ``messages``: undamaged messages.
    - ``damaged``: position and fault of each damaged message.
    - ``reply``: header fields of the answer.
    """

    status: PullStatus
    messages: Sequence[MessageT]
    damaged: Sequence[DamagedMessage]
    reply: PullMessageReply


async def pull(
    instance: ClientInstance,
    address: str,
    request: PullMessage,
    queue: MessageQueue,
    message_type: type[MessageT],
    timeout: float,
) -> PullAnswer[MessageT]:
    """Pull messages of ``queue`` from the broker at ``address``.

    The broker must have this client's heartbeat. Damaged messages are not logged. Raises
    ResponseError for a code that is no ``PullStatus``, or another RemotingError.
    """
    status, command = await ask_to_pull(instance.remoting, address, request, timeout)
    reply = command.header(PullMessageReply)
    if status is not PullStatus.FOUND:
        return PullAnswer(status, (), (), reply)
    messages, damaged = pulled_messages(
        command.body, queue, request.queue_offset, reply.next_begin_offset, message_type
    )
    return PullAnswer(status, messages, damaged, reply)


async def ask_to_pull(
    remoting: RemotingClient, address: str, request: PullMessage, timeout: float
) -> tuple[PullStatus, Command]:
    """Send a pull to the broker at ``address``. Return its outcome and the whole answer.

    Raises ResponseError for a code that is no ``PullStatus``, or another RemotingError.
    """
    command = await remoting.exchange(address, request, timeout=timeout)
    status = _STATUS_BY_CODE.get(command.code)
    if status is None:
        raise refused_by(address, request, command)
    return status, command


def pulled_messages(
    body: bytes, queue: MessageQueue, offset: int, next_offset: int, message_type: type[MessageT]
) -> tuple[list[MessageT], list[DamagedMessage]]:
    """Return the undamaged and the damaged messages in the answer to a pull.

    The pull of ``queue`` was from ``offset`` to ``next_offset``. Each message is checked by its
    bodyCRC, and by the CRC over the whole entry if the broker stored one. Inner batches are split,
    and their messages before ``offset`` are left out.
    """
    messages, at = unread_messages(body, message_type)
    damaged: list[DamagedMessage] = []
    if at == len(body):
        return messages, damaged

    def add_damaged(stored_offset: int, fault: str) -> None:
        lowest = offset
        if messages:
            lowest = messages[-1].queue_offset + 1
        if not lowest <= stored_offset < next_offset:
            stored_offset = lowest  # the stored offset is damaged, too
        damaged.append(DamagedMessage(queue, stored_offset, fault))

    unpacking = Unpacking()
    for entry in pulled_entries(body[at:], lambda bad: add_damaged(bad.queue_offset, bad.fault)):
        try:
            for one in unpacking.entries(entry):
                message = decode_entry(one, check_crc=False, message_type=message_type)
                assert isinstance(message, message_type)
                if one is entry or message.queue_offset >= offset:
                    messages.append(message)
        except errors.StoredMessageError as error:
            add_damaged(queue_offset_of(entry), str(error))
    return messages, damaged


def pull_request(
    group: str,
    subscription: Subscription,
    queue: MessageQueue,
    offset: int,
    max_messages: int,
    wait: float = 0.0,
) -> PullMessage:
    """Return a request to pull ``queue`` with the consumer's subscription.

    ``wait`` is the time in seconds for which the broker may wait for messages before it answers.
    """
    flags = PullSysFlag.SUBSCRIPTION
    if wait > 0:
        flags |= PullSysFlag.SUSPEND
    return PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=int(flags),
        suspend_timeout_millis=int(wait * 1000),
        subscription=subscription.expression,
        sub_version=subscription.version,
        expression_type=subscription.kind,
    )


def wanted_messages(
    answer: PullAnswer[ReceivedMessage],
    subscription: Subscription,
    broker_name: str,
    namespace: str | None,
) -> list[ReceivedMessage]:
    """Return the messages of an answer that match the subscription.

    A broker compares only hashes of tags, so it may return other messages too. Each message gets
    the broker's name and the topic that users know.
    """
    messages = [message for message in answer.messages if subscription.wants(message)]
    for message in messages:
        message.broker_name = broker_name
        message.topic = unwrap(namespace, message.topic)
    return messages


def log_damaged(damaged: Sequence[DamagedMessage]) -> None:
    """Log the first damaged message of each queue, and the number of the others."""
    for one in damaged:
        _left_out(
            one.queue.topic,
            one.queue.broker_name,
            one.queue.queue_id,
            one.queue_offset,
            one.fault,
            kind=one.queue,
        )
