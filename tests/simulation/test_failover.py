"""Three replicas and a controller through kills, power cuts, pauses, cuts, slow disks, clock steps
and damage: nothing acknowledged is lost, and there are never two masters."""

from tests.simulation.failover_runs import run_seed
from tests.simulation.figures import Figures


def test_what_was_acknowledged_survives_every_fault(seed: int, figures: Figures) -> None:
    outcome = run_seed(seed)
    assert not outcome.wrong, f"{outcome}\n{outcome.story}"
    figures.count(**outcome.counts, lost=0, double_masters=0)


def test_the_same_seed_makes_the_same_run() -> None:
    first, second = run_seed(3, seconds=5), run_seed(3, seconds=5)
    assert first.story == second.story
    assert first.counts == second.counts
