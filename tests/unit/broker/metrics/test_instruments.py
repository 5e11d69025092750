"""Names for OpenTelemetry: each gives the name on the page, by OpenTelemetry's own rule."""

from __future__ import annotations

from tests.loops import in_loop

from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.metrics.family import Family, Kind
from turbopump.testing import running_broker

UNITS = {"ms": "milliseconds", "s": "seconds", "By": "bytes", "us": "microseconds"}


def exposed(family: Family) -> str:
    """Name on the page of an instrument (``PrometheusMetricNameMapper`` of OpenTelemetry Java)."""
    name = family.instrument or family.name
    unit = "" if family.unit.startswith("{") else UNITS.get(family.unit, family.unit)
    if unit and unit not in name:
        name += f"_{unit}"
    if family.kind is Kind.COUNTER and not name.endswith("_total"):
        name += "_total"
    return name


@in_loop
async def test_instruments_and_units_give_the_names_of_the_page() -> None:
    async with running_broker() as broker:
        families = [family for family, _ in metrics_of(broker.broker.parts).families()]
    assert {family.name: exposed(family) for family in families} == {
        family.name: family.name for family in families
    }
    suffixes = ("_milliseconds", "_seconds", "_bytes")
    without = [
        family.name
        for family in families
        if family.name.startswith("rocketmq_")
        and family.name.endswith(suffixes)
        and not family.unit
    ]
    assert without == []
