"""Values of a broker's metrics, as a scrape reads them."""

from tests.unit.metrics.reading import Series, Value, series_of, value_of

from turbopump.broker.broker import Broker
from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.metrics.family import Distribution, Family


def series(broker: Broker, family: Family) -> Series:
    """Values of a family of a broker by its labels."""
    return series_of(metrics_of(broker.parts), family)


def value(broker: Broker, family: Family) -> float:
    """Value of a family with one series."""
    return value_of(metrics_of(broker.parts), family)


def distribution(found: Value) -> Distribution:
    assert isinstance(found, Distribution)
    return found
