"""What a monitor reads from a broker of a test, by name and labels."""

import re
from typing import Final

from turbopump.broker.broker import Broker
from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.metrics.family import Metrics
from turbopump.metrics.prometheus_text import text_pieces

_LINE: Final = re.compile(r"^rocketmq_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_COMMON: Final = ("cluster", "node_type", "node_id", "otel_scope_name")


def scrape(broker: Broker, *names: str, metrics: Metrics | None = None) -> dict[str, float]:
    """The series of these metrics without ``rocketmq_``, as ``name label=value …``; the labels that
    all series have are left out. ``metrics``: those of an earlier scrape, which remember it."""
    found = {}
    text = "".join(text_pieces(metrics or metrics_of(broker.parts)))
    for name, labels, value in _LINE.findall(text):
        if name in names:
            own = [f"{key}={text}" for key, text in _LABEL.findall(labels) if key not in _COMMON]
            found[" ".join([name, *own])] = float(value)
    return found
