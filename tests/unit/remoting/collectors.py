"""Collector of OpenTelemetry for tests: a server of gRPC that keeps what it receives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as services


class Collector(services.MetricsServiceServicer):
    """Server on a free port of 127.0.0.1. ``refuses`` makes it answer with an error."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: dict[str, Any] = {}
        self.refuses = False
        self.port = 0

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if self.refuses:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no room here")
        self.headers = {pair.key: pair.value for pair in context.invocation_metadata()}
        self.requests.append(request)
        return messages.ExportMetricsServiceResponse()

    def reports(self) -> list[dict[str, Any]]:
        """Return the metrics of each request, by their names."""
        return [metrics_of(request) for request in list(self.requests)]


def metrics_of(request: Any) -> dict[str, Any]:
    """Return the metrics of a request by their names."""
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def attributes(point: Any) -> dict[str, object]:
    """Return the attributes of a data point with their types."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in point.attributes}


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector in threads."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
