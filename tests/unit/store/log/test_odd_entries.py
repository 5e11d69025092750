"""The log where it is odd: ends that no broker writes, topics that are no text, damage before and
behind, a log as long as it gets."""

from pathlib import Path

import pytest
from tests.unit.store import directory as directories
from tests.unit.store.directory import OVERHEAD, SEGMENT, Directory, bodies, put

from turbopump.store.log.scanner import EntryWalk


def killed_with(root: Path, *, count: int = 12, size: int = 900) -> Directory:
    """Messages of one size in segments of four, as a kill leaves them."""
    directory = Directory(root / "alive")
    store = directory.open()
    for number in range(count):
        put(store, (b"%d " % number).ljust(size, b"."), queue_id=number % 2)
    twin = directory.copy(root / "killed")
    store.close()
    return twin


def damage(directory: Directory, offset: int, data: bytes) -> None:
    path = directory.paths.commit_log / f"{offset // SEGMENT * SEGMENT:020d}"
    content = bytearray(path.read_bytes())
    content[offset % SEGMENT : offset % SEGMENT + len(data)] = data
    path.write_bytes(content)


def test_a_walk_that_begins_in_the_last_bytes_of_a_segment_says_that_no_blank_fits(
    tmp_path: Path,
) -> None:
    store = Directory(tmp_path).open()
    put(store, b"x")
    walk = EntryWalk(store.log)
    assert list(walk.entries(SEGMENT - 5)) == []
    assert walk.fault == "5 bytes at the end of a segment are too few for a blank"
    store.close()


def test_a_walk_with_an_end_stops_before_the_first_entry_behind_it(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    offsets = [put(store, b"x" * 10).offset for _ in range(5)]
    walk = EntryWalk(store.log)
    assert [mark.offset for mark in walk.entries(0, offsets[3])] == offsets[:3]
    assert walk.fault is None
    store.close()


@pytest.mark.parametrize(
    "topic", [b"\xff", b"/", b"\0"], ids=["no UTF-8", "a slash", "a zero byte"]
)
def test_a_message_whose_topic_cannot_be_a_directory_is_damage_and_the_others_are_served(
    tmp_path: Path, topic: bytes
) -> None:
    """Without a whole-entry CRC nothing covers the topic."""
    twin = killed_with(tmp_path)
    entry = OVERHEAD + 900
    damage(twin, entry + 84 + 4 + 900 + 1, topic)
    found = twin.open()
    assert found.recovery is not None
    (range_,) = found.recovery.damages
    assert (range_.start, range_.end) == (entry, 2 * entry)
    assert range_.fault == "its topic cannot be the name of a directory"
    assert [int(body.split()[0]) for body in bodies(found, queue_id=1)] == [3, 5, 7, 9, 11]
    assert len(bodies(found, queue_id=0)) == 6
    found.close()


def test_only_damage_behind_a_queue_s_last_message_explains_what_it_lacks(tmp_path: Path) -> None:
    """Queue 1 lacks a message that no damage explains: a first damaged range lies before its last
    message, a second is too small."""
    twin = killed_with(tmp_path)
    entry = OVERHEAD + 900
    damage(twin, 4, bytes(4))  # message 0 of queue 0, and only it
    second_segment = SEGMENT
    # message 5 claims queue offset 7 of queue 1
    damage(twin, second_segment + entry + 20, (7).to_bytes(8))
    found = twin.open()
    assert found.recovery is not None
    assert [one.start for one in found.recovery.damages] == [0, second_segment + entry]
    assert (
        "claims queue offset 7 of T queue 1, which has 2 before it"
        in found.recovery.damages[1].fault
    )
    assert [int(body.split()[0]) for body in bodies(found, queue_id=1)] == [1, 3, 7, 9, 11]
    assert [int(body.split()[0]) for body in bodies(found, queue_id=0)] == [2, 4, 6, 8, 10]
    found.close()


def test_a_long_recovery_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turbopump.store.log.scanner.PROGRESS_STEP", SEGMENT)
    twin = killed_with(tmp_path, count=40)
    heard: list[tuple[int, int]] = []
    store = directories.MessageStore.open(
        twin.config,
        directories.SystemDisk(),
        twin.clock,
        twin.failures.append,
        lambda at, end: heard.append((at, end)),
    )
    assert len(heard) >= 8
    assert [at for at, _ in heard] == sorted(at for at, _ in heard)
    assert all(0 <= end - store.log.end < 4096 for _, end in heard), (
        "the empty rest of the file does not count"
    )
    assert heard[-1] == (store.log.end, store.log.end)
    store.close()
