"""Collects trace records of sends and sends them on: some at a time, every few seconds, never in a sender's way.

One rule: nothing that happens to a trace fails or delays a send; what cannot be kept is dropped and counted. It must not know how sending
works. Source: apache/rocketmq ``AsyncTraceDispatcher``, ``SendMessageTraceHookImpl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from turbopump.client.hooks import SendContext, SendHook
from turbopump.client.namespace import unwrap
from turbopump.client.send_result import SendStatus
from turbopump.client.trace import Traced, pub_record
from turbopump.errors import TurbopumpError
from turbopump.message.message import Message
from turbopump.message.properties import KEYS, TAGS

log = logging.getLogger(__name__)

BATCH: Final = 10
"""Records that make a message (``traceMsgBatchNum``)."""
FLUSH_INTERVAL_S: Final = 5.0
HELD_MAX: Final = 2048
"""Records that wait at most; more are dropped."""
SIZE_MAX: Final = 128_000
"""Characters in one trace message."""
CLOSE_TIMEOUT_S: Final = 5.0


class TraceDispatcher(SendHook):
    """``send`` sends one message of the trace topic."""

    def __init__(
        self, send: Callable[[Message], Awaitable[object]], *, topic: str, namespace: str | None, now_ms: Callable[[], int]
    ) -> None:
        self.dropped = 0
        self._send = send
        self._topic = topic
        self._namespace = namespace
        self._now_ms = now_ms
        self._held: list[tuple[Traced, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._failing = False

    def after(self, context: SendContext) -> None:
        """A record of the attempt, if it was answered and the broker wants traces."""
        result = context.result
        if result is None or not result.trace_on:
            return
        properties = context.properties
        message = Traced(unwrap(self._namespace, context.topic), result.msg_id, properties.get(TAGS), properties.get(KEYS))
        record = pub_record(
            message,
            time_ms=context.started_ms,
            region=result.region_id,
            group=unwrap(self._namespace, context.group),
            store_host=context.address,
            body_size=context.body_size,
            cost_ms=max(self._now_ms() - context.started_ms, 0),
            kind=context.kind,
            offset_msg_id=result.offset_msg_id,
            success=result.status is SendStatus.OK,
        )
        self.append(message, record)

    def append(self, message: Traced, record: str) -> None:
        """Keep a record for the next message of the trace topic."""
        if len(self._held) >= HELD_MAX:
            self.dropped += 1
            return
        self._held.append((message, record))
        if len(self._held) >= BATCH and not self._sending:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start)

    async def close(self) -> None:
        """Send what is held, for five seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._held or self._sending:
                    self._start()
                    await asyncio.wait(set(self._sending))
        for task in self._sending:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held and not self._sending:
            task = asyncio.get_running_loop().create_task(self._send_held(), name="turbopump traces")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_held(self) -> None:
        while self._held:
            held, self._held = self._held, []
            for message in trace_messages(held, self._topic):
                try:
                    await self._send(message)
                    self._failing = False
                except TurbopumpError as error:
                    log.log(logging.DEBUG if self._failing else logging.WARNING, "traces not sent cause=%s", error)
                    self._failing = True
            if len(self._held) < BATCH:
                break
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start)


def trace_messages(records: list[tuple[Traced, str]], topic: str) -> list[Message]:
    """Records as messages of the trace topic: one for each topic they speak of, more if it would be too long."""
    by_topic: dict[str, list[tuple[Traced, str]]] = {}
    for traced, record in records:
        by_topic.setdefault(traced.topic, []).append((traced, record))
    messages = []
    for group in by_topic.values():
        keys: dict[str, None] = {}
        text = ""
        for traced, record in group:
            keys |= dict.fromkeys(traced.trace_keys)
            text += record
            if len(text) >= SIZE_MAX:
                messages.append(Message(topic, text, keys=keys))
                keys, text = {}, ""
        if text:
            messages.append(Message(topic, text, keys=keys))
    return messages
