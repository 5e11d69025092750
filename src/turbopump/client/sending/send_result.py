"""What became of a message that was sent. Values in, values out."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from turbopump.client.sending.outgoing import Outgoing
from turbopump.errors import HeaderError, RemotingError, ResponseError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, TypedJsonHeader
from turbopump.protocol.request import header_from_ext
from turbopump.protocol.requests.send import SendMessageReply

DEFAULT_REGION: Final = "DefaultRegion"


class SendStatus(Enum):
    """The message is stored in every case; all but OK say that a stronger promise could not be kept
    in time."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True):
    """``msg_id`` is the producer's own id of the message (for a batch: the ids, comma-separated);
    ``queue`` and ``queue_offset`` say where it is (for a batch: the first); ``offset_msg_id`` is
    the broker's id, by which it can be looked up (for a batch: the ids, comma-separated).
    ``region_id`` and ``trace_on`` are what the broker says about traces. ``batch_ids``: see
    ``msg_ids``."""

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None
    region_id: str = DEFAULT_REGION
    trace_on: bool = True
    batch_ids: tuple[str, ...] = ()

    @property
    def msg_ids(self) -> tuple[str, ...]:
        """The ids of the messages of a batch in their order, each as its consumer will see it; of a
        single message, or a batch that the broker keeps as one entry, its one."""
        return self.batch_ids or (self.msg_id,)

    def moved_to(self, queue: MessageQueue) -> SendResult:
        """The same under the name that the user knows the queue by."""
        return msgspec.structs.replace(self, queue=queue)


class SendAnswer(SendMessageReply, kw_only=True):
    """The answer's header fields, with those that only clients read."""

    region_id: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: str | None = msgspec.field(default=None, name="TRACE_ON")


SEND_ANSWER: Final = msgspec.json.Decoder(TypedJsonHeader[SendAnswer], strict=False)
"""Reads the whole header of a good answer in one pass."""

STATUS_BY_CODE: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Answers that mean the message is stored (apache/rocketmq
``MQClientAPIImpl.processSendResponse``)."""

RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which another broker is tried (apache/rocketmq
``DefaultMQProducer.retryResponseCodes``)."""


class AnswerUnreadError(RemotingError):
    """The broker says that it has stored the message, but not where: trying again would store it
    twice."""


def result_of(
    answer: TypedJsonHeader[SendAnswer] | Command,
    outgoing: Outgoing,
    queue: MessageQueue,
    address: str,
) -> SendResult:
    """What an answer says. Raises ResponseError if the message is not stored, AnswerUnreadError if
    nobody can tell where it is."""
    status = STATUS_BY_CODE.get(answer.code)
    if isinstance(answer, Command):
        if status is None:
            raise ResponseError(answer.code, answer.remark, request="SendMessage", address=address)
        try:
            reply = header_from_ext(SendAnswer, answer.ext or {})
        except HeaderError as error:
            raise AnswerUnreadError(
                f"answered that it is stored, in a header that cannot be read: {error}"
            ) from None
    elif status is None:
        raise ResponseError(answer.code, answer.remark, request="SendMessage", address=address)
    else:
        reply = answer.ext
    if reply.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    whole = reply.batch_uniq_id  # of an inner batch: the broker keeps it as one entry
    return SendResult(
        status,
        outgoing.msg_id if whole is None else whole,
        queue,
        reply.queue_offset,
        reply.msg_id,
        reply.transaction_id,
        reply.recall_handle,
        reply.region_id or DEFAULT_REGION,
        reply.trace_on != "false",
        outgoing.batch_ids if whole is None else (),
    )
