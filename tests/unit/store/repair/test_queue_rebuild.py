"""Damaged units of a queue: the reader that meets them marks them, the walk over the log writes
them again, and every message is given."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stand_ins import does_nothing, returns
from tests.unit.store.directory import Directory, bodies, put
from tests.unit.store.looked_up import message_in_queue, offset_at_time

from turbopump.disk.mapped_segments import MappedSegment
from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.message.properties import SysFlag
from turbopump.store.log.cold_reads import ReadPace, ReadState, finish_now
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import REBUILDING
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.read_result import GetResult, GetStatus
from turbopump.store.repair import queue_rebuild

COUNT = 300


class Damaged:
    """A reopened store of three queues, whose units of queue 0 get damaged."""

    def __init__(self, root: Path, count: int = COUNT, segment_size: int = 1 << 14) -> None:
        self.directory = Directory(
            root, segment_size=segment_size, queue_file_size=UNIT_SIZE * 1000, with_crc=True
        )
        store = self.directory.open()
        for number in range(count):
            put(store, b"%04d" % number, tag="ab"[number % 2])
            put(store, b"other", queue_id=1)
            put(store, b"elsewhere", topic="U")
            if number % 10 == 0:
                put(store, b"half", sys_flag=int(SysFlag.TRANSACTION_PREPARED))
        store.close()
        self.bodies = [b"%04d" % number for number in range(count)]
        self.store = self.directory.open()
        self.queue = self.queue_of(self.store)
        self.units = self.queue.units(0, count)

    def queue_of(self, store: MessageStore) -> ConsumeQueue:
        queue = store.queue("T", 0)
        assert queue is not None
        return queue

    def write(self, index: int, data: bytes) -> None:
        piece = self.queue.piece(index, 1)
        assert piece is not None
        piece.segment.buffer[piece.at : piece.at + len(data)] = data

    @property
    def whole(self) -> bool:
        return self.queue.units(0, COUNT) == self.units


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 1), (0, 100), (7, 204), (COUNT - 1, 1), (COUNT - 50, 50), (0, COUNT)]
)
@pytest.mark.parametrize("fill", ["random", "zeros", "ones", "shifted"])
def test_any_run_of_damaged_units_is_rebuilt_by_one_walk(
    damaged: Damaged, first: int, count: int, fill: str
) -> None:
    garbage = {
        "random": random.Random(1).randbytes(count * UNIT_SIZE),
        "zeros": bytes(count * UNIT_SIZE),
        "ones": b"\xff" * count * UNIT_SIZE,
        "shifted": (damaged.units[UNIT_SIZE:] + damaged.units[:UNIT_SIZE])[
            first * UNIT_SIZE : (first + count) * UNIT_SIZE
        ],
    }[fill]
    damaged.write(first, garbage)
    assert bodies(damaged.store) == damaged.bodies
    assert damaged.whole
    (line,) = damaged.directory.failures
    assert line.startswith(
        f"damaged units of the consume queue of T queue 0 were rebuilt from the log units={count} "
    )


def test_the_log_is_walked_once_for_a_message_whose_head_is_damaged_too(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = int.from_bytes(damaged.units[5 * UNIT_SIZE : 5 * UNIT_SIZE + 8])
    file = damaged.store.log.files.at(offset)
    assert file is not None
    file.buffer[offset - file.start + 4 : offset - file.start + 30] = bytes(26)
    assert bodies(damaged.store) == [body for body in damaged.bodies if body != b"0005"]
    monkeypatch.setattr(queue_rebuild, "SteppedWalk", None)
    again = damaged.store.get("T", 0, 5, 1)
    assert (again.status, again.gaps, again.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 1, 6)
    assert damaged.directory.failures == []


def test_units_without_a_message_are_remembered_within_bounds(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_rebuild, "WITHOUT_MESSAGE_MAX", 2)
    for index in (3, 5, 7, 9):
        offset = int.from_bytes(damaged.units[index * UNIT_SIZE : index * UNIT_SIZE + 8])
        file = damaged.store.log.files.at(offset)
        assert file is not None
        file.buffer[offset - file.start + 4 : offset - file.start + 30] = bytes(26)
    assert len(bodies(damaged.store)) == COUNT - 4
    assert len(damaged.store.rebuild.without_message) <= 2


class Turns:
    """The turns of a loop, which a test lets happen one by one."""

    def __init__(self, store: MessageStore) -> None:
        self._due: list[Callable[[], object]] = []
        for reads in (store.cold_reads, store.rebuild.reads):
            reads.take_turns(self._due.append, returns(0.0))

    def __iter__(self) -> Iterator[None]:
        while self._due:
            yield
            self._due.pop(0)()


def test_readers_of_a_damaged_part_are_told_to_ask_again_until_one_walk_has_rebuilt_it(
    damaged: Damaged,
) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    turns, results = Turns(damaged.store), list[GetResult]()
    reads, reader = damaged.store.cold_reads, damaged.store.reader

    for offset in (4, 4, 200):
        assert reads.run(reader.steps("T", 0, offset, 1), results.append) is ReadState.PENDING
    for _ in turns:
        pass

    assert [(one.unreadable, one.next_offset, one.count) for one in results] == [
        (REBUILDING, 4, 0),
        (REBUILDING, 4, 0),
        (REBUILDING, 200, 0),
    ]
    assert damaged.whole
    assert len(damaged.directory.failures) == 1
    again = damaged.store.get("T", 0, 4, 1)
    assert [message.body for message in decode_entries(again.data)] == [b"0004"]


def test_one_walk_rebuilds_the_queues_that_were_marked_while_the_one_before_was_under_way(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = 0
    plain = queue_rebuild.SteppedWalk

    def counted(*given: Any, **named: Any) -> queue_rebuild.SteppedWalk:
        nonlocal walks
        walks += 1
        return plain(*given, **named)

    monkeypatch.setattr(queue_rebuild, "SteppedWalk", counted)
    found = [damaged.store.queue(*key) for key in (("T", 0), ("T", 1), ("U", 0))]
    queues = [queue for queue in found if queue is not None]
    whole = [queue.units(0, COUNT) for queue in queues]
    turns = Turns(damaged.store)
    for queue in queues:
        queue.overwrite(0, bytes(UNIT_SIZE * COUNT))
        assert damaged.store.rebuild.mark_unit(queue, 7) == REBUILDING
    for _ in turns:
        pass
    assert [queue.units(0, COUNT) for queue in queues] == whole
    assert walks == 2


def test_a_small_damage_is_rebuilt_within_the_read_that_finds_it(damaged: Damaged) -> None:
    pace = ReadPace(1.0, returns(0), does_nothing)
    for reads in (damaged.store.cold_reads, damaged.store.rebuild.reads):
        reads.take_turns(does_nothing, returns(0.0), pace)
    damaged.write(4, bytes(UNIT_SIZE))
    result = damaged.store.get("T", 0, 4, 1)
    assert [message.body for message in decode_entries(result.data)] == [b"0004"]
    assert damaged.whole


def test_sends_go_on_while_a_whole_queue_is_rebuilt(damaged: Damaged) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    turns = Turns(damaged.store)
    assert damaged.store.rebuild.mark_unit(damaged.queue, 9) == REBUILDING
    sent = list[bytes]()
    for number, _ in enumerate(turns):
        sent.append(b"sent %d" % number)
        put(damaged.store, sent[-1])
    assert len(sent) > 5
    assert damaged.whole
    assert bodies(damaged.store) == [*damaged.bodies, *sent]


def test_a_sector_that_cannot_be_read_hides_only_what_lies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = Damaged(tmp_path, segment_size=1 << 20)
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    plain = MappedSegment.read_cold
    lost: list[int] = []

    def read(segment: MappedSegment, at: int, size: int) -> bytes:
        if segment.path.parent.name == "commitlog" and at < 8192 and at + size > 4096:
            lost.append(at)
            raise OSError(5, "Input/output error")
        return plain(segment, at, size)

    monkeypatch.setattr(MappedSegment, "read_cold", read)
    waits = damaged.store.get("T", 0, 30, 1)
    assert waits.next_offset == 30 or waits.count == 1
    given: list[bytes] = []
    offset = 0
    for _ in range(3 * COUNT):
        result = damaged.store.get("T", 0, offset, 32)
        given += [message.body for message in decode_entries(result.data)]
        offset = result.next_offset
    assert offset == COUNT
    hidden = [body for body in damaged.bodies if body not in given]
    places = [int.from_bytes(damaged.units[int(body) * UNIT_SIZE :][:8]) for body in hidden]
    assert lost
    assert 1 <= len(hidden) < 30
    assert all(4096 - 200 < place < 8192 for place in places)


def test_retention_may_take_the_log_away_while_it_is_walked(damaged: Damaged) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    turns = Turns(damaged.store)
    assert damaged.store.rebuild.mark_unit(damaged.queue, COUNT - 1) == REBUILDING
    taken = 0
    for _ in turns:
        taken += 1
        if taken == 40:
            damaged.store.log.files.forget_first()
    assert taken > 40
    assert damaged.queue.units(COUNT - 1, 1) == damaged.units[-UNIT_SIZE:]


def test_tags_are_written_again_as_they_were(damaged: Damaged) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    bodies(damaged.store)
    wanted = frozenset({tags_code("b")})
    assert bodies(damaged.store, accept=wanted.__contains__) == damaged.bodies[1::2]


def test_a_filter_does_not_pass_over_messages_by_what_a_damaged_unit_says_of_their_tags(
    damaged: Damaged,
) -> None:
    wanted = frozenset({tags_code("b")})
    for index in (5, 6, 9):
        damaged.write(index, b"\xff" * UNIT_SIZE)
    assert bodies(damaged.store, accept=wanted.__contains__) == damaged.bodies[1::2]
    assert bodies(damaged.store, accept=wanted.__contains__) == damaged.bodies[1::2]


def test_a_queue_that_is_deleted_while_it_is_rebuilt_is_left_alone(damaged: Damaged) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    turns = Turns(damaged.store)
    assert damaged.store.rebuild.mark_unit(damaged.queue, 9) == REBUILDING
    steps = 0
    for _ in turns:
        steps += 1
        if steps == 40:
            damaged.queue.remove()
    assert steps > 40
    assert not damaged.queue.files.files


def test_a_message_asked_for_by_its_queue_offset_is_found_although_its_unit_is_damaged(
    damaged: Damaged,
) -> None:
    lookup = damaged.store.lookup
    for index, unit in (
        (4, bytes(UNIT_SIZE)),
        (6, damaged.units[:UNIT_SIZE]),
        (8, b"\xff" * UNIT_SIZE),
    ):
        damaged.write(index, unit)
        message = message_in_queue(lookup, "T", 0, index)
        assert message is not None
        assert message.body == b"%04d" % index
        assert message.queue_offset == index
    assert damaged.whole
    assert len(damaged.directory.failures) == 3


def test_a_message_whose_unit_and_head_are_damaged_is_told_as_damaged_by_its_queue_offset(
    damaged: Damaged,
) -> None:
    offset = int.from_bytes(damaged.units[4 * UNIT_SIZE : 4 * UNIT_SIZE + 8])
    file = damaged.store.log.files.at(offset)
    assert file is not None
    file.buffer[offset - file.start + 4 : offset - file.start + 30] = bytes(26)
    found = finish_now(damaged.store.lookup.entry_in_queue("T", 0, 4))
    assert found is not None
    assert found.fault is not None
    assert "the log has no such message" in found.fault


def test_a_unit_that_points_to_another_message_misleads_no_search_by_time(damaged: Damaged) -> None:
    store, clock = damaged.store, damaged.directory.clock
    clock.now += 1000
    before = damaged.queue.max_index
    put(store, b"late")
    damaged.write(before // 2, damaged.queue.units(before, 1))
    assert offset_at_time(store.lookup, "T", 0, clock.now) == before
    assert offset_at_time(store.lookup, "T", 0, clock.now - 1, upper=True) == before - 1


def test_a_unit_that_points_to_the_message_of_another_topic_with_the_same_place_is_repaired(
    damaged: Damaged,
) -> None:
    stranger = damaged.store.queue("U", 0)
    assert stranger is not None
    damaged.write(40, stranger.units(40, 1))
    result = damaged.store.get("T", 0, 40, 1)
    assert [(one.topic, one.body) for one in decode_entries(result.data)] == [
        ("T", damaged.bodies[40])
    ]
    assert damaged.whole
    assert len(damaged.directory.failures) == 1
    damaged.store.close()
