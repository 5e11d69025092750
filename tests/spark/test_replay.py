"""A lake's messages into a topic again, against a broker of ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from turbopump import Message
from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.errors import ConfigError
from turbopump.spark.pipelines import ReplayReport, archive, replay, replaying
from turbopump.spark.pipelines.running import Progress
from turbopump.testing import BrokerThread

Replay = Callable[..., ReplayReport]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, broker: BrokerThread, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Sixty messages of topic T."""
    with Producer(broker.namesrv) as producer:
        for number in range(60):
            message = Message(
                "T",
                f"body {number}",
                tags="AB"[number % 2],
                keys=[f"k{number}", f"five{number % 5}"],
                properties={"p": str(number)},
            )
            producer.send(message)
    directory = tmp_path_factory.mktemp("lake")
    archive(directory, ["T"], name_server=broker.namesrv, spark=spark)
    return directory


def messages(spark: SparkSession, broker: BrokerThread, topic: str) -> list[Any]:
    rows: DataFrame = (
        spark.read.format("rocketmq")
        .option("nameServer", broker.namesrv)
        .option("topic", topic)
        .load()
    )
    return sorted(rows.collect(), key=lambda row: int(row.properties["p"]))


def test_copies_keep_what_they_were_and_say_what_they_are(
    spark: SparkSession, broker: BrokerThread, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["pipeline", "replay", str(lake), "T", "copies", "-n", broker.namesrv]
    assert main([*arguments, "--output", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sent"], report["found"], report["distinct"], report["agrees"]) == (60,) * 3 + (
        True,
    )
    originals, copies = messages(spark, broker, "T"), messages(spark, broker, "copies")
    assert len(copies) == 60
    for one, copy in zip(originals, copies, strict=True):
        for column in ("body", "msgId", "keys", "tags", "flag"):
            assert one[column] == copy[column]
        assert copy.properties["p"] == one.properties["p"]
        assert copy.properties["REPLAY_ID"] == report["name"]
        origin = f"{one.brokerName}/T/{one.queueId}/{one.queueOffset}"
        assert copy.properties["REPLAYED_FROM"] == origin
    # The same again is the same replay, which is done.
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("replayed   60 of 60 messages; in th")
    assert len(messages(spark, broker, "copies")) == 60


@pytest.fixture
def run(spark: SparkSession, broker: BrokerThread, lake: Path) -> Replay:
    def replayed(target: str, **given: Any) -> ReplayReport:
        return replay(lake, "T", target, name_server=broker.namesrv, spark=spark, **given)

    return replayed


def test_messages_are_chosen_by_key_condition_and_time(
    spark: SparkSession, broker: BrokerThread, run: Replay
) -> None:
    report = run("chosen", keys=["five1", "k2"], where="tags = 'A'")
    assert (report.selected, report.sent, report.agrees) == (7, 7, True)
    chosen = [int(row.properties["p"]) for row in messages(spark, broker, "chosen")]
    assert chosen == [2, *range(6, 60, 10)]
    stored = sorted(row.storeTimestamp for row in messages(spark, broker, "T"))
    begin_ms, end_ms = (int(stored[at].timestamp() * 1000) for at in (10, 50))
    expected = sum(begin_ms <= int(time.timestamp() * 1000) < end_ms for time in stored)
    assert run("timed", begin_ms=begin_ms, end_ms=end_ms).selected == expected


def test_a_replay_that_died_goes_on_and_doubles_nothing(
    spark: SparkSession, broker: BrokerThread, run: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replaying.ReplayRun, "note", dies)  # all of a batch is sent, and not noted
    with pytest.raises(KeyboardInterrupt):
        run("again", where="tags = 'A'")
    monkeypatch.undo()
    assert len(messages(spark, broker, "again")) == 30
    report = run("again", where="tags = 'A'")
    assert (report.sent, report.present, report.done, report.agrees) == (0, 30, 30, True)
    assert len(messages(spark, broker, "again")) == 30


def test_a_stop_ends_a_replay_between_batches_and_the_rate_is_kept(
    run: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = [(1, 10), (2, 20), (3, 25), (9, 40)]
    assert list(replaying.batches_of(cut, 30)) == [(1, 3, 30), (3, 9, 25), (9, 10, 40)]
    stop, waited = threading.Event(), []
    monkeypatch.setattr(stop, "wait", waited.append)
    report = run("paced", rate=0.001, stop=stop)
    assert report.agrees
    assert all(59_000 < each / (report.sent or 1) * 60 < 60_001_000 for each in waited[-1:])
    stop.set()
    stopped = run("stopped", stop=stop, progress=Progress())
    assert (stopped.sent, stopped.found, stopped.stopped, stopped.agrees) == (0, 0, True, True)


def test_a_name_is_of_one_selection(run: Replay) -> None:
    run("named", name="n", keys=["k1"])
    with pytest.raises(ConfigError, match=r"was of another selection .*: give another name"):
        run("named", name="n", keys=["k2"])
    with pytest.raises(ConfigError, match="a replay's name has letters"):
        run("named", name="../x")
