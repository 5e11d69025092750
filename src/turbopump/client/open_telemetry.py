"""OpenTelemetry spans for sent and handled messages.

There is one span for each attempt to send, and one for each handled message, by the semantic
conventions for messaging and RocketMQ. The context travels in message properties (``traceparent``),
as with Java's and Go's instrumentations of RocketMQ.

Needs ``turbopump[otel]``. One rule: tracing only observes. Without a configured SDK nothing is
recorded, and no error here fails a send. This module must not know how sending or consuming works.
Source: https://opentelemetry.io/docs/specs/semconv/messaging/rocketmq/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from turbopump.client.consumer.delivery import BatchHandler
from turbopump.client.consumer.handling import Handler
from turbopump.client.hooks import MessageKind, SendContext, SendHook
from turbopump.client.namespace import INSTANCE_ID
from turbopump.client.user_function import is_coroutine_function
from turbopump.config.addresses import parse_address
from turbopump.errors import ConfigError, ResponseError
from turbopump.message import properties as names
from turbopump.message.message import Message, ReceivedMessage

_SPAN: Final = "open telemetry span"
_TYPES: Final = {
    MessageKind.DELAY: "delay",
    MessageKind.TRANSACTION_HALF: "transaction",
    MessageKind.TRANSACTION_COMMIT: "transaction",
}


class OpenTelemetry(SendHook):
    """Hook that records one OpenTelemetry span per send, and one per handler call.

    Pass the object to producers as ``hooks=[telemetry]``, and wrap handlers with it:
    ``handler=telemetry.traced(handle, group="g")``.

    - ``provider``: tracer provider to use. By default it is that of the process
      (``opentelemetry.trace.set_tracer_provider``).
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("turbopump", tracer_provider=provider)

    # --- sending

    def before(self, context: SendContext) -> None:
        """Start the span of an attempt to send. Later spans of the same message become its
        children."""
        properties = context.properties
        span = self._tracer.start_span(
            f"send {context.topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.partition.id": str(context.queue.queue_id),
                "messaging.message.body.size": context.body_size,
                "messaging.rocketmq.client_group": context.group,
                **_message_attributes(context.topic, context.msg_id, properties, context.kind),
                **_server(context.address),
            },
        )
        context.state[_SPAN] = span
        inject(properties, context=set_span_in_context(span))

    def after(self, context: SendContext) -> None:
        span = context.state.pop(_SPAN, None)
        if span is None:
            return
        if context.error is not None:
            _fail(span, context.error)
        elif context.result is not None:
            span.set_attribute("messaging.rocketmq.send.status", context.result.status.value)
        span.end()

    def carrying(self, message: Message) -> Message:
        """Return a copy of the message with the current trace context in its properties.

        Use it for the messages of a batch, because there is no span for each of them.
        """
        carrier = dict(message.properties)
        inject(carrier)
        return Message.as_it_is(message.topic, message.body, carrier, message.flag)

    # --- handling

    @contextmanager
    def processing(
        self, message: ReceivedMessage | Sequence[ReceivedMessage], *, group: str | None = None
    ) -> Iterator[Span]:
        """Open a span for the handling of a message, as in ``with telemetry.processing(message):``.

        The parent of the span is the span of the send. If ``message`` is a sequence of at least one
        message of a queue, the span is linked to the spans of their sends instead. An exception
        marks the span as failed and is raised again.
        """
        several: list[ReceivedMessage] = []
        if isinstance(message, ReceivedMessage):
            parent = extract(message.properties)
            own_attributes = _single_attributes(message)
        else:
            several = list(message)
            message = several[0]
            parent = None
            own_attributes = _several_attributes(several)
        attributes: dict[str, AttributeValue] = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.partition.id": str(message.queue_id),
            **own_attributes,
            "server.address": message.store_host[0],
            "server.port": message.store_host[1],
        }
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(several),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                _fail(span, error)
                raise

    def traced(
        self, handler: Handler | BatchHandler, *, group: str | None = None
    ) -> Callable[[Any], object]:
        """Return a handler that calls ``handler`` inside a new span.

        The result is a coroutine function if ``handler`` is one, and a plain function otherwise.
        The handler may accept lists of messages (``handler_batch``).
        """
        if is_coroutine_function(handler):

            async def awaited(message: Any) -> object:
                with self.processing(message, group=group):
                    return await handler(message)  # type: ignore[misc]

            return awaited

        def called(message: Any) -> object:
            with self.processing(message, group=group):
                return handler(message)

        return called


def _links(messages: Sequence[ReceivedMessage]) -> list[Link]:
    """Return links to the spans in which the messages were sent."""
    spans = [get_current_span(extract(one.properties, Context())) for one in messages]
    return [Link(span.get_span_context()) for span in spans if span.get_span_context().is_valid]


def _single_attributes(message: ReceivedMessage) -> dict[str, AttributeValue]:
    kind = _kind_of(message)
    properties = dict(message.properties)
    if message.reconsume_times:
        properties.pop(names.DELAY_TIME_LEVEL, None)  # set by the broker
    return {
        "messaging.message.body.size": len(message.stored_body),
        **_message_attributes(message.topic, message.msg_id, properties, kind),
    }


def _several_attributes(messages: Sequence[ReceivedMessage]) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "rocketmq",
        "messaging.destination.name": messages[0].topic,
        "messaging.batch.message_count": len(messages),
    }


def _message_attributes(
    topic: str, msg_id: str, properties: dict[str, str], kind: MessageKind
) -> dict[str, AttributeValue]:
    ids = msg_id.split(",")
    usual = "fifo" if names.SHARDING_KEY in properties else "normal"
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.rocketmq.message.type": _TYPES.get(kind) or usual,
    }
    if len(ids) > 1:
        attributes["messaging.batch.message_count"] = len(ids)
    else:
        attributes["messaging.message.id"] = msg_id
    for name, attribute in _TEXTS.items():
        if name in properties:
            attributes[attribute] = properties[name]
    for name, attribute in _NUMBERS.items():
        if properties.get(name, "").isdecimal():
            attributes[attribute] = int(properties[name])
    if names.KEYS in properties:
        attributes["messaging.rocketmq.message.keys"] = properties[names.KEYS].split()
    return attributes


_TEXTS: Final = {
    INSTANCE_ID: "messaging.rocketmq.namespace",
    names.TAGS: "messaging.rocketmq.message.tag",
    names.SHARDING_KEY: "messaging.rocketmq.message.group",
    names.CORRELATION_ID: "messaging.message.conversation_id",
}
_NUMBERS: Final = {
    names.DELAY_TIME_LEVEL: "messaging.rocketmq.message.delay_time_level",
    names.TIMER_DELIVER_MS: "messaging.rocketmq.message.delivery_timestamp",
}


def _kind_of(message: ReceivedMessage) -> MessageKind:
    """Derive the kind of a received message from the properties that brokers keep.

    In a retried message, ``DELAY`` was set by the broker, not by the sender.
    """
    properties = message.properties
    if message.sys_flag & names.TRANSACTION_MASK == names.SysFlag.TRANSACTION_COMMIT:
        return MessageKind.TRANSACTION_COMMIT
    timed = names.TIMER_OUT_MS in properties or names.TIMER_DELIVER_MS in properties
    waited = names.DELAY_TIME_LEVEL in properties or names.REAL_TOPIC in properties
    delayed = timed or (waited and message.reconsume_times == 0)
    return MessageKind.DELAY if delayed else MessageKind.NORMAL


def _server(address: str) -> dict[str, AttributeValue]:
    try:
        host, port = parse_address(address)
    except ConfigError:  # no address is known
        return {}
    return {"server.address": host, "server.port": port}


def _fail(span: Span, error: Exception) -> None:
    kind = str(int(error.code)) if isinstance(error, ResponseError) else type(error).__qualname__
    span.set_attribute("error.type", kind)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
