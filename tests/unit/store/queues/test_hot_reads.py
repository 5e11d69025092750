"""Reads of what this process wrote just now, where a unit in memory does not point to its
message."""

from pathlib import Path

import pytest
from tests.unit.store.directory import Directory, put

from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE

BODIES = [b"mine %d" % number for number in range(6)]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path, with_crc=True, segment_size=1 << 16)


def filled(directory: Directory) -> MessageStore:
    """Message, stranger, message, stranger: the strangers have the same queue id and offsets, in
    another topic."""
    store = directory.open()
    for body in BODIES:
        put(store, body, "T", tag="wanted")
        put(store, b"not" + body, "S", tag="wanted")
    return store


def read(store: MessageStore, filtered: bool = False) -> list[bytes]:
    found: list[bytes] = []
    at, end = 0, store.max_offset("T", 0)
    while at < end:
        result = store.get(
            "T", 0, at, 4, (lambda tags: tags == tags_code("wanted")) if filtered else None
        )
        assert result.next_offset > at
        assert all((one.topic, one.queue_id) == ("T", 0) for one in decode_entries(result.data))
        found.extend(one.body for one in decode_entries(result.data))
        at = result.next_offset
    return found


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("at", range(len(BODIES)))
@pytest.mark.parametrize(
    "to",
    ["a stranger", "a neighbour", "the middle of a message", "itself and a stranger", "no message"],
)
def test_a_unit_that_points_elsewhere_is_repaired_and_nothing_but_its_message_is_given(
    directory: Directory, to: str, at: int, filtered: bool
) -> None:
    store = filled(directory)
    queue, others = store.queue("T", 0), store.queue("S", 0)
    assert queue is not None
    assert others is not None
    unit, stranger, neighbour = queue.unit(at), others.unit(at), queue.unit((at + 1) % len(BODIES))
    assert unit is not None
    assert stranger is not None
    assert neighbour is not None
    tags = unit[2]
    damaged = {
        "a stranger": stranger,
        "a neighbour": neighbour,
        "the middle of a message": (unit[0] + 7, unit[1], tags),
        "itself and a stranger": (unit[0], unit[1] + stranger[1], tags),
        "no message": (unit[0], NO_MESSAGE_SIZE - 1, tags),
    }[to]
    queue.rewrite(at, *damaged)
    assert read(store, filtered) == BODIES
    assert queue.unit(at) == unit
    (line,) = directory.failures
    assert line == (
        "damaged units of the consume queue of T queue 0 were rebuilt from the log units=1 "
        f"round={at}"
    )
    store.close()


def test_what_fits_is_given_from_memory(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(directory)
    monkeypatch.setattr(store.cold_reads, "_disk", None)  # nothing is read from the files
    assert read(store) == BODIES
    assert read(store, filtered=True) == BODIES
    store.close()


def test_a_reader_far_behind_the_units_in_memory_gets_full_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turbopump.store.queues.queue_reader._UNITS_HOT", 100)
    store = Directory(tmp_path, segment_size=1 << 20, queue_file_size=20_000).open()
    for number in range(300):
        put(store, b"%d" % number)

    counts = [store.get("T", 0, offset, 32).count for offset in (0, 100, 199, 200, 250)]

    assert counts == [32, 32, 1, 32, 32], "only the read that ends at the units in memory is short"
    store.close()
