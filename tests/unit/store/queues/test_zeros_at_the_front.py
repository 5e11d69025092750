"""Zeros where a queue begins, in a log that lost its front: what is still in the log is given, what
is gone is no damage."""

import pytest
from tests.crash.in_memory import Image, Opened
from tests.unit.store.ended_queues import (
    PER_FILE,
    clean,
    files_of,
    fill,
    open_store,
    put,
    state,
    stopped,
    with_zeros,
)

from turbopump.store.log.cold_reads import finish_now
from turbopump.store.queues.consume_queue import UNIT_SIZE
from turbopump.store.queues.read_result import GetStatus


@pytest.fixture(scope="module")
def filled() -> Opened:
    return fill(trimmed=True)


def zeroed(image: Image, topic: str, *, units: int = PER_FILE) -> Image:
    return with_zeros(image, files_of(image, topic)[0], 0, units * UNIT_SIZE)


@pytest.mark.parametrize("ending", ["kill", "clean stop"])
@pytest.mark.parametrize("topic", ["quiet", "busy"])
def test_every_message_that_the_log_has_is_given_from_the_first_on(
    filled: Opened, topic: str, ending: str
) -> None:
    first, end, units = state(filled)[topic]
    begins = first - first % PER_FILE
    assert begins < first < begins + PER_FILE, (
        "the file begins with units of messages that are gone, and has others"
    )
    found = open_store(zeroed(stopped(filled, ending), topic), at_ms=1_000_000)
    assert found.store.recovery is not None
    assert not found.store.recovery.rebuilt
    assert sorted(found.bodies(topic, 0)) == list(range(first, end))
    assert state(found)[topic] == (first, end, units), "rebuilt"
    assert len([report for report in found.reports if "rebuilt" in report]) == 1
    found.disk.kill()


@pytest.mark.parametrize("asked", range(PER_FILE))
def test_whichever_of_them_is_asked_for_first(filled: Opened, asked: int) -> None:
    first, end, _ = state(filled)["quiet"]
    begins = first - first % PER_FILE
    found = open_store(zeroed(filled.image(), "quiet"), at_ms=1_000_000)
    result = found.read("quiet", 0, begins + asked, 1)
    if begins + asked < first:
        assert (result.status, result.next_offset, result.damages, result.gaps) == (
            GetStatus.OFFSET_TOO_SMALL,
            first,
            (),
            0,
        )
        assert found.store.min_offset("quiet", 0) == first
    else:
        assert (result.status, result.count) == (GetStatus.FOUND, 1)
    assert sorted(found.bodies("quiet", 0)) == list(range(first, end))
    found.disk.kill()


@pytest.mark.parametrize("asked", range(PER_FILE))
def test_a_single_message_is_found_by_its_queue_offset(filled: Opened, asked: int) -> None:
    first, _, _ = state(filled)["quiet"]
    index = first - first % PER_FILE + asked
    found = open_store(zeroed(filled.image(), "quiet"), at_ms=1_000_000)
    finish_now(found.store.lookup.entry_in_queue("quiet", 0, index))
    found.loop.run()  # the unit is marked, and rebuilt
    entry = finish_now(found.store.lookup.entry_in_queue("quiet", 0, index))
    assert (entry is not None and entry.fault is None) == (index >= first)
    found.disk.kill()


def test_zeros_before_the_first_message_that_is_there_cost_nothing(filled: Opened) -> None:
    """Units of messages that are gone, and no others."""
    first, end, units = state(filled)["quiet"]
    found = open_store(zeroed(filled.image(), "quiet", units=first % PER_FILE), at_ms=1_000_000)
    assert sorted(found.bodies("quiet", 0)) == list(range(first, end))
    assert state(found)["quiet"] == (first, end, units)
    assert not any("damaged" in report for report in found.reports)
    found.disk.kill()


def test_a_message_between_zeros_and_segments_that_are_being_deleted_is_given() -> None:
    """The log has lost its front, the queue is not trimmed yet: its first unit is good, and of a
    message that is gone."""
    found = fill(trimmed=False)
    _, end, _ = state(found)["quiet"]
    image = found.image()
    clean(found)
    later = {path: data for path, data in found.image().items() if path.parts[2] == "commitlog"}
    first, _, _ = state(found)["quiet"]
    found.disk.kill()
    files = {path: data for path, data in image.items() if path.parts[2] != "commitlog"}
    path = files_of(files, "quiet")[first // PER_FILE]
    files = with_zeros(files, path, first % PER_FILE * UNIT_SIZE, PER_FILE * UNIT_SIZE)
    found = open_store({**files, **later}, at_ms=1_000_000)
    assert sorted(found.bodies("quiet", 0)) == list(range(first, end))
    found.disk.kill()


def test_messages_that_come_meanwhile_are_not_hurt(filled: Opened) -> None:
    first, end, _ = state(filled)["quiet"]
    found = open_store(zeroed(filled.image(), "quiet"), at_ms=1_000_000)
    assert put(found, "quiet") == end
    found.flush()
    assert sorted(found.bodies("quiet", 0)) == list(range(first, end + 1))
    found.disk.kill()
