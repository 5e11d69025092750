"""Hooks of a user's own code in sending: a check that may forbid an attempt, and calls before and
after it.

One rule: what a hook raises before or after an attempt is logged and changes nothing; what
``forbid`` raises ends the send. Source: apache/rocketmq ``SendMessageHook``,
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
    """Apache's ``MessageType``; the number stands in traces."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(slots=True)
class SendContext:
    """One attempt, in the user's names (without ``namespace%``). ``body_size`` as the body goes out
    (compressed if it is); ``batch``: the body of a batch (``message/batch.py``), None of a single
    message; ``result`` or ``error`` is set after it; ``state`` is free for what a hook wants to
    keep from before to after."""

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
    """A transaction, in the user's names, whose state (COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW)
    the broker at ``address`` is told; ``from_check``: because it has asked."""

    group: str
    topic: str
    properties: dict[str, str]
    address: str
    msg_id: str
    transaction_id: str | None
    state: str
    from_check: bool


class SendHook:
    """Override what you need."""

    def forbid(self, context: SendContext) -> None:
        """Raise to forbid the attempt: the send ends with your exception."""

    def before(self, context: SendContext) -> None:
        """An attempt is about to be made. What you change in ``context.properties`` goes out with
        the message (not with a batch), and with later attempts; what cannot travel is left out, and
        logged. The id (``UNIQ_KEY``) stays: it is what the sender gets in its result."""

    def after(self, context: SendContext) -> None:
        """An attempt was answered or failed; a oneway one was handed to the connection."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """A broker is told how a transaction stands."""


class SendHooks:
    """A producer's hooks, in the order given; they are called with names as on the wire."""

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
