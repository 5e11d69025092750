"""Trace records of a consumer: one before a message is handled, one after.

One rule: a message whose producer's broker wants no traces leaves none. It must not know how
messages are handled, nor how traces are sent. Source: apache/rocketmq
``ConsumeMessageTraceHookImpl``, ``DefaultLitePullConsumerImpl.poll``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.namespace import unwrap
from turbopump.client.sending.send_result import DEFAULT_REGION
from turbopump.client.traces.trace import ContextCode, Traced, sub_after_record, sub_before_record
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import KEYS, MSG_REGION, TAGS, TRACE_SWITCH

CONSUME_TIMEOUT_MS: Final = 15 * 60 * 1000
"""Handling that took longer is traced as TIME_OUT (``consumeTimeout``)."""


class _Begun(NamedTuple):
    traced: Traced
    request_id: str
    time_ms: int
    shared_by: int = 1


class Together:
    """Messages that one call of a handler is about: ``count`` of them, since ``time_ms``."""

    __slots__ = ("count", "request_id", "time_ms")

    def __init__(self, count: int, time_ms: int) -> None:
        self.count = count
        self.time_ms = time_ms
        self.request_id = ""


class ConsumeTraces:
    """``append`` keeps a record for the next message of the trace topic; ``next_id`` makes request
    ids."""

    def __init__(
        self,
        append: Callable[[Traced, str], None],
        *,
        group: str,
        namespace: str | None,
        next_id: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        self._append = append
        self._group = unwrap(namespace, group)
        self._namespace = namespace
        self._next_id = next_id
        self.now_ms = now_ms

    def began(self, message: Delivery) -> None:
        """It is about to be handled."""
        message.trace = (
            self._before(message, self._next_id(), self.now_ms()) if _wanted(message) else None
        )

    def began_at(self, message: Delivery) -> None:
        """It was about to be handled when ``message.trace`` became the time, in ms, or what it
        shares with others; a second word is ignored."""
        began = message.trace
        if isinstance(began, int):
            message.trace = (
                self._before(message, self._next_id(), began) if _wanted(message) else None
            )
        elif isinstance(began, Together):
            began.request_id = began.request_id or self._next_id()
            message.trace = (
                self._before(message, began.request_id, began.time_ms, began.count)
                if _wanted(message)
                else None
            )

    def together(self, count: int) -> Together:
        """What messages share that are about to be handled together: a record each, all with one
        request id. From any thread."""
        return Together(count, self.now_ms())

    def began_all(self, messages: Iterable[Delivery]) -> None:
        """``began_at`` of each."""
        for message in messages:
            self.began_at(message)

    def ended(self, message: Delivery, *, ok: bool, seconds: float) -> None:
        """It was handled for so long, and ``message.cause`` says why not."""
        self.began_at(message)
        begun = message.trace
        if isinstance(begun, _Begun):
            message.trace = None
            self._after(
                begun, round(seconds * 1000), _code_of(message, ok=ok), ok=ok, error=message.failure
            )

    def polled(self, messages: Iterable[ReceivedMessage]) -> None:
        """A user has polled these: what he makes of them nobody can tell."""
        request_id, now_ms = self._next_id(), self.now_ms()
        for begun in [
            self._before(message, request_id, now_ms) for message in messages if _wanted(message)
        ]:
            self._after(begun, 0, ContextCode.SUCCESS, ok=True, error=None)

    def _before(
        self, message: ReceivedMessage, request_id: str, now_ms: int, count: int = 1
    ) -> _Begun:
        properties = message.properties
        traced = Traced(
            unwrap(self._namespace, message.topic),
            message.msg_id,
            properties.get(TAGS),
            properties.get(KEYS),
        )
        record = sub_before_record(
            traced,
            time_ms=now_ms,
            region=properties.get(MSG_REGION, DEFAULT_REGION),
            group=self._group,
            request_id=request_id,
            retry_times=message.reconsume_times,
        )
        self._append(traced, record)
        return _Begun(traced, request_id, now_ms, count)

    def _after(
        self, begun: _Begun, cost_ms: int, code: ContextCode, *, ok: bool, error: str | None
    ) -> None:
        if cost_ms >= CONSUME_TIMEOUT_MS and code is not ContextCode.EXCEPTION:
            code = ContextCode.TIME_OUT
        record = sub_after_record(
            begun.traced,
            request_id=begun.request_id,
            cost_ms=cost_ms // begun.shared_by,  # as Apache's: each has its share of the call
            code=code,
            success=ok,
            time_ms=self.now_ms(),
            group=self._group,
            error=error,
        )
        self._append(begun.traced, record)


def _wanted(message: ReceivedMessage) -> bool:
    return message.properties.get(TRACE_SWITCH) != "false"


def _code_of(message: Delivery, *, ok: bool) -> ContextCode:
    if ok:
        return ContextCode.SUCCESS
    return ContextCode.EXCEPTION if isinstance(message.cause, BaseException) else ContextCode.FAILED
