"""Metrics that a collector of OpenTelemetry gets: Apache's broker and ours give them one form."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheCluster
from tests.interop.tools import skipping_without_tools
from tests.waits import until

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.grpc", reason="turbopump[otel] is not installed"
)

from tests.unit.remoting.collectors import Collector, attributes, metrics_of, running_collector

from turbopump import ConsumeFrom, Producer, PushConsumer
from turbopump.config.metrics import MetricsExporterType
from turbopump.testing import BrokerThread

Forms = dict[str, dict[str, Any]]
"""Form of each metric, by its name: its kind, unit and temporality, and its attributes' types."""


async def exchange(namesrv: str, collector: Collector) -> None:
    """Send and consume, and wait until a report has counted it."""
    async with (
        Producer(namesrv, send_timeout=30) as producer,
        PushConsumer(
            namesrv, group="g", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer,
    ):
        for _ in range(10):
            await producer.send("orders", b"a book")
        await consumer.take(1)
        reports = len(collector.requests)
        await until(lambda: len(collector.requests) >= reports + 3)


def forms(collector: Collector) -> Forms:
    found: Forms = {}
    for request in collector.requests:
        for name, metric in metrics_of(request).items():
            kind = metric.WhichOneof("data")
            data = getattr(metric, kind)
            found[name] = {
                "kind": kind,
                "unit": metric.unit,
                "temporality": getattr(data, "aggregation_temporality", None),
                "monotonic": getattr(data, "is_monotonic", None),
                "values": {one.WhichOneof("value") for one in data.data_points}
                if kind != "histogram"
                else [list(one.explicit_bounds) for one in data.data_points][:1],
                "attributes": {
                    key: type(value).__name__
                    for key, value in attributes(data.data_points[0]).items()
                },
            }
    return found


@pytest.mark.parametrize("in_delta", [False, True])
@skipping_without_tools()
def test_a_collector_gets_the_same_forms_from_both_brokers(tmp_path: Path, in_delta: bool) -> None:
    with running_collector() as collector:
        settings: dict[str, str | int | bool] = {
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": f"http://127.0.0.1:{collector.port}",
            "metricGrpcExporterIntervalInMills": 500,
            "metricsInDelta": in_delta,
        }
        with ApacheCluster(directory=tmp_path, broker_config=settings) as apache:
            asyncio.run(exchange(apache.namesrv, collector))
        theirs = forms(collector)
    with running_collector() as collector:
        with BrokerThread(
            metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
            metrics_grpc_exporter_target=f"http://127.0.0.1:{collector.port}",
            metric_grpc_exporter_interval_in_mills=500,
            metrics_in_delta=in_delta,
        ) as broker:
            asyncio.run(exchange(broker.namesrv, collector))
        ours = forms(collector)
    assert len(theirs) > 20
    assert {name: ours.get(name) for name in theirs} == theirs
