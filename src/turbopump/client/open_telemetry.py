"""OpenTelemetry spans and metrics of sent, received and handled messages.

There is one span for each attempt to send, one for each handled message, and one for each call that
receives or acknowledges messages. The metrics count the same operations. Both follow the semantic
conventions for messaging and RocketMQ (``messaging_attributes.py``). The context travels in message
properties (``traceparent``), as with Java's and Go's instrumentations of RocketMQ.

Needs ``turbopump[otel]``. One rule: tracing only observes. Without a configured SDK nothing is
recorded, and no error here fails a send. This module must not know how sending or consuming works.
Source: https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, time_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter
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
    use_span,
)

from turbopump.client.consumer.delivery import BatchHandler, Delivery
from turbopump.client.consumer.handling import Handler
from turbopump.client.hooks import SendContext
from turbopump.client.instrumentation import OBSERVED, Telemetry
from turbopump.client.messaging_attributes import (
    Attributes,
    NameStyle,
    error_type,
    message_attributes,
    operation_attributes,
    queue_attributes,
    received_attributes,
    server_attributes,
)
from turbopump.client.user_function import is_coroutine_function
from turbopump.message.message import Message, ReceivedMessage

_SPAN: Final = "open telemetry span"
_BOUNDS_S: Final = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
"""Upper bounds of the buckets of a duration, by the conventions."""
_OTHER_ERROR: Final = "_OTHER"


class OpenTelemetry(Telemetry):
    """Hook that records one OpenTelemetry span per send, and one per handler call, with metrics.

    Pass the object to producers as ``hooks=[telemetry]``, and wrap handlers with it:
    ``handler=telemetry.traced(handle, group="g")``. ``TurbopumpInstrumentor`` does both for all
    clients of the process.

    - ``provider``: tracer provider to use. By default it is that of the process
      (``opentelemetry.trace.set_tracer_provider``).
    - ``meter_provider``: the same for metrics.

    The variable OTEL_SEMCONV_STABILITY_OPT_IN selects the names of RocketMQ's own attributes.
    """

    def __init__(
        self, provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = get_tracer("turbopump", tracer_provider=provider)
        self._style = NameStyle.selected()
        meter = get_meter("turbopump", meter_provider=meter_provider)
        self._operation_s = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer "
            "client.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._process_s = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )

    # --- sending

    def before(self, context: SendContext) -> None:
        """Start the span of an attempt to send. Later spans of the same message become its
        children."""
        properties = context.properties
        span = self._tracer.start_span(
            f"send {context.topic}",
            kind=SpanKind.PRODUCER,
            attributes=self._style.named(
                {
                    **_send_attributes(context),
                    "messaging.message.body.size": context.body_size,
                    "rocketmq.client_group": context.group,
                    **message_attributes(context.msg_id, properties, context.kind),
                }
            ),
        )
        context.state[_SPAN] = span
        inject(properties, context=set_span_in_context(span))

    def after(self, context: SendContext) -> None:
        attributes = _send_attributes(context)
        span = context.state.pop(_SPAN, None)
        if context.error is not None:
            attributes["error.type"] = error_type(context.error)
        if span is not None:
            if context.error is not None:
                _fail(span, context.error)
            elif context.result is not None:
                status = context.result.status.value
                span.set_attributes(self._style.named({"rocketmq.send.status": status}))
            span.end()
        self._operation_s.record(context.cost_ms / 1000, attributes)
        self._sent.add(context.msg_id.count(",") + 1, attributes)

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
        self,
        message: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        group: str | None = None,
        broadcast: bool | None = None,
    ) -> Iterator[Span]:
        """Open a span for the handling of a message, as in ``with telemetry.processing(message):``.

        The parent of the span is the span of the send. If ``message`` is a sequence of at least one
        message of a queue, the span is linked to the spans of their sends instead. An exception
        marks the span as failed and is raised again. If the message has a span already, because all
        clients are observed, that span becomes the current one.
        """
        begun = getattr(message, "span", None)
        if begun is not None:
            with _current(begun):
                yield begun
            return
        several = [message] if isinstance(message, ReceivedMessage) else list(message)
        span = self._process_span(message, group, broadcast)
        attributes = _process_attributes(several[0], group)
        if getattr(several[0], "span", None) is None:  # else it was counted when it was taken
            self._consumed.add(len(several), attributes)
        began = perf_counter()
        try:
            with _current(span, end=True):
                yield span
        except Exception as error:
            attributes["error.type"] = error_type(error)
            raise
        finally:
            self._process_s.record(perf_counter() - began, attributes)

    def _process_span(
        self,
        message: ReceivedMessage | Sequence[ReceivedMessage],
        group: str | None,
        broadcast: bool | None,
    ) -> Span:
        several: list[ReceivedMessage] = []
        parent = None
        if isinstance(message, ReceivedMessage):
            parent = extract(message.properties)
            own_attributes = received_attributes(message)
        else:
            several = list(message)
            message = several[0]
            own_attributes = {"messaging.batch.message_count": len(several)}
        if broadcast is not None:
            own_attributes["rocketmq.consumption_model"] = (
                "broadcasting" if broadcast else "clustering"
            )
        return self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=self._style.named({**_process_attributes(message, group), **own_attributes}),
            links=_links(several),
        )

    def traced(
        self,
        handler: Handler | BatchHandler,
        *,
        group: str | None = None,
        broadcast: bool | None = None,
    ) -> Callable[[Any], object]:
        """Return a handler that calls ``handler`` inside a new span.

        The result is a coroutine function if ``handler`` is one, and a plain function otherwise.
        The handler may accept lists of messages (``handler_batch``).
        """
        observed: Callable[[Any], object]
        if is_coroutine_function(handler):

            async def awaited(message: Any) -> object:
                with self.processing(message, group=group, broadcast=broadcast):
                    return await handler(message)  # type: ignore[misc]

            observed = awaited
        else:

            def called(message: Any) -> object:
                with self.processing(message, group=group, broadcast=broadcast):
                    return handler(message)

            observed = called
        setattr(observed, OBSERVED, True)
        return observed

    def reading(self, group: str, *, broadcast: bool) -> _Reading:
        """Return the observer of a consumer's messages that no handler gets."""
        return _Reading(self, group, broadcast)

    # --- calls of consumers

    @contextmanager
    def receiving(self, group: str) -> Iterator[list[ReceivedMessage]]:
        """Record a call that receives messages. The caller puts them into the yielded list.

        A call that got messages or failed has a span, which is linked to the spans of the sends. A
        call that got none has only its duration.
        """
        received: list[ReceivedMessage] = []
        began = perf_counter()
        began_ns = time_ns()
        failure: Exception | None = None
        try:
            yield received
        except Exception as error:
            failure = error
            raise
        finally:
            attributes = _call_attributes("receive", "receive", received, group)
            if failure is not None:
                attributes["error.type"] = error_type(failure)
            self._operation_s.record(perf_counter() - began, attributes)
            if received or failure is not None:
                span = self._call_span(attributes, received, start_time=began_ns)
                _end(span, failure)
            for message, count in _by_queue(received):
                counted = _call_attributes("receive", "receive", [message], group)
                self._consumed.add(count, {**counted, **queue_attributes(message)})

    @contextmanager
    def settling(self, messages: Sequence[ReceivedMessage], group: str) -> Iterator[None]:
        """Record a call that acknowledges messages, as a span and a duration."""
        attributes = _call_attributes("ack", "settle", messages, group)
        span = self._call_span(attributes, messages)
        began = perf_counter()
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
            attributes["error.type"] = error_type(error)
            raise
        finally:
            _end(span, failure)
            self._operation_s.record(perf_counter() - began, attributes)

    def _call_span(
        self,
        attributes: Attributes,
        messages: Sequence[ReceivedMessage],
        start_time: int | None = None,
    ) -> Span:
        """Start the span of a call of a consumer. ``start_time`` is in ns since 1970."""
        name = attributes["messaging.operation.name"]
        topic = attributes.get("messaging.destination.name")
        return self._tracer.start_span(
            f"{name} {topic}" if topic else str(name),
            kind=SpanKind.CLIENT,
            start_time=start_time,
            attributes={**attributes, "messaging.batch.message_count": len(messages)},
            links=_links(messages),
        )


class _Reading:
    """Observer of messages that a program reads without a handler.

    The span of a message begins when the program gets the message, and ends when it is settled. It
    is not the current span of the program, except inside ``OpenTelemetry.processing``.
    """

    def __init__(self, telemetry: OpenTelemetry, group: str, broadcast: bool) -> None:
        self._telemetry = telemetry
        self._group = group
        self._broadcast = broadcast

    def began(self, message: Delivery) -> None:
        telemetry = self._telemetry
        message.span = telemetry._process_span(message, self._group, self._broadcast)
        telemetry._consumed.add(1, _process_attributes(message, self._group))

    def ended(self, message: Delivery, *, ok: bool, seconds: float) -> None:
        span = getattr(message, "span", None)
        if span is None:
            return
        message.span = None
        attributes = _process_attributes(message, self._group)
        if not ok:
            cause = message.cause
            error = _OTHER_ERROR
            if isinstance(cause, Exception):
                _fail(span, cause)
                error = error_type(cause)
            else:
                span.set_attribute("error.type", error)
                span.set_status(Status(StatusCode.ERROR, str(cause or "")))
            attributes["error.type"] = error
        span.end()
        self._telemetry._process_s.record(seconds, attributes)


def _send_attributes(context: SendContext) -> Attributes:
    return {
        **operation_attributes("send", "send", context.topic),
        "messaging.destination.partition.id": str(context.queue.queue_id),
        **server_attributes(context.address),
    }


def _process_attributes(message: ReceivedMessage, group: str | None) -> Attributes:
    attributes = operation_attributes("process", "process", message.topic)
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    return {**attributes, **queue_attributes(message)}


def _call_attributes(
    name: str, kind: str, messages: Sequence[ReceivedMessage], group: str
) -> Attributes:
    """Return the attributes of a call of a consumer. Messages of several topics name none."""
    topics = {message.topic for message in messages}
    topic = topics.pop() if len(topics) == 1 else None
    attributes = operation_attributes(name, kind, topic)
    attributes["messaging.consumer.group.name"] = group
    return attributes


def _by_queue(messages: Sequence[ReceivedMessage]) -> list[tuple[ReceivedMessage, int]]:
    """Return one message of each queue, and the number of messages of that queue."""
    queues: dict[object, tuple[ReceivedMessage, int]] = {}
    for message in messages:
        key = message.topic, message.queue_id, message.store_host
        queues[key] = message, queues.get(key, (message, 0))[1] + 1
    return list(queues.values())


def _links(messages: Sequence[ReceivedMessage]) -> list[Link]:
    """Return links to the spans in which the messages were sent."""
    spans = [get_current_span(extract(one.properties, Context())) for one in messages]
    return [Link(span.get_span_context()) for span in spans if span.get_span_context().is_valid]


@contextmanager
def _current(span: Span, *, end: bool = False) -> Iterator[None]:
    """Make a span the current one inside the block. An exception marks it as failed.

    - ``end``: the end of the block ends the span too.
    """
    with use_span(span, end_on_exit=end, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            _fail(span, error)
            raise


def _end(span: Span, failure: Exception | None) -> None:
    if failure is not None:
        _fail(span, failure)
    span.end()


def _fail(span: Span, error: Exception) -> None:
    span.set_attribute("error.type", error_type(error))
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
