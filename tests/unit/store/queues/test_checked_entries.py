"""What a store gives of messages it did not write itself: each is checked, a damaged one is passed
over and told of, the rest comes."""

import errno
from pathlib import Path

import pytest
from tests.stand_ins import does_nothing, raises, returns
from tests.unit.store.directory import HOST, Directory, bodies, put
from tests.unit.store.queues.checked_entries import COUNT, Bad, Reopened, offsets
from tests.unit.store.segments import Plain, RealSegment, replace

from turbopump.message.entry import CRC_SUFFIX_SIZE
from turbopump.message.java import tags_code
from turbopump.message.properties import SysFlag
from turbopump.store.log.cold_reads import ReadPace
from turbopump.store.queues.checked_entries import ReadContext
from turbopump.store.queues.consume_queue import UNIT_SIZE
from turbopump.store.queues.queue_reader import read_messages
from turbopump.store.queues.read_result import GetStatus, ReadLimits


@pytest.fixture
def reopened(tmp_path: Path) -> Reopened:
    return Reopened(tmp_path)


def without(*missing: int) -> list[int]:
    return [number for number in range(COUNT) if number not in missing]


@pytest.mark.parametrize("index", [0, 5, COUNT - 1])
@pytest.mark.parametrize(
    "byte",
    [
        0,
        2,
        3,
        4,
        7,
        8,
        12,
        15,
        16,
        20,
        27,
        28,
        35,
        39,
        47,
        60,
        87,
        95,
        -30,
        -CRC_SUFFIX_SIZE,
        -11,
        -1,
    ],
)
def test_a_message_with_a_flipped_bit_is_passed_over_and_the_others_come(
    reopened: Reopened, byte: int, index: int
) -> None:
    placed = reopened.placed[index]
    reopened.flip(placed.offset + byte if byte >= 0 else placed.log_end + byte)
    result = reopened.get()
    assert (result.status, offsets(result), result.count, result.next_offset) == (
        GetStatus.FOUND,
        without(index),
        COUNT - 1,
        COUNT,
    )
    assert result.gaps == 1
    ((place, offset, fault),) = [
        (one.queue_offset, one.offset, one.fault) for one in result.damages
    ]
    assert (place, offset) == (index, placed.offset)
    assert fault
    alone = reopened.get(index, 1)
    assert (alone.status, alone.next_offset, alone.gaps, alone.data) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        index + 1,
        1,
        b"",
    )


@pytest.mark.parametrize(
    ("at", "data", "fault"),
    [
        (
            0,
            (0).to_bytes(8),
            "its unit in the consume queue points to the message of queue offset 0",
        ),
        (0, (-5).to_bytes(8, signed=True), "points to -5, before the first message"),
        (0, (1 << 40).to_bytes(8), "where no message can be"),
        (0, ((1 << 20) - 50).to_bytes(8), "where no message can be"),
        (0, (200).to_bytes(8), "magic"),
        (8, (1).to_bytes(4), "the impossible size 1"),
        (8, (-1).to_bytes(4, signed=True), "the impossible size -1"),
        (8, (0x7FFFFFFE).to_bytes(4), "the impossible size"),
        (8, (100).to_bytes(4), "totalSize"),
    ],
)
@pytest.mark.parametrize("message_good", [True, False])
def test_a_unit_that_points_to_the_wrong_place_hides_no_good_message_and_is_repaired(
    reopened: Reopened, at: int, data: bytes, fault: str, *, message_good: bool
) -> None:
    queue = reopened.store.queue("T", 0)
    assert queue is not None
    whole = queue.unit(4)
    assert whole is not None
    reopened.unit(4, data, at)
    damaged = queue.unit(4)
    assert damaged is not None
    if message_good:
        assert bodies_from(reopened, 0) == without()
        assert queue.unit(4) == whole
        assert reopened.directory.failures == [
            "damaged units of the consume queue of T queue 0 were rebuilt from the log units=1 "
            "round=4"
        ]
    else:
        reopened.flip(whole[0] + 90)
        assert bodies_from(reopened, 0) == without(4)
        (damage,) = reopened.get(4).damages
        assert fault in damage.fault
        assert damage.queue_offset == 4
        assert queue.unit(4) == damaged
        assert reopened.directory.failures == []


def test_units_that_point_to_good_messages_of_other_places_are_repaired(reopened: Reopened) -> None:
    queue = reopened.store.queue("T", 0)
    other = reopened.store.queue("T", 1)
    assert queue is not None
    assert other is not None
    reopened.unit(3, queue.units(8, 1))
    reopened.unit(5, other.units(5, 1))
    assert bodies_from(reopened, 0) == without()
    assert reopened.directory.failures == [
        "damaged units of the consume queue of T queue 0 were rebuilt from the log units=1 round=3",
        "damaged units of the consume queue of T queue 0 were rebuilt from the log units=1 round=5",
    ]


def test_the_units_of_a_light_queue_point_to_messages_of_other_topics(reopened: Reopened) -> None:
    queue = reopened.store.queue("T", 0)
    assert queue is not None
    light = reopened.store.queues.find_or_make("%LMQ%mine", 0)
    for index in range(3):
        unit = queue.unit(index + 2)
        assert unit is not None
        light.append(index, *unit)
    light.end.advance(3)
    assert offsets(reopened.store.get("%LMQ%mine", 0, 0, 32)) == [2, 3, 4]


@pytest.mark.parametrize("topic", ["T", "t" * 127, "t" * 128, "t" * 255])
@pytest.mark.parametrize(
    "v6",
    [0, SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6, SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6],
)
def test_every_form_of_entry_is_found_to_belong_to_its_unit(
    tmp_path: Path, topic: str, v6: int
) -> None:
    directory = Directory(tmp_path, segment_size=1 << 20, queue_file_size=2000, with_crc=True)
    store = directory.open()
    for number in range(3):
        put(
            store,
            b"%d" % number,
            topic,
            2,
            sys_flag=v6,
            born_host=bytes(20) if v6 & SysFlag.BORN_HOST_V6 else HOST,
            store_host=bytes(20) if v6 & SysFlag.STORE_HOST_V6 else HOST,
        )
    store.close()
    result = directory.open().get(topic, 2, 0, 32)
    assert (result.count, result.damages) == (3, ())


def test_retention_may_trim_a_queue_while_its_units_are_read(reopened: Reopened) -> None:
    queue = reopened.store.queue("T", 0)
    assert queue is not None
    log = reopened.store.log
    context = ReadContext(log, ReadLimits(), reopened.store.rebuild.mark_unit, opened_at=log.end)
    steps = read_messages(queue, context, 2, 32)
    (piece,) = next(steps)
    units = piece.segment.read(piece.at, piece.size)
    queue.raise_min(reopened.placed[5].offset)
    with pytest.raises(StopIteration) as over:
        steps.send([units])
    assert (over.value.value.status, over.value.value.next_offset) == (
        GetStatus.OFFSET_TOO_SMALL,
        5,
    )


def test_a_queue_without_the_file_of_an_offset_has_nothing_there(reopened: Reopened) -> None:
    queue = reopened.store.queue("T", 0)
    assert queue is not None
    queue.files.files.clear()
    result = reopened.get(3)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 3)


def test_gaps_whose_units_cannot_be_read_further_end_a_read(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(2, 9):
        reopened.unit(index, (0x7FFFFFFF).to_bytes(4), 8)
    calls: list[int] = []

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> bytes:
        calls.append(size)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        return plain(segment, at, size)

    replace(monkeypatch, "read_cold", read)
    result = reopened.get(2, 3)
    assert (result.status, result.next_offset, result.gaps) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        5,
        3,
    )


def test_without_a_crc_of_its_own_a_body_is_what_is_checked(tmp_path: Path) -> None:
    reopened = Reopened(tmp_path, with_crc=False)
    reopened.flip(reopened.placed[2].offset + 90)
    reopened.flip(reopened.placed[6].offset + 44)  # its born time, which nothing repeats
    assert offsets(reopened.get()) == without(2)


def test_all_messages_of_a_read_may_be_damaged_and_gaps_behind_them_are_passed_too(
    reopened: Reopened,
) -> None:
    for index in (2, 3, 4):
        reopened.flip(reopened.placed[index].offset + 90)
    queue = reopened.store.queue("T", 0)
    assert queue is not None
    for index in (5, 6):
        reopened.unit(index, (0x7FFFFFFF).to_bytes(4), 8)
    result = reopened.get(2, 3)
    assert (result.status, result.next_offset, result.gaps) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        7,
        5,
    )
    assert bodies_from(reopened, 0) == without(2, 3, 4, 5, 6)


def bodies_from(reopened: Reopened, offset: int) -> list[int]:
    found: list[int] = []
    while offset < COUNT:
        result = reopened.get(offset, 3)
        assert result.next_offset > offset
        found += offsets(result)
        offset = result.next_offset
    return found


def with_turns(reopened: Reopened) -> bool:
    """Let its reads take turns of a loop, so that some are done at once; whether they can be."""

    pace = ReadPace(0.25, returns(0), does_nothing)
    reopened.store.cold_reads.take_turns(does_nothing, returns(0.0), pace)
    return reopened.store.log.files.at(0).segment.read_cached(0, 1) is not None


@pytest.mark.parametrize("damaged", [None, 0, 7, COUNT - 1])
def test_what_is_read_at_once_is_what_the_steps_read(
    reopened: Reopened, damaged: int | None
) -> None:
    if damaged is not None:
        reopened.flip(reopened.placed[damaged].offset + 90)
    put(reopened.store, b"new")
    at_once = with_turns(reopened)
    given = list[int]()
    for offset in range(-1, COUNT + 3):
        for count in (0, 1, 5, 32):
            result = reopened.store.reader.at_once("T", 0, offset, count)
            if result is not None:
                assert result == reopened.get(offset, count)
                given.append(offset)
    whole = range(COUNT + 1)
    if at_once:
        assert set(given) == {offset for offset in whole if offset != damaged}
    else:
        assert set(given) <= {COUNT}


def test_units_that_were_seen_ahead_give_no_message_that_is_not_there(reopened: Reopened) -> None:
    if not with_turns(reopened):
        pytest.skip("nothing is read at once here")
    reader, queue = reopened.store.reader, reopened.store.queue("T", 0)
    assert queue is not None
    first = reader.at_once("T", 0, 0, 4)
    assert first is not None
    assert offsets(first) == [0, 1, 2, 3]
    reopened.unit(6, bytes(12))  # a damage that came since: the units seen before are right
    following = reader.at_once("T", 0, 4, 32)
    assert following is not None
    assert offsets(following) == list(range(4, COUNT))
    reopened.flip(reopened.placed[9].offset + 90)
    assert reader.at_once("T", 0, 4, 32) is None
    assert bodies_from(reopened, 4) == without(0, 1, 2, 3, 9)
    queue.min_index = 5
    assert reader.at_once("T", 0, 4, 4) is None
    assert reader.at_once("T", 0, 5, 4) is not None


def test_queues_that_are_none_or_of_another_kind_are_not_read_at_once(reopened: Reopened) -> None:
    with_turns(reopened)
    reader = reopened.store.reader
    assert reader.at_once("T", 7, 0, 32) is None
    assert reader.at_once("Other", 0, 0, 32) is None


def read_cached_into(plain: Plain, segment: RealSegment, buffer: memoryview, at: int) -> bool:
    return segment.path.parent.name != "commitlog" and plain(segment, buffer, at)


def test_what_is_not_in_memory_is_not_read_at_once(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_turns(reopened)

    replace(monkeypatch, "read_cached_into", read_cached_into)
    assert reopened.store.reader.at_once("T", 0, 0, 32) is None
    assert offsets(reopened.get()) == list(range(COUNT))


def test_a_filter_is_asked_before_anything_is_read(reopened: Reopened) -> None:
    reopened.flip(reopened.placed[2].offset + 90)
    reopened.flip(reopened.placed[3].offset + 90)
    result = reopened.get(accept=frozenset({tags_code("b")}).__contains__)
    assert offsets(result) == [1, *range(5, COUNT, 2)]
    assert [one.queue_offset for one in result.damages] == [3]


def test_a_read_is_all_cold_or_all_hot_and_the_next_goes_on(reopened: Reopened) -> None:
    for number in range(COUNT, COUNT + 4):
        put(reopened.store, b"%02d" % number)
    first, second = reopened.get(), reopened.get(COUNT)
    assert (offsets(first), first.next_offset) == (list(range(COUNT)), COUNT)
    assert offsets(second) == list(range(COUNT, COUNT + 4))
    reopened.flip(reopened.placed[0].offset + 90)
    assert bodies(reopened.store)[-1] == b"%02d" % (COUNT + 3)


def test_hot_messages_come_out_of_the_map_and_cold_ones_never(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(reopened.store, b"new")

    refuse = raises(AssertionError("not this way"))

    with monkeypatch.context() as patched:
        replace(patched, "read", refuse)
        assert offsets(reopened.get()) == list(range(COUNT))
    with monkeypatch.context() as patched:
        replace(patched, "read_cold", refuse)
        replace(patched, "read_cached_into", refuse)
        assert offsets(reopened.get(COUNT)) == [COUNT]


def test_what_was_written_long_ago_is_cold_as_well(tmp_path: Path) -> None:
    directory = Directory(
        tmp_path,
        segment_size=1 << 20,
        queue_file_size=2000,
        limits=ReadLimits(hot_size=500, count_cold=32),
    )
    store = directory.open()
    for number in range(20):
        put(store, b"%02d" % number)
    before = store.cold_reads.numbers.pieces_from_disk
    assert store.get("T", 0, 0, 32).count >= 10
    assert store.cold_reads.numbers.pieces_from_disk == before + 2, (
        "the units, and neighbours in one piece"
    )
    store.close()


def test_a_bad_sector_costs_its_own_message_alone_and_only_when_others_can_be_read(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = reopened.placed[5]
    Bad(monkeypatch, (placed.offset + 10, placed.offset + 11))
    first = reopened.get()
    assert (offsets(first), first.next_offset, first.unreadable) == ([0, 1, 2, 3, 4], 5, None)
    again = reopened.get(5)
    assert offsets(again) == list(range(6, COUNT)), (
        "others could be read since, so this one is lost"
    )
    assert [(one.queue_offset, one.fault) for one in again.damages] == [
        (5, "it cannot be read (Input/output error)")
    ]
    assert again.next_offset == COUNT


def test_while_nothing_can_be_read_nothing_is_passed_over(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Bad(monkeypatch, (0, 1 << 40))
    for _ in range(5):
        result = reopened.get(3)
        assert (result.next_offset, result.count, result.gaps) == (3, 0, 0)
        assert result.unreadable is not None
        assert (
            f"the message at {reopened.placed[3].offset} of the commit log cannot be read now "
            "(Input/output error)"
        ) in (result.unreadable)
    bad.ranges = ()
    assert offsets(reopened.get(3)) == list(range(3, COUNT)), "the device is back"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EIO, "check the disk"),
        (errno.EMFILE, "raise the limit of open files (ulimit -n), or let fewer clients connect"),
        (errno.ENFILE, "raise the limit of open files (ulimit -n), or let fewer clients connect"),
    ],
)
def test_a_queue_that_cannot_be_read_is_no_end_of_the_queue(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def read(_plain: Plain, _self: RealSegment, _at: int, _size: int) -> bytes:
        raise OSError(number, "the reason")

    replace(monkeypatch, "read_cold", read)
    result = reopened.get(3)
    assert result.unreadable == f"the queue cannot be read now (the reason): {advice}"
    assert result.next_offset == 3


def test_messages_whose_segment_is_deleted_are_passed_over_before_their_queue_is_trimmed(
    tmp_path: Path,
) -> None:
    reopened = Reopened(tmp_path, segment_size=1500)
    reopened.store.log.files.forget_first()
    start = reopened.store.log.start
    first = next(number for number, placed in enumerate(reopened.placed) if placed.offset >= start)
    assert first > 1
    gone = reopened.get(0, first)
    assert (gone.status, gone.next_offset, gone.gaps) == (GetStatus.MESSAGE_WAS_REMOVING, first, 0)
    assert offsets(reopened.get(first)) == list(range(first, COUNT))


def test_a_segment_that_is_deleted_while_its_messages_are_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened = Reopened(tmp_path, segment_size=1500)
    log = reopened.store.log

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> bytes:
        if segment.path.parent.name != "commitlog":
            return plain(segment, at, size)
        while log.start == 0:
            log.files.forget_first()
        raise OSError(9, "Bad file descriptor")

    replace(monkeypatch, "read_cold", read)
    result = reopened.get(0, 2)
    assert (result.status, result.next_offset, result.unreadable, result.damages) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        2,
        None,
        (),
    )


def test_messages_far_apart_are_read_in_pieces_of_their_own(tmp_path: Path) -> None:
    directory = Directory(
        tmp_path, segment_size=4 << 20, queue_file_size=UNIT_SIZE * 500, with_crc=True
    )
    store = directory.open()
    for _ in range(6):
        put(store, b"x" * 100)
        put(store, b"y" * 300_000, queue_id=1)
    put(store, b"z" * 100)
    put(store, b"z" * 100)
    store.close()
    store = directory.open()
    assert len(bodies(store)) == 8
    before = store.cold_reads.numbers.pieces_from_disk
    assert store.get("T", 0, 0, 32).count == 8
    assert store.cold_reads.numbers.pieces_from_disk - before == 7, (
        "six alone, and two neighbours; the units were read ahead"
    )
    store.close()
