"""The first unit of a queue points before the log's start, in a log that lost its front, and its
message is there all the same."""

import pytest
from tests.crash.in_memory import Image, Opened
from tests.unit.store.ended_queues import PER_FILE, files_of, fill, open_store, state, stopped

from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.repair.scrub import Scrub


@pytest.fixture(scope="module")
def filled() -> Opened:
    return fill(trimmed=True)


def pointing_to(image: Image, topic: str, first: int, offset: int) -> Image:
    """The unit ``first`` of the queue, in its first file, says that its message is at
    ``offset``."""
    path = files_of(image, topic)[0]
    data = bytearray(image[path])
    at = first % PER_FILE * UNIT_SIZE
    data[at : at + 8] = offset.to_bytes(8)
    return {**image, path: bytes(data)}


@pytest.mark.parametrize("ending", ["kill", "clean stop"])
@pytest.mark.parametrize("topic", ["quiet", "busy"])
def test_one_that_points_before_the_unit_before_it_is_not_believed(
    filled: Opened, topic: str, ending: str
) -> None:
    first, end, units = state(filled)[topic]
    found = open_store(pointing_to(stopped(filled, ending), topic, first, 8), at_ms=1_000_000)
    assert found.store.min_offset(topic, 0) == first
    assert sorted(found.bodies(topic, 0)) == list(range(first, end))
    assert state(found)[topic] == (first, end, units), "repaired"
    found.disk.kill()


@pytest.mark.parametrize("topic", ["quiet", "busy"])
def test_one_that_nothing_gainsays_is_found_by_the_scrub(filled: Opened, topic: str) -> None:
    first, end, units = state(filled)[topic]
    image = pointing_to(filled.image(), topic, first, filled.store.log.start - 1)
    found = open_store(image, at_ms=1_000_000)
    store, told, now = found.store, list[str](), 0.0
    scrub = Scrub(
        store._disk,
        store.log,
        store.queues,
        lambda: store.durable.value,
        1 << 20,
        told.append,
        store.rebuild,
    )
    while not scrub.numbers.passes:
        now += scrub.step(now)
        found.loop.run()
    assert [f"unit {first} of" in line for line in told] == [True]
    assert sorted(found.bodies(topic, 0)) == list(range(first, end))
    assert state(found)[topic] == (first, end, units)
    found.disk.kill()


def test_a_queue_begins_no_earlier_than_its_files(filled: Opened) -> None:
    found = open_store(filled.image(), at_ms=1_000_000)
    queue = found.store.queue("quiet", 0)
    assert isinstance(queue, ConsumeQueue)
    first = queue.min_index
    queue.lower_min(first - first % PER_FILE - 1)
    assert queue.min_index == first
    queue.lower_min(first + 1)
    assert queue.min_index == first
    found.disk.kill()


def test_a_directory_that_is_called_almost_as_a_queue_changes_nothing(filled: Opened) -> None:
    image = filled.image()
    path = files_of(image, "quiet")[0]
    found = open_store(
        {**image, path.parent.with_name("00") / path.name: image[path]}, at_ms=1_000_000
    )
    assert found.store.recovery is not None
    assert not found.store.recovery.rebuilt
    assert state(found) == state(filled)
    found.disk.kill()
