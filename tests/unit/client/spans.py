"""Spans and metrics of OpenTelemetry in memory, and a producer that makes them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster

from turbopump.client.open_telemetry import OpenTelemetry
from turbopump.client.producer import Producer


class Spans:
    """A provider of one test's own, and what it has recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = OpenTelemetry(self.provider, self.meter_provider)
        self.tracer = self.provider.get_tracer("test")

    @property
    def ended(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric since the begin of the test."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]


def with_producer(
    scenario: Callable[[ScriptedCluster, Producer], Coroutine[Any, Any, None]],
    spans: Spans,
    *,
    brokers: int = 1,
    hooks: Sequence[Any] | None = None,
    **settings: Any,
) -> None:
    async def main(simulation: Simulation) -> None:
        async with scripted_cluster(simulation, brokers=brokers) as cluster:
            settings["hooks"] = [spans.telemetry] if hooks is None else hooks
            async with Producer(
                cluster.name_server.address, **cluster.settings, **settings
            ) as producer:
                await scenario(cluster, producer)

    simulate(1, main)


def context_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
