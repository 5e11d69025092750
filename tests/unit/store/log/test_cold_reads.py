"""Reads in steps: at once if the system has it in memory, else by threads, a bounded number at a
time, and told in the owner's thread."""

import asyncio
import errno
import math
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing, returns

from turbopump.disk.disk import Found, Piece
from turbopump.disk.mapped_segments import MappedSegment
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.log import cold_reads
from turbopump.store.log.cold_reads import VIEW_SIZE_MAX, ColdReads, ReadPace, ReadState, ReadSteps


class HeldDisk(SystemDisk):
    """Reads of threads are held until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], None]] = []

    def start_read(self, pieces: list[Piece], done: Callable[[list[Found]], None]) -> None:  # type: ignore[override]
        self.held.append(lambda: super(HeldDisk, self).start_read(pieces, done))

    def let_go(self, count: int = 1) -> None:
        for _ in range(count):
            self.held.pop(0)()


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def segment(disk: HeldDisk, tmp_path: Path) -> MappedSegment:
    made = disk.create_segment(tmp_path / "a", 4096)
    made.buffer[:] = bytes(range(256)) * 16
    return made


@pytest.fixture
def reads(disk: HeldDisk) -> ColdReads:
    return ColdReads(disk)


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MappedSegment, "read_cached_into", returns(False))


def two_steps(segment: MappedSegment) -> ReadSteps[bytes]:
    """What one byte says decides about the next piece."""
    (first,) = yield [Piece(segment, 3, 1)]
    assert isinstance(first, bytes)
    low, high = yield [Piece(segment, first[0] * 10, 2), Piece(segment, first[0] * 20, 2)]
    assert isinstance(low, bytes)
    assert isinstance(high, bytes)
    return low + high


WANTED = bytes([30, 31, 60, 61])


def test_what_is_in_memory_is_read_at_once(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk
) -> None:
    done: list[bytes] = []
    if segment.read_cached(0, 1) is None:
        assert reads.run(two_steps(segment), done.append) is ReadState.PENDING, (
            "a file system that cannot tell"
        )
        disk.let_go()
        disk.let_go()
        assert done == [WANTED]
        return
    assert reads.run(two_steps(segment), done.append) == WANTED
    assert (done, disk.held, reads.numbers.pieces_in_memory, reads.numbers.pieces_from_disk) == (
        [],
        [],
        3,
        0,
    )


@pytest.mark.usefixtures("nothing_in_memory")
def test_what_is_not_is_read_in_a_thread_step_by_step(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk
) -> None:
    done: list[bytes] = []
    assert reads.run(two_steps(segment), done.append) is ReadState.PENDING
    assert (reads.waiting, len(disk.held)) == (1, 1)
    disk.let_go()
    assert done == []
    disk.let_go()
    assert done == [WANTED]
    assert (reads.waiting, reads.numbers.pieces_from_disk, reads.numbers.bytes_from_disk) == (
        0,
        3,
        5,
    )


@pytest.mark.usefixtures("nothing_in_memory")
def test_tools_read_on_the_spot(reads: ColdReads, segment: MappedSegment, disk: HeldDisk) -> None:
    assert reads.finish(two_steps(segment)) == WANTED
    assert disk.held == []


def one(segment: MappedSegment, number: int) -> ReadSteps[int]:
    yield [Piece(segment, number, 1)]
    return number


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_few_reads_go_on_at_a_time_and_the_others_in_their_order(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk
) -> None:
    done: list[int] = []

    for number in range(10):
        assert reads.run(one(segment, number), done.append) is ReadState.PENDING
    assert (len(disk.held), reads.waiting) == (cold_reads.AT_ONCE, 10)
    disk.let_go()
    assert (done, len(disk.held)) == ([0], cold_reads.AT_ONCE)
    while disk.held:
        disk.let_go()
    assert done == list(range(10))


@pytest.mark.usefixtures("nothing_in_memory")
def test_more_than_may_wait_are_refused(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "WAITING_MAX", 2)
    outcomes = [reads.run(two_steps(segment), does_nothing) for _ in range(cold_reads.AT_ONCE + 3)]
    assert outcomes == [ReadState.PENDING] * (cold_reads.AT_ONCE + 2) + [ReadState.REFUSED]
    assert reads.numbers.refused == 1


@pytest.mark.usefixtures("nothing_in_memory")
def test_what_nobody_wants_any_more_is_dropped(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk
) -> None:
    done: list[bytes] = []
    wanted = [True] * 8
    for number in range(8):
        reads.run(two_steps(segment), done.append, lambda number=number: wanted[number])  # type: ignore[misc]
    wanted[0] = wanted[5] = False
    while disk.held:
        disk.let_go()
    assert done == [WANTED] * 6
    assert reads.numbers.pieces_from_disk == 1 + 6 * 3, "the one that waited was not even begun"


@pytest.mark.usefixtures("nothing_in_memory")
def test_after_closing_nothing_is_begun_and_nobody_told(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk
) -> None:
    done: list[bytes] = []
    for _ in range(8):
        reads.run(two_steps(segment), done.append)
    reads.close()
    while disk.held:
        disk.let_go()
    assert (done, reads.waiting) == ([], 0)
    assert reads.run(two_steps(segment), done.append) is ReadState.REFUSED


def test_where_the_system_cannot_tell_nothing_is_in_memory(
    segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.RWF_NOWAIT")
    assert segment.read_cached(0, 1) is None


def read_beyond(segment: MappedSegment) -> ReadSteps[Found]:
    (found,) = yield [Piece(segment, 4090, 100)]
    return found


def test_an_error_reaches_the_steps_as_a_value(
    reads: ColdReads, segment: MappedSegment, disk: HeldDisk
) -> None:
    done: list[Found] = []
    assert reads.run(read_beyond(segment), done.append) is ReadState.PENDING
    disk.let_go()
    for found in (done[0], reads.finish(read_beyond(segment))):
        assert isinstance(found, OSError)
        assert found.errno == errno.EIO
    assert reads.numbers.errors == 2


def test_a_place_is_given_up_once_it_fails_although_others_work(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = segment.path.parent
    assert not reads.is_lost(here, 7)
    assert not reads.is_lost(here, 7), "nothing else has been read since: the device may be gone"
    assert not reads.is_lost(here / "other", 7)
    reads.finish(two_steps(segment))
    assert reads.is_lost(here, 7)
    assert not reads.is_lost(here, 8)
    assert not reads.is_lost(here / "other", 7), "that is another device, perhaps"
    monkeypatch.setattr(cold_reads, "_FAILURES_KEPT", 3)
    assert not reads.is_lost(here, 7), "what is remembered is bounded"


def wait(go_on: threading.Event) -> None:
    assert go_on.wait(30)


@in_loop
async def test_the_disk_reads_in_threads_of_its_own_and_tells_in_the_owner_s(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    disk = SystemDisk(loop.call_soon_threadsafe)
    segment = disk.create_segment(tmp_path / "a", 4096)
    segment.buffer[:5] = b"hello"
    go_on = threading.Event()

    for _ in range(2):  # every thread of the syncs is busy
        disk.start(partial(wait, go_on), does_nothing)
    told: asyncio.Future[tuple[int, list[Found]]] = loop.create_future()
    disk.start_read(
        [Piece(segment, 0, 3), Piece(segment, 4096, 1), Piece(segment, 3, 2)],
        lambda found: told.set_result((threading.get_ident(), found)),
    )
    segment.close()  # retention: what was begun is still read
    thread, (first, beyond, last) = await told
    go_on.set()
    assert thread == threading.get_ident()
    assert (first, last) == (b"hel", b"lo")
    assert isinstance(beyond, OSError)
    disk.close()
    assert segment.read_cached(0, 3) is None
    assert isinstance(segment_error(segment), OSError), "and then its file is closed"


def segment_error(segment: MappedSegment) -> OSError | None:
    try:
        segment.read_cold(0, 1)
    except OSError as error:
        return error
    return None


def test_what_is_let_go_is_still_there(disk: HeldDisk, segment: MappedSegment) -> None:
    segment.sync()
    segment.evict(0, 4096)
    assert segment.read_cold(0, 4096) == bytes(range(256)) * 16
    assert segment.read_cached(4090, 100) is None, "less than what is asked for is nothing"
    segment.close()
    segment.evict(0, 4096)


class Loop:
    """Turns of an owner's loop: what is to be done soon, and a clock that moves when work is
    done."""

    def __init__(self, reads: ColdReads) -> None:
        self.soon: list[Callable[[], None]] = []
        self.now = 0.0
        self.reads = reads
        self.written = 0
        self.pauses: list[float] = []
        reads.take_turns(self.soon.append, lambda: self.now)

    def with_pace(self, share: float) -> None:
        self.reads.take_turns(
            self.soon.append, lambda: self.now, ReadPace(share, lambda: self.written, self.later)
        )

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.soon.append(call)

    def turn(self, others: float = 0.0) -> None:
        """Others work so many seconds, then what was to be done soon is done."""
        self.now += others
        due, self.soon[:] = self.soon[:], []
        for call in due:
            call()

    def working(
        self, segment: MappedSegment, log: list[int], number: int, slices: int = 5
    ) -> ReadSteps[int]:
        """A read that works a second in each slice."""
        yield [Piece(segment, 0, 1)]
        for _ in range(slices):
            log.append(number)
            self.now += 1.0
            yield []
        return number


def read_cached_into(segment: MappedSegment, buffer: memoryview, at: int) -> bool:
    buffer[:] = segment.read(at, len(buffer))
    return True


def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MappedSegment, "read_cached_into", read_cached_into)


def each_of(*pieces: Piece) -> ReadSteps[list[bytes]]:
    """Reads them one after the other, and copies each before the next."""
    found = []
    for piece in pieces:
        (data,) = yield [piece]
        assert not isinstance(data, OSError)
        found.append(bytes(data))
    return found


def seen(reads: ColdReads, *pieces: Piece) -> list[bytes] | None:
    """What a read at once sees of them; None if it may not look, or does not see one."""
    return reads.at_once(each_of(*pieces))


def test_where_nobody_stands_in_line_pieces_in_memory_are_seen_at_once(
    reads: ColdReads, segment: MappedSegment
) -> None:
    if segment.read_cached(0, 1) is None:
        pytest.skip("the system cannot tell what it has in memory")
    wanted = Piece(segment, 0, 3), Piece(segment, 256, 2)
    assert seen(reads, *wanted) is None, "without turns of a loop there is nobody to see it"
    Loop(reads).with_pace(0.25)
    assert seen(reads, *wanted) == [bytes(range(3)), bytes(range(2))]
    assert reads.numbers.pieces_in_memory == 2
    assert seen(reads, Piece(segment, 4090, 100)) is None, "less than what is asked for is nothing"
    assert seen(reads, Piece(segment, 0, VIEW_SIZE_MAX + 1)) is None
    reads.close()
    assert seen(reads, *wanted) is None


def slow(loop: Loop, segment: MappedSegment) -> ReadSteps[bytes]:
    (data,) = yield [Piece(segment, 0, 3)]
    assert not isinstance(data, OSError)
    loop.now += 0.003
    return bytes(data)


def test_nobody_sees_pieces_before_those_who_stand_in_line_or_while_reads_pause(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, log, done = Loop(reads), list[int](), list[int]()
    loop.with_pace(0.25)
    assert reads.run(loop.working(segment, log, 1), done.append) is ReadState.PENDING
    assert seen(reads, Piece(segment, 0, 3)) is None
    while loop.soon:
        loop.turn()
    assert done == [1]
    assert seen(reads, Piece(segment, 0, 3)) == [bytes(range(3))]
    loop.written += 1  # somebody writes: the next read that takes long is in debt

    assert reads.at_once(slow(loop, segment)) == bytes(range(3))
    assert reads.at_once(slow(loop, segment)) is None
    loop.now += 0.02
    assert reads.at_once(slow(loop, segment)) == bytes(range(3))


def test_what_was_not_seen_at_once_is_not_looked_for_twice_in_a_row(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()

    def miss(_segment: MappedSegment, _buffer: memoryview, at: int) -> bool:
        looks.append(at)
        return False

    monkeypatch.setattr(MappedSegment, "read_cached_into", miss)
    Loop(reads).with_pace(0.25)
    assert seen(reads, Piece(segment, 7, 1)) is None
    assert reads.run(one_piece(segment), does_nothing) is ReadState.PENDING
    assert looks == [7]
    assert reads.run(one_piece(segment), does_nothing) is ReadState.PENDING
    assert looks == [7], "and now somebody stands in line"


def one_piece(segment: MappedSegment) -> ReadSteps[int]:
    """A read of one piece."""
    yield [Piece(segment, 7, 1)]
    return 1


def test_in_a_loop_reads_take_turns_one_slice_at_a_time(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, log, done = Loop(reads), list[int](), list[int]()
    for number in range(3):
        assert reads.run(loop.working(segment, log, number), done.append) is ReadState.PENDING, (
            "even if all is in memory"
        )
    assert log == []
    for _ in range(3):  # each looks into memory
        loop.turn()
    for _ in range(4):
        before = len(log)
        loop.turn()
        assert len(log) == before + 1
    assert log == [0, 1, 2, 0]
    assert len(loop.soon) == 1, "one call for all of them"
    while loop.soon:
        loop.turn()
    assert (log, done) == ([0, 1, 2] * 5, [0, 1, 2])


def test_where_others_are_busy_reads_get_their_share_of_the_time(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    monkeypatch.setattr(cold_reads, "TURN_S", 7.0)
    loop, log = Loop(reads), list[int]()
    reads.run(loop.working(segment, log, 0, slices=100), does_nothing)
    loop.turn()
    for _ in range(5):
        before = len(log)
        loop.turn(others=10.0)
        assert len(log) - before == math.ceil(10 * cold_reads.SHARE)
    before = len(log)
    loop.turn(others=4000.0)
    assert len(log) - before == 7, "a turn in which the loop stood still is not made up for"


def reading(log: Any, loop: Loop, segment: MappedSegment) -> ReadSteps[None]:
    yield [Piece(segment, 0, 1)]
    while True:
        log.append(1)
        loop.now += 0.000_05
        yield []


def test_while_somebody_writes_reads_get_a_share_of_the_time_in_small_pieces(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, log = Loop(reads), list[int]()
    loop.with_pace(0.25)

    reads.run(reading(log, loop, segment), does_nothing)
    for _ in range(1000):
        loop.turn()
    assert (len(log), loop.pauses) == (1001, []), "nobody writes"

    log.clear()
    begun = loop.now
    while loop.now < begun + 1.0:
        loop.written += 1
        loop.turn(others=0.000_01)
    assert len(log) * 0.000_05 == pytest.approx(0.25, rel=0.05)
    assert min(loop.pauses) >= cold_reads.PAUSE_MIN_S
    assert max(loop.pauses) <= 2 * cold_reads.PAUSE_MIN_S

    log.clear()
    loop.now += cold_reads.QUIET_S
    loop.pauses.clear()
    for _ in range(1000):
        loop.turn()
    assert len(log) >= 1000, "the writer has gone"
    assert loop.pauses == []


def test_a_turn_in_which_the_process_stood_still_is_not_paid_back() -> None:
    written = 0
    pace = ReadPace(0.25, lambda: written, does_nothing)
    for turn in range(3):
        written += 1
        pace.took(turn * 2.0, turn * 2.0 + 1.5)
        assert 0 < pace.pause(turn * 2.0 + 1.5) <= cold_reads.DEBT_MAX_S / 0.25


def long(loop: Loop, segment: MappedSegment) -> ReadSteps[int]:
    yield [Piece(segment, 0, 1)]
    loop.now += 0.004
    return 1


def test_a_pause_holds_for_reads_that_come_in_it(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, done = Loop(reads), list[int]()
    loop.with_pace(0.1)

    loop.written += 1
    assert reads.run(long(loop, segment), done.append) == 1, "nobody stands in line: at once"
    assert (done, loop.soon, loop.pauses) == ([], [], [])
    begun = loop.now
    loop.written += 1
    reads.run(long(loop, segment), done.append)
    assert loop.now - begun == pytest.approx(0.004 / 0.1, abs=0.011)
    while loop.soon:
        loop.turn()
    assert done == [1]


def failing(segment: MappedSegment) -> ReadSteps[bytes]:
    yield [Piece(segment, 0, 1)]
    raise ValueError("a bug")


def test_a_read_that_fails_does_not_hold_up_the_others(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, done = Loop(reads), list[bytes]()

    reads.run(failing(segment), done.append)
    reads.run(two_steps(segment), done.append)
    failures = 0
    while loop.soon:
        try:
            loop.turn()
        except ValueError:
            failures += 1
    assert (failures, done) == (1, [WANTED])


def test_closing_between_turns_drops_what_is_ready(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, log = Loop(reads), list[int]()
    reads.run(loop.working(segment, log, 0), does_nothing)
    reads.close()
    loop.turn()
    assert (log, loop.soon, reads.waiting) == ([], [], 0)


def test_what_is_in_memory_is_read_at_once_unless_somebody_stands_in_line(
    reads: ColdReads, segment: MappedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(monkeypatch)
    loop, done, log = Loop(reads), list[object](), list[int]()
    loop.with_pace(0.25)
    assert reads.run(loop.working(segment, log, 1), done.append) is ReadState.PENDING, (
        "a turn is over"
    )
    assert reads.run(two_steps(segment), done.append) is ReadState.PENDING, "behind the first"
    assert (log, done, reads.waiting) == ([1], [], 2)
    while reads.waiting:
        loop.turn()
    assert done == [WANTED, 1]
    assert reads.run(two_steps(segment), done.append) == WANTED
