r"""Message traces in Apache's encoding: what was done with a message, as text for a trace topic.

::

    record    = field \x01 field \x01 … \x02        absent fields are written "null"
    Pub       = Pub, time, region, group, topic, msgId, tags, keys, storeHost, bodyLength, costMs, messageKind, offsetMsgId, success
    EndTransaction = …, time, region, group, topic, msgId, tags, keys, storeHost, messageKind, transactionId, state, fromCheck
    Recall    = Recall, time, region, group, topic, msgId, success
    SubBefore = SubBefore, time, region, group, requestId, msgId, retryTimes, keys
    SubAfter  = SubAfter, requestId, msgId, costMs, success, keys, contextCode, time, group [, error=text]

The last field of SubAfter is ours: Apache's reader takes the fields it knows and passes over what
follows them.

A message on the trace topic holds some records; its keys are the ids and keys of the messages they
speak of. Values in, values out. Source: apache/rocketmq ``TraceDataEncoder``,
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
    """How the handling of a message ended: Apache's ``ConsumeReturnType``, by its ordinal."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Traced:
    """The message that a record speaks of."""

    topic: str
    msg_id: str
    tags: str | None = None
    keys: str | None = None

    @property
    def trace_keys(self) -> list[str]:
        """By which its trace is found."""
        return f"{self.msg_id} {self.keys or ''}".split()


def pub_record(
    message: Traced,
    *,
    time_ms: int,
    region: str,
    group: str,
    store_host: str,
    body_size: int,
    cost_ms: int,
    kind: MessageKind,
    offset_msg_id: str,
    success: bool,
) -> str:
    """A message was sent."""
    return _record(
        "Pub",
        time_ms,
        region,
        group,
        message.topic,
        message.msg_id,
        message.tags,
        message.keys,
        store_host,
        body_size,
        cost_ms,
        int(kind),
        offset_msg_id,
        success,
    )


def end_transaction_record(
    message: Traced,
    *,
    time_ms: int,
    region: str,
    group: str,
    store_host: str,
    kind: MessageKind,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> str:
    """A transaction was ended; ``state`` is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    return _record(
        "EndTransaction",
        time_ms,
        region,
        group,
        message.topic,
        message.msg_id,
        message.tags,
        message.keys,
        store_host,
        int(kind),
        transaction_id,
        state,
        from_check,
    )


def recall_record(message: Traced, *, time_ms: int, region: str, group: str, success: bool) -> str:
    """A timer message was recalled."""
    return _record("Recall", time_ms, region, group, message.topic, message.msg_id, success)


def sub_before_record(
    message: Traced, *, time_ms: int, region: str, group: str, request_id: str, retry_times: int
) -> str:
    """A message is about to be handled; ``request_id`` is that of the record after it."""
    return _record(
        "SubBefore", time_ms, region, group, request_id, message.msg_id, retry_times, message.keys
    )


def sub_after_record(
    message: Traced,
    *,
    request_id: str,
    cost_ms: int,
    code: ContextCode,
    success: bool,
    time_ms: int,
    group: str,
    error: str | None = None,
) -> str:
    """A message was handled; ``error``, one line: why that failed."""
    fields = [
        "SubAfter",
        request_id,
        message.msg_id,
        cost_ms,
        success,
        message.keys,
        int(code),
        time_ms,
        group,
    ]
    return _record(*fields, *(() if error is None else (ERROR + error,)))


def _record(*fields: object) -> str:
    return FIELD_END.join([_text(field) for field in fields]) + RECORD_END


def _text(field: object) -> str:
    if field is None:
        return "null"
    if isinstance(field, bool):
        return "true" if field else "false"
    return str(field)
