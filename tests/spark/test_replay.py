"""A lake's messages into a topic again, against a broker of ours."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.fake_cluster import FakeCluster
from tests.spark.stored_messages import property_bytes

from turbopump import Message
from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.errors import ConfigError, LakeError, LakeInUseError
from turbopump.spark.pipelines import ReplayReport, archive, replay, replaying
from turbopump.spark.pipelines.replaying import REPLAY_ID, REPLAYED_FROM, ReplayRun
from turbopump.spark.pipelines.row_progress import RowProgress
from turbopump.testing import BrokerThread

Replay = Callable[..., ReplayReport]
STORED_MS = 1_700_000_000_000


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


def replayed_lake(
    broker: BrokerThread, lake: Path, spark: SparkSession, target: str, **given: Any
) -> ReplayReport:
    return replay(lake, "T", target, name_server=broker.namesrv, spark=spark, **given)


@pytest.fixture
def run(spark: SparkSession, broker: BrokerThread, lake: Path) -> Replay:
    return partial(replayed_lake, broker, lake, spark)


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


@pytest.mark.parametrize(
    ("step", "found", "present"), [("sending", 10, 10), ("sent", 30, 30), ("noted", 30, 0)]
)
def test_a_replay_that_died_at_a_step_goes_on_and_doubles_nothing(
    spark: SparkSession, broker: BrokerThread, run: Replay, step: str, found: int, present: int
) -> None:
    """The process dies after something was sent; `make spark` also kills at the steps before."""

    class DiesError(BaseException):
        pass

    target = f"again-{step}"
    originals = messages(spark, broker, "T")[0:20:2]

    def die(at: str) -> None:
        if step == "sending" and at == "looked":  # a part of the batch is sent
            with Producer(broker.namesrv) as producer:
                for row in originals:
                    origin = f"{row.brokerName}/T/{row.queueId}/{row.queueOffset}"
                    marks = {REPLAY_ID: target, REPLAYED_FROM: origin}
                    properties = {"p": row.properties["p"], **marks}
                    producer.send(Message(target, bytes(row.body), properties=properties))
            raise DiesError
        if at == step:
            raise DiesError

    with pytest.raises(DiesError):
        run(target, name=target, where="tags = 'A'", at_step=die)
    if found:
        assert len(messages(spark, broker, target)) == found
    report = run(target, name=target, where="tags = 'A'")
    done_before = 30 if step == "noted" else 0
    assert (report.sent, report.present) == (30 - present - done_before, present)
    assert (report.done, report.agrees) == (30, True)
    copies = [int(row.properties["p"]) for row in messages(spark, broker, target)]
    assert copies == list(range(0, 60, 2))


def replayed(
    broker: BrokerThread, spark: SparkSession, tmp_path: Path, **given: Any
) -> ReplayReport:
    return replay(tmp_path, "seconds", "slow", name_server=broker.namesrv, spark=spark, **given)


def test_a_replay_that_died_in_a_large_batch_goes_on_in_small_ones_and_doubles_nothing(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    class DiesError(BaseException):
        pass

    def die(step: str) -> None:
        if step == "sent":
            raise DiesError

    # given: six messages, of six seconds, that were sent in one batch which was not noted
    with FakeCluster({"seconds": 1}) as origin:
        for number in range(6):
            origin.fill(
                "seconds",
                0,
                1,
                properties=property_bytes({"p": str(number)}),
                stored_ms=STORED_MS + 1000 * number,
            )
        archive(tmp_path, ["seconds"], name_server=origin.address, spark=spark)
    with pytest.raises(DiesError):
        replayed(broker, spark, tmp_path, at_step=die)
    # when: it goes on with two messages in a batch
    report = replayed(broker, spark, tmp_path, rows_per_batch=2)
    # then
    assert (report.sent, report.present, report.agrees) == (0, 6, True)
    copies = [int(row.properties["p"]) for row in messages(spark, broker, "slow")]
    assert copies == list(range(6))


def test_a_batch_is_sent_without_a_shuffle_and_opens_the_files_of_its_hours_alone(
    spark: SparkSession,
    broker: BrokerThread,
    lake: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ReplayRun(
        spark=spark,
        lake=lake,
        options={"nameServer": broker.namesrv},
        selection={
            "topic": "T",
            "target": "none",
            "begin_ms": 0,
            "end_ms": None,
            "keys": ["k1"],
            "where": "flag = 0",
        },
        name="plan",
        notes=tmp_path / "notes" / "plan.json",
    )
    with run.locked():
        run.load_state()
    ((second, count),) = run.unsent_seconds()
    assert count == 1
    assert run.unsent_rows(second, second + 1, search=False).count() == 1
    assert run.unsent_rows(second + 3600, second + 3601, search=False).count() == 0
    for there in (False, True):
        run.unsent_rows(second, second + 1, search=there).explain("formatted")
        plan = capsys.readouterr().out
        assert set(re.findall(r"\w*Exchange", plan)) == ({"BroadcastExchange"} if there else set())
        assert re.search(r"PartitionFilters: \[[^]]*date#", plan)
        assert "GreaterThanOrEqual(storeTimestamp," in plan


def test_what_a_lake_has_got_since_is_sent_by_the_same_replay(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    """This includes messages stored in a second of which a part was sent already."""

    with FakeCluster({"grows": 1}) as origin:

        def archived_and_replayed(*numbers: int) -> ReplayReport:
            for number in numbers:
                properties = property_bytes({"p": str(number)})
                origin.fill("grows", 0, 1, properties=properties, stored_ms=STORED_MS)
            archive(tmp_path, ["grows"], name_server=origin.address, spark=spark)
            return replay(tmp_path, "grows", "grown", name_server=broker.namesrv, spark=spark)

        first = archived_and_replayed(0, 1, 2)
        assert (first.sent, first.selected, first.agrees) == (3, 3, True)
        second = archived_and_replayed(3, 4)
        assert (second.sent, second.selected, second.stopped, second.agrees) == (2, 5, False, True)
        third = archived_and_replayed()
        assert (third.sent, third.done, third.agrees) == (0, 5, True)
    copies = [int(row.properties["p"]) for row in messages(spark, broker, "grown")]
    assert copies == [0, 1, 2, 3, 4]


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
    stopped = run("stopped", stop=stop, progress=RowProgress())
    assert (stopped.sent, stopped.found, stopped.stopped, stopped.agrees) == (0, 0, True, True)


def begins_again(run: Replay, step: str) -> None:
    if step == "looked":
        with pytest.raises(LakeInUseError, match=r"process \d+ on .* sends this replay: wait"):
            run("once", name="once")
        assert run("other", name="other", keys=["k1"]).agrees


def test_the_same_replay_is_sent_by_one_at_a_time(run: Replay) -> None:
    report = run("once", name="once", at_step=partial(begins_again, run))
    assert (report.sent, report.found, report.agrees) == (60, 60, True)


def test_a_condition_that_cannot_be_takes_no_name(run: Replay, lake: Path) -> None:
    with pytest.raises(AnalysisException, match="tagz"):
        run("named", name="mistyped", where="tagz = 'A'")
    assert not (lake / "_replays" / "mistyped.json").exists()
    assert run("mistyped", name="mistyped", where="tags = 'A'").agrees


def test_a_topic_that_the_lake_has_not_is_refused_and_a_rate_of_nothing(
    spark: SparkSession, broker: BrokerThread, run: Replay, lake: Path
) -> None:
    with pytest.raises(LakeError, match="does not have the topic 'TT'; did you mean 'T'"):
        replay(lake, "TT", "copies", name_server=broker.namesrv, spark=spark)
    for rate in (0, -5):
        with pytest.raises(ConfigError, match=f"the rate is {rate}: expected more than 0 messages"):
            run("copies", rate=rate)
    with pytest.raises(ConfigError, match="rows_per_batch is 0: expected 1 or more"):
        run("copies", rows_per_batch=0)
    assert run("of-k1", keys="k1").sent == 1  # one text is one key


def test_a_name_is_of_one_selection(run: Replay, lake: Path) -> None:
    run("named", name="n", keys=["k1"], options={"sendBatchSize": "1", "pullBatchSize": "1"})
    with pytest.raises(ConfigError, match="unknown option 'sendBatch'; did you mean"):
        run("named", name="n", keys=["k1"], options={"sendBatch": "1"})
    with pytest.raises(ConfigError, match=r"was of another selection .*: give another name"):
        run("named", name="n", keys=["k2"])
    with pytest.raises(ConfigError, match="is not a name of a replay: use letters"):
        run("named", name="../x")
    (lake / "_replays" / "n.json").write_text('{"v": 1}')
    with pytest.raises(ConfigError, match=r"cannot be read .*: give the replay another name"):
        run("named", name="n", keys=["k1"])
