"""Stores that live a random life (sends, flushes, retention, deleted topics, late saves) and are
killed or stopped: no start finds a queue that does not fit what was noted, and whatever file of a
queue is lost then, every queue comes back as it was."""

import random

import pytest
from tests.crash.in_memory import ROOT, START_MS
from tests.fuzzing import some
from tests.unit.store.ended_queues import (
    BACKUP,
    RECORD,
    State,
    files_of,
    live,
    open_store,
    state,
    without,
)


def comparable(one: State, other: State) -> dict[str, object]:
    """The ends of queues, and their units from where both begin."""
    return {
        topic: (end, units[max(other[topic][0] - first, 0) :] if topic in other else units)
        for topic, (first, end, units) in one.items()
    }


@pytest.mark.parametrize("seed", [*some(range(25)), 837])
def test_whatever_a_store_has_lived_through_its_queues_fit_and_come_back(seed: int) -> None:
    source = random.Random(seed)
    found = open_store({})
    for _ in range(4):
        live(found, source)
        expected, now = state(found), found.clock.ms - START_MS + 1000
        if source.random() < 0.3:
            found.store.close()
        image = found.image()
        found.disk.kill()
        if expected:
            lost = source.choice(files_of(image, source.choice(sorted(expected))))
            damaged = open_store(without(image, lost), at_ms=now)
            there = state(damaged)
            assert comparable(there, expected) == comparable(expected, there), f"without {lost}"
            damaged.disk.kill()
        found = open_store(image, at_ms=now)
        there = state(found)
        assert comparable(there, expected) == comparable(expected, there)
        assert found.store.recovery is not None
        assert (found.store.recovery.rebuilt, found.store.recovery.mismatch, found.reports) == (
            False,
            None,
            [],
        )
    found.disk.kill()


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("seed", [*some(range(40)), 59, 67, 139])
def test_a_killed_store_of_which_nothing_is_noted_gives_no_offset_twice(
    seed: int, deleting: bool
) -> None:
    """Whatever file of a queue is lost too, as long as the log has a message of the queue."""
    source = random.Random(seed)
    found = open_store({})
    for _ in range(4):
        live(found, source, deleting=deleting)
        expected, now = state(found), found.clock.ms - START_MS + 1000
        image = without(found.image(), *([RECORD, BACKUP] if source.random() < 0.8 else ()))
        if RECORD in image:
            image[ROOT / "lock"] = b"lock"
        found.disk.kill()
        unknown = set("abc") - set(expected)
        there = sorted(topic for topic, (first, end, _) in expected.items() if first < end)
        for lost in (
            [None, source.choice(files_of(image, source.choice(there)))] if there else [None]
        ):
            damaged = open_store(
                without(image, lost) if lost else image, at_ms=now, unknown=unknown
            )
            told, after = f"without {lost}", state(damaged)
            assert {
                topic: max(end, after[topic][1]) for topic, (_, end, _) in expected.items()
            } == {topic: after[topic][1] for topic in expected}, told
            if not deleting:
                assert comparable(after, expected) == comparable(expected, after), told
                assert damaged.store.recovery is not None
                assert lost or not damaged.store.recovery.rebuilt
            damaged.disk.kill()
        found = open_store(image, at_ms=now, unknown=unknown)
        unknown.clear()  # they may be made anew
    found.disk.kill()
