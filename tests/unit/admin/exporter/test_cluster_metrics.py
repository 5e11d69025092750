"""Names and labels are those of rocketmq-exporter."""

from pathlib import Path

from turbopump.admin.exporter.cluster_metrics import FAMILIES

NAMES = Path(__file__).parent / "rocketmq_exporter_names.txt"
"""Names and labels of apache/rocketmq-exporter at e1ab2dd (``RMQMetricsCollector``)."""


def test_names_and_labels_are_those_of_rocketmq_exporter() -> None:
    theirs = sorted(NAMES.read_text("utf-8").splitlines())
    assert sorted(" ".join((family.name, *family.labels)) for family in FAMILIES) == theirs
