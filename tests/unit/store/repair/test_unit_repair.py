"""Damaged units of a queue: their messages are found in the log and given, and the units written
again; bounded, and once."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.directory import Directory, bodies, put
from tests.unit.store.looked_up import message_in_queue, offset_at_time

from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.message.properties import SysFlag
from turbopump.store.log.cold_reads import ReadState, Steps, finish_now
from turbopump.store.mapped_segments import MappedSegment
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.read_result import GetResult, GetStatus
from turbopump.store.repair import unit_repair
from turbopump.store.repair.unit_repair import Repaired

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
def test_any_run_of_damaged_units_is_repaired_as_one(
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
    (told,) = damaged.directory.failures
    assert told.startswith(
        f"unit {first} of"
        if count == 1
        else f"{count} units of the consume queue of T queue 0 round unit"
    )


def test_a_message_whose_head_is_damaged_too_is_searched_for_once(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = int.from_bytes(damaged.units[5 * UNIT_SIZE : 5 * UNIT_SIZE + 8])
    file = damaged.store.log.files.at(offset)
    assert file is not None
    file.buffer[offset - file.start + 4 : offset - file.start + 30] = bytes(26)
    assert bodies(damaged.store) == [body for body in damaged.bodies if body != b"0005"]
    monkeypatch.setattr(unit_repair, "PlainQueueSearch", None)
    again = damaged.store.get("T", 0, 5, 1)
    assert (again.status, again.gaps, again.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 1, 6)
    assert damaged.directory.failures == []


def test_what_was_searched_for_in_vain_is_remembered_within_bounds(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_repair, "SEARCHED_MAX", 2)
    for index in (3, 5, 7, 9):
        offset = int.from_bytes(damaged.units[index * UNIT_SIZE : index * UNIT_SIZE + 8])
        file = damaged.store.log.files.at(offset)
        assert file is not None
        file.buffer[offset - file.start + 4 : offset - file.start + 30] = bytes(26)
    assert len(bodies(damaged.store)) == COUNT - 4
    assert len(damaged.store.unit_repair.not_found) <= 2


def test_a_queue_is_searched_for_by_one_read_at_a_time_and_others_come_again(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon: list[object] = []
    damaged.store.cold_reads.take_turns(soon.append, lambda: 0.0)
    damaged.write(4, bytes(UNIT_SIZE))
    results: list[GetResult] = []

    def start(offset: int) -> None:
        steps = damaged.store.reader.steps("T", 0, offset, 1)
        outcome = damaged.store.cold_reads.run(steps, results.append)
        assert outcome is ReadState.PENDING

    start(4)
    start(4)
    while soon:
        turn = soon.pop(0)
        assert callable(turn)
        turn()
    refused, given = sorted(results, key=lambda result: result.count)
    assert refused.unreadable is not None
    assert "is being repaired" in refused.unreadable
    assert refused.next_offset == 4
    assert [message.body for message in decode_entries(given.data)] == [b"0004"]
    assert damaged.whole


def test_a_read_that_is_given_up_lets_the_next_one_search(damaged: Damaged) -> None:
    damaged.write(4, bytes(UNIT_SIZE))
    search = damaged.store.unit_repair.message_of(damaged.queue, unit_repair.Unit(4, 0, 0))
    next(search)
    search.close()
    assert bodies(damaged.store) == damaged.bodies


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


def test_retention_may_take_the_log_away_while_it_is_searched(damaged: Damaged) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    search = damaged.store.unit_repair.message_of(damaged.queue, unit_repair.Unit(COUNT - 1, 0, 0))
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == 40:
            damaged.store.log.files.forget_first()

    found = damaged.store.cold_reads.finish(watched(search, step))
    assert taken > 40
    assert found.entry is not None
    assert damaged.queue.units(COUNT - 1, 1) == damaged.units[-UNIT_SIZE:]


def watched(steps: Steps[Repaired], on_step: Callable[[], None]) -> Steps[Repaired]:
    """The same steps; ``on_step`` is called before each read."""
    pieces = next(steps)
    while True:
        on_step()
        found = yield pieces
        try:
            pieces = steps.send(found)
        except StopIteration as stop:
            outcome: Repaired = stop.value
            return outcome


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
    found = bodies(damaged.store, accept=wanted.__contains__)
    assert found == sorted([*damaged.bodies[1::2], b"0006"]), (
        "clients look at the tags themselves, too"
    )
    assert bodies(damaged.store, accept=wanted.__contains__) == damaged.bodies[1::2]


def test_a_queue_that_is_deleted_while_it_is_searched_is_left_alone(damaged: Damaged) -> None:
    damaged.write(0, bytes(UNIT_SIZE * COUNT))
    search = damaged.store.unit_repair.message_of(damaged.queue, unit_repair.Unit(9, 0, 0))
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 40:
            damaged.queue.remove()

    found = damaged.store.cold_reads.finish(watched(search, step))
    assert steps > 40
    assert found.entry is not None or found.error is None


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
