"""Reads that wait for their turn while retention takes their files away: they come to what is left,
and to no error."""

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import Directory, put
from tests.unit.store.indexed import ALWAYS
from tests.unit.store.indexed import put as put_keyed
from tests.unit.store.segments import forget_all

from turbopump.disk.disk import Found, Piece
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.read_result import GetResult, GetStatus
from turbopump.store.repair.scrub import Scrub

COUNT = 60
GONE = 40
"""Messages that retention takes."""


class Trimmed:
    """A reopened store of many small files; ``trim`` does what retention does."""

    def __init__(self, root: Path) -> None:
        config = {
            "segment_size": 1500,
            "queue_file_size": 200,
            "with_crc": True,
            "index_slots": 7,
            "index_entries": 20,
        }
        self.directory = Directory(root, **config)
        store = self.directory.open()
        for number in range(COUNT):
            self.directory.clock.now += 1000
            put_keyed(store, b"%02d" % number, f"key{number} every", f"ID{number}")
        store.close()
        self.store = self.directory.open()
        self.times = 1_700_000_000_000

    def trim(self) -> None:
        store = self.store
        queue = store.queue("T", 0)
        assert queue is not None
        first = queue.unit(GONE)
        assert first is not None
        while store.log.files.files[0].end <= first[0]:
            store.log.files.forget_first()
        queue.raise_min(store.log.start)
        for file in queue.files_before(store.log.start):
            queue.forget_first(file)
        assert store.index is not None
        for index in store.index.take_before(store.log.start):
            index.segment.close()


def read(piece: Piece) -> Found:
    try:
        return piece.segment.read_cold(piece.at, piece.size)
    except OSError as error:
        return error


def driven(
    steps: Generator[list[Piece] | None, list[Found], Any], at: int, then: Callable[[], None]
) -> tuple[Any, bool]:
    """What a read comes to if ``then`` is called before its step ``at``; and whether it came so
    far."""
    number = 0
    try:
        wanted = next(steps)
        while True:
            if number == at:
                then()
            number += 1
            wanted = steps.send([read(piece) for piece in wanted or ()])
    except StopIteration as over:
        return over.value, number > at


def questions(
    store: MessageStore, times: int
) -> dict[str, Callable[[], Generator[list[Piece] | None, list[Found], Any]]]:
    lookup = store.lookup
    first, fifth = store.queues.find("T", 0), 5
    assert first is not None
    unit = first.unit(fifth)
    assert unit is not None
    return {
        "by offset": partial(lookup.entry_at, unit[0]),
        "by queue offset": partial(lookup.entry_in_queue, "T", 0, fifth),
        "by key": lambda: lookup.by_key("T", "key5", *ALWAYS),
        "by many keys": lambda: lookup.by_key("T", "every", *ALWAYS),
        "place in time": partial(lookup.offset_in_time, "T", 0, times + fifth * 1000),
        "earliest": partial(lookup.earliest_time, "T", 0),
    }


KINDS = ["by offset", "by queue offset", "by key", "by many keys", "place in time", "earliest"]


@pytest.mark.parametrize("what", KINDS)
def test_a_question_is_answered_from_what_is_left(tmp_path: Path, what: str) -> None:
    came, at = True, 0
    while came and at < 20:
        trimmed = Trimmed(tmp_path / str(at))
        found, came = driven(questions(trimmed.store, trimmed.times)[what](), at, trimmed.trim)
        at += 1
        if what in ("by offset", "by queue offset"):
            assert found is None or found.fault is None
        elif what.startswith("by"):
            assert (found.damaged, found.errors) == ([], [])
        else:
            assert isinstance(found, int)
        assert trimmed.directory.failures == []
    assert at > 2


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("offset", [3, GONE - 2])
def test_a_pull_is_sent_on_to_the_first_message_there_is(
    tmp_path: Path, offset: int, at: int
) -> None:
    trimmed = Trimmed(tmp_path)
    result: GetResult
    result, came = driven(trimmed.store.reader.steps("T", 0, offset, 32), at, trimmed.trim)
    assert came or at > 1
    assert result.unreadable is None
    assert result.damages == ()
    assert result.status in (
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.FOUND,
    )
    assert result.next_offset > offset
    assert trimmed.directory.failures == []


class TrimmingDisk(SystemDisk):
    """Calls a function before its read number ``at``."""

    def __init__(self, at: int, then: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._then = at, then

    def start_read(self, pieces: Any, done: Any) -> None:
        self._at -= 1
        if self._at == 0:
            self._then()
        super().start_read(pieces, done)


@pytest.mark.parametrize("at", range(1, 60, 4))
def test_the_scrub_finds_nothing_wrong_with_what_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    forget_all(monkeypatch)
    trimmed = Trimmed(tmp_path)
    store, found = trimmed.store, list[str]()
    disk, end = TrimmingDisk(at, trimmed.trim), store.log.end
    scrub = Scrub(
        disk,
        store.log,
        store.queues,
        lambda: end,
        1 << 20,
        found.append,
        store.rebuild,
        store.index,
    )
    now = 0.0
    while not scrub.numbers.passes:
        now += scrub.step(now)
    assert (found, trimmed.directory.failures) == ([], [])
    put(store, b"after")
    store.close()
