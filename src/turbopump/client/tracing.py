"""Tracing of a producer or consumer by messages on a trace topic.

A dispatcher collects records, and a producer with a separate group sends them in batches. One rule:
tracing never fails or delays a send; records without room are dropped and counted. Source:
apache/rocketmq ``AsyncTraceDispatcher``, ``SendMessageTraceHookImpl``. RocketMQ writes one record
for a batch, under ids joined with commas, by which its readers find no message. Here each message
of a batch has a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import InitVar, dataclass, field, replace
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.environment import Environment
from turbopump.client.hooks import EndTransactionContext, MessageKind, SendContext, SendHook
from turbopump.client.namespace import unwrap
from turbopump.client.sending.send_result import DEFAULT_REGION, SendResult, SendStatus
from turbopump.client.settings import ClientSettings
from turbopump.client.trace import (
    GROUP_PREFIX,
    TRACE_TOPIC,
    ContextCode,
    TracedMessage,
    end_transaction_record,
    pub_record,
    recall_record,
    sub_after_record,
    sub_before_record,
)
from turbopump.errors import MessageError, SendError, TurbopumpError
from turbopump.message import properties as names
from turbopump.message.batch import decode_batch
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.rules import GROUP_SIZE_MAX
from turbopump.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 5.0


class _Producer(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def send(self, message: Message, /) -> Awaitable[object]: ...


def trace_topic(trace: bool | str) -> str | None:
    """Return the trace topic for a client's setting ``trace``, or None if nothing is traced.

    True means Apache's trace topic.
    """
    if trace is True:
        return TRACE_TOPIC
    return trace or None


def trace_group(group: str, kind: str) -> str:
    """Return the name of the producer group that sends the traces of ``group``, as in Apache's
    client.

    A name above the limit of 120 characters is cut and gets a checksum.
    """
    room = GROUP_SIZE_MAX - len(f"{GROUP_PREFIX}--{kind}-1")
    if len(group) > room:
        group = f"{group[: room - 9]}-{crc32(group.encode()):08x}"
    return f"{GROUP_PREFIX}-{group}-{kind}-1"


@dataclass(eq=False)
class Tracing:
    """Collector and sender of the trace records of one client.

    - ``make``: creates the producer that sends the records.
    - ``group``: group of the traced client.
    - ``topic``: trace topic.
    - ``kind``: PRODUCE or CONSUME.
    """

    make: InitVar[Callable[..., _Producer]]
    settings: InitVar[ClientSettings]
    environment: Environment
    group: str
    topic: str
    namespace: str | None
    kind: str = "PRODUCE"

    def __post_init__(self, make: Callable[..., _Producer], settings: ClientSettings) -> None:
        environment = self.environment
        same = replace(settings, local_ip=environment.ip).shared_with(ClientSettings)
        group = trace_group(self.group, self.kind)
        self._producer = make(**same, group=group, send_timeout=SEND_TIMEOUT_S)
        self.dispatcher = TraceDispatcher(
            self._producer.send, self.topic, self.namespace, environment.clock.now_ms
        )

    def of_consumer(self) -> ConsumeTraces:
        next_id = self.environment.unique_ids().next
        now_ms = self.environment.clock.now_ms
        group = unwrap(self.namespace, self.group)
        return ConsumeTraces(self.dispatcher.append, group, self.namespace, next_id, now_ms)

    async def start(self) -> None:
        await self._producer.start()

    async def close(self) -> None:
        """Send the waiting records for at most five seconds, then close the producer."""
        await self.dispatcher.close()
        await self._producer.close()


BATCH: Final = 10
"""Number of records from which on they are sent in a trace message (``traceMsgBatchNum``)."""
FLUSH_INTERVAL_S: Final = 5.0
HELD_MAX: Final = 16_384
"""Maximum number of waiting records; more are dropped. The records of one batch may use half of the
remaining room."""
SIZE_MAX: Final = 128_000
"""Size of a trace message, in characters, from which on no more records are added to it."""
KEYS_SIZE_MAX: Final = 24_000
"""Maximum size of the keys of a trace message in bytes, so that its properties stay below
``PROPERTIES_SIZE_MAX``."""
CLOSE_TIMEOUT_S: Final = 5.0

TraceRecord = tuple[TracedMessage, str]
"""Traced message, and the text of the record."""


@dataclass(eq=False)
class TraceDispatcher(SendHook):
    """Collector of trace records. It sends them to a trace topic in batches.

    - ``send``: sends one message.
    - ``dropped``: number of records that were dropped for lack of room.
    """

    send: Callable[[Message], Awaitable[object]]
    topic: str
    namespace: str | None
    now_ms: Callable[[], int]
    dropped: int = 0
    _held: list[TraceRecord] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _sending: set[asyncio.Task[None]] = field(default_factory=set)
    _failing: bool = False

    def after(self, context: SendContext) -> None:
        """Add a trace record of an answered attempt to send, unless the broker wants no traces."""
        result = context.result
        if result is None or not result.trace_on:
            return
        cost_ms = max(self.now_ms() - context.started_ms, 0)
        time_ms = context.started_ms
        region = result.region_id
        group = context.group
        sent = _sent(context, result)
        if len(sent) > 1:
            room = (HELD_MAX - len(self._held)) // 2
            self.dropped += max(len(sent) - room, 0)
            sent = sent[:room]
        for one in sent:
            tags, keys = one.properties.get(names.TAGS), one.properties.get(names.KEYS)
            message = TracedMessage(context.topic, one.msg_id, tags, keys, time_ms, region, group)
            record = pub_record(
                message,
                store_host=context.address,
                body_size=one.body_size,
                cost_ms=cost_ms,
                kind=context.kind,
                offset_msg_id=one.offset_msg_id,
                success=result.status is SendStatus.OK,
            )
            self.append(message, record)

    def end_transaction(self, context: EndTransactionContext) -> None:
        tags, keys = context.properties.get(names.TAGS), context.properties.get(names.KEYS)
        region = context.properties.get(names.MSG_REGION, DEFAULT_REGION)
        when = self.now_ms()
        message = TracedMessage(
            context.topic, context.msg_id, tags, keys, when, region, context.group
        )
        record = end_transaction_record(
            message,
            store_host=context.address,
            kind=MessageKind.TRANSACTION_COMMIT,
            transaction_id=context.transaction_id or context.msg_id,
            state=context.state,
            from_check=context.from_check,
        )
        self.append(message, record)

    def recalled(self, topic: str, msg_id: str, *, group: str, time_ms: int, success: bool) -> None:
        topic, group = unwrap(self.namespace, topic), unwrap(self.namespace, group)
        message = TracedMessage(topic, msg_id, None, None, time_ms, DEFAULT_REGION, group)
        self.append(message, recall_record(message, success=success))

    def append(self, message: TracedMessage, record: str) -> None:
        """Add a record to the waiting records, or drop the record if too many wait."""
        if len(self._held) >= HELD_MAX:
            self.dropped += 1
            return
        self._held.append((message, record))
        if len(self._held) >= BATCH and not self._sending:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the waiting records for at most ``timeout`` seconds, and drop the rest."""
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
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._send_held(), name="turbopump traces")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_held(self) -> None:
        while self._held:
            held = self._held
            self._held = []
            for part in trace_parts(held):
                await self._send_part(part)
            if len(self._held) < BATCH:
                break
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start)

    async def _send_part(self, part: list[TraceRecord]) -> None:
        """Send records in one trace message.

        If the message is refused, the records are sent again in two halves, so that one unusable
        record affects no others.
        """
        try:
            await self.send(trace_message(part, self.topic))
            self._failing = False
        except TurbopumpError as error:
            illegal = isinstance(error, SendError) and error.code == ResponseCode.MESSAGE_ILLEGAL
            if len(part) > 1 and (illegal or isinstance(error, MessageError)):
                await self._send_part(part[: len(part) // 2])
                await self._send_part(part[len(part) // 2 :])
                return
            level = logging.DEBUG if self._failing else logging.WARNING
            log.log(level, "traces not sent cause=%s", error)
            self._failing = True


class _Sent(NamedTuple):
    """One message that was stored by an attempt to send."""

    msg_id: str
    offset_msg_id: str
    body_size: int
    properties: dict[str, str]


def _sent(context: SendContext, result: SendResult) -> list[_Sent]:
    """Return each message that an attempt has stored. A batch has several.

    An inner batch, whose messages share one id, is returned as one message.
    """
    msg_ids = result.msg_ids
    offset_msg_ids = result.offset_msg_id.split(",")
    items = [] if context.batch is None else decode_batch(context.batch)
    if len(items) != len(msg_ids):
        return [_Sent(result.msg_id, result.offset_msg_id, context.body_size, context.properties)]
    if len(offset_msg_ids) != len(msg_ids):
        offset_msg_ids = [result.offset_msg_id] * len(msg_ids)
    return [
        _Sent(
            msg_id, offset_msg_id, len(item.body), names.decode_properties(item.properties.decode())
        )
        for msg_id, offset_msg_id, item in zip(msg_ids, offset_msg_ids, items, strict=True)
    ]


def trace_parts(records: list[TraceRecord]) -> list[list[TraceRecord]]:
    """Split the records into parts, each for one trace message.

    A part has records of one topic, and stays within the limits of text and keys.
    """
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
                part = []
                keys_size = 0
                text_size = 0
            part.append((traced, record))
            keys_size += size
            text_size += len(record)
        parts.append(part)
    return parts


def trace_message(part: list[TraceRecord], topic: str) -> Message:
    """Return a message for the trace topic with these records. It carries as many of their keys as
    fit."""
    keys: dict[str, int] = {}
    for traced, _ in part:
        keys |= _fitting(traced.trace_keys)
    return Message(topic, "".join([record for _, record in part]), keys=keys)


def _fitting(keys: list[str]) -> dict[str, int]:
    """Choose keys that fit in a trace message. Return each with its size in bytes."""
    fitting: dict[str, int] = {}
    left = KEYS_SIZE_MAX
    for key in keys:
        size = len(key.encode()) + len(names.KEY_SEPARATOR)
        if size <= left and key not in fitting:
            fitting[key] = size
            left -= size
    return fitting


# Records of a consumer, one before a message is handled and one after. Source: apache/rocketmq
# ``ConsumeMessageTraceHookImpl``, ``DefaultLitePullConsumerImpl.poll``.

CONSUME_TIMEOUT_MS: Final = 15 * 60 * 1000
"""Duration in ms from which handling is traced as TIME_OUT (``consumeTimeout``)."""


class _Begun(NamedTuple):
    traced: TracedMessage
    request_id: str
    shared_by: int


@dataclass(slots=True)
class HandledTogether:
    """Data shared by all messages of one handler call.

    - ``count``: number of messages.
    - ``time_ms``: time at which the call began, in ms since 1970 UTC.
    - ``request_id``: id of the records of these messages; empty before the first record.
    """

    count: int
    time_ms: int
    request_id: str = ""


@dataclass(slots=True, eq=False)
class ConsumeTraces:
    """Writer of the trace records of a consumer.

    - ``append``: adds a record for the trace topic.
    - ``next_id``: returns a new request id.
    """

    append: Callable[[TracedMessage, str], None]
    group: str
    namespace: str | None
    next_id: Callable[[], str]
    now_ms: Callable[[], int]

    def began(self, message: Delivery) -> None:
        message.trace = self.now_ms()
        self.began_at(message)

    def began_at(self, message: Delivery) -> None:
        """Write the trace record for the start of handling a message, unless that was done already.

        ``message.trace`` contains the time of the start in ms, or the ``HandledTogether`` of
        messages in the same call.
        """
        began = message.trace
        if not isinstance(began, int | HandledTogether):
            return
        if isinstance(began, int):
            began = HandledTogether(1, began)
        began.request_id = began.request_id or self.next_id()
        message.trace = self._before(message, began)

    def together(self, count: int) -> HandledTogether:
        """Return the data shared by the ``count`` messages of a handler call.

        Each message gets a record, all with the same request id. Any thread may call this method.
        """
        return HandledTogether(count, self.now_ms())

    def began_all(self, messages: Iterable[Delivery]) -> None:
        for message in messages:
            self.began_at(message)

    def ended(self, message: Delivery, *, ok: bool, seconds: float) -> None:
        """Write the trace record of a handled message, with the duration of handling.

        ``message.cause`` contains the reason of a failure.
        """
        self.began_at(message)
        begun = message.trace
        if isinstance(begun, _Begun):
            message.trace = None
            code = ContextCode.SUCCESS
            if not ok:
                raised = isinstance(message.cause, BaseException)
                code = ContextCode.EXCEPTION if raised else ContextCode.FAILED
            self._after(begun, round(seconds * 1000), code, error=message.failure)

    def polled(self, messages: Iterable[ReceivedMessage]) -> None:
        """Write the trace records of messages that a user has polled. The result of their handling
        is unknown."""
        poll = HandledTogether(1, self.now_ms(), self.next_id())
        for begun in [self._before(message, poll) for message in messages]:
            if begun is not None:
                self._after(begun, 0, ContextCode.SUCCESS, error=None)

    def _before(self, message: ReceivedMessage, began: HandledTogether) -> _Begun | None:
        """Write the trace record before a message is handled.

        The result is None if the producer's broker wants no traces.
        """
        properties = message.properties
        if properties.get(names.TRACE_SWITCH) == "false":
            return None
        traced = TracedMessage(
            unwrap(self.namespace, message.topic),
            message.msg_id,
            properties.get(names.TAGS),
            properties.get(names.KEYS),
            began.time_ms,
            properties.get(names.MSG_REGION, DEFAULT_REGION),
            self.group,
        )
        self.append(
            traced,
            sub_before_record(
                traced, request_id=began.request_id, retry_times=message.reconsume_times
            ),
        )
        return _Begun(traced, began.request_id, began.count)

    def _after(self, begun: _Begun, cost_ms: int, code: ContextCode, *, error: str | None) -> None:
        ok = code is ContextCode.SUCCESS
        if cost_ms >= CONSUME_TIMEOUT_MS and code is not ContextCode.EXCEPTION:
            code = ContextCode.TIME_OUT
        record = sub_after_record(
            begun.traced,
            request_id=begun.request_id,
            cost_ms=cost_ms // begun.shared_by,  # as in Apache's client: the message's share
            code=code,
            success=ok,
            time_ms=self.now_ms(),
            error=error,
        )
        self.append(begun.traced, record)
