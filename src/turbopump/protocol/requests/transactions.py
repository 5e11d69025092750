"""Ending transactions: 37 END_TRANSACTION, 39 CHECK_TRANSACTION_STATE (from a broker to a
producer), 323 RESUME_CHECK_HALF_MESSAGE.

Source: apache/rocketmq ``EndTransactionRequestHeader``, ``CheckTransactionStateRequestHeader``,
``ResumeCheckHalfMessageRequestHeader``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class Outcome(IntEnum):
    """Values of ``commitOrRollback``: the transaction bits of a ``sysFlag``."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class EndTransaction(Request[None], kw_only=True):
    """A producer says what has become of its transaction. ``tran_state_table_offset`` is the half
    message's offset in the queue of half messages, ``commit_log_offset`` that in the log."""

    code: ClassVar[int] = RequestCode.END_TRANSACTION

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionState(Request[None], kw_only=True):
    """A broker asks a producer of the group what has become of a transaction; oneway. The body is
    the half message as an entry, with the topic and the queue that it is meant for; ``topic`` is
    that of half messages. The answer is an ``EndTransaction``."""

    code: ClassVar[int] = RequestCode.CHECK_TRANSACTION_STATE

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessage(Request[None], kw_only=True):
    """Begin to check a transaction again that was given up; ``msg_id`` is the offset message id of
    where it lies now."""

    code: ClassVar[int] = RequestCode.RESUME_CHECK_HALF_MESSAGE

    topic: str | None = None
    msg_id: str | None = None
