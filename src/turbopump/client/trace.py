r"""Message traces in Apache's encoding: records of actions on messages, as text for a trace topic.

::

    record    = field \x01 field \x01 … \x02        absent fields are written "null"
    sent      = time, region, group, topic, msgId
    Pub       = Pub, sent, tags, keys, storeHost, bodyLength, costMs, messageKind, offsetMsgId,
                success
    EndTransaction = …, sent, tags, keys, storeHost, messageKind, transactionId, state, fromCheck
    Recall    = Recall, sent, success
    SubBefore = SubBefore, time, region, group, requestId, msgId, retryTimes, keys
    SubAfter  = SubAfter, requestId, msgId, costMs, success, keys, contextCode, time, group
                [, error=text]

The last field of SubAfter is an addition of this project: Apache's reader ignores further fields.

A message on the trace topic holds several records; its keys are the ids and keys of the traced
messages. Values in, values out. Source: apache/rocketmq ``TraceDataEncoder``,
``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from turbopump.client.hooks import MessageKind

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
ERROR: Final = "error="


class ContextCode(IntEnum):
    """Outcome of handling a message, with the ordinals of Apache's ``ConsumeReturnType``."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """Message that a trace record describes, with the time of the traced action.

    - ``time_ms``: time of the action in ms since 1970 UTC.
    - ``region``, ``group``: region and group of the action.
    """

    topic: str
    msg_id: str
    tags: str | None = None
    keys: str | None = None
    time_ms: int = 0
    region: str = ""
    group: str = ""

    @property
    def trace_keys(self) -> list[str]:
        """Keys under which the trace of the message can be found."""
        return f"{self.msg_id} {self.keys or ''}".split()

    @property
    def head(self) -> tuple[int, str, str, str, str]:
        """First fields of every record about a sent, ended or recalled message."""
        return self.time_ms, self.region, self.group, self.topic, self.msg_id


def pub_record(
    sent: TracedMessage,
    *,
    store_host: str,
    body_size: int,
    cost_ms: int,
    kind: MessageKind,
    offset_msg_id: str,
    success: bool,
) -> str:
    """Return the trace record of a sent message."""
    rest = (store_host, body_size, cost_ms, int(kind), offset_msg_id, success)
    return _record("Pub", *sent.head, sent.tags, sent.keys, *rest)


def end_transaction_record(
    ended: TracedMessage,
    *,
    store_host: str,
    kind: MessageKind,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> str:
    """Return the trace record of an ended transaction.

    ``state`` is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
    """
    rest = (store_host, int(kind), transaction_id, state, from_check)
    return _record("EndTransaction", *ended.head, ended.tags, ended.keys, *rest)


def recall_record(recalled: TracedMessage, *, success: bool) -> str:
    """Return the trace record of a recalled message."""
    return _record("Recall", *recalled.head, success)


def sub_before_record(begun: TracedMessage, *, request_id: str, retry_times: int) -> str:
    """Return the trace record that is written before a message is handled.

    ``request_id`` must be the same in the record after handling.
    """
    origin = (begun.time_ms, begun.region, begun.group, request_id)
    return _record("SubBefore", *origin, begun.msg_id, retry_times, begun.keys)


def sub_after_record(
    handled: TracedMessage,
    *,
    request_id: str,
    cost_ms: int,
    code: ContextCode,
    success: bool,
    time_ms: int,
    error: str | None = None,
) -> str:
    """Return the trace record that is written after a message was handled.

    - ``cost_ms``: duration of handling in ms.
    - ``time_ms``: time of the end of handling, in ms since 1970 UTC.
    - ``error``: reason of a failure, in one line.
    """
    outcome = (cost_ms, success, handled.keys, int(code), time_ms, handled.group)
    more = () if error is None else (ERROR + error,)
    return _record("SubAfter", request_id, handled.msg_id, *outcome, *more)


def _record(*fields: object) -> str:
    return FIELD_END.join([_text(field) for field in fields]) + RECORD_END


def _text(field: object) -> str:
    if field is None:
        return "null"
    if isinstance(field, bool):
        return "true" if field else "false"
    return str(field)
