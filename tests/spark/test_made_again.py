"""Lakes of topics that were made again, lost their end, are not there, or whose broker was renamed:
without Spark, against a broker of lists and our own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.spark.fake_cluster import FakeCluster, FakeQueue

from turbopump import Message
from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.errors import ConfigError, DataLossError, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.spark import archive as lakes
from turbopump.spark import planning
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines import ArchiveReport, archive, compact
from turbopump.spark.pipelines.archiving import ArchiveRun, rejected_limit
from turbopump.spark.pipelines.lake import REJECTED, open_lake
from turbopump.spark.pipelines.writing import REPORT_COLUMN, FileWriting
from turbopump.spark.reading import read_partition
from turbopump.testing import BrokerThread

FORMATS = ["parquet", "delta"]
Archive = Callable[..., ArchiveReport]


def in_this_process(run: ArchiveRun, begins: Offsets, ends: Offsets, writing: FileWriting) -> Any:
    """Run the tasks of a batch in this process, without Spark."""
    options = replace(run.options, columns=run.lake.definition.columns)

    def collect() -> list[dict[str, str]]:
        reports = [
            writing.write(read_partition(task, options))
            for task in planning.tasks(begins, ends, options)
        ]
        return [{REPORT_COLUMN: msgspec.json.encode(each).decode()} for each in reports]

    return SimpleNamespace(collect=collect)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 2, "U": 1}, pull_max=256) as fake:
        yield fake


def archived(cluster: FakeCluster, tmp_path: Path, *topics: str, **given: Any) -> ArchiveReport:
    given = {"name_server": cluster.address, "spark": object(), **given}
    return archive(tmp_path / "L", topics, **given)


@pytest.fixture
def run(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.setattr(ArchiveRun, "_job", in_this_process)

    return partial(archived, cluster, tmp_path)


def send(cluster: FakeCluster, topic: str, count: int, text: str, queue_id: int = 0) -> None:
    queue = cluster.queues[topic, queue_id]
    for _ in range(count):
        body = f"{text} {queue.offset_max}".encode()
        queue.put(body, topic=topic, queue_id=queue_id, commit_log_offset=queue.offset_max * 100)


def rows(lake: Path) -> list[tuple[str, int, int | None, int, bytes]]:
    found = lakes.dataset(lake).to_table().to_pylist()
    names = ("topic", "queueId", "queueGeneration", "queueOffset", "body")
    return sorted((tuple(map(row.get, names)) for row in found), key=str)


def made_again(cluster: FakeCluster, count: int) -> None:
    cluster.queues["T", 0] = FakeQueue()
    send(cluster, "T", count, "new")


def lost_its_end(cluster: FakeCluster, count: int) -> None:
    queue = cluster.queues["T", 0]
    del queue.entries[6:], queue.times_ms[6:], queue.tags[6:]
    send(cluster, "T", count, "new")


CHANGES = {
    # what happened, so many messages more: what is said, where the next generation begins
    "made again, shorter": (made_again, 4, "ends at 4, but the lake has it up to 10", 0),
    "made again, empty": (made_again, 0, "ends at 0, but the lake has it up to 10", 0),
    "made again, as long": (made_again, 10, "has another message at offset 9 than the lake", 0),
    "made again, longer": (made_again, 15, "has another message at offset 9 than the lake", 0),
    "lost its end": (lost_its_end, 0, "ends at 6, but the lake has it up to 10", 6),
    "lost its end, went on": (lost_its_end, 9, "has another message at offset 9", 6),
}


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("way", CHANGES)
def test_a_queue_that_was_made_again_is_left_out_or_begins_another_generation(
    cluster: FakeCluster, run: Archive, tmp_path: Path, way: str, format_name: str
) -> None:
    lake = tmp_path / "L"
    change, more, said, begin = CHANGES[way]
    send(cluster, "T", 10, "old")
    send(cluster, "T", 5, "other", queue_id=1)
    run("T", format=format_name)
    change(cluster, more)
    send(cluster, "T", 2, "other", queue_id=1)
    send(cluster, "U", 3, "other")
    with pytest.raises(DataLossError, match=f"T@broker-a:0 {said}.*--restart-queue") as raised:
        run("T", "U")
    assert raised.value.__notes__ == ["5 messages of the others were archived"]
    assert [row[:4] for row in rows(lake) if row[0] == "U"] == [("U", 0, None, n) for n in range(3)]
    assert "queueGeneration" not in lakes.dataset(lake).schema.names

    end = cluster.queues["T", 0].offset_max
    report = run("T", "U", restart_queues=True)
    assert (report.restarted, report.messages) == (("T@broker-a:0",), end - begin)
    assert (report.agrees, report.lake_rows) == (True, 20 + end - begin)
    old = [("T", 0, None, at, f"old {at}".encode()) for at in range(10)]
    new = [("T", 0, 1, at, f"new {at}".encode()) for at in range(begin, end)]
    assert [row for row in rows(lake) if row[:2] == ("T", 0)] == sorted(old + new, key=str)
    assert run("T", "U", restart_queues=True).restarted == ()

    send(cluster, "T", 3, "new")
    assert run("T").messages == 3
    cluster.queues["T", 0] = FakeQueue()
    send(cluster, "T", 1, "third")
    assert run("T", restart_queues=True).restarted == ("T@broker-a:0",)
    generations = {row[2] for row in rows(lake) if row[:2] == ("T", 0)}
    assert generations == {None, 1, 2}
    compact(lake)
    assert len(rows(lake)) == open_lake(lake).snapshot().messages == 24 + end - begin
    assert run("T", "U").agrees


def test_a_lake_with_few_columns_compares_store_times(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    columns = "topic,brokerName,queueId,queueOffset,storeTimestamp"
    cluster.fill("T", 0, 10, stored_ms=1_700_000_000_000)
    run("T", columns=columns)
    cluster.queues["T", 0] = FakeQueue()
    cluster.fill("T", 0, 15, stored_ms=1_700_000_000_001)
    with pytest.raises(DataLossError, match="has another message at offset 9"):
        run("T")


def test_what_cannot_be_compared_goes_on(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    """Retention has taken the newest message that the lake has."""
    send(cluster, "T", 10, "old")
    run("T")
    send(cluster, "T", 10, "old")
    cluster.queues["T", 0].remove_oldest(10)
    assert run("T").messages == 10


def test_a_run_compares_once_and_asks_for_one_message_of_a_queue(
    cluster: FakeCluster, run: Archive
) -> None:
    send(cluster, "T", 10, "old")
    send(cluster, "T", 10, "old", queue_id=1)
    run("T")
    cluster.requests.clear()
    run("T")
    pulls = [request.ext for request in cluster.requests if request.code == 11]
    asked = [(pull["queueOffset"], pull["maxMsgNums"]) for pull in pulls if pull is not None]
    assert asked == [("9", "1"), ("9", "1")]


@pytest.mark.parametrize("format_name", FORMATS)
def test_only_files_are_opened_that_may_have_the_newest_rows(
    cluster: FakeCluster, run: Archive, tmp_path: Path, format_name: str
) -> None:
    """Queue 0 has been idle for long; the file between is gone, which nobody notices."""
    send(cluster, "T", 3, "idle")
    before, between = set[str](), ""
    for batch in range(3):
        send(cluster, "T", 10, "busy", queue_id=1)
        run("T", format=format_name, compact=False)
        if batch == 1:
            (between,) = set(lakes.files(tmp_path / "L")) - before
        before = set(lakes.files(tmp_path / "L"))
    Path(between).rename(tmp_path / "kept")
    report = run("T", compact=False)
    assert (report.messages, report.agrees) == (0, True)
    (tmp_path / "kept").rename(between)
    compact(tmp_path / "L")
    (together,) = open_lake(tmp_path / "L").snapshot().files
    assert together.offsets() == (0, 29)


def send_more(cluster: FakeCluster, placed: Any, stop: threading.Event, step: str) -> None:
    if step == "placed":
        placed.append(step)
        if len(placed) == 3:
            stop.set()
        else:
            send(cluster, "U", 1, "x")


def test_following_leaves_out_what_was_made_again_and_says_it_once(
    cluster: FakeCluster, run: Archive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, "T", 10, "old")
    run("T")
    made_again(cluster, 4)
    stop, placed = threading.Event(), list[str]()

    send(cluster, "U", 1, "x")
    with pytest.raises(DataLossError, match="ends at 4"):
        run(
            "T",
            "U",
            follow=True,
            interval=0.01,
            stop=stop,
            at_step=partial(send_more, cluster, placed, stop),
        )
    assert len([row for row in rows(tmp_path / "L") if row[0] == "U"]) == 3
    said = [record.message for record in caplog.records if "ends at 4" in record.message]
    assert len(said) == 1
    assert said[0].endswith("the others continue")


def test_a_topic_that_is_not_there_does_not_stop_the_others(
    cluster: FakeCluster, run: Archive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, "T", 10, "old")
    with pytest.raises(RouteNotFoundError, match="know no topic 'none'"):
        run("T", "none")
    assert len(rows(tmp_path / "L")) == 10
    send(cluster, "U", 2, "x")
    run("U")
    del cluster.queues["U", 0]
    send(cluster, "T", 1, "old")
    with pytest.raises(RouteNotFoundError, match="know no topic 'U'"):
        run("T", "U")
    send(cluster, "T", 1, "old")
    report = run("T", "U", fail_on_data_loss=False)
    assert (report.messages, report.lake_rows, report.agrees) == (1, 14, True)
    assert "U@broker-a:0 is not in the route now; the others continue" in caplog.text


def send_more_and_stop(cluster: FakeCluster, stop: threading.Event, step: str) -> None:
    if step == "placed":
        if ("later", 0) in cluster.queues:
            stop.set()
        cluster.queues["later", 0] = FakeQueue()
        send(cluster, "later", 2, "x")


def test_following_waits_for_a_topic_that_is_not_there_yet(
    cluster: FakeCluster, run: Archive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    send(cluster, "T", 1, "x")

    report = run(
        "later",
        "T",
        follow=True,
        interval=0.01,
        stop=stop,
        at_step=partial(send_more_and_stop, cluster, stop),
    )
    assert (report.messages, report.agrees) == (3, True)
    assert caplog.text.count("know no topic 'later'") == 1


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_renamed_broker_does_not_bring_its_messages_twice(
    cluster: FakeCluster,
    run: Archive,
    tmp_path: Path,
    format_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send(cluster, "T", 10, "kept")
    send(cluster, "T", 3, "kept", queue_id=1)
    run("T", format=format_name)
    send(cluster, "T", 2, "kept")
    cluster.broker_name = "broker-new"
    report = run("T")
    assert (report.messages, report.lake_rows, report.agrees) == (2, 15, True)
    assert len({row[1:] for row in rows(tmp_path / "L")}) == 15
    said = "T@broker-new:0 has the messages of T@broker-a:0, which the lake has up to offset 10"
    assert said in caplog.text
    assert lakes.offsets(tmp_path / "L")[MessageQueue("T", "broker-new", 1)] == 3


def test_a_second_broker_of_a_topic_is_read_from_its_first_message(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    """Its messages are others at the same offsets, and the same times."""
    send(cluster, "T", 10, "one")
    run("T")
    cluster.broker_name = "broker-b"
    cluster.queues["T", 0] = FakeQueue()
    queue = cluster.queues["T", 0]
    for at in range(12):
        queue.put(b"x", topic="T", queue_id=0, commit_log_offset=at * 100 + 7)
    assert run("T").messages == 12


def sent(run: Archive, server: BrokerThread, text: str, count: int) -> ArchiveReport:
    with Producer(server.namesrv) as producer:
        producer.send_batch([Message("T", f"{text} {at}") for at in range(count)])
    return run("T", name_server=server.namesrv)


def test_a_topic_of_a_real_broker_is_made_again_and_its_broker_renamed(
    run: Archive, tmp_path: Path
) -> None:
    lake, store = tmp_path / "L", tmp_path / "store"

    with BrokerThread(directory=store, broker_name="first") as server:
        server.create_topic("T", 1)
        assert sent(run, server, "old", 100).messages == 100
        assert main(["topic", "delete", "T", "--yes", "-n", server.namesrv]) == 0
        server.create_topic("T", 1)
        with pytest.raises(DataLossError, match="has another message at offset 99 than the lake"):
            sent(run, server, "new", 150)
        report = run("T", name_server=server.namesrv, restart_queues=True)
        assert (report.messages, report.lake_rows, report.agrees) == (150, 250, True)
    with BrokerThread(directory=store, broker_name="second") as server:
        report = sent(run, server, "after", 5)
        assert (report.messages, report.lake_rows, report.agrees) == (5, 255, True)
    assert len({row[2:] for row in rows(lake)}) == 255


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("place", ["s3:x", "lake:1/T", "plain"])
def test_a_lake_may_be_in_a_relative_directory_whose_name_has_a_colon(
    cluster: FakeCluster,
    run: Archive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    format_name: str,
) -> None:
    """pyarrow would take the text for a URI."""
    monkeypatch.chdir(tmp_path)
    send(cluster, "T", 3, "x")
    for more in (0, 2):
        send(cluster, "T", more, "x")
        given: dict[str, Any] = {"name_server": cluster.address, "spark": object()}
        report = archive(place, ["T"], format=format_name, **given)
        assert report.agrees
    compact(place)
    assert len(rows(Path(place))) == 5
    assert pq.read_table(lakes.files(place)).num_rows == 5


def test_a_lake_of_one_generation_is_written_as_before(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    """Releases before this one read the lake."""
    send(cluster, "T", 3, "x")
    run("T")
    (version,) = (tmp_path / "L/_manifest").iterdir()
    manifest = msgspec.json.decode(version.read_bytes())
    assert manifest["v"] == 1
    assert manifest["stretches"][0] == ["T", "broker-a", 0, {"begin": 0, "end": 3}]
    cluster.queues["T", 0] = FakeQueue()
    send(cluster, "T", 1, "y")
    run("T", restart_queues=True)
    newest = max((tmp_path / "L/_manifest").iterdir())
    assert msgspec.json.decode(newest.read_bytes())["v"] == 2


@pytest.mark.parametrize(
    ("limit", "good", "rejected", "allowed"),
    [
        (None, 0, 0, True),
        (None, 1, 9, True),
        (None, 0, 9, False),
        (9, 1, 9, True),
        ("8", 1, 9, False),
        (0, 5, 1, False),
        ("90%", 1, 9, True),
        ("89.9%", 1, 9, False),
        ("100%", 0, 9, True),
        ("0%", 0, 0, True),
    ],
)
def test_a_run_may_reject_so_many_rows(
    limit: int | str | None, good: int, rejected: int, allowed: bool
) -> None:
    assert rejected_limit(limit).allows(good, rejected) is allowed


@pytest.mark.parametrize("limit", ["many", "-1", "1.5", "101%", "", -1, "5 %"])
def test_a_limit_of_rejected_rows_that_is_none_is_refused(limit: int | str) -> None:
    with pytest.raises(ConfigError, match="expected a number of rows, or a share such as 5%"):
        rejected_limit(limit)


def test_a_directory_with_other_files_is_not_made_a_lake(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    lake = tmp_path / "L"
    lake.mkdir()
    (lake / "thesis.docx").touch()
    with pytest.raises(ConfigError, match=r"is not a lake and not empty \(it has 'thesis.docx'\)"):
        run("T")
    assert [each.name for each in lake.iterdir()] == ["thesis.docx"]
    (lake / "thesis.docx").unlink()
    for left in ("_staging", "lost+found", ".DS_Store", ".1b2c3d4e-_lake.json.7.9"):
        (lake / left).mkdir()
    assert run("T").agrees
    assert REJECTED not in {each.name for each in lake.iterdir()}
