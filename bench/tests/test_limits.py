"""The table of limits: a goal is judged for ours alone, by what the bystander waited, by how far
memory grew, and by what the load measured itself."""

import msgspec
import pytest

from bench.brokers import APACHE, OURS
from bench.bystander import Window
from bench.limits import not_measured, row, scenarios
from bench.memory import MIB
from bench.stalls import Figure, Scenario, Stall

CALM = Window(sends=200, longest_ms=2, p999_ms=2, p99_ms=1, cpu_ms=1, refused=0, lost=0)


def stall(
    broker: str, longest_ms: float, grown_mib: int = 0, lost: int = 0, join_ms: float = 2.0
) -> Stall:
    loaded = Window(
        sends=200, longest_ms=longest_ms, p999_ms=9, p99_ms=8, cpu_ms=7, refused=0, lost=lost
    )
    figures = (Figure("ms of CPU a join", join_ms, 2.0),)
    peak = (20 + grown_mib) * MIB
    return Stall("s", broker, "code 0", 1.0, CALM, loaded, 20 * MIB, peak, figures)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (stall(OURS, 99), "reached"),
        (stall(OURS, 101), "MISSED"),
        (stall(OURS, 99, grown_mib=51), "MISSED"),
        (stall(OURS, 99, lost=1), "MISSED"),
        (stall(OURS, 99, join_ms=2.1), "MISSED"),
        (stall(APACHE, 900), ""),
    ],
)
def test_goals_are_judged_for_ours_alone(measured: Stall, verdict: str) -> None:
    scenario = Scenario("s", "a load", lambda _broker: "code 0", stall_ms=100.0, grown_mib=50.0)
    found = row(scenario, measured)
    assert found[-1] == verdict
    assert found[-2] == ("100 ms, +50 MiB, ms of CPU a join 2" if verdict else "")


def test_every_scenario_has_a_name_of_its_own() -> None:
    names = [scenario.name for scenario in scenarios()]
    assert len(names) == len(set(names)) > 0


def test_what_a_published_table_would_lack_is_named() -> None:
    name = scenarios()[0].name
    measured = [
        msgspec.structs.replace(stall(broker, 1), scenario=name) for broker in (APACHE, OURS)
    ]
    assert f"{name} ({OURS})" in not_measured([])
    assert len(not_measured(measured)) == len(not_measured([])) - 2
