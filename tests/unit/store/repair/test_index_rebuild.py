"""Damaged index files: noticed by the start or by a search, reported, and filled again from the log
while the store is in use."""

import errno
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from tests.fuzzing import crossed, some
from tests.stand_ins import does_nothing, raises
from tests.unit.store.directory import Directory
from tests.unit.store.indexed import ALWAYS, ENTRIES, SLOTS, answers, fill, indexed, put
from tests.unit.store.looked_up import find_by_key
from tests.unit.store.segments import replace

from turbopump.disk.disk import Found, Piece, read_now
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.index.index_file import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.message_store import MessageStore
from turbopump.store.repair.scrub import Scrub

ENTRIES_AT = HEADER_SIZE + SLOTS * SLOT_SIZE
Damage = Callable[[bytearray], None]


def index_paths(directory: Directory) -> list[Path]:
    return sorted(directory.paths.index.iterdir())


def index_of(store: MessageStore) -> KeyIndex:
    assert store.index is not None
    return store.index


def harm(path: Path, damage: Damage) -> None:
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)


def scrub_of(store: MessageStore, found: list[str]) -> Scrub:
    return Scrub(
        SystemDisk(),
        store.log,
        store.queues,
        lambda: store.log.end,
        1 << 20,
        found.append,
        store.rebuild,
        store.index,
    )


def run(scrub: Scrub, on_step: Callable[[], None] = does_nothing) -> None:
    """One whole pass."""
    now, passes = 0.0, scrub.numbers.passes
    while scrub.numbers.passes == passes:
        now += scrub.step(now)
        on_step()


def entry_at(number: int) -> int:
    return ENTRIES_AT + number * ENTRY_SIZE


def write_at(at: int, value: bytes, data: bytearray) -> None:
    data[at : at + len(value)] = value


def point_slot_elsewhere(data: bytearray) -> None:
    """Let slot 1 point to an entry of another slot. An older entry of its own would be possible."""
    number = next(
        number
        for number in range(1, ENTRIES)
        if int.from_bytes(data[entry_at(number) : entry_at(number) + 4]) % SLOTS != 1
    )
    write_at(HEADER_SIZE + SLOT_SIZE, number.to_bytes(4), data)


def set_bytes(at: int, value: bytes) -> Damage:
    return partial(write_at, at, value)


HEADERS = {
    "begin time": set_bytes(2, b"\x77"),
    "end time": set_bytes(10, b"\x77"),
    "begin offset": set_bytes(20, b"\x77"),
    "end offset": set_bytes(28, b"\x77"),
    "slots used": set_bytes(32, (99).to_bytes(4)),
    "too many entries": set_bytes(36, (ENTRIES + 1).to_bytes(4)),
    "negative slots": set_bytes(32, (-1).to_bytes(4, signed=True)),
    "fewer entries": set_bytes(36, (5).to_bytes(4)),
    "zeros at the front": set_bytes(0, bytes(8)),
    "everything": lambda data: set_bytes(0, random.Random(4).randbytes(len(data)))(data),
}
WITHIN = {
    "a slot": point_slot_elsewhere,
    "a hash": set_bytes(entry_at(4), b"\x01\x02\x03\x04"),
    "a negative hash": set_bytes(entry_at(4), b"\xff"),
    "an offset": set_bytes(entry_at(4) + 4, (1 << 50).to_bytes(8)),
    "a negative time": set_bytes(entry_at(4) + 12, (-1).to_bytes(4, signed=True)),
    "a link": set_bytes(entry_at(9) + 16, (9).to_bytes(4)),
    "the middle": set_bytes(entry_at(3), bytes(ENTRY_SIZE * 20)),
}


@pytest.mark.parametrize(("damage", "which"), crossed(HEADERS, [-1, *some(range(3))]))
def test_a_header_that_cannot_be_right_is_noticed_at_the_start_and_the_file_is_filled_again(
    tmp_path: Path, damage: str, which: int
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store)
    expected = answers(store)
    store.close()
    path = index_paths(directory)[which]
    harm(path, HEADERS[damage])
    store = directory.open()
    (told,) = directory.failures
    assert told.startswith(f"index file {path} is damaged (")
    assert store.lookup.no_index_because is not None
    assert not store.recovery or not store.recovery.rebuilt
    fill(directory, store, 5, start=60)
    found: list[str] = []
    run(scrub_of(store, found))
    assert found[0].startswith(f"index file {path} is filled again from the log: ")
    assert store.lookup.no_index_because is None
    after = answers(store)
    for number in range(60):
        assert after[f"ID{number:04d}"] == expected[f"ID{number:04d}"]
    for second in range(0, 24, 3):
        assert after[f"every at {second}"] == expected[f"every at {second}"]
    store.close()
    directory.failures.clear()
    again = directory.open()
    assert answers(again) == after
    assert directory.failures == []
    again.close()
    assert {one.name for one in index_paths(directory)} == {
        one.name for one in directory.paths.index.iterdir()
    }
    assert not list(tmp_path.glob("index.new"))


@pytest.mark.parametrize(("damage", "which"), crossed(WITHIN, [-1, *some(range(2))]))
def test_a_search_notices_an_impossible_entry_and_the_file_is_filled_again(
    tmp_path: Path, damage: str, which: int
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store)
    expected = answers(store)
    file = index_of(store).files[which]
    data = bytearray(file.segment.buffer)
    WITHIN[damage](data)
    file.segment.buffer[:] = bytes(data)

    assert answers(store) != expected
    assert store.lookup.no_index_because is not None
    found: list[str] = []
    run(scrub_of(store, found))

    assert answers(store) == expected
    assert store.lookup.no_index_because is None
    (told,) = directory.failures
    assert told.startswith(f"index file {file.segment.path} is damaged (")
    assert len(found) == 1
    assert found[0].startswith(f"index file {file.segment.path} is filled again from the log: ")
    store.close()
    directory.failures.clear()
    again = directory.open()
    assert answers(again) == expected
    assert directory.failures == []
    again.close()


def test_a_damaged_file_is_filled_soon_after_the_search_not_with_the_next_pass(
    tmp_path: Path,
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store)
    expected = answers(store)
    scrub, now = scrub_of(store, []), 0.0
    while not scrub.numbers.passes:
        now += scrub.step(now)
    index_of(store).files[0].segment.buffer[entry_at(3) : entry_at(5)] = bytes(2 * ENTRY_SIZE)

    answers(store)
    searched_at = now
    while index_of(store).incomplete:
        now += scrub.step(now)

    assert now - searched_at < 120
    assert scrub.numbers.passes == 1
    assert answers(store) == expected
    store.close()


def test_files_side_by_side_are_filled_again_one_after_the_other_while_messages_come(
    tmp_path: Path,
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store, 40)
    for file in index_of(store).files[1:]:
        file.segment.buffer[ENTRIES_AT:] = bytes(file.segment.size - ENTRIES_AT)
    answers(store)
    assert sum(file.damaged for file in index_of(store).files) >= 2
    found: list[str] = []
    scrub = scrub_of(store, found)
    more = iter(range(40, 80))

    def send() -> None:
        number = next(more, None)
        if number is not None:
            fill(directory, store, 1, start=number)

    run(scrub, send)
    for number in more:
        fill(directory, store, 1, start=number)
    plain = indexed(tmp_path / "plain")
    plain.clock.now = 1_700_000_000_000
    other = plain.open()
    fill(plain, other, 80)
    assert answers(store) == answers(other)
    other.close()
    store.close()


def test_a_search_finds_no_fault_in_a_whole_index_that_grows_meanwhile(tmp_path: Path) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store, 20)
    numbers = count(20)

    def put_and_read(pieces: list[Piece]) -> list[Found]:
        fill(directory, store, 1, start=next(numbers))
        return [read_now(piece) for piece in pieces]

    for _ in range(4):
        finish_now(store.lookup.by_key("T", "every", *ALWAYS), put_and_read)
    assert directory.failures == []
    store.close()


def test_messages_that_are_gone_or_damaged_are_no_fault_of_the_index(tmp_path: Path) -> None:
    directory = indexed(tmp_path, with_crc=True)
    store = directory.open()
    fill(directory, store, 60)
    hit = find_by_key(store.lookup, "T", "ID0050", *ALWAYS)[0]
    file = store.log.files.at(hit.offset)
    assert file is not None
    file.buffer[hit.offset - file.start + 90] ^= 1
    store.log.files.forget_first()
    assert find_by_key(store.lookup, "T", "ID0050", *ALWAYS) == []
    assert directory.failures == []
    store.close()


@pytest.mark.parametrize("fails", ["create", "rename", "new file"])
def test_without_room_for_another_file_it_is_tried_again_with_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store, 60)
    expected = answers(store)
    index = index_of(store)
    file = index.files[-1 if fails == "new file" else 1]
    file.segment.buffer[entry_at(2) : entry_at(3)] = b"\xff" * ENTRY_SIZE
    answers(store)
    found: list[str] = []
    scrub = scrub_of(store, found)

    refuse = raises(OSError(errno.ENOSPC, "No space left on device"))

    with monkeypatch.context() as patched:
        if fails == "new file":
            patched.setattr(index, "begin_file", refuse)
        else:
            patched.setattr(
                SystemDisk, "create_sparse" if fails == "create" else "rename_segment", refuse
            )
        run(scrub)
    assert found == [
        f"index file {file.segment.path} cannot be filled again now (No space left on device)"
    ]
    assert index.incomplete
    index.failed = True
    run(scrub)
    assert len(found) == 1, "an index that is given up is filled again by the next start"
    index.failed = False
    run(scrub)
    assert not index.incomplete
    assert answers(store) == expected
    store.close()


def test_a_header_that_cannot_be_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store, 60)
    index = index_of(store)

    with monkeypatch.context() as patched:
        replace(patched, "read_cold", raises(OSError(errno.EIO, "Input/output error")))
        index.check_headers()
    assert all("cannot be read: Input/output error" in text for text in directory.failures)
    assert len(directory.failures) == len(index.files)
    put(store, b"late", "late", "LATE")
    assert len(find_by_key(store.lookup, "T", "late", *ALWAYS)) == 1
    run(scrub_of(store, []))
    assert len(find_by_key(store.lookup, "T", "ID0001", *ALWAYS)) == 1
    store.close()
