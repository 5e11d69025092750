"""State tables in Delta, without Spark: batches of random changes against the source table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.spark.canal_messages import canal
from tests.spark.changing_database import ChangingDatabase
from tests.spark.parsed_changes import Sent, changes_in

from turbopump.errors import LakeError
from turbopump.message.message import MessageQueue
from turbopump.spark.changes.canal import CanalFormat
from turbopump.spark.pipelines.change_writing import SourceTable
from turbopump.spark.pipelines.lake import ArchivedRange, ArchivedRanges
from turbopump.spark.pipelines.state_table import StateTable

NOW = datetime(2026, 11, 29, tzinfo=UTC)
ORDERS = SourceTable("shop", "orders", ("id",))


def opened(root: Path, source: SourceTable = ORDERS, **options: bool) -> StateTable:
    given = {"soft_deletes": False, "history": False, **options}
    return StateTable(root, "shop/orders", source, tolerance=CanalFormat.tolerance, **given)


def names(root: Path) -> dict[int, str]:
    rows = DeltaTable(root / "shop/orders").to_pyarrow_table().to_pylist()
    found = {row["id"]: row["name"] for row in rows if not row.get("_deleted")}
    assert len(found) == len([row for row in rows if not row.get("_deleted")])
    return found


def ends(*offsets: int) -> ArchivedRanges:
    return {
        MessageQueue("T", "b", queue): ArchivedRange(0, offset)
        for queue, offset in enumerate(offsets)
    }


def random_batches(database: ChangingDatabase, random: Random) -> Iterator[tuple[list[Sent], Any]]:
    """Batches of messages, and the end of each; queues get ahead of each other by chance."""
    queues = database.by_queue()
    at = [0] * len(queues)
    while any(begin < len(bodies) for begin, bodies in zip(at, queues, strict=True)):
        before = list(at)
        for queue, bodies in enumerate(queues):
            at[queue] = min(len(bodies), at[queue] + random.randrange(80))
        yield (
            [
                (queue, offset, queues[queue][offset])
                for queue in range(len(queues))
                for offset in range(before[queue], at[queue])
            ],
            ends(*at),
        )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("soft_deletes", [False, True])
def test_batches_of_random_changes_end_in_the_rows_of_the_database(
    tmp_path: Path, seed: int, soft_deletes: bool
) -> None:
    database = ChangingDatabase(seed, 200, ties=False)
    random = Random(seed)
    table = opened(tmp_path, soft_deletes=soft_deletes)
    for sent, ranges in random_batches(database, random):
        if not sent:
            continue
        table.apply(changes_in(sent), ranges, NOW)
        if random.random() < 0.2:  # a repeat of the whole batch, as if the ends were lost
            table.state.ranges = table.deleted.ranges = {}
            table.apply(changes_in(sent), ranges, NOW)
        if random.random() < 0.2:
            table = opened(tmp_path, soft_deletes=soft_deletes)
        if random.random() < 0.1:
            table.tidy(NOW)
    assert names(tmp_path) == {int(key): row["name"] for key, row in database.rows.items()}


def test_columns_come_with_the_rows_and_types_get_wider(tmp_path: Path) -> None:
    table = opened(tmp_path)
    types = {"id": "int", "n": "int", "t": "date"}
    first = canal("INSERT", {"id": "1", "n": "1", "t": "2020-01-01"}, types=types)
    table.apply(changes_in([(0, 0, first)]), ends(1), NOW)
    wider = {"id": "bigint", "n": "bigint unsigned", "t": "varchar(9)", "more": "datetime"}
    row = {"id": "2", "n": "18446744073709551615", "t": "x", "more": "2020-01-02 03:04:05"}
    table.apply(changes_in([(0, 1, canal("INSERT", row, types=wider))]), ends(2), NOW)
    delete = canal("DELETE", {"id": "1", "n": "1", "t": "2020-01-01"}, types=types)
    table.apply(changes_in([(0, 2, delete)]), ends(3), NOW)
    found = DeltaTable(tmp_path / "shop/orders").to_pyarrow_table()
    assert [str(found.schema.field(name).type) for name in ("id", "n", "t", "more")] == [
        "int64",
        "decimal128(20, 0)",
        "string",
        "timestamp[us]",
    ]
    assert [(row["id"], int(row["n"]), row["t"]) for row in found.to_pylist()] == [
        (2, 18446744073709551615, "x")
    ]


def test_a_text_is_a_key_and_a_batch_without_new_columns_is_one_commit(tmp_path: Path) -> None:
    source = SourceTable("shop", "orders", ("name",))
    table = opened(tmp_path, source)
    for offset in range(3):
        rows = [{"id": str(offset), "name": "é"}, {"id": str(offset + 10), "name": "a"}]
        body = canal("INSERT", *rows, keys=("name",), es=1000 * offset + 1000)
        table.apply(changes_in([(0, offset, body)]), ends(offset + 1), NOW)
        table = opened(tmp_path, source)
    assert table.state.version == 3  # the creation, and three batches
    assert names(tmp_path) == {2: "é", 12: "a"}


def test_a_key_of_several_columns_of_any_type(tmp_path: Path) -> None:
    types = {"a": "decimal(9,2)", "b": "varbinary(9)", "c": "timestamp", "v": "varchar(9)"}
    source = SourceTable("shop", "orders", ("a", "b", "c"))
    table = opened(tmp_path, source)

    def sent(kind: str, *rows: tuple[str, str]) -> list[Sent]:
        texts = [{"a": "1.50", "b": b, "c": "2020-01-02 03:04:05", "v": value} for b, value in rows]
        return [(0, table.state.version, canal(kind, *texts, types=types, keys=source.keys))]

    table.apply(changes_in(sent("INSERT", ("\xff", "x"), ("y", "y"))), ends(1), NOW)
    table.apply(changes_in(sent("UPDATE", ("\xff", "z"))), ends(2), NOW)
    table.apply(changes_in(sent("DELETE", ("y", "y"))), ends(3), NOW)
    rows = DeltaTable(tmp_path / "shop/orders").to_pyarrow_table().to_pylist()
    assert [(row["b"], row["v"]) for row in rows] == [(b"\xff", "z")]


def test_another_key_or_another_spelling_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).apply(
        changes_in([(0, 0, canal("INSERT", {"id": "1", "name": "a"}))]), ends(1), NOW
    )
    with pytest.raises(LakeError, match="has the key id, but its messages now have id, name"):
        opened(tmp_path, SourceTable("shop", "orders", ("id", "name")))
    spelled = canal("INSERT", {"id": "1", "NAME": "a"}, types={"id": "int", "NAME": "text"})
    with pytest.raises(LakeError, match="has the column name, but its messages now call it NAME"):
        opened(tmp_path).apply(changes_in([(0, 1, spelled)]), ends(2), NOW)


def test_deletes_are_forgotten_after_a_day(tmp_path: Path) -> None:
    table = opened(tmp_path)
    row = {"id": "1", "name": "a"}
    table.apply(changes_in([(0, 0, canal("INSERT", row))]), ends(1), NOW)
    table.apply(changes_in([(0, 1, canal("DELETE", row, es=9000))]), ends(2), NOW)
    deleted = tmp_path / "_deleted/shop/orders"
    table.tidy(NOW + timedelta(hours=23))
    assert DeltaTable(deleted).to_pyarrow_table().num_rows == 1
    late = changes_in([(1, 0, canal("INSERT", row, es=8000))])
    table.apply(late, ends(2, 1), NOW)
    assert names(tmp_path) == {}
    table.tidy(NOW + timedelta(hours=25))
    assert DeltaTable(deleted).to_pyarrow_table().num_rows == 0


def test_a_batch_that_the_table_has_is_left_alone(tmp_path: Path) -> None:
    sent = [(0, 0, canal("INSERT", {"id": "1", "name": "a"}))]
    opened(tmp_path, history=True).apply(changes_in(sent), ends(1), NOW)
    again = opened(tmp_path, history=True)
    again.apply(changes_in(sent), ends(1), NOW)
    assert DeltaTable(tmp_path / "shop/orders").version() == 1
    history = DeltaTable(tmp_path / "_history/shop/orders").to_pyarrow_table()
    assert [(row["name"], row["_deleted"]) for row in history.to_pylist()] == [("a", False)]
