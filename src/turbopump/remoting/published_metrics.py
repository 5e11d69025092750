"""Metrics of one server, in the ways in which its settings publish them.

They are a page for Prometheus (``metrics_port.py``), and reports to a collector or to the log
(``metrics_reports.py``). The metrics that every server has are added here (``server_metrics.py``).
"""

from __future__ import annotations

from turbopump.config.metrics import MetricsConfig, MetricsExporterType
from turbopump.metrics.family import Metrics
from turbopump.remoting.metrics_port import MayRead, MetricsPort
from turbopump.remoting.metrics_reports import MetricsReports
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.server_metrics import ServerMetrics
from turbopump.remoting.turns import Turns


class PublishedMetrics:
    """Metrics of one server, from ``start`` to ``close``.

    - ``metrics``: the metrics of the server's own subjects.
    - ``may_read``: checks a user of the page, or None if the server has no access control.
    - ``turns``: shares the event loop between a report and other long work.
    - ``port``: the port for Prometheus. It may be closed.
    """

    def __init__(
        self,
        config: MetricsConfig,
        server: RemotingServer,
        metrics: Metrics,
        may_read: MayRead | None,
        turns: Turns | None = None,
    ) -> None:
        self._config = config
        self._measuring = ServerMetrics(server)
        self._measuring.add_to(metrics)
        self._reports = MetricsReports(config, metrics, turns)
        self.port = MetricsPort(config, metrics, may_read)

    async def start(self, port: int) -> None:
        """Open the port for Prometheus, or begin with the reports, as the settings say.

        Raises ConfigError if the port cannot be opened, or if a package is not installed.
        """
        if self._config.metrics_exporter_type is MetricsExporterType.PROM:
            await self.port.open(port)
        self._reports.start()

    async def close(self) -> None:
        """Close the port, and end the reports. The method may be called twice."""
        self.port.close()
        await self._reports.close()
        self._measuring.stop()
