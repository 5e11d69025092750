"""Values of a broker's metrics, as a scrape reads them."""

from turbopump.broker.broker import Broker
from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.metrics.family import Distribution, Family, Metrics

Value = float | Distribution
Series = dict[tuple[str, ...], Value]


def series_of(metrics: Metrics, family: Family) -> Series:
    """Values of a family by its labels."""
    reads = dict(metrics.families())[family]
    found: Series = {}
    for read in reads:
        for sample in read():
            if sample is not None:
                assert sample[0] not in found
                found[sample[0]] = sample[1]
    return found


def series(broker: Broker, family: Family) -> Series:
    """Values of a family of a broker by its labels."""
    return series_of(metrics_of(broker.parts), family)


def value(broker: Broker, family: Family) -> float:
    """Value of a family with one series."""
    ((_, found),) = series(broker, family).items()
    assert not isinstance(found, Distribution)
    return found


def distribution(found: Value) -> Distribution:
    assert isinstance(found, Distribution)
    return found
