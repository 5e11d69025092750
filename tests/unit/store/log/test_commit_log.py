"""Appending: where entries go, when a segment is full, what its rest looks like."""

import errno
from pathlib import Path

import pytest
from tests.stand_ins import does_nothing
from tests.unit.store.directory import OVERHEAD, SEGMENT, Directory, bodies, put, put_batch
from tests.unit.store.looked_up import message_at

from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import MessageError, StoreClosedError
from turbopump.message.codec import decode_entry


def segment(directory: Directory, number: int) -> bytes:
    return (directory.paths.commit_log / f"{number * SEGMENT:020d}").read_bytes()


def test_an_entry_that_leaves_exactly_eight_bytes_still_fits(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    fits = put(store, b"x" * (SEGMENT - 8 - OVERHEAD))
    following = put(store, b"y")
    assert (fits.offset, fits.log_end, following.offset) == (0, SEGMENT - 8, SEGMENT)
    store.close()
    assert segment(directory, 0)[-8:] == (8).to_bytes(4) + 0xCBD43194.to_bytes(4)


def test_an_entry_of_one_byte_more_begins_the_next_segment(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    put(store, b"a")
    size = SEGMENT - (OVERHEAD + 1) - OVERHEAD - 8
    placed = put(store, b"x" * (size + 1))
    assert placed.offset == SEGMENT
    assert bodies(store) == [b"a", b"x" * (size + 1)]
    store.close()
    first = segment(directory, 0)
    rest = OVERHEAD + 1
    assert first[rest : rest + 8] == (SEGMENT - rest).to_bytes(4) + 0xCBD43194.to_bytes(4)
    assert not any(first[rest + 8 :])


def test_entries_carry_their_own_offsets_and_the_time(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    for number in range(50):
        directory.clock.now += 10
        placed = put(store, b"b%d" % number, queue_id=number % 2)
        message = message_at(store.lookup, placed.offset)
        assert message is not None
        assert (message.commit_log_offset, message.queue_offset) == (placed.offset, number // 2)
        assert message.store_timestamp == directory.clock.now
    store.close()


def test_a_batch_stays_together_in_one_segment(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    put(store, b"first")
    size = (SEGMENT - 8) // 4 - OVERHEAD
    placed, offsets = put_batch(store, [b"%d" % number * size for number in range(4)])
    assert offsets == [SEGMENT + number * (OVERHEAD + size) for number in range(4)]
    assert (placed.queue_offset, placed.offset, placed.log_end) == (
        1,
        SEGMENT,
        SEGMENT + 4 * (OVERHEAD + size),
    )
    assert len(bodies(store)) == 5
    store.close()


def test_what_no_segment_can_hold_is_refused_and_costs_no_segment(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    put(store, b"before")
    too_long = b"x" * (SEGMENT - 8 - OVERHEAD + 1)
    for _ in range(3):
        with pytest.raises(MessageError, match="mappedFileSizeCommitLog"):
            put(store, too_long)
        with pytest.raises(MessageError, match="mappedFileSizeCommitLog"):
            put_batch(store, [too_long[:2000]] * 2)
    put(store, b"after")
    assert bodies(store) == [b"before", b"after"]
    store.close()
    assert len(list(directory.paths.commit_log.iterdir())) == 1


def test_a_message_is_found_by_its_offset_and_nothing_elsewhere(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    first, second = put(store, b"one"), put(store, b"two")
    for placed, body in ((first, b"one"), (second, b"two")):
        found = message_at(store.lookup, placed.offset)
        assert found is not None
        assert found.body == body
    for offset in range(-5, SEGMENT + 5):
        if offset not in (first.offset, second.offset):
            assert message_at(store.lookup, offset) is None
    store.close()


def test_transaction_halves_are_in_the_log_but_in_no_queue(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    half = put(store, b"half", sys_flag=4)
    put(store, b"committed", sys_flag=8)
    put(store, b"rolled back", sys_flag=12)
    put(store, b"plain")
    assert bodies(store) == [b"committed", b"plain"]
    found = message_at(store.lookup, half.offset)
    assert found is not None
    assert found.body == b"half"
    store.close()


def test_a_disk_without_room_for_the_next_segment_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    put(store, b"x" * 2000)

    def no_room(self: SystemDisk, path: Path, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(SystemDisk, "create_segment", no_room)
        patched.setattr(
            "turbopump.store.mapped_file_queue.MappedFileQueue.prepare_next", does_nothing
        )
        if store.log.files.spare is not None:  # the spare was made when there was room
            put(store, b"y" * 3000)
        with pytest.raises(StoreClosedError, match="No space left"):
            put(store, b"y" * 3000)
        put(store, b"small")
    put(store, b"z" * 3000)
    assert bodies(store)[0] == b"x" * 2000
    assert bodies(store)[-2:] == [b"small", b"z" * 3000]
    store.close()
    assert bodies(directory.open())[-2:] == [b"small", b"z" * 3000]


@pytest.mark.parametrize("batch", [False, True])
def test_a_disk_without_room_for_the_next_queue_file_refuses_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    directory = Directory(tmp_path, segment_size=1 << 16)
    store = directory.open()
    for number in range(9):
        put(store, b"%d" % number)
    if not batch:
        put(store, b"9")  # ten units fill a queue file

    def no_room(self: SystemDisk, path: Path, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    end = store.log.end
    with monkeypatch.context() as patched:
        patched.setattr(SystemDisk, "create_sparse", no_room)
        for _ in range(2):
            with pytest.raises(StoreClosedError, match="No space left"):
                put_batch(store, [b"refused"] * 3) if batch else put(store, b"refused")
    assert store.log.end == end
    put_batch(store, [b"a", b"b", b"c"]) if batch else put(store, b"a")
    wanted = [b"%d" % number for number in range(9)] + (
        [b"a", b"b", b"c"] if batch else [b"9", b"a"]
    )
    assert bodies(store) == wanted
    store.close()
    assert bodies(directory.open()) == wanted


def test_a_closed_store_takes_no_writes(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    store.close()
    store.close()
    with pytest.raises(StoreClosedError, match="the store is closed"):
        put(store, b"late")
    with pytest.raises(StoreClosedError, match="the store is closed"):
        put_batch(store, [b"late"])


def test_long_topics_are_stored_in_second_version_entries_of_the_right_size(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    topic = "%RETRY%" + "g" * 200
    first = put(store, b"one", topic)
    second = put(store, b"two", topic)
    assert second.offset == first.log_end
    assert bodies(store, topic) == [b"one", b"two"]
    store.close()
    data = segment(directory, 0)
    assert decode_entry(data).topic == topic
    assert bodies(directory.open(), topic) == [b"one", b"two"]
