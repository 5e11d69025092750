"""The page of all metrics is as the code declares them."""

from pathlib import Path

from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse
from tests.unit.metrics.metrics_page import BROKER, families_of, page

from turbopump.broker.metrics.all_metrics import metrics_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def test_the_page_lists_every_metric() -> None:
    assert PAGE.read_text() == page() + "\n", (
        "docs/reference/metrics.md is stale: python -m tests.unit.metrics.metrics_page > "
        "docs/reference/metrics.md"
    )


@in_loop(converse)
async def test_a_broker_serves_the_metrics_that_the_page_lists(talk: Talk, /) -> None:
    listed = {family.name for family in families_of(BROKER)}
    served = {family.name for family, _ in metrics_of(talk.broker.parts).families()}
    assert served <= listed
    assert len(listed - served) < 5, "those of a slave, and of the program around the parts"
