"""Units that a queue's files no longer have, or that are zeros, under the running store: whichever
way a queue is read, the reader gets the messages or is told to ask again. Its offset never passes a
message that it did not get: a unit of zeros is damage, never a gap and never a message that does
not match."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.fuzzing import crossed, some
from tests.stand_ins import does_nothing, returns
from tests.unit.store.directory import Directory, TestClock, put
from tests.unit.store.segments import Plain, RealSegment, replace

from turbopump.compiled import IS_COMPILED
from turbopump.disk.maps import outlive_lost_pages
from turbopump.errors import StoreError
from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.store.log.cold_reads import ReadPace, ReadSteps, finish_now
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.matching import PropertyText
from turbopump.store.queues.read_result import GetResult, ReadLimits

MESSAGES = 480
"""In one queue: 9,600 bytes of units, on three pages."""
PAGE = 4096
WANTED = tags_code("wanted")
START_MS = 1_700_000_000_000


def is_wanted(number: int) -> bool:
    return number % 3 != 1


def fill(store: MessageStore, clock: TestClock, first: int, end: int) -> None:
    for number in range(first, end):
        clock.now = START_MS + number
        put(store, b"%d" % number, tag="wanted" if is_wanted(number) else "other")


# --- how the store came to its messages


def began_empty(directory: Directory) -> MessageStore:
    store = directory.open()
    fill(store, directory.clock, 0, MESSAGES)
    return store


def killed(directory: Directory) -> MessageStore:
    store = began_empty(directory)
    store.flusher.flush_log()
    twin = directory.copy(directory.paths.root.with_name("killed"))
    store.close()
    directory.config = twin.config
    return directory.open()


def recovered_and_went_on(directory: Directory) -> MessageStore:
    store = directory.open()
    fill(store, directory.clock, 0, MESSAGES // 2)
    store.close()
    store = directory.open()
    fill(store, directory.clock, MESSAGES // 2, MESSAGES)
    return store


BEGINNINGS = (
    (began_empty, True),
    (began_empty, False),
    (killed, True),
    (recovered_and_went_on, True),
)
"""And whether its newest units are in memory."""

# --- what happens to the queue's file

Lose = Callable[[Path, pytest.MonkeyPatch], None]


def cut_to(size: int) -> Lose:
    return lambda path, _patched: os.truncate(path, size)


def remove(path: Path, _patched: pytest.MonkeyPatch) -> None:
    path.unlink()


def write(begin: int, end: int, path: Path, _patched: pytest.MonkeyPatch) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def zeros(begin: int, end: int) -> Lose:
    return partial(write, begin, end)


def touches(bad: Any, path: Path, segment: RealSegment, at: int, size: int) -> bool:
    return segment.path == path and at < bad.stop and at + size > bad.start


def unreadable_page(path: Path, patched: pytest.MonkeyPatch) -> None:
    """The disk does not give the second page. In a map it is zeros (``hot/sigbus.pxi``)."""
    bad = range(PAGE, 2 * PAGE)

    def read_cold(plain: Plain, segment: RealSegment, at: int, size: int) -> Any:
        if touches(bad, path, segment, at, size):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(segment, at, size)

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> Any:
        data = plain(segment, at, size)  # which is ``read_cold`` where there is no map
        if not touches(bad, path, segment, at, size):
            return data
        kept = bytearray(data)
        lost = range(max(bad.start - at, 0), min(bad.stop - at, size))
        kept[lost.start : lost.stop] = bytes(len(lost))
        return bytes(kept)

    def read_cached_into(plain: Plain, segment: RealSegment, buffer: Any, at: int) -> Any:
        return not touches(bad, path, segment, at, len(buffer)) and plain(segment, buffer, at)

    replace(patched, "read_cold", read_cold)
    replace(patched, "read", read)
    replace(patched, "read_cached_into", read_cached_into)


LOSSES: dict[str, Lose] = {
    "the file is cut to nothing": cut_to(0),
    "the file is cut at a page": cut_to(PAGE),
    "the file is cut within a page": cut_to(PAGE + 1000),
    "the file is removed": remove,
    "the file is zeros": zeros(0, 2 * PAGE + 1408),
    "a page is zeros": zeros(PAGE, 2 * PAGE),
    "a sector of the first page is zeros": zeros(512, 1024),
    "the last page is zeros": zeros(2 * PAGE, 2 * PAGE + 1408),
    "the disk does not give a page": unreadable_page,
}

# --- ways to read, and what they want

Way = Callable[[MessageStore, int], GetResult]


def pulled(store: MessageStore, offset: int) -> GetResult:
    """As a pull: at once, else in steps."""
    found = store.reader.at_once("T", 0, offset, 32)
    return found if found is not None else store.get("T", 0, offset, 32)


def in_steps(store: MessageStore, offset: int) -> GetResult:
    return store.get("T", 0, offset, 32)


def pulled_by_spark(store: MessageStore, offset: int) -> GetResult:
    """Many messages in one read."""
    found = store.reader.at_once("T", 0, offset, 4096, 1 << 20)
    if found is not None:
        return found
    steps = store.reader.steps("T", 0, offset, 4096, size_max=1 << 20)
    return store.cold_reads.finish(steps)


def filtered_by_tags(store: MessageStore, offset: int) -> GetResult:
    return store.get("T", 0, offset, 32, lambda tags: tags == WANTED)


def matches(properties: PropertyText) -> bool:
    return properties.get("TAGS") == "wanted"


def filtered_by_sql(store: MessageStore, offset: int) -> GetResult:
    return store.cold_reads.finish(store.reader.steps("T", 0, offset, 32, None, matches))


def filtered_by_both(store: MessageStore, offset: int) -> GetResult:
    steps = store.reader.steps("T", 0, offset, 32, lambda tags: tags == WANTED, returns(True))
    return store.cold_reads.finish(steps)


PLAIN_WAYS = (pulled, in_steps, pulled_by_spark)
WAYS: tuple[Way, ...] = (*PLAIN_WAYS, filtered_by_tags, filtered_by_sql, filtered_by_both)


def numbers_in(result: GetResult) -> list[int]:
    return [int(entry.body) for entry in decode_entries(result.data)]


@pytest.fixture
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        yield patched


def damaged_store(
    tmp_path: Path,
    begin: Callable[[Directory], MessageStore],
    loss: str,
    patched: pytest.MonkeyPatch,
    limits: ReadLimits | None = None,
) -> MessageStore:
    if "cut" in loss and not (IS_COMPILED and outlive_lost_pages()):
        pytest.skip("a page that is gone ends a process of plain Python")
    directory = Directory(
        tmp_path / "store",
        with_crc=True,
        segment_size=1 << 20,
        queue_file_size=20_000,
        limits=limits or ReadLimits(),
    )
    store = begin(directory)
    # everything that is in memory is seen at once, as in a broker that has nothing else to do
    store.cold_reads.take_turns(
        lambda call: call(), returns(0.0), ReadPace(1.0, returns(0), does_nothing)
    )
    LOSSES[loss](directory.paths.consume_queues / "T" / "0" / f"{0:020}", patched)
    return store


@pytest.mark.parametrize(
    ("loss", "way", "begin", "hot"),
    [(*case, *beginning) for case, beginning in crossed(product(LOSSES, WAYS), list(BEGINNINGS))],
)
def test_no_reader_passes_a_message_that_it_did_not_get(
    tmp_path: Path,
    patched: pytest.MonkeyPatch,
    loss: str,
    way: Way,
    begin: Callable[[Directory], MessageStore],
    hot: bool,
) -> None:
    limits = ReadLimits() if hot else ReadLimits(hot_size=0)
    store = damaged_store(tmp_path, begin, loss, patched, limits)
    wanted = [number for number in range(MESSAGES) if way in PLAIN_WAYS or is_wanted(number)]
    given: list[int] = []
    offset = 0
    while offset < MESSAGES:
        result = way(store, offset)
        assert not result.gaps
        assert not result.damages
        # what a damaged unit says of tags is not known: the client looks at them, too
        given += [number for number in numbers_in(result) if number in wanted]
        assert given == [number for number in wanted if number < result.next_offset]
        assert result.max_offset == MESSAGES
        if result.next_offset == offset:
            break
        offset = result.next_offset
    if offset < MESSAGES:
        assert result.unreadable is not None, "the client is told why, and asks again"
        assert "zeros" not in loss, "the log has every message"
    store.close()


@pytest.mark.parametrize("first", [0, 204, 205, 206, 300, 409, 410])
@pytest.mark.parametrize("before", [pulled, in_steps, filtered_by_sql])
@pytest.mark.parametrize("loss", [one for one in LOSSES if "zeros" in one])
def test_units_that_one_reader_had_repaired_hide_no_message_from_the_next(
    tmp_path: Path, patched: pytest.MonkeyPatch, loss: str, before: Way, first: int
) -> None:
    store = damaged_store(tmp_path, began_empty, loss, patched)
    before(store, first)
    given: list[int] = []
    offset = 0
    while offset < MESSAGES:
        result = filtered_by_tags(store, offset)
        given += numbers_in(result)
        assert result.next_offset > offset
        offset = result.next_offset
    missed = {number for number in range(MESSAGES) if is_wanted(number)}
    assert missed <= set(given), missed - set(given)
    store.close()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("begin", [began_empty, killed])
def test_a_question_gets_the_right_answer_or_an_error(
    tmp_path: Path,
    patched: pytest.MonkeyPatch,
    begin: Callable[[Directory], MessageStore],
    loss: str,
) -> None:
    store = damaged_store(tmp_path, begin, loss, patched)
    errors = 0

    def ask(question: ReadSteps[Any]) -> Any:
        nonlocal errors
        try:
            return finish_now(question)
        except (StoreError, OSError):
            errors += 1
            return None

    lookup = store.lookup
    assert ask(lookup.earliest_time("T", 0)) in (START_MS, None)
    newest = START_MS + MESSAGES - 1
    assert ask(lookup.newest_time("T", 0)) in (newest, None)
    for number in some(range(0, MESSAGES, 2)):
        asked = START_MS + number
        assert ask(lookup.offset_in_time("T", 0, asked)) in (number, None)
        assert ask(lookup.offset_in_time("T", 0, asked, upper=True)) in (number, None)
        entry = ask(lookup.entry_in_queue("T", 0, number))
        if entry is not None and entry.fault is None:
            assert entry.message.queue_offset == number
        elif entry is not None:
            errors += 1
    assert not errors or "zeros" not in loss, "the log has every message"
    store.close()
