"""Database changes in a topic become the state of Delta tables: with Spark, against a broker of
lists."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.spark.canal_messages import canal, statement
from tests.spark.changing_database import ChangingDatabase
from tests.spark.fake_cluster import FakeCluster, FakeQueue
from tests.spark.in_process import InProcess

from turbopump.cli import main
from turbopump.errors import ConfigError, LakeError
from turbopump.spark import archive as lakes
from turbopump.spark.pipelines import CdcReport, archive, cdc, running

Cdc = Callable[..., CdcReport]
Send = Callable[..., None]
HIDDEN = ["_position", "_queue", "_offset"]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 3}, pull_max=256) as fake:
        yield fake


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def run(cluster: FakeCluster, lake: Path) -> Cdc:
    """Apply the changes in T, in this process."""
    given: dict[str, Any] = {"name_server": cluster.address, "spark": InProcess()}
    return partial(cdc, lake, "T", format="canal-json", **given)


@pytest.fixture
def send(cluster: FakeCluster) -> Send:
    def put(*bodies: bytes, queue_id: int = 0) -> None:
        for body in bodies:
            cluster.queues["T", queue_id].put(body, topic="T", queue_id=queue_id)

    return put


def state(lake: Path, table: str = "shop/orders") -> list[dict[str, Any]]:
    rows = DeltaTable(lake / table).to_pyarrow_table().drop_columns(HIDDEN).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def rejected(lake: Path) -> list[str]:
    rows = lakes.dataset(lake, "_rejected").to_table(columns=["reason"]).to_pylist()
    return sorted(row["reason"] for row in rows)


def order(number: int, name: str = "a") -> dict[str, str]:
    return {"id": str(number), "name": name, "amount": "1.50"}


def test_changes_become_the_current_state_of_a_table_for_each_source_table(
    send: Send, run: Cdc, lake: Path
) -> None:
    send(
        canal("INSERT", order(1), order(2)),
        canal("UPDATE", order(1, "b"), old=[{"name": "a"}]),
        canal("DELETE", order(2)),
        canal("INSERT", order(9), table="crm._people"),
        b"no change",
        statement("ALTER TABLE shop.orders ADD COLUMN more int"),
        statement("DROP TABLE shop.orders", "ERASE"),
    )
    first = run()
    assert (first.messages, first.changed_messages, first.changes) == (7, 4, 5)
    assert (first.inserted, first.updated, first.deleted, first.tables) == (2, 0, 0, 2)
    assert (first.skipped, first.rejected, first.agrees, first.ok) == (1, 1, True, True)
    assert first.statements == ("ddl shop.orders: DROP TABLE shop.orders",)
    assert [(row["id"], row["name"]) for row in state(lake)] == [(1, "b")]
    assert len(state(lake, "crm/~5Fpeople")) == 1
    assert [reason[:10] for reason in rejected(lake)] == ["ddl shop.o", "not_change"]
    moved = {**order(3, "b"), "more": "7"}
    types = {"id": "bigint", "name": "text", "amount": "decimal(10,2)", "more": "int"}
    send(canal("UPDATE", moved, old=[{"id": "1"}], types=types), queue_id=1)
    second = run()
    assert (second.inserted, second.deleted) == (1, 1)
    assert [(row["id"], row["more"]) for row in state(lake)] == [(3, 7)]
    nothing = run()
    assert (nothing.messages, nothing.batches, nothing.ok) == (0, 0, True)
    with pytest.raises(LakeError, match="one Delta table for each source table"):
        lakes.dataset(lake)


def test_random_changes_end_in_the_rows_of_the_database(send: Send, run: Cdc, lake: Path) -> None:
    database = ChangingDatabase(1, 400, ties=False)
    for queue_id, bodies in enumerate(database.by_queue()):
        send(*bodies, queue_id=queue_id)
    report = run(rows_per_batch=len(database.messages) // 3 + 1)
    assert (report.messages, report.batches, report.agrees) == (len(database.messages), 3, True)
    found = {str(row["id"]): row["name"] for row in state(lake)}
    assert found == {key: row["name"] for key, row in database.rows.items()}


def test_a_run_that_died_at_a_step_is_gone_on_with(send: Send, run: Cdc, lake: Path) -> None:
    class DiesError(BaseException):
        pass

    count = 0
    for step in ("planned", "written", "merged", "placed", "committed"):
        send(canal("INSERT", order(count)), canal("INSERT", order(count), table="shop.items"))
        send(b"wrong")
        count += 1

        def die(name: str, step: str = step) -> None:
            if name == step:
                raise DiesError

        with pytest.raises(DiesError):
            run(at_step=die, history=True, compact=False)
    # Newer messages do not get into the batch that was begun.
    send(canal("DELETE", order(0)))
    assert run(compact=False).agrees
    assert len(rejected(lake)) == count
    for table, left in (("shop/orders", count - 1), ("shop/items", count)):
        assert len(state(lake, table)) == left
        history = DeltaTable(lake / "_history" / table).to_pyarrow_table().to_pylist()
        inserted = [row["id"] for row in history if not row["_deleted"]]
        assert sorted(inserted) == list(range(count))


def test_soft_deletes_stay_and_a_queue_that_was_made_again_is_read(
    cluster: FakeCluster, send: Send, run: Cdc, lake: Path
) -> None:
    send(canal("INSERT", order(1), order(2)), canal("DELETE", order(2)))
    run(soft_deletes=True)
    assert [(row["id"], row["_deleted"]) for row in state(lake)] == [(1, False), (2, True)]
    cluster.queues["T", 0] = FakeQueue()
    send(canal("UPDATE", order(1, "b"), old=[{"name": "a"}], es=2000))
    report = run(restart_queues=True)
    assert report.restarted == ("T@broker-a:0",)
    assert [row["name"] for row in state(lake)] == ["b", "a"]


def test_what_a_lake_is_cannot_change(
    cluster: FakeCluster, send: Send, run: Cdc, lake: Path
) -> None:
    send(canal("INSERT", order(1)))
    run(keys={"shop.orders": ["id"]}, time_zone="Asia/Shanghai")
    for given, said in (
        ({"format": "maxwell"}, "is a lake with other changes"),
        ({"soft_deletes": True}, "is a lake with other changes"),
        ({"time_zone": "Asia/Nowhere"}, "the time zone 'Asia/Nowhere' is unknown"),
        ({"format": "x"}, "unknown format 'x': use canal-json, debezium-json, maxwell, ticdc"),
        ({"keys": {"orders": ["id"]}}, "expected DATABASE.TABLE=COLUMN"),
        ({"types": {"orders.id": "int"}}, "expected DATABASE.TABLE.COLUMN=TYPE"),
        ({"rows_per_batch": 0}, "rows_per_batch is 0"),
        ({"starting": "x"}, "starting is 'x'"),
        ({"options": {"tags": "x"}}, "remove the options that select messages"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(**given)
    with pytest.raises(ConfigError, match="has the state of source tables"):
        archive(lake, ["T"], name_server=cluster.address)


def test_the_command_reports_the_run(
    cluster: FakeCluster,
    send: Send,
    lake: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "command_session", lambda *_: nullcontext(InProcess()))
    body = {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {"id": 1}}
    send(json.dumps(body).encode())
    send(json.dumps({**body, "type": "table-drop", "data": None, "sql": "drop t"}).encode())
    arguments = ["pipeline", "cdc", "T", str(lake), "-n", cluster.address, "--format", "maxwell"]
    assert main([*arguments, "--key", "id", "--type", "d.t.id=bigint"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("applied    1 changes in 2 messages, 1 batches")
    assert out[1:] == [
        "the lake   1 rows inserted, 0 updated, 0 deleted; 1 tables",
        "statement  ddl d.t: drop t",
    ]
    send(b"x")
    assert main([*arguments, "--output", "json"]) == 1  # its one message is rejected
    report = json.loads(capsys.readouterr().out)
    assert (report["rejected"], report["agrees"]) == (1, True)


def test_a_run_that_follows_ends_when_it_is_stopped(send: Send, run: Cdc, lake: Path) -> None:
    send(canal("INSERT", order(1)))
    stop = threading.Event()

    def stop_at(step: str) -> None:
        if step == "committed":
            stop.set()

    report = run(follow=True, interval=0.01, stop=stop, at_step=stop_at)
    assert (report.messages, report.stopped) == (1, False)
    assert len(state(lake)) == 1
