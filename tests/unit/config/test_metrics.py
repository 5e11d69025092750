"""Settings of metrics: the collector, its headers, labels."""

from typing import Any

import pytest

from turbopump.config.broker_config import load_broker_config
from turbopump.config.metrics import MetricsExporterType
from turbopump.config.setting import effective
from turbopump.errors import ConfigError


def otlp(target: str, **settings: Any) -> Any:
    overrides = {
        "metrics_exporter_type": MetricsExporterType.OTLP_GRPC,
        "metrics_grpc_exporter_target": target,
    }
    return load_broker_config(overrides=overrides | settings)


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://127.0.0.1:4317", "http://127.0.0.1:4317"),
        ("https://collector.example:4317/", "https://collector.example:4317"),
        ("collector.example:4317", "https://collector.example:4317"),
    ],
)
def test_a_target_without_a_scheme_gets_tls_as_with_apache(target: str, url: str) -> None:
    assert otlp(target).collector_url == url


@pytest.mark.parametrize("target", ["", " ", "ftp://h:1", "h", "http://h", "a,b:1"])
def test_an_unusable_target_is_refused_at_the_start(target: str) -> None:
    with pytest.raises(ConfigError, match="metricsGrpcExporterTarget"):
        otlp(target)


def test_headers_are_secret_also_in_an_error() -> None:
    config = otlp("h:1", metrics_grpc_exporter_header="authorization:Bearer s3cret")
    assert config.collector_headers == {"authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(config)
    assert "s3cret" not in str(effective(config))
    with pytest.raises(ConfigError) as raised:
        otlp("h:1", metrics_grpc_exporter_header="s3cret")
    assert "s3cret" not in str(raised.value)


def test_in_delta_each_metric_has_a_label_that_says_so() -> None:
    config = load_broker_config(overrides={"metrics_label": "zone:x", "metrics_in_delta": True})
    assert config.metrics_labels == {"zone": "x", "aggregation": "delta"}
