"""Reports of metrics: to a collector of OpenTelemetry, cumulative and in delta, and to the log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.loops import in_loop
from tests.ports import free_ports
from tests.waits import until, until_logged

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.grpc", reason="turbopump[otel] is not installed"
)

from tests.unit.remoting.collectors import Collector, attributes, running_collector

from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.config.metrics import MetricsExporterType
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import ConfigError
from turbopump.metrics.collecting import Report
from turbopump.metrics.family import Distribution, Family, Kind, Metrics
from turbopump.metrics.tables import CounterTable, HistogramTable
from turbopump.namesrv.server import NameServer
from turbopump.remoting.metrics_reports import MetricsReports
from turbopump.remoting.otlp_sender import parts_of
from turbopump.testing import running_broker

IN = Family(
    "rocketmq_messages_in_total",
    Kind.COUNTER,
    "Messages.",
    ("topic", "is_system", "queue_id", "is_retry"),
)
LATENCY = Family(
    "rocketmq_rpc_latency_milliseconds",
    Kind.HISTOGRAM,
    "Latency.",
    bounds=(1, 3),
    instrument="rocketmq_rpc_latency",
    unit="milliseconds",
)
TOPICS = Family("rocketmq_topic_number", Kind.GAUGE, "Topics.")


class Server:
    """Metrics of a server, which the test changes."""

    def __init__(self) -> None:
        self.received = CounterTable(IN)
        self.latency = HistogramTable(LATENCY)
        self.topics = 7
        self.metrics = Metrics({"cluster": "c", "otel_scope_name": "broker-meter"})
        self.metrics.add(IN, self.received.read)
        self.metrics.add(LATENCY, self.latency.read)
        self.metrics.add_value(TOPICS, lambda: self.topics)
        self.work(2)

    def work(self, messages: int) -> None:
        self.received.add(("orders", "false", "3", ""), messages)
        self.latency.observe((), 2, messages)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def config(port: int, **settings: Any) -> NamesrvConfig:
    return NamesrvConfig(
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{port}",
        metric_grpc_exporter_interval_in_mills=100,
        **settings,
    )


def point(metric: Any) -> Any:
    """The only data point of a metric."""
    (found,) = getattr(metric, metric.WhichOneof("data")).data_points
    return found


@in_loop
async def test_a_collector_gets_apache_s_instruments_units_and_types(collector: Collector) -> None:
    header = "Authorization:Bearer a:b,x-team:mq"
    reports = MetricsReports(
        config(collector.port, metrics_grpc_exporter_header=header), Server().metrics
    )
    reports.start()
    await until(collector.reports)
    await reports.close()
    found = collector.reports()[0]
    assert set(found) == {IN.name, "rocketmq_rpc_latency", TOPICS.name}
    counter = found[IN.name]
    assert (counter.sum.is_monotonic, counter.sum.aggregation_temporality) == (True, 2)
    assert point(counter).as_int == 2
    assert attributes(point(counter)) == {
        "cluster": "c",
        "topic": "orders",
        "is_system": False,
        "queue_id": 3,
    }
    histogram = found["rocketmq_rpc_latency"]
    assert histogram.unit == "milliseconds"
    buckets = point(histogram)
    assert (list(buckets.bucket_counts), list(buckets.explicit_bounds)) == ([0, 2, 0], [1, 3])
    assert (buckets.count, buckets.sum, buckets.HasField("min")) == (2, 4, False)
    assert point(found[TOPICS.name]).as_int == 7
    scope = collector.requests[0].resource_metrics[0].scope_metrics[0].scope
    assert scope.name == "broker-meter"
    assert collector.headers["authorization"] == "Bearer a:b"
    assert collector.headers["x-team"] == "mq"


@in_loop
async def test_in_delta_each_report_has_the_growth_and_none_is_lost_by_a_refusal(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    collector.refuses = True
    reports = MetricsReports(config(collector.port, metrics_in_delta=True), server.metrics)
    reports.start()
    await until_logged(caplog, "INVALID_ARGUMENT")
    server.work(3)
    collector.refuses = False
    await until(collector.reports)
    server.work(4)
    count = len(collector.reports())
    await until(lambda: len(collector.reports()) > count + 1)
    await reports.close()
    found = collector.reports()
    sums = [point(report[IN.name]) for report in found]
    assert sums[0].as_int == 5
    assert sum(one.as_int for one in sums) == 9
    assert {report[IN.name].sum.aggregation_temporality for report in found} == {1}
    assert sum(point(report["rocketmq_rpc_latency"]).count for report in found) == 9
    assert [one.start_time_unix_nano for one in sums[1:]] == [
        one.time_unix_nano for one in sums[:-1]
    ]


@in_loop
async def test_all_metrics_of_a_broker_and_a_name_server_reach_a_collector(
    collector: Collector,
) -> None:
    async with running_broker(
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{collector.port}",
        metric_grpc_exporter_interval_in_mills=100,
    ) as broker:
        families = {
            family.instrument or family.name
            for family, reads in metrics_of(broker.broker.parts).families()
            if any(sample is not None for read in reads for sample in read())
        }
        assert "rocketmq_topic_number" in families
        await until(lambda: any(families <= set(report) for report in collector.reports()))
    name_server = NameServer(config(collector.port))
    await name_server.start(port=0)
    await name_server.close()
    assert "turbopump_namesrv_brokers" in collector.reports()[-1]


@in_loop
async def test_a_value_that_is_true_is_one(collector: Collector) -> None:
    metrics = Metrics()
    metrics.add_value(TOPICS, lambda: True)
    reports = MetricsReports(config(collector.port), metrics)
    reports.start()
    await reports.close()
    assert point(collector.reports()[0][TOPICS.name]).as_int == 1


def test_a_large_report_is_sent_in_parts() -> None:
    families = [(TOPICS, []), (IN, [((f"t{n}", "false", "0", ""), n) for n in range(7)])]
    report = Report({}, 0, 1, False, [*families, (LATENCY, [((), Distribution((1, 0, 0), 1))])], {})
    parts = [
        [(family, len(samples)) for family, samples in part.families]
        for part in parts_of(report, 3)
    ]
    assert parts == [[(IN, 3)], [(IN, 3)], [(IN, 1), (LATENCY, 1)]]


@in_loop
async def test_an_absent_collector_is_one_line_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    port = free_ports()
    settings = config(port, metric_grpc_exporter_time_out_in_mills=200)
    reports = MetricsReports(settings, Server().metrics)
    reports.start()
    await until_logged(caplog, "metrics not sent, tried again")
    await until(lambda: reports.failures >= 3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await reports.close()
    assert loop.time() - began < 5
    lines = [record.message for record in caplog.records if "not sent" in record.message]
    assert len(lines) == 1
    assert "UNAVAILABLE" in lines[0] or "DEADLINE_EXCEEDED" in lines[0]
    assert [one for one in caplog.records if one.name.startswith("opentelemetry")] == []


@in_loop
async def test_the_log_has_a_line_for_each_series(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    settings = NamesrvConfig(
        metrics_exporter_type=MetricsExporterType.LOG,
        metric_logging_exporter_interval_in_mills=100,
        metrics_grpc_exporter_target="http://127.0.0.1:4317",
    )
    reports = MetricsReports(settings, Server().metrics)
    reports.start()
    await until_logged(caplog, f"metric name={TOPICS.name} value=7 cluster=c")
    await reports.close()
    assert caplog.messages[0] == "metrics reports begin target=log interval_ms=100"
    assert caplog.messages[1:4] == [
        f"metric name={IN.name} value=2 cluster=c topic=orders is_system=false queue_id=3",
        f"metric name={LATENCY.name} count=2 sum=4.0 buckets=3:2 cluster=c",
        f"metric name={TOPICS.name} value=7 cluster=c",
    ]


@in_loop
async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "turbopump.remoting.otlp_sender", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
    reports = MetricsReports(config(1), Server().metrics)
    with pytest.raises(ConfigError, match=r"pip install 'turbopump\[otel\]'"):
        reports.start()
