"""Metrics of requests: the times of their answers, and the requests that wait to be handled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turbopump.broker.counters.labels import flag
from turbopump.broker.stored import Stored
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.protocol.codes import request_name, response_name
from turbopump.remoting.answer_times import BOUNDS_MS, AnswerKind

RPC_LATENCY: Final = Family(
    "rocketmq_rpc_latency_milliseconds",
    Kind.HISTOGRAM,
    "Milliseconds from the read of a request to its answer.",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    BOUNDS_MS,
    "rocketmq_rpc_latency",
    "milliseconds",
)
WATERMARK: Final = Family(
    "rocketmq_processor_watermark",
    Kind.GAUGE,
    "Requests that wait to be handled. Only sends wait in this broker.",
    ("processor",),
)
PROCESSORS_WITHOUT_QUEUE: Final = (
    "async_put",
    "pull",
    "ack",
    "query_message",
    "client_manager",
    "heartbeat",
    "lite_pull",
    "transaction",
    "consumer_manager",
    "admin",
    "reply",
)
"""Thread pools of Apache's broker. Their requests have no queue here."""


def add_requests(metrics: Metrics, stored: Stored) -> None:
    """Add the metrics of requests and their answers."""
    times = stored.times
    backlog = stored.sends.backlog

    def read_times() -> Iterator[Sample]:
        for kind, distribution in times.read():
            yield _labels(kind), distribution

    def read_waiting() -> Iterator[Sample]:
        yield ("send",), len(backlog)
        for processor in PROCESSORS_WITHOUT_QUEUE:
            yield (processor,), 0

    metrics.add(RPC_LATENCY, read_times)
    metrics.add(WATERMARK, read_waiting)


def _labels(kind: AnswerKind) -> tuple[str, ...]:
    result = "success"
    if kind.is_oneway:
        result = "oneway"
    elif kind.is_failed:
        result = "write_channel_failed"
    return (
        "remoting",
        request_name(kind.request_code),
        response_name(kind.response_code),
        flag(kind.is_suspended),
        result,
    )
