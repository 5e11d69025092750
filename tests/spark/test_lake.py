"""Lakes without Spark: committed rows exist exactly once for each reader, at whichever step a
process dies."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import duckdb
import fastavro
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.spark.lake_batches import (
    BATCH_ROWS,
    BATCHES,
    COLUMNS,
    QUEUES,
    append_next,
    archive_all,
    definition,
    messages,
)
from tests.stand_ins import does_nothing, raises, returns

from turbopump.errors import ConfigError, LakeError, LakeInUseError, OffsetGapError, PipelineError
from turbopump.message.message import MessageQueue
from turbopump.spark import archive
from turbopump.spark.pipelines import lake as lakes
from turbopump.spark.pipelines.bodies import avro_bodies
from turbopump.spark.pipelines.lake import (
    DATA,
    REJECTED,
    ArchivedRange,
    Definition,
    LakeBatch,
    create_or_open,
    draft_name,
    no_step,
    open_lake,
    staged_name,
)
from turbopump.spark.pipelines.writing import FileWriting

ROOT = Path(__file__).parents[2]
FORMATS = ["parquet", "delta"]
STEPS_APART = 17
"""Distance of the steps at which a process dies here; `make spark` kills at each step."""
Place = tuple[str, int, int]


def places(table: pa.Table) -> list[Place]:
    return sorted(
        zip(
            table["topic"].to_pylist(),
            table["queueId"].to_pylist(),
            table["queueOffset"].to_pylist(),
            strict=True,
        )
    )


def expected(ends: dict[MessageQueue, int], table: str) -> list[Place]:
    return sorted(
        (queue.topic, queue.queue_id, offset)
        for queue, end in ends.items()
        for offset in range(end)
        if (offset % 7 == 0) == (table == REJECTED)
    )


def check(root: Path, *, settled: bool = True) -> None:
    """Every reader finds each message of the lake's offsets once. ``settled``: no writer was
    killed; then the two tables of a Delta lake end alike."""
    lake = open_lake(root)
    snapshot = lake.snapshot()
    ends = archive.offsets(root)
    for table in (DATA, REJECTED):
        if table == REJECTED and not settled and snapshot.unfinished:
            continue
        wanted = expected(ends, table)
        rows = archive.dataset(root, table)
        assert places(rows.to_table()) == wanted
        relation = duckdb.from_arrow(rows)
        found = relation.aggregate("count(*), count(distinct (topic, queueId, queueOffset))")
        assert found.fetchall() == [(len(wanted), len(wanted))]
        if lake.definition.format == "delta" and DeltaTable.is_deltatable(str(root / table)):
            assert places(DeltaTable(root / table).to_pyarrow_table()) == wanted
    if settled:
        assert snapshot.rows() == snapshot.messages == sum(ends.values())


def globbed(root: Path) -> list[Place]:
    """Return what a reader finds that lists the table's folder."""
    found = [pq.ParquetFile(path).read() for path in root.glob("data/**/*.parquet")]
    paths = list(root.glob("data/**/*.parquet"))
    topics = [unquote(path.parts[-4].removeprefix("topic=")) for path in paths]
    return [
        (topic, row["queueId"], row["queueOffset"])
        for topic, table in zip(topics, found, strict=True)
        for row in table.select(["queueId", "queueOffset"]).to_pylist()
    ]


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_reader_finds_every_message_once(tmp_path: Path, format_name: str) -> None:
    archive_all(tmp_path / "lake", definition(format_name))
    assert archive.offsets(tmp_path / "lake") == dict.fromkeys(QUEUES, BATCHES * BATCH_ROWS)
    check(tmp_path / "lake")
    numbers = archive.dataset(tmp_path / "lake").to_table(columns=["queueOffset", "n"])
    assert numbers["n"].to_pylist() == numbers["queueOffset"].to_pylist()
    reasons = archive.dataset(tmp_path / "lake", REJECTED).to_table()["reason"].to_pylist()
    assert {reason.split(":")[0] for reason in reasons} == {"not_avro"}


AVRO_VALUES: dict[str, tuple[Any, Any, Any]] = {
    "uuid": ({"type": "string", "logicalType": "uuid"}, UUID(int=1), str(UUID(int=1))),
    "day": ({"type": "int", "logicalType": "date"}, date(2020, 1, 2), date(2020, 1, 2)),
    "at": (
        ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        datetime(2020, 1, 2, tzinfo=UTC),
        datetime(2020, 1, 2, tzinfo=UTC),
    ),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        datetime(2020, 1, 2, 3),
        datetime(2020, 1, 2, 3),
    ),
    "of_day": ({"type": "int", "logicalType": "time-millis"}, time(1), 3_600_000),
    "times": (
        {"type": "array", "items": {"type": "long", "logicalType": "time-micros"}},
        [time(1)],
        [3_600_000_000],
    ),
    "price": (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        Decimal("1.25"),
        Decimal("1.25"),
    ),
}
"""A field's type, what a sender writes, and what a lake has."""


@pytest.mark.parametrize("format_name", FORMATS)
def test_avro_values_become_columns_whatever_their_logical_type(
    tmp_path: Path, format_name: str
) -> None:
    fields = [{"name": name, "type": kind} for name, (kind, _, _) in AVRO_VALUES.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    body = io.BytesIO()
    record = {name: value for name, (_, value, _) in AVRO_VALUES.items()}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    wanted = msgspec.structs.replace(
        definition(format_name), bodies=avro_bodies(json.dumps(schema))
    )
    lake = create_or_open(tmp_path, wanted)
    rows = messages(QUEUES[0], 0, 1)
    rows = rows.set_column(rows.schema.get_field_index("body"), "body", pa.array([body.getvalue()]))
    with lake.writing():
        report = FileWriting(str(lake.staging), staged_name("x"), lake.definition).write([rows])
        files = tuple(report.files)
        batch = LakeBatch(begins={QUEUES[0]: 0}, ends={QUEUES[0]: 1}, lost={}, files=files)
        lake.append(lake.snapshot(), batch)
    assert archive.dataset(tmp_path, REJECTED).to_table().to_pylist() == []
    table = archive.dataset(tmp_path).to_table()
    if format_name == "delta":
        table = DeltaTable(tmp_path / DATA).to_pyarrow_table()
    expected = {name: value for name, (_, _, value) in AVRO_VALUES.items()}
    assert table.select(list(expected)).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"type":"record","name":"R"}', "cannot be used: "),
        ('{"type":"record","name":"R","fields":[{"name":"n","type":"strng"}]}', "cannot be used: "),
        (
            '{"type":"record","name":"R","fields":[{"name":"n","type":{"type":"bytes",'
            '"logicalType":"decimal","precision":39,"scale":2}}]}',
            "the Avro field n has the type .* which is not supported",
        ),
    ],
)
def test_an_avro_schema_that_cannot_be_used_is_refused(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        avro_bodies(schema)


@pytest.mark.parametrize("format_name", FORMATS)
def test_partitions_are_topic_date_and_hour(tmp_path: Path, format_name: str) -> None:
    archive_all(tmp_path / "lake", definition(format_name, bodies=False))
    rows = archive.dataset(tmp_path / "lake").to_table()
    for row in rows.to_pylist():
        at = row["storeTimestamp"]
        assert (row["date"], row["hour"]) == (at.date(), at.hour)
    wanted = ds.field("topic") == "%RETRY%g"
    assert archive.dataset(tmp_path / "lake").count_rows(filter=wanted) == BATCHES * BATCH_ROWS


class DiesError(BaseException):
    """The process is gone."""


def die_when_none_is_left(left: Any, *_: object, **__: object) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise DiesError


def dying_at(number: int) -> Callable[..., None]:
    """Called for the ``number``-th time, it dies."""
    left = [number]

    return partial(die_when_none_is_left, left)


def arm(monkeypatch: pytest.MonkeyPatch, step: Callable[..., None]) -> None:
    for name in ("replace", "link", "fsync"):
        real = getattr(os, name)

        def call(*args: Any, real: Callable[..., Any] = real) -> Any:
            step()
            return real(*args)

        monkeypatch.setattr(os, name, call)


@pytest.fixture
def dying_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., None]], None]]:
    """Let a function be called before each call that changes a disk."""

    yield partial(arm, monkeypatch)
    monkeypatch.undo()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_death_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path,
    format_name: str,
    dying_calls: Callable[[Callable[..., None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = FORMATS.index(format_name)
    while True:
        root = tmp_path / str(steps)
        step = dying_at(steps)
        dying_calls(step)
        try:
            archive_all(root, definition(format_name), step)
            break
        except DiesError:
            pass
        finally:
            monkeypatch.undo()
        if (root / "_lake.json").exists():
            check(root, settled=False)
            if format_name == "parquet":
                seen = globbed(root)
                assert len(seen) == len(set(seen))
                assert set(seen) <= set(expected(archive.offsets(root), DATA))
        archive_all(root, definition(format_name))
        check(root)
        steps += STEPS_APART
    assert steps > (60 if format_name == "parquet" else 30)


@pytest.mark.parametrize("format_name", FORMATS)
def test_another_process_goes_on_where_a_killed_one_has_left_the_table(
    tmp_path: Path, format_name: str
) -> None:
    lake = tmp_path / "lake"
    command = [sys.executable, "-m", "tests.spark.lake_batches", str(lake), format_name, "5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    killed = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    check(lake, settled=False)
    archive_all(lake, definition(format_name))
    check(lake)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_lake_has_one_writer(tmp_path: Path, format_name: str) -> None:
    first = create_or_open(tmp_path, definition(format_name))
    second = create_or_open(tmp_path, definition(format_name))
    with first.writing():
        with (
            pytest.raises(
                LakeInUseError, match=f"process {os.getpid()} on .* one writer at a time"
            ),
            second.writing(),
        ):
            pass
        # Where locks do not hold, such as on some network disks, the commit itself refuses.
        before = second.snapshot()
        append_next(first, before, no_step)
        with pytest.raises(LakeInUseError, match="another writer has committed"):
            append_next(second, before, no_step)
        check(tmp_path)


def second_starts_elsewhere(monkeypatch: pytest.MonkeyPatch, second: Any, step: str) -> None:
    if step == "written":
        with monkeypatch.context() as patch:
            patch.setattr("turbopump.disk.durable_files.fcntl.flock", does_nothing)
            patch.setattr("socket.gethostname", returns("another"))
            with second.writing():
                left = second.staging / staged_name("left.parquet")
                left.touch()
            with second.writing():
                assert not left.exists()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_writer_on_another_host_takes_no_files_away_where_locks_do_not_reach(
    tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create_or_open(tmp_path, definition(format_name))
    second = create_or_open(tmp_path, definition(format_name))

    with first.writing():
        append_next(first, first.snapshot(), partial(second_starts_elsewhere, monkeypatch, second))
        old = first.staging / "part-of-another-host.parquet"
        old.touch()
        os.utime(old, (0, 0))
    with first.writing():
        assert not list(first.staging.iterdir())
    check(tmp_path)


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_another_host_takes_away_while_a_writer_looks_at_it_is_passed_over(
    tmp_path: Path, format_name: str
) -> None:
    """Listed, and then not there: as links whose targets are gone."""
    archive_all(tmp_path, definition(format_name))
    for name in ("_staging/part-of-another-host.parquet", "_manifest/.draft", "_removed/00000001"):
        gone = tmp_path / name
        gone.parent.mkdir(exist_ok=True)
        gone.symlink_to(tmp_path / "gone")
    with open_lake(tmp_path).writing():
        pass
    check(tmp_path)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_second_host_does_not_compact_beside_the_first_where_locks_do_not_reach(
    tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create_or_open(tmp_path, definition(format_name))
    second = create_or_open(tmp_path, definition(format_name))
    claim = tmp_path / "_compacting"
    with first.writing():
        for _ in range(BATCHES):
            append_next(first, first.snapshot(), no_step)
        with first.compacting(), monkeypatch.context() as patch:
            patch.setattr("turbopump.disk.durable_files.fcntl.flock", does_nothing)
            patch.setattr("socket.gethostname", returns("another"))
            with (
                second.writing(),
                pytest.raises(LakeInUseError, match=f"another host .* {claim}, so .* remove"),
            ):
                second.compact(files_min=2, size_target=1 << 20)
        for left in (f"host {socket.gethostname()}, since then", "host another, since then"):
            claim.write_text(left)
            if "another" in left:
                os.utime(claim, (0, 0))
            assert first.compact(files_min=2, size_target=1 << 20) >= 0
            assert not claim.exists()
    check(tmp_path)


def test_a_file_system_without_locks_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "turbopump.disk.durable_files.fcntl.flock",
        raises(OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))),
    )
    lake = create_or_open(tmp_path, definition("parquet"))
    with pytest.raises(LakeError, match=r"_lock cannot be locked \(No locks"), lake.writing():
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_the_disk_refuses_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    lake = create_or_open(tmp_path, definition("parquet"))
    writing = FileWriting(str(lake.staging), "part", lake.definition)

    def refused(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("turbopump.spark.pipelines.writing.os.fsync", refused)
    said = f"_staging cannot be written: {os.strerror(code)}. Nothing of this batch was committed"
    with pytest.raises(PipelineError, match=said):
        writing.write(iter([messages(QUEUES[0], 0, 10)]))
    assert not list(lake.staging.iterdir())


def begin_together(together: threading.Barrier, root: Path) -> None:
    lake = create_or_open(root, definition("delta"))
    together.wait()
    lake.recover()


def test_delta_tables_are_made_once_by_hosts_that_begin_together(tmp_path: Path) -> None:
    hosts = 3
    together = threading.Barrier(hosts, timeout=60)

    for number in range(8):
        root = tmp_path / str(number)
        with ThreadPoolExecutor(hosts) as pool:
            for done in [
                pool.submit(partial(begin_together, together), root) for _ in range(hosts)
            ]:
                done.result()
        assert [DeltaTable(root / name).version() for name in (DATA, REJECTED)] == [0, 0]


def test_a_lake_that_another_host_makes_meanwhile_is_no_foreign_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = lakes.definition_at

    def made_meanwhile(root: Path) -> Definition | None:
        found = look(root)
        if found is None:
            monkeypatch.setattr(lakes, "definition_at", look)
            create_or_open(root, definition("parquet"))
        return found

    monkeypatch.setattr(lakes, "definition_at", made_meanwhile)
    create_or_open(tmp_path / "lake", definition("parquet"))
    assert look(tmp_path / "lake") is not None


def test_a_file_that_is_gone_is_named_by_a_compaction(tmp_path: Path) -> None:
    lake = create_or_open(tmp_path, definition("parquet"))
    with lake.writing():
        for _ in range(BATCHES):
            append_next(lake, lake.snapshot(), no_step)
        gone = Path(archive.files(tmp_path)[0])
        gone.unlink()
        with pytest.raises(
            LakeError, match=rf"{gone.name} is missing, .* restore it from a backup"
        ):
            lake.compact(files_min=2, size_target=1 << 20)


def test_two_hosts_may_put_the_same_compaction_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = os.replace

    def both_move(source: Path, target: Path) -> None:
        move(source, target)
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", both_move)
        archive_all(tmp_path, definition("parquet"))
    check(tmp_path)


def test_the_draft_of_a_version_stays_while_another_host_may_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = create_or_open(tmp_path, definition("parquet"))
    link = os.link

    def starts_elsewhere(draft: Path, path: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("turbopump.disk.durable_files.fcntl.flock", does_nothing)
            patch.setattr("socket.gethostname", returns("another"))
            with open_lake(tmp_path).writing():
                pass
        link(draft, path)

    with lake.writing(), monkeypatch.context() as patch:
        patch.setattr("os.link", starts_elsewhere)
        append_next(lake, lake.snapshot(), no_step)
    manifest = tmp_path / "_manifest"
    own, others = manifest / draft_name("killed"), manifest / ".another-killed"
    own.touch()
    others.touch()
    with lake.writing():
        assert [own.exists(), others.exists()] == [False, True]
    check(tmp_path)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("begin", [BATCH_ROWS - 1, BATCH_ROWS + 1])
def test_an_overlap_and_a_gap_are_refused(tmp_path: Path, format_name: str, begin: int) -> None:
    lake = create_or_open(tmp_path, definition(format_name, bodies=False))
    with lake.writing():
        snapshot = append_next(lake, lake.snapshot(), no_step)
        batch = LakeBatch(begins={QUEUES[0]: begin}, ends={QUEUES[0]: 60}, lost={}, files=())
        with pytest.raises(OffsetGapError, match=f"up to offset {BATCH_ROWS}, but .* at {begin}"):
            lake.append(snapshot, batch)
        assert lake.snapshot() == snapshot


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_is_lost_is_counted_and_kept(tmp_path: Path, format_name: str) -> None:
    lake = create_or_open(tmp_path, definition(format_name))
    with lake.writing():
        queue = QUEUES[0]
        first = LakeBatch(begins={queue: 10}, ends={queue: 20}, lost={queue: 10}, files=())
        second = LakeBatch(begins={queue: 20}, ends={queue: 21}, lost={queue: 1}, files=())
        snapshot = lake.append(lake.append(lake.snapshot(), first), second)
    assert snapshot.ranges == {queue: ArchivedRange(10, 21, 11)}
    assert open_lake(tmp_path).snapshot().messages == 0


def test_old_versions_of_the_manifest_go_and_nothing_is_forgotten(tmp_path: Path) -> None:
    lake = create_or_open(tmp_path, definition("parquet"))
    with lake.writing():
        snapshot = append_next(lake, lake.snapshot(), no_step)
        for _ in range(125):
            ends = {queue: archived.end for queue, archived in snapshot.ranges.items()}
            batch = LakeBatch(begins=ends, ends=ends, lost={}, files=())
            snapshot = lake.append(snapshot, batch)
    versions = sorted((tmp_path / "_manifest").glob("*.json"))
    assert len(versions) < 126
    assert open_lake(tmp_path).snapshot() == snapshot
    check(tmp_path)
    versions[-3].unlink()
    with pytest.raises(LakeError, match="version 124 is missing"):
        open_lake(tmp_path).snapshot()


def test_delta_keeps_the_offsets_through_checkpoints_clean_up_and_vacuum(tmp_path: Path) -> None:
    archive_all(tmp_path, definition("delta"))
    stands = archive.offsets(tmp_path)
    for name in (DATA, REJECTED):
        table = DeltaTable(tmp_path / name)
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        table.create_checkpoint()
        table.cleanup_metadata()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    logs = list((tmp_path / DATA / "_delta_log").glob("*.json"))
    assert 0 < len(logs) <= 3  # the first of them has gone
    assert archive.offsets(tmp_path) == stands
    check(tmp_path)


@pytest.mark.parametrize("format_name", FORMATS)
def test_compaction_leaves_rows_and_offsets(tmp_path: Path, format_name: str) -> None:
    lake = create_or_open(tmp_path, definition(format_name))
    with lake.writing():
        snapshot = lake.snapshot()
        for _ in range(BATCHES):
            snapshot = append_next(lake, snapshot, no_step)
        many = len(archive.files(tmp_path))
        assert lake.compact(files_min=50, size_target=1 << 20) == 0
        assert lake.compact(files_min=2, size_target=1 << 20) > 0
        after = lake.snapshot()
        assert after.ranges == snapshot.ranges
        assert after.rows() == snapshot.rows()
        assert len(archive.files(tmp_path)) < many
        check(tmp_path)
        assert append_next(lake, after, no_step).rows() > after.rows()
    check(tmp_path)


def test_compacted_files_lie_outside_the_tables_folder(tmp_path: Path) -> None:
    archive_all(tmp_path, definition("parquet"))
    seen = {str(path) for path in tmp_path.glob("data/**/*.parquet")}
    assert seen == set(archive.files(tmp_path))
    assert list(tmp_path.glob("_removed/**/*.parquet"))


def test_a_file_that_was_changed_is_noticed_before_it_is_compacted(tmp_path: Path) -> None:
    lake = create_or_open(tmp_path, definition("parquet", bodies=False))
    with lake.writing():
        snapshot = append_next(lake, lake.snapshot(), no_step)
        append_next(lake, snapshot, no_step)
        file = Path(archive.files(tmp_path)[0])
        pq.write_table(pq.read_table(file, partitioning=None).slice(1), file)
        with pytest.raises(LakeError, match="nothing was changed"):
            lake.compact(files_min=2, size_target=1 << 20)


def test_a_lake_keeps_its_shape(tmp_path: Path) -> None:
    create_or_open(tmp_path, definition("parquet"))
    for wanted, what in (
        (definition("delta"), "format"),
        (msgspec.structs.replace(definition("parquet"), columns=COLUMNS[:4]), "columns"),
        (definition("parquet", bodies=False), "bodies"),
    ):
        with pytest.raises(ConfigError, match=f"is a lake with other {what} "):
            create_or_open(tmp_path, wanted)


def test_what_is_no_lake_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"is not a lake: `turbopump pipeline archive` makes one"):
        archive.files(tmp_path)
    (tmp_path / "_lake.json").write_text('{"v":3,"format":"parquet","columns":[]}')
    with pytest.raises(LakeError, match="use the one that wrote it"):
        archive.files(tmp_path)
    (tmp_path / "_lake.json").write_text("{")
    with pytest.raises(LakeError, match="cannot be read"):
        archive.files(tmp_path)


def test_only_tables_of_a_lake_can_be_asked_for(tmp_path: Path) -> None:
    create_or_open(tmp_path, definition("parquet"))
    with pytest.raises(ConfigError, match="a lake has no table 'rejected': use data or _rejected"):
        archive.files(tmp_path, "rejected")
