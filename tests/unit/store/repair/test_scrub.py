"""The scrub: damage and wrong units are found once each, whatever is read meanwhile, in slices, and
the log is left as it was."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import Directory, put
from tests.unit.store.segments import Plain, RealSegment, forget_all, replace

from turbopump.disk.disk import Found, Piece
from turbopump.disk.system_disk import SystemDisk
from turbopump.message.entry import CRC_SUFFIX_SIZE
from turbopump.message.java import tags_code
from turbopump.message.properties import SysFlag
from turbopump.store.log import stepped_walk
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import EXTENDED_TAGS_MAX, UNIT_SIZE
from turbopump.store.repair import scrub as scrub_module
from turbopump.store.repair.scrub import FIRST_REST_S, REST_S, Scrub

RATE = 1 << 20


@pytest.fixture(params=["in memory", "on the disk"])
def residence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where pages are: the scrub must come to the same either way."""
    where = str(request.param)
    if where == "on the disk":
        forget_all(monkeypatch)
    return where


def scrub_of(store: MessageStore, found: list[str]) -> Scrub:
    """It adds what it has to say to ``found``."""
    return Scrub(
        SystemDisk(),
        store.log,
        store.queues,
        lambda: store.durable.value,
        RATE,
        found.append,
        store.rebuild,
    )


def one_pass(store: MessageStore) -> tuple[Scrub, list[str]]:
    """A scrub of the whole store, and what it has found."""
    found: list[str] = []
    scrub, now = scrub_of(store, found), 0.0
    while not scrub.numbers.passes:
        now += scrub.step(now)
    return scrub, found


class Scrubbed:
    """A store of a few segments, and its scrub."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.directory = Directory(
            root, segment_size=4096, queue_file_size=UNIT_SIZE * 50, with_crc=True, **config
        )
        self.store = self.directory.open()
        self.placed = [
            put(self.store, b"%03d" % number * 40, queue_id=number % 2) for number in range(60)
        ]
        self.store.flusher.flush_all_now()
        self.found: list[str] = []
        self.scrub = self.make()
        self.now = 0.0

    def make(self) -> Scrub:
        return scrub_of(self.store, self.found)

    def passed(self) -> int:
        """Run one whole pass; how many steps it took."""
        passes, steps = self.scrub.numbers.passes, 0
        while self.scrub.numbers.passes == passes:
            self.now += self.scrub.step(self.now)
            steps += 1
        return steps

    def change(self, offset: int, data: bytes) -> None:
        file = self.store.log.files.at(offset)
        assert file is not None
        file.buffer[offset - file.start : offset - file.start + len(data)] = data

    def unit(self, queue_id: int, index: int, data: bytes) -> None:
        queue = self.store.queue("T", queue_id)
        assert queue is not None
        piece = queue.piece(index, 1)
        assert piece is not None
        piece.segment.buffer[piece.at : piece.at + len(data)] = data


@pytest.fixture
def scrubbed(tmp_path: Path, residence: str) -> Scrubbed:
    return Scrubbed(tmp_path)


def test_a_whole_log_is_read_to_its_end_and_nothing_is_found(scrubbed: Scrubbed) -> None:
    scrubbed.passed()
    numbers = scrubbed.scrub.numbers
    assert (numbers.bytes_checked, numbers.position) == (
        scrubbed.store.log.end,
        scrubbed.store.log.end,
    )
    assert (
        numbers.entries_checked,
        numbers.passes,
        numbers.damaged_ranges,
        numbers.wrong_units,
    ) == (60, 1, 0, 0)
    assert scrubbed.found == []


@pytest.mark.parametrize("byte", [0, 3, 4, 8, 20, 30, 60, 100, -CRC_SUFFIX_SIZE, -1])
@pytest.mark.parametrize("number", [0, 17, 59])
def test_a_damaged_entry_is_found_once_with_its_range_and_everything_else_is_still_checked(
    scrubbed: Scrubbed, byte: int, number: int
) -> None:
    start, end = scrubbed.placed[number].offset, scrubbed.placed[number].log_end
    at = start + byte if byte >= 0 else end + byte
    data = scrubbed.store.log.read(at, 1)
    assert data is not None
    scrubbed.change(at, bytes([data[0] ^ 16]))
    scrubbed.passed()
    scrubbed.passed()
    numbers = scrubbed.scrub.numbers
    assert (numbers.entries_checked, numbers.passes, numbers.damaged_ranges) == (118, 2, 1)
    (found,) = scrubbed.found
    assert f"bytes {start} to " in found
    assert "of the commit log damaged: " in found
    behind = scrubbed.placed[number + 1].offset if number < 59 else end
    same_segment = behind // 4096 == start // 4096
    assert numbers.damaged_bytes == (behind if same_segment else (start // 4096 + 1) * 4096) - start


def test_damage_up_to_the_end_of_a_segment_does_not_hide_the_next_one(scrubbed: Scrubbed) -> None:
    last = max(
        (placed for placed in scrubbed.placed if placed.log_end <= 4096),
        key=lambda placed: placed.offset,
    )
    scrubbed.change(last.log_end, b"\xff" * 8)  # the blank
    scrubbed.passed()
    assert scrubbed.scrub.numbers.entries_checked == 60
    assert scrubbed.scrub.numbers.damaged_bytes == 4096 - last.log_end


def test_a_log_without_crc_that_should_have_one_is_damage(tmp_path: Path) -> None:
    scrubbed = Scrubbed(tmp_path)
    scrubbed.change(scrubbed.placed[3].log_end - CRC_SUFFIX_SIZE, b"x")
    scrubbed.passed()
    assert ["its CRC (property __CRC32#) is missing" in text for text in scrubbed.found] == [True]


@pytest.mark.parametrize(
    ("unit", "what"),
    [
        ((0).to_bytes(8), "points to 0, "),
        ((1 << 40).to_bytes(8), f"points to {1 << 40}, "),
        ((1 << 63).to_bytes(8), f"points to {-(1 << 63)}, "),
        (bytes(20), "points to 0, 0 bytes"),
    ],
)
def test_a_unit_that_does_not_point_to_its_message_is_repaired(
    scrubbed: Scrubbed, unit: bytes, what: str
) -> None:
    queue = scrubbed.store.queue("T", 1)
    assert queue is not None
    whole = queue.units(0, 30)
    scrubbed.unit(1, 7, unit)
    scrubbed.passed()
    scrubbed.passed()
    (found,) = scrubbed.found
    assert f"the scrub repaired unit 7 of the consume queue of T queue 1: it {what}" in found
    assert found.endswith(f"; its message is at {scrubbed.placed[15].offset}")
    assert queue.units(0, 30) == whole
    assert scrubbed.scrub.numbers.wrong_units == 1
    assert scrubbed.scrub.numbers.damaged_ranges == 0


def test_a_tags_code_that_is_not_the_message_s_is_repaired(scrubbed: Scrubbed) -> None:
    put(scrubbed.store, b"tagged", tag="a")
    scrubbed.store.flusher.flush_all_now()
    queue = scrubbed.store.queue("T", 0)
    assert queue is not None
    whole = queue.units(0, 31)
    for index, tags in ((3, 77), (30, 0), (30, tags_code("b"))):
        right = queue.unit(index)
        assert right is not None
        queue.rewrite(index, *right[:2], tags)
        scrubbed.passed()
        assert queue.units(0, 31) == whole
    assert scrubbed.found == [
        f"the scrub repaired unit {index} of the consume queue of T queue 0: it has the tags "
        f"code {tags}, and its message has {right}"
        for index, tags, right in ((3, 77, 0), (30, 0, tags_code("a")))
    ], "told once, whatever else becomes of it"
    assert scrubbed.scrub.numbers.wrong_units == 3
    extended = queue.unit(5)
    assert extended is not None
    queue.rewrite(5, *extended[:2], EXTENDED_TAGS_MAX)
    scrubbed.passed()
    assert queue.unit(5) == (*extended[:2], EXTENDED_TAGS_MAX), (
        "Apache's way to say that more is known elsewhere"
    )


def test_a_topic_that_was_made_anew_has_no_wrong_units(scrubbed: Scrubbed) -> None:
    queue = scrubbed.store.queue("T", 0)
    assert queue is not None
    queue.remove()
    del scrubbed.store.queues._queues["T", 0]
    for number in range(5):
        put(scrubbed.store, b"new %d" % number)
    scrubbed.store.flusher.flush_all_now()
    scrubbed.passed()
    assert scrubbed.scrub.numbers.entries_checked == 65
    assert scrubbed.found == []


def test_what_has_no_unit_by_design_is_no_finding(scrubbed: Scrubbed) -> None:
    put(scrubbed.store, b"half", sys_flag=int(SysFlag.TRANSACTION_PREPARED))
    scrubbed.store.flusher.flush_all_now()
    scrubbed.passed()
    assert scrubbed.scrub.numbers.entries_checked == 61
    assert scrubbed.found == []


def test_it_goes_on_over_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrubbed = Scrubbed(tmp_path, index_entries=0)
    forget_all(monkeypatch)
    queue = scrubbed.store.queue("T", 1)
    assert queue is not None
    piece = queue.piece(0, 1)
    assert piece is not None
    bad = {scrubbed.store.log.files.files[1].segment, piece.segment}

    def read(plain: Plain, self: RealSegment, at: int, size: int) -> bytes:
        if self in bad:
            raise OSError(5, "Input/output error")
        return plain(self, at, size)

    replace(monkeypatch, "read_cold", read)
    scrubbed.passed()
    ranges = [text for text in scrubbed.found if "commit log damaged" in text]
    assert ranges == [
        "the scrub found bytes 4096 to 8192 of the commit log damaged: it cannot "
        "be read (Input/output error)"
    ]
    units = [text for text in scrubbed.found if "cannot be read" in text and "unit" in text]
    assert units, "of the queue as well"


def test_files_that_retention_takes_away_are_no_damage(
    scrubbed: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped_walk, "SLICE_ENTRIES", 3)
    log = scrubbed.store.log
    while not 4096 < scrubbed.scrub.numbers.position < 8192:
        scrubbed.now += scrubbed.scrub.step(scrubbed.now)
    log.files.forget_first()
    log.files.forget_first()
    scrubbed.passed()
    assert [text for text in scrubbed.found if "commit log damaged" in text] == []


def test_a_pass_is_made_once_a_day_in_slices_at_the_given_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped_walk, "SLICE_ENTRIES", 7)
    scrubbed = Scrubbed(tmp_path)
    assert scrubbed.scrub.step(0.0) == FIRST_REST_S, "a start has enough to do"
    assert scrubbed.scrub.numbers.bytes_checked == 0
    scrubbed.now = FIRST_REST_S
    steps = scrubbed.passed()
    assert steps >= 60 // 7
    assert scrubbed.now == pytest.approx(FIRST_REST_S + steps * stepped_walk.SLICE / RATE)
    checked = scrubbed.scrub.numbers.bytes_checked
    assert scrubbed.scrub.step(scrubbed.now) == 60.0
    assert scrubbed.scrub.step(FIRST_REST_S + REST_S - 5) == 5.0
    assert scrubbed.scrub.numbers.bytes_checked == checked
    scrubbed.scrub.step(FIRST_REST_S + REST_S)
    assert scrubbed.scrub.numbers.bytes_checked > checked


def test_what_is_not_flushed_yet_is_left_for_the_next_pass(scrubbed: Scrubbed) -> None:
    flushed = scrubbed.store.log.end
    put(scrubbed.store, b"later")
    scrubbed.passed()
    assert scrubbed.scrub.numbers.position == flushed
    assert scrubbed.scrub.numbers.entries_checked == 60


def test_what_was_not_in_memory_is_let_go_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrubbed = Scrubbed(tmp_path)
    gone: list[tuple[str, int]] = []
    replace(
        monkeypatch,
        "evict",
        lambda _plain, self, at, size: gone.append((self.path.parent.name, size)),
    )
    scrubbed.passed()
    assert gone == [], "it was in memory"
    forget_all(monkeypatch)
    scrubbed.passed()
    assert {name for name, _ in gone} == {"commitlog", "0", "1"}
    assert sum(size for name, size in gone if name == "commitlog") >= scrubbed.store.log.end - 4096


def test_findings_are_bounded(scrubbed: Scrubbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "REPORTED_MAX", 3)
    for placed in scrubbed.placed[::2]:
        scrubbed.change(placed.offset + 95, b"\0")
    scrubbed.passed()
    assert len(scrubbed.found) == scrubbed.scrub.numbers.damaged_ranges == 3


def served(store: MessageStore) -> int:
    return sum(store.get("T", queue, 0, 32).count for queue in (0, 1))


def test_the_log_is_left_as_it_was(scrubbed: Scrubbed) -> None:
    before = [file.segment.read(0, 4096) for file in scrubbed.store.log.files]
    scrubbed.passed()
    assert [file.segment.read(0, 4096) for file in scrubbed.store.log.files] == before
    assert served(scrubbed.store) > 0


def test_nothing_is_checked_while_a_thread_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_all(monkeypatch)
    held: list[Callable[[], None]] = []
    plain = SystemDisk.start_read

    def start_read(
        disk: SystemDisk, pieces: list[Piece], done: Callable[[list[Found]], None]
    ) -> None:
        held.append(partial(plain, disk, pieces, done))

    scrubbed = Scrubbed(tmp_path)
    monkeypatch.setattr(SystemDisk, "start_read", start_read)
    scrubbed.scrub.step(0.0)
    for second in range(5):
        scrubbed.scrub.step(FIRST_REST_S + second)
    assert len(held) == 1
    log = scrubbed.store.log
    log.files.forget_first()
    held.pop()()
    monkeypatch.setattr(SystemDisk, "start_read", plain)
    scrubbed.now = FIRST_REST_S + 10
    scrubbed.passed()
    assert scrubbed.found == [], "what is deleted is not judged"
    assert scrubbed.scrub.numbers.bytes_checked == log.end - log.start


def test_bytes_like_the_beginning_of_a_message_are_not_taken_for_one(scrubbed: Scrubbed) -> None:
    first, last = (placed for placed in scrubbed.placed[:1]), scrubbed.placed[10]
    start = next(first).offset
    scrubbed.change(start, b"\xda\xa3\x20\xa7" * 40)
    scrubbed.change(4096 - 3, b"\xda\xa3\x20")
    scrubbed.change(last.offset + 4, b"\0")
    scrubbed.passed()
    assert scrubbed.scrub.numbers.entries_checked == 58
    assert scrubbed.scrub.numbers.damaged_ranges == 2


def test_a_segment_without_a_good_message_is_searched_through_and_the_next_one_is_checked(
    tmp_path: Path, residence: str
) -> None:
    directory = Directory(
        tmp_path, segment_size=300_000, queue_file_size=UNIT_SIZE * 50, with_crc=True
    )
    store = directory.open()
    for _ in range(4):
        put(store, b"x" * 140_000)
    store.flusher.flush_all_now()
    file = store.log.files.files[0]
    file.buffer[:] = b"\xda\xa3\x20\xa7" * 75_000
    scrub, found = one_pass(store)
    assert (scrub.numbers.entries_checked, scrub.numbers.damaged_bytes) == (2, 300_000)
    (text,) = found
    assert text.startswith(
        "the scrub found bytes 0 to 300000 of the commit log damaged: totalSize "
    )


def test_a_bad_sector_costs_the_messages_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_all(monkeypatch)
    directory = Directory(
        tmp_path, segment_size=1 << 20, queue_file_size=UNIT_SIZE * 50, with_crc=True
    )
    store = directory.open()
    placed = [put(store, b"%d" % number * 10_000) for number in range(6)]
    store.flusher.flush_all_now()
    bad = placed[2].offset + 5000
    bad -= bad % 4096

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> bytes:
        if segment.path.parent.name == "commitlog" and at < bad + 4096 and bad < at + size:
            raise OSError(5, "Input/output error")
        return plain(segment, at, size)

    replace(monkeypatch, "read_cold", read)
    scrub, found = one_pass(store)
    assert scrub.numbers.entries_checked == 5
    (text,) = found
    assert text == (
        f"the scrub found bytes {placed[2].offset} to {placed[3].offset} of the commit log "
        "damaged: it cannot be read (Input/output error)"
    )


def test_many_queues_are_compared_with_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "_QUEUES_MAX", 2)
    directory = Directory(tmp_path, segment_size=1 << 20, queue_file_size=UNIT_SIZE * 50)
    store = directory.open()
    for number in range(40):
        put(store, b"x", f"T{number % 5}", number % 3)
    store.flusher.flush_all_now()
    scrub, found = one_pass(store)
    assert (scrub.numbers.entries_checked, found) == (40, [])
