"""`turbopump store` and the scrub on queues of topics with ``queue.type=BatchCQ``."""

from pathlib import Path

import pytest
from tests.unit.store.batches import BatchDirectory, put_inner, queue_of
from tests.unit.store.directory import put
from tests.unit.store.inspected import verified

from turbopump.protocol import fastjson
from turbopump.store.disk import SystemDisk
from turbopump.store.files import StorePaths
from turbopump.store.inspection import (
    Findings,
    Selection,
    inspect_store,
    list_store,
    select_messages,
)
from turbopump.store.queues.batch_consume_queue import BATCH_UNIT_SIZE
from turbopump.store.read_only_disk import ReadOnlyDisk
from turbopump.store.repair.scrub import FIRST_REST_S, Scrub

BATCHES = [[b"%d.%d" % (number, part) for part in range(number % 4 + 1)] for number in range(25)]
BODIES = [body for batch in BATCHES for body in batch]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = BatchDirectory(tmp_path, with_crc=True)
    store = directory.open()
    for number, batch in enumerate(BATCHES):
        put_inner(store, batch)
        if number % 5 == 0:
            put(store, b"plain", "T")
    put(store, b"alone", "B")
    store.close()
    return tmp_path


def queue_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "batchconsumequeue" / "B" / "0").iterdir())[number]


def damage(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_good_store_is_found_good_and_its_units_counted(root: Path) -> None:
    result = verified(root)
    assert (result.clean, result.findings.counts) == (True, {"no_index": 1})
    assert (result.queues, result.units, result.messages) == (2, 26 + 5, 26 + 5)


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (3 * BATCH_UNIT_SIZE + 7, b"\xff", "unit_wrong"),
        (3 * BATCH_UNIT_SIZE + 19, b"\x01", "unit_wrong"),
        (3 * BATCH_UNIT_SIZE + 37, b"\x09", "unit_wrong"),
        (3 * BATCH_UNIT_SIZE, bytes(BATCH_UNIT_SIZE), "unit_missing"),
        (3 * BATCH_UNIT_SIZE + 35, b"\x77", "unit_missing"),
    ],
)
def test_a_damaged_unit_is_found(root: Path, at: int, data: bytes, kind: str) -> None:
    damage(queue_file(root), at, data)
    result = verified(root)
    assert not result.clean
    assert result.findings.counts[kind] >= 1


def test_a_summary_shows_the_offsets_that_clients_see(root: Path) -> None:
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    queues = {
        queue.topic: (queue.min_index, queue.max_index, queue.files) for queue in summary.queues
    }
    assert queues == {"B": (0, len(BODIES) + 1, 3), "T": (0, 5, 1)}


def test_a_dump_has_the_messages_of_batches_one_by_one(root: Path) -> None:
    disk = ReadOnlyDisk()
    store = list_store(disk, StorePaths(root), Findings())
    dumped = list(
        select_messages(disk, store, Selection("B", 0, 17), lambda bad: pytest.fail(str(bad)))
    )
    assert [(one.queue_offset, one.body) for one in dumped] == [
        *list(enumerate(BODIES))[17:],
        (len(BODIES), b"alone"),
    ]


@pytest.mark.parametrize("where", ["offset", "base", "sector"])
def test_the_scrub_repairs_units(tmp_path: Path, root: Path, where: str) -> None:
    directory = BatchDirectory(tmp_path, with_crc=True)
    store = directory.open()
    queue = queue_of(store)
    units = [queue.unit_at(number) for number in range(queue.next_number)]
    at, size = {
        "offset": (5 * BATCH_UNIT_SIZE, 8),
        "base": (5 * BATCH_UNIT_SIZE + 28, 8),
        "sector": (100, 250),
    }[where]
    piece = queue.numbered_piece(0, 1)
    assert piece is not None
    found: list[str] = []
    scrub = Scrub(
        SystemDisk(),
        store.log,
        store.queues,
        lambda: store.log.end,
        1 << 20,
        found.append,
        store.unit_repair,
    )
    now = scrub.step(0.0) + FIRST_REST_S
    piece.segment.buffer[at : at + size] = b"\x66" * size
    while not scrub.numbers.passes:
        now += scrub.step(now)
    assert [queue.unit_at(number) for number in range(queue.next_number)] == units
    assert found
    assert scrub.numbers.wrong_units >= 1
    store.close()
