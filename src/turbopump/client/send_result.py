"""What became of a message that was sent. Values only."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.codes import ResponseCode


class SendStatus(Enum):
    """The message is stored in every case; all but OK say that a stronger promise could not be kept in time."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True):
    """``msg_id`` is the producer's own id of the message (for a batch: the ids, comma-separated); ``queue`` and ``queue_offset`` say
    where it is (for a batch: the first); ``offset_msg_id`` is the broker's id, by which it can be looked up."""

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None


STATUS_BY_CODE: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Answers that mean the message is stored (apache/rocketmq ``MQClientAPIImpl.processSendResponse``)."""

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
"""Answers after which another broker is tried (apache/rocketmq ``DefaultMQProducer.retryResponseCodes``)."""
