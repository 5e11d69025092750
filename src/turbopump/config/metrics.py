"""Settings of the metrics of a server, in the keys of Apache's broker."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from turbopump.config.addresses import LOOPBACK, check_host, parse_address
from turbopump.config.health import HealthConfig
from turbopump.config.setting import LONG_MAX, setting
from turbopump.errors import ConfigError


class MetricsExporterType(enum.StrEnum):
    """Way in which metrics leave a server.

    - ``PROM``: a monitor fetches them from the page `/metrics`.
    - ``OTLP_GRPC``: the server sends them to a collector of OpenTelemetry.
    - ``LOG``: the server writes them to its log.
    """

    DISABLE = "DISABLE"
    PROM = "PROM"
    OTLP_GRPC = "OTLP_GRPC"
    LOG = "LOG"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig(HealthConfig):
    """Settings of metrics, health pages, access control and TLS of a server."""

    metrics_exporter_type: MetricsExporterType = setting(
        MetricsExporterType.DISABLE,
        "way in which metrics leave the server: PROM (the page `/metrics`), OTLP_GRPC (sent to a "
        "collector of OpenTelemetry), LOG (lines of the log) or DISABLE",
        group="metrics",
    )
    metrics_prom_exporter_host: str = setting(
        "", "interface of `/metrics`; empty: 127.0.0.1 (Apache's default is brokerIP1)"
    )
    metrics_label: str = setting(
        "",
        "more labels of each metric, `name:value` separated by commas; on the page, `_` replaces "
        "what Prometheus does not allow in a name",
    )
    metrics_grpc_exporter_target: str = setting(
        "",
        "collector for OTLP_GRPC: http://HOST:PORT (plain text), https://HOST:PORT, or HOST:PORT "
        "(TLS)",
    )
    metrics_grpc_exporter_header: str = setting(
        "",
        "headers for that collector, such as a token: `name:value` separated by commas",
        secret=True,
    )
    metric_grpc_exporter_time_out_in_mills: int = setting(
        3000, "how long the collector may take", "ms", low=1, high=LONG_MAX
    )
    metric_grpc_exporter_interval_in_mills: int = setting(
        60000, "time between two reports to the collector", "ms", low=100, high=LONG_MAX
    )
    metric_logging_exporter_interval_in_mills: int = setting(
        10000, "time between two reports in the log (LOG)", "ms", low=100, high=LONG_MAX
    )
    metrics_in_delta: bool = setting(
        False,
        "OTLP_GRPC and LOG report how much counters and histograms grew since the last report; "
        "each metric gets the label aggregation=delta",
    )

    @property
    def metrics_host(self) -> str:
        """Interface of the page `/metrics`."""
        return self.metrics_prom_exporter_host or LOOPBACK

    @property
    def metrics_labels(self) -> dict[str, str]:
        """Labels from the configuration that each metric has. Raises ConfigError if the text is
        invalid."""
        labels = name_values("metricsLabel", self.metrics_label)
        return labels | {"aggregation": "delta"} if self.metrics_in_delta else labels

    @property
    def collector_url(self) -> str:
        """URL of the collector, ``http://HOST:PORT`` or ``https://HOST:PORT``.

        Raises ConfigError if the target has another form. RocketMQ: a target without ``http`` gets
        ``https://``.
        """
        target = self.metrics_grpc_exporter_target.strip()
        scheme, separator, address = target.rpartition("://")
        if scheme not in ("http", "https") and separator:
            raise ConfigError(
                f"metricsGrpcExporterTarget={target}: expected http://HOST:PORT or https://HOST:PORT"
            )
        parse_address(address.rstrip("/"), what="metricsGrpcExporterTarget")
        return f"{scheme or 'https'}://{address.rstrip('/')}"

    @property
    def collector_headers(self) -> dict[str, str]:
        """Headers for the collector. Raises ConfigError, without values, if the text is invalid."""
        return name_values("metricsGrpcExporterHeader", self.metrics_grpc_exporter_header)

    def check_metrics(self) -> None:
        """Raise ConfigError if the settings of metrics are invalid or contradict each other."""
        _ = self.metrics_labels, self.collector_headers
        check_host(self.metrics_host, what="metricsPromExporterHost")
        if self.metrics_exporter_type is MetricsExporterType.OTLP_GRPC:
            if not self.metrics_grpc_exporter_target.strip():
                raise ConfigError(
                    "metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget, the address of "
                    "a collector, such as http://127.0.0.1:4317"
                )
            _ = self.collector_url


def name_values(key: str, text: str) -> dict[str, str]:
    """Parse the text of a setting, `name:value` separated by commas.

    Raises ConfigError, without the value, if the text has another form.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = part.partition(":")
        if not (name.strip() and colon):
            raise ConfigError(f"{key}: expected name:value, separated by commas")
        found[name.strip()] = value.strip()
    return found
