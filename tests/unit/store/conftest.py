"""For every test of the store: what it left open on the real disk is let go at its end, behind what
its fixtures close."""

from collections.abc import Iterator

import pytest
from tests.unit.store.left_open import letting_go


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    with letting_go():
        yield
