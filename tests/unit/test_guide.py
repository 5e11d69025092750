"""What docs/guide shows runs as it stands, and prints what the pages say."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from tests.unit.guide_page import GUIDE, SPARK_PAGES, Page

PAGES = sorted(
    page.name
    for page in GUIDE.glob("*.md")
    if "```console" in page.read_text() and page.name not in SPARK_PAGES
)
NEEDED = {"recipes.md": "fastapi", "tracing.md": "opentelemetry"}
"""Packages without which a page cannot be tried."""


@pytest.fixture(scope="module")
def tries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[int]]]:
    """Every page is being tried, some at a time: most of their commands wait for something."""
    with ThreadPoolExecutor(3) as pool:
        yield {
            name: pool.submit(Page(name, tmp_path_factory.mktemp(name)).try_it)
            for name in PAGES
            if find_spec(NEEDED.get(name, "turbopump"))
        }


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_shows(name: str, tries: dict[str, Future[int]]) -> None:
    if name not in tries:
        pytest.skip(f"{NEEDED[name]} is not installed")
    assert tries[name].result() > 0
