"""Places where a user's own code takes part in sending: a check that may forbid an attempt, and calls before and after it.

One rule: what a hook raises before or after an attempt is logged and changes nothing; what ``forbid`` raises ends the send.
Source: apache/rocketmq ``SendMessageHook``, ``CheckForbiddenHook``, ``EndTransactionHook``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from turbopump.client.send_result import SendResult
from turbopump.message.message_queue import MessageQueue

log = logging.getLogger(__name__)


class MessageKind(IntEnum):
    """Apache's ``MessageType``; the number stands in traces."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(slots=True)
class SendContext:
    """One attempt. ``body`` as it goes out (compressed if it is); ``result`` or ``error`` is set after it; ``state`` is a place for what a
    hook wants to keep from before to after."""

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
    result: SendResult | None = None
    error: Exception | None = None
    cost_ms: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)


class SendHook:
    """Override what you need."""

    def forbid(self, context: SendContext) -> None:
        """Raise to forbid the attempt: the send ends with your exception."""

    def before(self, context: SendContext) -> None:
        """An attempt is about to be made."""

    def after(self, context: SendContext) -> None:
        """An attempt was answered or failed; a oneway one was handed to the connection."""


class SendHooks:
    """A producer's hooks, in the order given."""

    def __init__(self, hooks: Sequence[SendHook]) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(self, context: SendContext) -> None:
        """Forbid, then before."""
        for hook in self._hooks:
            hook.forbid(context)
        self._each(lambda hook: hook.before(context))

    def after(self, context: SendContext) -> None:
        """After."""
        self._each(lambda hook: hook.after(context))

    def _each(self, call: Callable[[SendHook], None]) -> None:
        for hook in self._hooks:
            try:
                call(hook)
            except Exception:
                log.warning("send hook failed hook=%s", type(hook).__name__, exc_info=True)
