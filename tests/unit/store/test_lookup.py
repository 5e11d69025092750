"""Single messages by place, key and time where something is wrong: bytes that cannot be read, damage, limits, queues with gaps."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from tests.unit.store.directory import HOST, Directory, put

from turbopump.store.consume_queue import UNIT_SIZE
from turbopump.store.disk import Found, MappedSegment, Piece
from turbopump.store.lookup import ByKey, StoredEntry
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.question import Question, answer

T = TypeVar("T")
ALWAYS = (0, 1 << 60)
START = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Messages 0 to 19 of one queue, a second apart, each with the keys ``k<n>`` and ``all``, in several segments."""
    directory = Directory(tmp_path, with_crc=True, index_slots=7, index_entries=100)
    opened = directory.open()
    for number in range(20):
        directory.clock.now = START + 1000 * number
        message = NewMessage(b"%d" % number * 50, f"KEYS\x01k{number} all\x02".encode(), 0, keys=f"k{number} all")
        opened.put("T", 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST)
    yield opened
    opened.close()


def failing_at(question: Question[T], fails: Callable[[int, Piece], bool]) -> T:
    """The answer, where reading some pieces (counted from 0) fails."""
    number = 0
    try:
        wanted = next(question)
        while True:
            found: list[Found] = []
            for piece in wanted or ():
                if fails(number, piece):
                    found.append(OSError(errno.EIO, os.strerror(errno.EIO)))
                else:
                    found.append(piece.segment.read_cold(piece.at, piece.size))
                number += 1
            wanted = question.send(found)
    except StopIteration as end:
        value: T = end.value
        return value


def offsets(store: MessageStore) -> list[int]:
    queue = store.queue("T", 0)
    assert queue is not None
    found = []
    for index in range(20):
        unit = queue.unit(index)
        assert unit is not None
        found.append(unit[0])
    return found


def damage(store: MessageStore, offset: int, at: int, data: bytes) -> None:
    """Other bytes in an entry, as a disk that rots."""
    file = store.log.files.at(offset)
    assert file is not None
    start = offset - file.start + at
    file.buffer[start : start + len(data)] = data


def faults(entry: StoredEntry | None) -> str:
    assert entry is not None
    assert entry.fault is not None
    return entry.fault


def test_an_entry_whose_head_or_rest_cannot_be_read_is_given_with_that_fault(store: MessageStore) -> None:
    offset = offsets(store)[3]
    for number, has in ((0, 0), (1, 36)):
        entry = failing_at(store.lookup.entry_at(offset), lambda piece, _, number=number: piece == number)
        assert faults(entry) == "it cannot be read: Input/output error"
        assert entry is not None
        assert len(entry.data) == has
    assert store.lookup.message_at(offset) is not None


def test_an_entry_whose_size_cannot_be_is_given_with_its_fault(store: MessageStore) -> None:
    first, second = offsets(store)[:2]
    damage(store, first, 0, (90).to_bytes(4))
    damage(store, second, 0, (1 << 20).to_bytes(4))
    assert faults(answer(store.lookup.entry_at(first))) == "totalSize 90 cannot be"
    assert faults(answer(store.lookup.entry_at(second))) == "totalSize 1048576 goes past the end of the segment"
    assert store.lookup.message_at(first) is None


def test_places_where_there_is_no_message_give_none(store: MessageStore) -> None:
    for offset in (-1, store.log.end, 1 << 40, offsets(store)[0] + 1):
        assert store.lookup.message_at(offset) is None
    for topic, queue_id, index in (("T", 0, 20), ("T", 0, -1), ("T", 9, 0), ("U", 0, 0)):
        assert store.lookup.message_in_queue(topic, queue_id, index) is None
    message = store.lookup.message_in_queue("T", 0, 7)
    assert message is not None
    assert message.queue_offset == 7


def test_a_unit_that_cannot_be_read_or_is_a_gap_has_no_message(store: MessageStore) -> None:
    assert "cannot be read" in faults(failing_at(store.lookup.entry_in_queue("T", 0, 3), lambda number, _: number == 0))
    queue = store.queue("T", 0)
    assert queue is not None
    queue.fill_gap(22, store.log.end)
    queue.end.advance(22)
    assert store.lookup.message_in_queue("T", 0, 21) is None


def numbers(entries: list[StoredEntry]) -> list[int]:
    return [entry.message.queue_offset for entry in entries]


def test_a_key_gives_the_newest_messages_up_to_a_number_and_a_size(store: MessageStore) -> None:
    size = len(store.lookup.find_by_key("T", "k19", *ALWAYS)[0].data)
    assert numbers(store.lookup.find_by_key("T", "all", *ALWAYS)) == list(range(19, -1, -1))
    assert numbers(store.lookup.find_by_key("T", "all", *ALWAYS, 3)) == [19, 18, 17]
    assert numbers(answer(store.lookup.by_key("T", "all", *ALWAYS, bytes_max=2 * size)).found) == [19, 18]
    assert numbers(answer(store.lookup.by_key("T", "all", *ALWAYS, bytes_max=1)).found) == [19]
    assert store.lookup.find_by_key("T", "all", *ALWAYS, unique=True) == []


def test_a_damaged_message_with_a_key_is_told_apart_from_the_good_ones(store: MessageStore) -> None:
    offset = offsets(store)[18]
    damage(store, offset, 100, b"\xff")
    found: ByKey = answer(store.lookup.by_key("T", "all", *ALWAYS))
    assert numbers(found.found) == [19, *range(17, -1, -1)]
    assert [(entry.offset, entry.fault) for entry in found.damaged] == [
        (offset, "its CRC (property __CRC32#) does not fit its bytes")
    ]


def test_an_index_that_cannot_be_read_is_an_error_and_no_absence(store: MessageStore) -> None:
    found: ByKey = failing_at(
        store.lookup.by_key("T", "all", *ALWAYS), lambda _, piece: piece.segment.path.parent.name == "index"
    )
    assert found.found == []
    assert [error.errno for error in found.errors] == [errno.EIO]
    one_fails = failing_at(store.lookup.by_key("T", "all", *ALWAYS), lambda number, _: number == 1)
    assert [error.errno for error in one_fails.errors] == [errno.EIO]


def test_a_time_is_found_past_messages_whose_time_cannot_be_read(store: MessageStore) -> None:
    for index in (9, 10, 11):
        damage(store, offsets(store)[index], 4, bytes(4))
    lookup = store.lookup
    assert lookup.offset_at_time("T", 0, START + 8000) == 8
    assert lookup.offset_at_time("T", 0, START + 8001) == 12, "damaged ones have no time"
    assert lookup.offset_at_time("T", 0, START + 11_000, upper=True) == 8
    assert lookup.offset_at_time("T", 0, START + 99_000) == 20
    assert lookup.offset_at_time("T", 0, START - 1, upper=True) == 0
    assert lookup.offset_at_time("U", 0, START) == 0


def test_a_time_in_a_queue_that_ends_with_damage_is_before_it(store: MessageStore) -> None:
    for offset in offsets(store)[14:]:
        damage(store, offset, 4, bytes(4))
    assert store.lookup.offset_at_time("T", 0, START + 13_000) == 13
    assert store.lookup.offset_at_time("T", 0, START + 13_001) == 20, "none is: the end"
    assert store.lookup.offset_at_time("T", 0, START + 60_000, upper=True) == 13


def test_units_that_cannot_be_read_are_passed_over_when_a_time_is_looked_for(store: MessageStore) -> None:
    place = failing_at(
        store.lookup.place_in_time("T", 0, START + 19_000), lambda _, piece: piece.size % UNIT_SIZE == 0 and piece.at == 0
    )
    assert 0 <= place <= 20
    assert failing_at(store.lookup.place_in_time("T", 0, START), lambda _, piece: True) in (0, 20)


def test_the_age_of_a_queue_is_that_of_the_first_message_that_can_be_read(store: MessageStore) -> None:
    assert answer(store.lookup.earliest_time("T", 0)) == START
    damage(store, offsets(store)[0], 4, bytes(4))
    assert answer(store.lookup.earliest_time("T", 0)) == START + 1000
    assert answer(store.lookup.earliest_time("U", 0)) == -1
    for offset in offsets(store):
        damage(store, offset, 4, bytes(4))
    assert answer(store.lookup.earliest_time("T", 0)) == -1


def test_messages_between_two_times_are_the_newest_good_ones_up_to_a_number_and_a_size(store: MessageStore) -> None:
    lookup = store.lookup
    size = len(lookup.find_by_key("T", "k19", *ALWAYS)[0].data)
    between = (START + 3500, START + 9000)
    assert numbers(answer(lookup.in_time("T", 0, *between))) == [9, 8, 7, 6, 5, 4]
    assert numbers(answer(lookup.in_time("T", 0, *between, 2))) == [9, 8]
    assert numbers(answer(lookup.in_time("T", 0, *between, bytes_max=size))) == [9]
    damage(store, offsets(store)[8], 100, b"\xff")
    assert numbers(answer(lookup.in_time("T", 0, *between))) == [9, 7, 6, 5, 4]
    assert answer(lookup.in_time("T", 0, START + 2, START + 1)) == []
    assert answer(lookup.in_time("U", 0, *between)) == []


def test_on_the_spot_too_a_piece_that_cannot_be_read_is_a_fault(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    offset = offsets(store)[2]
    monkeypatch.setattr(MappedSegment, "read_cold", broken)
    assert "cannot be read" in faults(answer(store.lookup.entry_at(offset)))


def test_a_store_without_an_index_finds_nothing_by_key_and_says_why(tmp_path: Path) -> None:
    plain = Directory(tmp_path).open()
    put(plain, b"x")
    assert plain.lookup.find_by_key("T", "k", *ALWAYS) == []
    assert plain.lookup.index_end == (0, 0)
    assert plain.lookup.no_index_because is not None
    plain.close()
