"""The store alone on a disk that loses power: what was flushed is there, what readers saw stays
true."""

from tests.simulation.figures import Figures
from tests.simulation.store_story import LIVES, StoreStory
from tests.simulation.world.simulation import Simulation, run_simulation


def tell(seed: int, *, flushed_only: bool) -> StoreStory:
    simulation = Simulation(seed)
    story = StoreStory(simulation, flushed_only=flushed_only)
    run_simulation(simulation, lambda _: story.run())
    return story


def test_what_was_flushed_is_there_after_any_power_cut(seed: int, figures: Figures) -> None:
    story = tell(seed, flushed_only=False)
    assert story.ledger.violations(ordered=["at the end"]) == []
    assert story.ledger.acknowledged
    figures.count(
        lives=LIVES, messages=story.written, acknowledged=len(story.ledger.acknowledged), lost=0
    )


def test_what_readers_of_a_flushing_store_saw_stays_as_it_was(seed: int, figures: Figures) -> None:
    story = tell(seed, flushed_only=True)
    assert story.ledger.violations(["at the end"]) == []
    assert story.ledger.acknowledged
    figures.count(
        lives=LIVES, messages=story.written, acknowledged=len(story.ledger.acknowledged), lost=0
    )
