"""The files of a log as rows: real directories written by our store and broker, whole and
damaged."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from tests.golden.recorded import ALL, FIVE
from tests.spark.stored_log import (
    SEGMENT_SIZE,
    make_batch_log,
    make_log,
    plain_rows,
    read_log,
    segments,
)

from turbopump.errors import ConfigError, StoreError
from turbopump.spark import commitlog, log_scan
from turbopump.spark.commitlog import LOG_OPTIONS, CommitLogReader, log_options, log_schema
from turbopump.spark.source import CommitLogDataSource
from turbopump.testing import BrokerThread


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "store"
    make_log(directory, with_crc=True)
    assert len(segments(directory)) == 4
    return directory


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


@pytest.fixture(params=["units", "walk"])
def kind(request: pytest.FixtureRequest, store: Path) -> str:
    """With ConsumeQueues and without."""
    if request.param == "walk":
        shutil.rmtree(store / "consumequeue")
    return str(request.param)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "TASK_SIZE_MIN", 8 * 1024)


@pytest.mark.parametrize("tasks", [1, 2, 7, 30])
def test_every_message_is_a_row_however_the_log_is_divided(
    store: Path, kind: str, tasks: int
) -> None:
    expected = plain_rows(store)
    assert len(expected) == 400
    assert read_log(store, tasks) == expected


def test_pieces_smaller_than_an_entry_and_larger_than_a_file_give_the_same_rows(
    store: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain_rows(store)
    for size in (64, 1000, 1 << 20):
        monkeypatch.setattr(log_scan, "PIECE_SIZE", size)
        assert read_log(store) == expected


def test_entries_without_a_crc_over_all_of_them_are_judged_by_their_bodies(tmp_path: Path) -> None:
    make_log(tmp_path, 100)
    assert read_log(tmp_path) == plain_rows(tmp_path)
    _flip(segments(tmp_path)[0], 50)  # the born host, which the body's CRC does not cover
    assert [row["status"] for row in read_log(tmp_path)] == ["ok"] * 100
    _flip(segments(tmp_path)[0], 100)
    statuses = [row["status"] for row in read_log(tmp_path)]
    assert statuses == ["crcMismatch"] + ["ok"] * 99


def test_where_our_broker_wrote_the_absence_of_a_crc_is_damage(store: Path, kind: str) -> None:
    expected = plain_rows(store)
    victim = expected[9]
    _flip(segments(store)[0], victim["commitLogOffset"] + victim["storeSize"] - 18)
    (bad,) = _others(expected, read_log(store))
    assert (bad["commitLogOffset"], bad["status"]) == (victim["commitLogOffset"], "crcMismatch")


def test_the_commitlog_folder_and_one_segment_can_be_given_too(store: Path) -> None:
    expected = plain_rows(store)
    assert read_log(store / "commitlog") == expected
    second = segments(store)[1]
    assert read_log(second) == [row for row in expected if row["segment"] == second.name]


def test_a_topic_is_read_alone_and_its_neighbours_are_not_looked_at(store: Path, kind: str) -> None:
    bills = [row for row in plain_rows(store) if row["topic"] == "bills"]
    _flip(segments(store)[0], 40)  # in a message of orders
    found = read_log(store, topic="bills")
    assert [row for row in found if row["status"] == "ok"] == bills
    # Without queues nobody knows that the damaged one was not of the topic.
    assert len(found) - len(bills) == (0 if kind == "units" else 1)


def test_times_choose_rows_and_leave_out_whole_segments(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = log_scan.scan
    monkeypatch.setattr(
        "tests.spark.stored_log.scan", lambda part, o: (opened.append(part.path), real(part, o))[1]
    )
    found = read_log(store, startingTimestamp=1100, endingTimestamp=1110)
    assert [int(row["msgId"], 16) for row in found] == list(range(100, 110))
    assert len(opened) == 1


def test_columns_are_chosen_and_the_broker_is_named(store: Path) -> None:
    rows = read_log(store, columns="STATUS,queueOffset,brokerName", brokerName="broker-a")
    assert len(rows) == 400
    assert Counter(row["queueOffset"] for row in rows)[99] == 4
    assert rows[0] == {"status": "ok", "queueOffset": 0, "brokerName": "broker-a"}


def test_inner_batches_are_taken_apart(tmp_path: Path) -> None:
    make_batch_log(tmp_path)
    rows = read_log(tmp_path, topic="B", columns="commitLogOffset,queueOffset,body,msgId,status")
    assert [(row["queueOffset"], row["body"], row["msgId"]) for row in rows] == [
        (number, b"%d" % number, f"ID{number}") for number in range(12)
    ]
    assert len({row["commitLogOffset"] for row in rows}) == 3


def test_segments_of_apache_are_read(tmp_path: Path) -> None:
    """Entries as Apache's encoder has written them, moved to where they would lie."""
    names = ["stored-plain", "stored-v2-long-topic", "stored-both-v6", "stored-lz4", "stored-zstd"]
    raw = bytearray()
    stored = {each.name: each.bytes for each in ALL if each.apache == FIVE and each.name in names}
    for name in names:
        entry = bytearray(stored[name])
        entry[28:36] = len(raw).to_bytes(8)
        raw += entry
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(raw.ljust(8192, b"\0"))
    found = read_log(tmp_path)
    assert [row["status"] for row in found] == ["ok"] * len(names)
    assert found == plain_rows(tmp_path)


# Damage.
def _flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def _others(expected: list[Any], found: list[Any]) -> list[Any]:
    """The damaged rows, where all others are as they were."""
    good = [row for row in found if row["status"] == "ok"]
    damaged = [row for row in found if row["status"] != "ok"]
    good_at = {row["commitLogOffset"]: row for row in good}
    assert [row for row in expected if good_at.get(row["commitLogOffset"]) == row] == good
    covered = {
        row["commitLogOffset"]
        for bad in damaged
        for row in expected
        if bad["commitLogOffset"]
        <= row["commitLogOffset"]
        < bad["commitLogOffset"] + bad["storeSize"]
    }
    missing = [row["commitLogOffset"] for row in expected if row["commitLogOffset"] not in good_at]
    assert set(missing) == covered, "what is no good row lies in a damaged one"
    return damaged


def test_a_flipped_bit_of_a_body_is_a_row_that_says_so(store: Path, kind: str) -> None:
    expected = plain_rows(store)
    victim = expected[5]
    _flip(segments(store)[0], victim["commitLogOffset"] + 100)
    (bad,) = _others(expected, read_log(store, 4))
    assert bad["status"] == "crcMismatch"
    assert bad["body"] != victim["body"]
    assert {**bad, "body": 0, "status": 0} == {**victim, "body": 0, "status": 0}


@pytest.mark.parametrize("at", [0, 1, 4, 30, 84, -1])
def test_a_damaged_length_costs_its_own_entry_alone(store: Path, kind: str, at: int) -> None:
    expected = plain_rows(store)
    victim = expected[7]
    place = victim["commitLogOffset"] + at + (1 if at < 0 else 0)
    if at < 0:  # the size of the properties
        properties = sum(len(n) + len(v) + 2 for n, v in victim["properties"].items())
        place = victim["commitLogOffset"] + victim["storeSize"] - properties - 21
    _flip(segments(store)[0], place, 0x11)
    (bad,) = _others(expected, read_log(store, 4))
    assert (bad["commitLogOffset"], bad["storeSize"], bad["status"]) == (
        victim["commitLogOffset"],
        victim["storeSize"],
        "unreadable",
    )
    known = (victim["topic"], victim["queueId"], victim["queueOffset"])
    assert (bad["topic"], bad["queueId"], bad["queueOffset"]) == (
        known if kind == "units" else (None, None, None)
    )


def test_zeroed_pages_are_rows_with_what_the_queues_know(store: Path, kind: str) -> None:
    expected = plain_rows(store)
    _overwrite(segments(store)[1], 8192, bytes(4096))
    bad = _others(expected, read_log(store, 4))
    lost = [row for row in expected if row["commitLogOffset"] >= SEGMENT_SIZE + 8192 - 500]
    if kind == "units":
        assert len(bad) > 5
        assert {row["topic"] for row in bad} == {"orders", "bills"}
        offsets = {(row["topic"], row["queueId"], row["queueOffset"]) for row in lost}
        assert {(row["topic"], row["queueId"], row["queueOffset"]) for row in bad} <= offsets
    assert {row["status"] for row in bad} <= {"unreadable", "crcMismatch"}


def test_a_page_that_the_disk_cannot_read_is_damage_and_the_rest_is_read(
    store: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain_rows(store)
    bad_path = str(segments(store)[1])
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], at: int) -> int:
        is_bad = at < 12288 and at + len(buffers[0]) > 8192
        if is_bad and os.readlink(f"/proc/self/fd/{fd}") == bad_path:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)
    bad = _others(expected, read_log(store, 4))
    assert bad
    assert all(SEGMENT_SIZE + 7000 < row["commitLogOffset"] < SEGMENT_SIZE + 12288 for row in bad)


def test_a_backup_that_is_cut_off_ends_with_a_truncated_row(store: Path, kind: str) -> None:
    expected = plain_rows(store)
    last = segments(store)[-1]
    victim = expected[-3]
    cut = victim["commitLogOffset"] + 60
    os.truncate(last, cut - int(last.name))
    bad = read_log(store)[-1]
    assert read_log(store)[:-1] == expected[:-3]
    assert (bad["status"], bad["commitLogOffset"]) == ("truncated", victim["commitLogOffset"])
    if kind == "walk":
        assert 50 < bad["storeSize"] <= 60  # it ends in zeros


def test_a_segment_that_is_cut_off_or_gone_in_the_middle_is_a_row_too(
    store: Path, kind: str
) -> None:
    expected = plain_rows(store)
    paths = segments(store)
    os.truncate(paths[0], SEGMENT_SIZE // 2)
    paths[2].unlink()
    bad = _others(expected, read_log(store, 3))
    assert {row["status"] for row in bad} == {"truncated"}
    assert {row["segment"] for row in bad} == {paths[0].name, paths[1].name}


def test_the_half_written_end_of_a_crashed_log_is_truncated(store: Path) -> None:
    expected = plain_rows(store)
    shutil.rmtree(store / "consumequeue")
    last = segments(store)[-1]
    entry = last.read_bytes()[: expected[-1]["storeSize"]]
    end = expected[-1]["commitLogOffset"] + expected[-1]["storeSize"]
    head = bytearray(entry[:80])
    head[28:36] = end.to_bytes(8)
    _overwrite(last, end - int(last.name), head)
    (bad,) = _others(expected, read_log(store))
    assert (bad["status"], bad["commitLogOffset"]) == ("truncated", end)
    assert 60 < bad["storeSize"] <= 80


def test_files_that_were_made_beforehand_are_no_damage(store: Path, kind: str) -> None:
    """Brokers make the next file, or two, before the log comes to it."""
    expected = plain_rows(store)
    last = segments(store)[-1]
    for number in (1, 2):
        blank = last.with_name(f"{int(last.name) + number * SEGMENT_SIZE:020}")
        blank.write_bytes(bytes(SEGMENT_SIZE))
        for tasks in (1, 7):
            assert read_log(store, tasks) == expected


def test_units_that_are_wrong_change_nothing(store: Path) -> None:
    expected = plain_rows(store)
    queue = next((store / "consumequeue" / "orders" / "0").iterdir())
    _flip(queue, 20 * 3 + 11, 4)  # the size of a unit
    _flip(queue, 20 * 8 + 7, 1)  # where another points to
    _overwrite(queue, 20 * 20, bytes(20 * 10))
    assert read_log(store, 3) == expected
    shutil.rmtree(store / "consumequeue" / "bills")
    assert read_log(store, 3) == expected
    bills = [row for row in expected if row["topic"] == "bills"]
    assert read_log(store, topic="bills") == bills


def test_whatever_bytes_change_each_entry_is_a_row_or_lies_in_one(store: Path, kind: str) -> None:
    expected = plain_rows(store)
    source = random.Random(4)
    whole = {path: path.read_bytes() for path in segments(store)}
    for _ in range(25):
        for path, data in whole.items():
            damaged = bytearray(data)
            for _ in range(source.randrange(3)):
                at, size = source.randrange(len(data)), source.choice((1, 1, 8, 600, 5000))
                kindly = source.choice((bytes(size), source.randbytes(size)))
                damaged[at : at + size] = kindly[: len(data) - at]
            path.write_bytes(damaged)
        found = read_log(store, source.randrange(1, 6))
        ends = max(row["commitLogOffset"] + row["storeSize"] for row in found)
        seen = [row for row in expected if row["commitLogOffset"] < ends]
        _others(seen, found)
        # what is behind the last row was zeroed to its end: there the log seems to end
        raw = segments(store)[-1].read_bytes()
        assert not raw[max(ends - int(segments(store)[-1].name), 0) :].strip(b"\0")


# Live.
def test_a_live_store_is_read_up_to_what_is_whole(tmp_path: Path) -> None:
    with BrokerThread(directory=tmp_path) as broker:
        broker.create_topic("T", 2)
        _send(broker, "T", 50)
        first = read_log(tmp_path, topic="T", columns="commitLogOffset,body,status")
        assert sorted(row["body"] for row in first) == sorted(b"%d" % n for n in range(50))
        assert {row["status"] for row in first} == {"ok"}
        # An entry that is not whole yet: its beginning is in the file.
        end = log_scan.dispatched_end(str(tmp_path))
        log = segments(tmp_path)[-1]
        _overwrite(log, end - int(log.name), log.read_bytes()[:60])
        again = read_log(tmp_path, topic="T", columns="commitLogOffset,body,status")
        assert again == first
        _overwrite(log, end - int(log.name), bytes(60))


def test_a_segment_that_is_deleted_while_a_read_is_planned_is_left_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, *others = (path.name for path in segments(store))
    list_names = os.listdir

    def deleted_once_listed(folder: Path) -> list[str]:
        names = list_names(folder)
        (store / "commitlog" / oldest).unlink(missing_ok=True)
        return names

    monkeypatch.setattr("turbopump.spark.commitlog.os.listdir", deleted_once_listed)
    assert {row["segment"] for row in read_log(store)} == set(others)


def test_a_segment_that_a_task_does_not_find_is_told_with_what_to_do(store: Path) -> None:
    reader = CommitLogReader(log_options({"path": str(store)}), log_schema(), 1)
    (partition,) = reader.partitions()
    oldest = segments(store)[0]
    oldest.unlink()
    with pytest.raises(StoreError, match=f"{oldest} is missing on .* run the query again"):
        list(reader.read(partition))


def _send(broker: BrokerThread, topic: str, count: int) -> None:
    from turbopump.blocking import Producer

    with Producer(broker.namesrv) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


# What is refused.
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no path is given"),
        ({"path": "s3a://bucket/store"}, "is not on a local disk"),
        ({"path": "hdfs://name:9000/store"}, "is not on a local disk"),
        ({"path": "/x", "topics": "T"}, "did you mean 'topic'"),
        ({"path": "/x", "columns": "bodi"}, "unknown column 'bodi'; did you mean 'body'"),
        ({"path": "/x", "minPartitions": "4", "maxPartitions": "2"}, "lower one"),
        ({"path": "/x", "startingTimestamp": "5", "endingTimestamp": "4"}, "lower one"),
        ({"paths": '["/x","/y"]'}, "takes one path: read several logs one by one"),
        ({"path": "/x", "topic": "a", "subscribe": "b"}, "mean the same thing but differ"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        log_options(options)


def test_a_path_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has neither a commitlog folder nor segments"):
        read_log(tmp_path)
    with pytest.raises(ConfigError, match="on this machine"):
        read_log(tmp_path / "nothing")
    (tmp_path / f"{0:020}.gz").touch()
    with pytest.raises(ConfigError, match=r"neither a directory nor a segment.* restore the name"):
        read_log(tmp_path / f"{0:020}.gz")
    (tmp_path / "commitlog").mkdir()
    assert read_log(tmp_path) == []


def test_the_page_lists_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/spark-commitlog.md").read_text()
    for name in LOG_OPTIONS:
        assert f"| `{name}` |" in page


# In Spark.
def test_spark_reads_a_log_in_several_tasks(spark: SparkSession, store: Path) -> None:
    expected = plain_rows(store)
    _flip(segments(store)[0], expected[5]["commitLogOffset"] + 100)
    rows = spark.read.format("rocketmqCommitlog").option("minPartitions", 3).load(str(store))
    assert rows.rdd.getNumPartitions() == 3
    assert {row["status"]: row["count"] for row in rows.groupBy("status").count().collect()} == {
        "ok": 399,
        "crcMismatch": 1,
    }
    good = rows.where("status = 'ok'").orderBy("commitLogOffset").collect()
    assert [bytes(row.body) for row in good] == [
        row["body"] for number, row in enumerate(expected) if number != 5
    ]
    assert rows.columns[-3:] == ["segment", "status", "bodyFault"]


def test_a_log_is_not_written_nor_followed(spark: SparkSession, store: Path) -> None:
    said = "reads the files of a log, in batches"
    rows = spark.read.format("rocketmqCommitlog").load(str(store))
    with pytest.raises((AnalysisException, PythonException), match=said):
        rows.write.format("rocketmqCommitlog").mode("append").save(str(store))
    source = CommitLogDataSource({"path": str(store)})
    with pytest.raises(ConfigError, match=said):
        source.streamReader(rows.schema).initialOffset()


def test_any_session_finds_the_format_by_itself(spark: SparkSession, store: Path) -> None:
    session = spark.newSession()
    reader = session.read.format("rocketmqCommitlog").schema("queueId int, status string")
    found = reader.load(f"file://{store}")
    assert found.groupBy("queueId").count().orderBy("queueId").collect() == [(0, 200), (1, 200)]
    with pytest.raises(AnalysisException, match="is not on a local disk"):
        session.read.format("rocketmqCommitlog").load("hdfs://h/x")
