"""Values of metrics, as a scrape reads them."""

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


def value_of(metrics: Metrics, family: Family) -> float:
    """Value of a family with one series."""
    ((_, found),) = series_of(metrics, family).items()
    assert not isinstance(found, Distribution)
    return found
