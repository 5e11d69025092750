"""Hooks that run a user's code before and after each attempt to send a message.

One rule: an exception of a hook before or after an attempt is logged and changes nothing, but an
exception of ``forbid`` ends the send. Source: apache/rocketmq ``SendMessageHook``,
``CheckForbiddenHook``, ``EndTransactionHook``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from turbopump.client.namespace import unwrap, unwrapped
from turbopump.client.sending.send_result import SendResult
from turbopump.message.message import MessageQueue
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_hook_failed = RepeatedLine(log, logging.WARNING, "send hook failed hook=%s cause=%s")


class MessageKind(IntEnum):
    """Kind of a message. The numbers are those of Apache's ``MessageType`` in traces."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(slots=True)
class SendContext:
    """One attempt to send a message or a batch, as a hook sees it.

    Group, topic and queue have the user's names, without ``namespace%``.

    - ``body_size``: size of the sent body in bytes, after compression.
    - ``batch``: body of a batch (``message/batch.py``). None for a single message.
    - ``result``, ``error``: outcome, set after the attempt.
    - ``state``: values that a hook stores before the attempt and reads after it.
    """

    group: str
    topic: str
    properties: dict[str, str]
    body_size: int
    queue: MessageQueue
    address: str
    msg_id: str
    kind: MessageKind
    started_ms: int
    oneway: bool = False
    batch: bytes | None = None
    result: SendResult | None = None
    error: Exception | None = None
    cost_ms: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndTransactionContext:
    """Report of a transaction's state to a broker, as a hook sees it.

    Group and topic have the user's names, without ``namespace%``.

    - ``address``: the broker.
    - ``state``: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
    - ``from_check``: True if the broker has asked for the state.
    """

    group: str
    topic: str
    properties: dict[str, str]
    address: str
    msg_id: str
    transaction_id: str | None
    state: str
    from_check: bool


class SendHook:
    """Base class of hooks. Every method does nothing; override the ones you need."""

    def forbid(self, context: SendContext) -> None:
        """Decide if an attempt may be made. To end the send, raise an exception, which the sender
        gets."""

    def before(self, context: SendContext) -> None:
        """Called before an attempt to send. The hook may change the properties of the message.

        Changes of ``context.properties`` are sent with this and later attempts, but not with a
        batch. A property that cannot be encoded is left out and logged. The id (``UNIQ_KEY``)
        cannot be changed, because the result contains it.
        """

    def after(self, context: SendContext) -> None:
        """Called after an attempt has ended, or after a oneway message was written."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Called when a transaction's state is reported to a broker."""


class SendHooks:
    """All hooks of a producer. They are called in the given order.

    Callers pass names as brokers know them; the hooks get the user's names.
    """

    def __init__(self, hooks: Sequence[SendHook], namespace: str | None = None) -> None:
        self._hooks = tuple(hooks)
        self._namespace = namespace

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(self, context: SendContext) -> None:
        namespace = self._namespace
        if namespace is not None:
            context.group = unwrap(namespace, context.group)
            context.topic = unwrap(namespace, context.topic)
            context.queue = unwrapped(namespace, context.queue)
        for hook in self._hooks:
            hook.forbid(context)
        self._each(lambda hook: hook.before(context))

    def after(self, context: SendContext) -> None:
        if self._namespace is not None and context.result is not None:
            queue = unwrapped(self._namespace, context.result.queue)
            context.result = context.result.moved_to(queue)
        self._each(lambda hook: hook.after(context))

    def end_transaction(self, context: EndTransactionContext) -> None:
        group, topic = (unwrap(self._namespace, name) for name in (context.group, context.topic))
        context = replace(context, group=group, topic=topic)
        self._each(lambda hook: hook.end_transaction(context))

    def _each(self, call: Callable[[SendHook], None]) -> None:
        for hook in self._hooks:
            try:
                call(hook)
            except Exception as error:
                kind = type(hook), type(error)
                _hook_failed(type(hook).__name__, repr(error), kind=kind, exc_info=True)
