"""Settings of the metrics of a server, in the keys of Apache's broker."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from turbopump.config.addresses import LOOPBACK, check_host
from turbopump.config.health import HealthConfig
from turbopump.config.setting import setting
from turbopump.errors import ConfigError


class MetricsExporterType(enum.StrEnum):
    """Way in which metrics leave a server.

    - ``PROM``: a monitor fetches them from the page `/metrics`.
    """

    DISABLE = "DISABLE"
    PROM = "PROM"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig(HealthConfig):
    """Settings of metrics, health pages, access control and TLS of a server."""

    metrics_exporter_type: MetricsExporterType = setting(
        MetricsExporterType.DISABLE,
        "way in which metrics leave the server: PROM (the page `/metrics`) or DISABLE",
        group="metrics",
    )
    metrics_prom_exporter_host: str = setting(
        "", "interface of `/metrics`; empty: 127.0.0.1 (Apache's default is brokerIP1)"
    )
    metrics_label: str = setting("", "more labels of each metric, `name:value` separated by commas")

    @property
    def metrics_host(self) -> str:
        """Interface of the page `/metrics`."""
        return self.metrics_prom_exporter_host or LOOPBACK

    @property
    def metrics_labels(self) -> dict[str, str]:
        """Labels from the configuration that each metric has. Raises ConfigError if the text is
        invalid."""
        return name_values("metricsLabel", self.metrics_label)

    def check_metrics(self) -> None:
        """Raise ConfigError if the settings of metrics are invalid or contradict each other."""
        _ = self.metrics_labels
        check_host(self.metrics_host, what="metricsPromExporterHost")


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
