"""Requests that send messages, replies and outcomes of transactions.

The sends are 10 SEND_MESSAGE, 310 SEND_MESSAGE_V2 (one-letter names) and 320 SEND_BATCH_MESSAGE.
Their body is the message body. With ``batch``, the body is the concatenated messages of
``message/batch.py``. Source: apache/rocketmq ``SendMessageRequestHeader``,
``SendMessageRequestHeaderV2``, ``SendMessageResponseHeader``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request, with_field_names

NOT_IN_SYNC: Final = "in-sync replicas not enough"
"""Beginning of the remark with which a master refuses sends (code 1) until more replicas are in
sync."""


class SendMessageReply(Reply, kw_only=True):
    """Reply to a send, with the position of the stored message.

    ``msg_id`` is the offset message id. For a batch it is a comma-separated list of ids.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class SendMessage(Request[SendMessageReply], kw_only=True):
    """Store one message, or a batch of messages.

    Timestamps are in ms. ``properties`` has the form of ``message/properties.py``.
    """

    code = RequestCode.SEND_MESSAGE
    producer_group: str | None = None
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None


@with_field_names("abcdefghijklmn")
class SendMessageV2(SendMessage, kw_only=True):
    """Store one message, or a batch of messages, with one-letter field names.

    5.x and most 4.x clients send this.
    """

    code = RequestCode.SEND_MESSAGE_V2
    broker_name: str | None = None


class SendBatchMessage(SendMessageV2, kw_only=True):
    """Store a batch of messages.

    Brokers look only at the ``batch`` field, which a request of any of the three codes may have.
    """

    code = RequestCode.SEND_BATCH_MESSAGE


# 36 CONSUMER_SEND_MSG_BACK: a consumer failed to handle a message and wants it again later. Source:
# apache/rocketmq ``ConsumerSendMsgBackRequestHeader``.
class ConsumerSendMsgBack(Request[None], kw_only=True):
    """Return a message that was not consumed, so that the broker delivers it again later.

    - ``offset``: position of the message in the log of the broker that receives this request.
    - ``delay_level``: delay of the retry. 0 lets the broker choose, and a negative level makes the
      message a dead letter.
    - ``max_reconsume_times``: retries before the message becomes a dead letter. If it is absent
      (clients before 3.4.9), the group's setting counts.
    - ``failure``: ours, the reason in one line. Apache's brokers ignore this field.
    """

    code = RequestCode.CONSUMER_SEND_MSG_BACK
    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    failure: str | None = None


# Recall of a timer message before its delivery (370). Source: apache/rocketmq
# ``RecallMessageRequestHeader``, ``RecallMessageResponseHeader``.
class RecallMessageReply(Reply, kw_only=True):
    """Reply to RECALL_MESSAGE (370) with the unique id of the recalled message."""

    msg_id: str


class RecallMessage(Request[RecallMessageReply], kw_only=True):
    """Recall a timer message before its delivery.

    ``recall_handle`` (``message/handles.py``) names the message. The code of the answer is 604
    ILLEGAL_OPERATION if the message is already due.
    """

    code = RequestCode.RECALL_MESSAGE
    producer_group: str | None = None
    topic: str
    recall_handle: str | None = None


# Replies to request messages: 324 SEND_REPLY_MESSAGE and 325 SEND_REPLY_MESSAGE_V2 send a reply to
# a broker; 326 PUSH_REPLY_MESSAGE_TO_CLIENT passes the reply to the producer that waits for it. The
# body is the reply's, compressed if the sysFlag says so. The property REPLY_TO_CLIENT names the
# waiting client, CORRELATION_ID its request. Source: apache/rocketmq ``ReplyMessageProcessor``,
# ``ReplyMessageRequestHeader``.
class SendReplyMessage(SendMessage, kw_only=True):
    """Send a reply to the producer of a request message.

    The fields are those of a send. The topic is ``<cluster>_REPLY_TOPIC``.
    """

    code = RequestCode.SEND_REPLY_MESSAGE


class SendReplyMessageV2(SendMessageV2, kw_only=True):
    """Send a reply to the producer of a request message, with one-letter field names."""

    code = RequestCode.SEND_REPLY_MESSAGE_V2


class PushReplyMessageToClient(Request[None], kw_only=True):
    """Pass a reply to the producer of the request message. The broker sends this.

    Times are in ms. Hosts are ``ip:port``, without brackets around an IPv6 address.
    """

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Int64


# End of transactions: 37 END_TRANSACTION, 39 CHECK_TRANSACTION_STATE (from a broker to a producer),
# 323 RESUME_CHECK_HALF_MESSAGE. Source: apache/rocketmq ``EndTransactionRequestHeader``,
# ``CheckTransactionStateRequestHeader``, ``ResumeCheckHalfMessageRequestHeader``.
class TransactionOutcome(IntEnum):
    """Outcome of a transaction, in the field ``commitOrRollback``. The values are the transaction
    bits of a ``sysFlag``."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class EndTransaction(Request[None], kw_only=True):
    """Commit or roll back a transaction.

    - ``tran_state_table_offset``: offset of the half message in the queue of half messages.
    - ``commit_log_offset``: offset of the half message in the log.
    """

    code = RequestCode.END_TRANSACTION
    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionState(Request[None], kw_only=True):
    """Ask a producer of the group for the outcome of a transaction.

    The broker sends this one-way, and the producer answers with an ``EndTransaction``. The body is
    the half message as a log entry, with the topic and queue of its destination. ``topic`` is the
    topic of half messages.
    """

    code = RequestCode.CHECK_TRANSACTION_STATE
    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessage(Request[None], kw_only=True):
    """Resume the checks of a transaction, after the broker has stopped them.

    ``msg_id`` is the current offset message id of its half message.
    """

    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    topic: str | None = None
    msg_id: str | None = None
