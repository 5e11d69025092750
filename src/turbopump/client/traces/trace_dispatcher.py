"""Collects trace records of sends and sends them on: some at a time, every few seconds, never in a
sender's way.

One rule: nothing that happens to a trace fails or delays a send; what cannot be kept is dropped and
counted. It must not know how sending works. Source: apache/rocketmq ``AsyncTraceDispatcher``,
``SendMessageTraceHookImpl``.

RocketMQ leaves one record of a batch, whose msgId and trace key are the ids with commas: its
readers compare ids, and find no message of the batch. Here each of its messages has a record of its
own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from turbopump.client.hooks import EndTransactionContext, MessageKind, SendContext, SendHook
from turbopump.client.namespace import unwrap
from turbopump.client.sending.send_result import DEFAULT_REGION, SendResult, SendStatus
from turbopump.client.traces.trace import Traced, end_transaction_record, pub_record, recall_record
from turbopump.errors import MessageError, SendError, TurbopumpError
from turbopump.message.batch import decode_batch
from turbopump.message.message import Message
from turbopump.message.properties import KEY_SEPARATOR, KEYS, MSG_REGION, TAGS, decode_properties
from turbopump.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

BATCH: Final = 10
"""Records that make a message (``traceMsgBatchNum``)."""
FLUSH_INTERVAL_S: Final = 5.0
HELD_MAX: Final = 16_384
"""Records that wait at most; more are dropped. A batch takes half of the room at most: what is sent
beside it is traced, too."""
SIZE_MAX: Final = 128_000
"""Characters in one trace message, from which on it is sent."""
KEYS_SIZE_MAX: Final = 24_000
"""Bytes of keys in one trace message: with what else it has they are to stay below
``PROPERTIES_SIZE_MAX``."""
CLOSE_TIMEOUT_S: Final = 5.0

TraceRecord = tuple[Traced, str]
"""The message it speaks of, and its text."""


class TraceDispatcher(SendHook):
    """``send`` sends one message of the trace topic."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        *,
        topic: str,
        namespace: str | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.dropped = 0
        self._send = send
        self._topic = topic
        self._namespace = namespace
        self._now_ms = now_ms
        self._held: list[TraceRecord] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._failing = False

    def after(self, context: SendContext) -> None:
        """A record of the attempt, if it was answered and the broker wants traces."""
        result = context.result
        if result is None or not result.trace_on:
            return
        cost_ms = max(self._now_ms() - context.started_ms, 0)
        sent = _sent(context, result)
        if len(sent) > 1:
            room = (HELD_MAX - len(self._held)) // 2
            self.dropped += max(len(sent) - room, 0)
            sent = sent[:room]
        for one in sent:
            message = Traced(
                context.topic, one.msg_id, one.properties.get(TAGS), one.properties.get(KEYS)
            )
            record = pub_record(
                message,
                time_ms=context.started_ms,
                region=result.region_id,
                group=context.group,
                store_host=context.address,
                body_size=one.body_size,
                cost_ms=cost_ms,
                kind=context.kind,
                offset_msg_id=one.offset_msg_id,
                success=result.status is SendStatus.OK,
            )
            self.append(message, record)

    def end_transaction(self, context: EndTransactionContext) -> None:
        """A record of how a transaction ended."""
        properties = context.properties
        message = Traced(context.topic, context.msg_id, properties.get(TAGS), properties.get(KEYS))
        record = end_transaction_record(
            message,
            time_ms=self._now_ms(),
            region=properties.get(MSG_REGION, DEFAULT_REGION),
            group=context.group,
            store_host=context.address,
            kind=MessageKind.TRANSACTION_COMMIT,
            transaction_id=context.transaction_id or context.msg_id,
            state=context.state,
            from_check=context.from_check,
        )
        self.append(message, record)

    def recalled(self, topic: str, msg_id: str, *, group: str, time_ms: int, success: bool) -> None:
        """A record of a recall."""
        message = Traced(unwrap(self._namespace, topic), msg_id)
        name = unwrap(self._namespace, group)
        self.append(
            message,
            recall_record(
                message, time_ms=time_ms, region=DEFAULT_REGION, group=name, success=success
            ),
        )

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

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is held, for ``timeout`` seconds at most; what is not sent by then is
        dropped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._held or self._sending:
                    self._start()
                    await asyncio.wait(set(self._sending))
        for task in self._sending:
            task.cancel()
        self.dropped += len(self._held)
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held and not self._sending:
            task = asyncio.get_running_loop().create_task(
                self._send_held(), name="turbopump traces"
            )
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_held(self) -> None:
        while self._held:
            held, self._held = self._held, []
            for part in trace_parts(held):
                await self._send_part(part)
            if len(self._held) < BATCH:
                break
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start)

    async def _send_part(self, part: list[TraceRecord]) -> None:
        """If they are refused together, each half on its own: a record that cannot be sent takes no
        others with it."""
        try:
            await self._send(trace_message(part, self._topic))
            self._failing = False
        except TurbopumpError as error:
            if len(part) > 1 and _is_refusal(error):
                await self._send_part(part[: len(part) // 2])
                await self._send_part(part[len(part) // 2 :])
                return
            log.log(
                logging.DEBUG if self._failing else logging.WARNING,
                "traces not sent cause=%s",
                error,
            )
            self._failing = True


def _is_refusal(error: TurbopumpError) -> bool:
    """Whether it is about what the message holds."""
    return isinstance(error, MessageError) or (
        isinstance(error, SendError) and error.code == ResponseCode.MESSAGE_ILLEGAL
    )


class _Sent(NamedTuple):
    """A message that an attempt has stored."""

    msg_id: str
    offset_msg_id: str
    body_size: int
    properties: dict[str, str]


def _sent(context: SendContext, result: SendResult) -> list[_Sent]:
    """Each message of a batch; of an inner batch, whose messages have one id, it as a whole."""
    msg_ids, offset_msg_ids = result.msg_ids, result.offset_msg_id.split(",")
    items = [] if context.batch is None else decode_batch(context.batch)
    if len(items) != len(msg_ids):
        return [_Sent(result.msg_id, result.offset_msg_id, context.body_size, context.properties)]
    if len(offset_msg_ids) != len(msg_ids):
        offset_msg_ids = [result.offset_msg_id] * len(msg_ids)
    return [
        _Sent(msg_id, offset_msg_id, len(item.body), decode_properties(item.properties.decode()))
        for msg_id, offset_msg_id, item in zip(msg_ids, offset_msg_ids, items, strict=True)
    ]


def trace_parts(records: list[TraceRecord]) -> list[list[TraceRecord]]:
    """What goes into a message each: of one topic, and neither its text nor its keys too long."""
    by_topic: dict[str, list[TraceRecord]] = {}
    for one in records:
        by_topic.setdefault(one[0].topic, []).append(one)
    parts = []
    for group in by_topic.values():
        part: list[TraceRecord] = []
        keys_size = text_size = 0
        for traced, record in group:
            size = sum(_fitting(traced.trace_keys).values())
            if part and (keys_size + size > KEYS_SIZE_MAX or text_size >= SIZE_MAX):
                parts.append(part)
                part, keys_size, text_size = [], 0, 0
            part.append((traced, record))
            keys_size += size
            text_size += len(record)
        parts.append(part)
    return parts


def trace_message(part: list[TraceRecord], topic: str) -> Message:
    """The message of the trace topic. Of one with more keys than have room beside its id the trace
    has the first."""
    keys: dict[str, int] = {}
    for traced, _ in part:
        keys |= _fitting(traced.trace_keys)
    return Message(topic, "".join([record for _, record in part]), keys=keys)


def _fitting(keys: list[str]) -> dict[str, int]:
    """The first of the keys that a trace message has room for, and how many bytes each takes."""
    fitting: dict[str, int] = {}
    left = KEYS_SIZE_MAX
    for key in keys:
        size = len(key.encode()) + len(KEY_SEPARATOR)
        if size <= left and key not in fitting:
            fitting[key] = size
            left -= size
    return fitting
