"""`turbopump store` on a store of Apache's with a BatchCQ topic."""

from pathlib import Path

import pytest
from tests.unit.store.apache_batches import make_store
from tests.unit.store.directory import Directory
from tests.unit.store.inspected import verified

from turbopump.protocol import fastjson
from turbopump.store.files import StorePaths
from turbopump.store.inspection import (
    Findings,
    Selection,
    inspect_store,
    list_store,
    select_messages,
)
from turbopump.store.read_only_disk import ReadOnlyDisk

BATCHES = [[b"%d.%d" % (number, part) for part in range(number % 4 + 1)] for number in range(25)]
BODIES = [body for batch in BATCHES for body in batch]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(Directory(tmp_path, with_crc=True), BATCHES)
    return tmp_path


@pytest.mark.parametrize("lost", [None, "topics.json", "batch files"])
def test_messages_of_batches_are_no_damage_and_need_no_units(root: Path, lost: str | None) -> None:
    if lost == "topics.json":
        (root / "config" / "topics.json").unlink()
    elif lost is not None:
        for path in (root / "batchconsumequeue").rglob("0*"):
            if path.is_file():
                path.unlink()
    result = verified(root)
    assert (result.clean, result.findings.counts) == (True, {"no_index": 1})
    assert (result.queues, result.units, result.messages) == (1, 25, 25 + 26)


def test_a_batch_that_is_damaged_in_the_log_is_found(root: Path) -> None:
    path = min((root / "commitlog").iterdir())
    at = path.read_bytes().index(b"1.1")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"9")
    assert verified(root).findings.counts["log_damaged"] == 1


def test_a_summary_has_the_queues_that_are_served(root: Path) -> None:
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    queues = {
        queue.topic: (queue.min_index, queue.max_index, queue.files) for queue in summary.queues
    }
    assert queues == {"T": (0, 25, 3)}


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
