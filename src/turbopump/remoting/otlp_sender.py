"""Connection to a collector of OpenTelemetry that receives the metrics of a server.

The protocol is OTLP over gRPC, by the exporter of OpenTelemetry's SDK (``turbopump[otel]``). The
methods block, so they run in a thread. Names, units and types of attributes are those of Apache's
broker. When to send is unknown here.

Source: https://opentelemetry.io/docs/specs/otlp; apache/rocketmq ``BrokerMetricsManager`` (5.3.3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from turbopump.metrics.collecting import Report
from turbopump.metrics.family import Distribution, Family, Kind, Sample

SCOPE_LABEL: Final = "otel_scope_name"
"""Label that the page for Prometheus has in place of OpenTelemetry's scope."""
DEFAULT_SCOPE: Final = "turbopump"
_TYPED: Final[Mapping[str, Callable[[str], bool | int]]] = {
    "is_long_polling": "true".__eq__,
    "is_retry": "true".__eq__,
    "is_system": "true".__eq__,
    "queue_id": int,
}
"""Labels that Apache's broker sends as Booleans and numbers. All others are texts."""
SERIES_MAX: Final = 1000
"""Maximum number of series in a message. gRPC's servers refuse more than 4 MB, and the garbage
collector stops the event loop for 40 ms if 50,000 series become objects at once."""
_EXPORTER_LOG: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"


class NotSentError(Exception):
    """Raised if a report did not reach the collector. The text is the reason."""


class OtlpSender:
    """Sends reports to one collector.

    - ``url``: ``http://HOST:PORT`` for plain text, ``https://HOST:PORT`` for TLS.
    - ``timeout_s``: seconds for one message.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._reason = _LastLine()
        # First, because the exporter's own filter drops lines that repeat.
        logging.getLogger(_EXPORTER_LOG).filters.insert(0, self._reason)
        self._exporter = OTLPMetricExporter(
            endpoint=url,
            insecure=url.startswith("http://"),
            headers={name.lower(): value for name, value in headers.items()},
            timeout=timeout_s,
        )
        self._timeout_ms = timeout_s * 1000

    def send(self, report: Report) -> None:
        """Send a report in messages, and wait for the collector's answers.

        Raises NotSentError. The rest of the report is then not sent.
        """
        for part in parts_of(report, SERIES_MAX):
            result = self._exporter.export(metrics_data(part), self._timeout_ms)
            if result is not MetricExportResult.SUCCESS:
                raise NotSentError(self._reason.text or "the collector gave no answer")

    def close(self) -> None:
        """Close the connection. A running ``send`` ends soon."""
        self._exporter.shutdown(self._timeout_ms)
        logging.getLogger(_EXPORTER_LOG).removeFilter(self._reason)


class _LastLine(logging.Filter):
    """Filter that keeps the last line of the exporter, and lets none pass.

    The line becomes the reason of one error.
    """

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            self.text = record.getMessage()
        return False


def parts_of(report: Report, series_max: int) -> Iterator[Report]:
    """Divide a report into reports of at most ``series_max`` series."""
    families: list[tuple[Family, list[Sample]]] = []
    room = series_max
    for family, samples in report.families:
        begin = 0
        while begin < len(samples):
            part = samples[begin : begin + room]
            families.append((family, part))
            begin += len(part)
            room -= len(part)
            if not room:
                yield replace(report, families=families)
                families = []
                room = series_max
    if families:
        yield replace(report, families=families)


def metrics_data(report: Report) -> MetricsData:
    """Return a report in the form of OpenTelemetry's SDK."""
    labels = dict(report.labels)
    scope = InstrumentationScope(labels.pop(SCOPE_LABEL, DEFAULT_SCOPE))
    metrics = [_metric(report, labels, family, samples) for family, samples in report.families]
    scoped = ScopeMetrics(scope, metrics, schema_url="")
    return MetricsData([ResourceMetrics(Resource({}), [scoped], schema_url="")])


def _metric(
    report: Report, labels: Mapping[str, str], family: Family, samples: list[Sample]
) -> Metric:
    temporality = AggregationTemporality.CUMULATIVE
    if report.in_delta:
        temporality = AggregationTemporality.DELTA
    data: Gauge | Histogram | Sum
    if family.kind is Kind.HISTOGRAM:
        data = Histogram([_buckets(report, labels, family, one) for one in samples], temporality)
    else:
        points = [_number(report, labels, family, one) for one in samples]
        data = Gauge(points)
        if family.kind is Kind.COUNTER:
            data = Sum(points, temporality, is_monotonic=True)
    return Metric(family.instrument or family.name, family.help, family.unit, data)


def _number(
    report: Report, labels: Mapping[str, str], family: Family, sample: Sample
) -> NumberDataPoint:
    values, value = sample
    assert not isinstance(value, Distribution)
    attributes = _attributes(labels, family, values)
    return NumberDataPoint(attributes, report.since_ns, report.at_ns, value)


def _buckets(
    report: Report, labels: Mapping[str, str], family: Family, sample: Sample
) -> HistogramDataPoint:
    values, value = sample
    assert isinstance(value, Distribution)
    return HistogramDataPoint(
        _attributes(labels, family, values),
        report.since_ns,
        report.at_ns,
        count=sum(value.counts),
        sum=value.total,
        bucket_counts=list(value.counts),
        explicit_bounds=list(family.bounds),
        min=None,  # type: ignore[arg-type]  # not counted; the encoder leaves it out
        max=None,  # type: ignore[arg-type]
    )


def _attributes(
    labels: Mapping[str, str], family: Family, values: tuple[str, ...]
) -> dict[str, str | bool | int]:
    attributes: dict[str, str | bool | int] = dict(labels)
    for name, text in family.own_labels(values).items():
        typed = _TYPED.get(name)
        attributes[name] = text if typed is None else typed(text)
    return attributes
