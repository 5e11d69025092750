"""Random changes of a table, with repeats and changed keys, against the table itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.spark.canal_messages import canal
from tests.spark.changing_database import ChangingDatabase
from tests.spark.parsed_changes import Sent, changes_in

from turbopump.spark.changes.canal import CanalFormat
from turbopump.spark.changes.folding import newest_changes

TOLERANCE = CanalFormat.tolerance
HOUR = 3_600_000


def together(streams: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(streams, promote_options="default")


def newest(*sent: Sent) -> dict[int, Any]:
    """The names of the rows that exist after these messages, by id."""
    found = newest_changes(together(changes_in(sent)), ["id"], TOLERANCE)
    return {row["id"]: row["name"] for row in found.to_pylist() if not row["_deleted"]}


def insert(key: int, name: str, es: int, **more: Any) -> bytes:
    return canal("INSERT", {"id": str(key), "name": name, "amount": None}, es=es, **more)


def update(key: int, name: str, es: int, old: dict[str, str] | None = None, **more: Any) -> bytes:
    row = {"id": str(key), "name": name, "amount": None}
    return canal("UPDATE", row, old=[old or {}], es=es, **more)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("changes", [5, 30, 200])
def test_random_changes_end_in_the_rows_of_the_database(changes: int, ties: bool) -> None:
    for seed in range(8):
        database = ChangingDatabase(seed, changes, ties=ties)
        sent = [
            (queue, offset, body)
            for queue, bodies in enumerate(database.by_queue())
            for offset, body in enumerate(bodies)
        ]
        expected = {int(key): row["name"] for key, row in database.rows.items()}
        assert newest(*sent) == expected, f"seed {seed}"


def test_in_one_queue_the_later_message_wins_even_if_its_time_is_a_little_earlier() -> None:
    assert newest((0, 0, insert(1, "a", 60_000)), (0, 1, update(1, "b", 10_000))) == {1: "b"}


def test_a_message_that_is_sent_again_hours_later_loses() -> None:
    late = update(1, "old", 1000, ts=2 * HOUR)
    assert newest((0, 0, insert(1, "a", 2 * HOUR)), (0, 1, late)) == {1: "a"}


def test_between_queues_the_time_decides() -> None:
    assert newest((1, 0, insert(1, "a", 2000)), (0, 9, update(1, "b", 1000))) == {1: "a"}


def test_a_changed_key_removes_the_row_of_another_queue() -> None:
    moved = update(2, "a", 2000, {"id": "1"})
    assert newest((1, 0, insert(1, "a", 1000)), (0, 0, moved)) == {2: "a"}
    again = insert(1, "c", 3000)
    assert newest((1, 0, insert(1, "a", 1000)), (0, 0, moved), (1, 1, again)) == {1: "c", 2: "a"}


def test_keys_that_are_swapped_in_one_transaction_keep_their_rows() -> None:
    at: dict[str, Any] = {"es": 1000, "ts": 1001}
    sent = (
        (1, 0, insert(1, "a", 0)),
        (2, 0, insert(2, "b", 0)),
        (0, 0, canal("UPDATE", {"id": "9", "name": "a"}, old=[{"id": "1"}], **at)),
        (1, 1, canal("UPDATE", {"id": "1", "name": "b"}, old=[{"id": "2"}], **at)),
        (2, 1, canal("UPDATE", {"id": "2", "name": "a"}, old=[{"id": "9"}], **at)),
    )
    assert newest(*sent) == {1: "b", 2: "a"}


def test_a_change_counts_if_it_is_newer_than_the_known_one() -> None:
    delete = [(0, 5, canal("DELETE", {"id": "1", "name": "a"}, es=5000))]
    known = newest_changes(changes_in(delete)[0], ["id"], TOLERANCE)

    def left(*sent: Sent) -> int:
        return len(newest_changes(changes_in(sent)[0], ["id"], TOLERANCE, known).to_pylist())

    assert left((0, 4, update(1, "x", 5000))) == 0
    assert left((0, 5, update(1, "x", 5000))) == 0
    assert left((0, 6, update(1, "x", 4000))) == 1
    assert left((1, 9, update(1, "x", 4000))) == 0
    assert left((1, 9, update(1, "x", 6000))) == 1
    assert left((1, 9, update(2, "x", 4000))) == 1
