"""The table of limits: a goal is judged for ours alone, by what the bystander waited and by how far
memory grew."""

import pytest

from bench.brokers import APACHE, OURS
from bench.bystander import Window
from bench.limits import row, scenarios
from bench.memory import MIB
from bench.stalls import Scenario, Stall

CALM = Window(sends=200, longest_ms=2, p999_ms=2, p99_ms=1, cpu_ms=1, refused=0, lost=0)


def stall(broker: str, longest_ms: float, grown_mib: int = 0, lost: int = 0) -> Stall:
    loaded = Window(
        sends=200, longest_ms=longest_ms, p999_ms=9, p99_ms=8, cpu_ms=7, refused=0, lost=lost
    )
    return Stall("s", broker, "code 0", 1.0, CALM, loaded, 20 * MIB, (20 + grown_mib) * MIB)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (stall(OURS, 99), "reached"),
        (stall(OURS, 101), "MISSED"),
        (stall(OURS, 99, grown_mib=51), "MISSED"),
        (stall(OURS, 99, lost=1), "MISSED"),
        (stall(APACHE, 900), ""),
    ],
)
def test_goals_are_judged_for_ours_alone(measured: Stall, verdict: str) -> None:
    scenario = Scenario("s", "a load", lambda _broker: "code 0", stall_ms=100.0, grown_mib=50.0)
    assert row(scenario, measured)[-1] == verdict


def test_every_scenario_has_a_name_of_its_own() -> None:
    names = [scenario.name for scenario in scenarios()]
    assert len(names) == len(set(names)) > 0
