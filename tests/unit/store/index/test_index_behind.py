"""An index that ends before the place where recovery begins to read: it is filled again from where
it ends."""

from collections.abc import Iterator

import pytest
from tests.crash.in_memory import Image, Opened
from tests.unit.store.ended_queues import open_store
from tests.unit.store.looked_up import find_by_key


@pytest.fixture
def life() -> Iterator[tuple[Opened, Image, list[str]]]:
    """A store that goes on for some segments, its index as it was before, and all keys."""
    opened, keys = open_store({}, at_ms=1_000), list[str]()

    def send(count: int) -> None:
        for _ in range(count):
            keys.append(f"key-{len(keys)}")
            opened.clock.ms += 1000
            opened.put("T", 0, b"x" * 200, keys[-1])
        opened.flush()

    send(5)
    before = {path: data for path, data in opened.image().items() if path.parent.name == "index"}
    send(60)
    yield opened, before, keys
    opened.disk.kill()


def test_after_a_kill_every_message_is_found_by_its_key(
    life: tuple[Opened, Image, list[str]],
) -> None:
    opened, before, keys = life
    assert before
    found = open_store({**opened.image(), **before}, at_ms=1_000_000)
    recovery = found.store.recovery
    assert recovery is not None
    assert not recovery.rebuilt
    assert [key for key in keys if not find_by_key(found.store.lookup, "T", key, 0, 1 << 60)] == []
    found.disk.kill()


def test_an_index_that_is_not_behind_costs_no_reading(
    life: tuple[Opened, Image, list[str]],
) -> None:
    opened, _, keys = life
    found = open_store(opened.image(), at_ms=1_000_000)
    recovery = found.store.recovery
    assert recovery is not None
    assert recovery.begun_at > 0
    assert recovery.entries < len(keys)
    found.disk.kill()
