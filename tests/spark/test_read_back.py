"""Writes whose rows have keys: what earlier attempts have sent is not sent again. Without Spark;
the broker is ours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.fake_cluster import FakeCluster

from turbopump.client.sending.outgoing import Outgoing
from turbopump.client.sending.send_result import SendResult
from turbopump.errors import (
    ConfigError,
    ConnectionLostError,
    RouteNotFoundError,
    SendError,
    WriteError,
)
from turbopump.message.message import MessageQueue
from turbopump.spark import sink
from turbopump.spark.cluster import Cluster
from turbopump.spark.encode import MARK
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import read_options
from turbopump.spark.read_back import Planned, ReadBack, TaskAttempt, attempt_of, decode_mark
from turbopump.spark.reading import read_ranges
from turbopump.spark.sink import Outbox, PackedProducer, Written, write_task
from turbopump.spark.write_options import layout, write_options
from turbopump.testing import BrokerThread


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


class Context:
    """Properties of a task, as Spark passes them."""

    def __init__(self, partition: int = 0, number: int = 0, **properties: str) -> None:
        self._partition, self._number = partition, number
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def attemptNumber(self) -> int:  # noqa: N802
        return self._number

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)


def in_stream(batch: int, partition: int = 0, number: int = 0, run: str = "run-1") -> Context:
    said = {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(batch)}
    return Context(partition, number, **said, **{"spark.jobGroup.id": run})


PLANNED = Planned("planned", 1_000_000)


def attempt(broker: BrokerThread, context: Any = None, **options: str) -> TaskAttempt:
    given = {"nameServer": broker.namesrv, "idempotencyKey": "k", **options}
    return attempt_of(context, write_options(given), PLANNED, 2_000_000)


def send(
    broker: BrokerThread,
    topic: str,
    keys: Sequence[str],
    context: Any,
    planned: Planned = PLANNED,
    **options: str,
) -> Written:
    given = {"nameServer": broker.namesrv, "topic": topic, "idempotencyKey": "k", **options}
    plan = write_options(given)
    batch = pa.record_batch({"body": [f"body {key}" for key in keys], "k": keys})
    told = attempt_of(context, plan, planned, 0)
    return write_task(iter([batch]), plan, layout(batch.schema, plan), told)


def bodies(broker: BrokerThread, topic: str) -> list[str]:
    """The keys that the topic has, sorted."""
    options = read_options(
        {"nameServer": broker.namesrv, "topic": topic, "columns": "body,properties"}
    )
    with Cluster(options.name_servers) as cluster:
        ranges = [OffsetRange(q, 0, cluster.offset_max(q)) for q in cluster.queues(topic)]
    found = [row for batch in read_ranges(ranges, options) for row in batch.to_pylist()]
    return sorted(row["body"].decode().removeprefix("body ") for row in found)


KEYS = [f"{number:03d}" for number in range(100)]


def test_an_attempt_says_what_spark_said(broker: BrokerThread) -> None:
    first = attempt(broker, Context(3))
    assert (first.write, first.batch, first.partition, first.looks) == ("planned", 0, 3, False)
    assert first.since_ms == 1_000_000 - 60_000
    assert attempt(broker, Context(3, 1)).looks
    assert not attempt(broker, Context(3, 1)).any_partition
    streamed = attempt(broker, in_stream(7, 2))
    assert (streamed.write, streamed.batch, streamed.looks) == ("query", 7, True)
    assert streamed.any_partition
    assert attempt(broker, in_stream(7), writeId="second").write == "query.second"
    named = attempt(broker, Context(), writeId="mine")
    assert (named.write, named.looks, named.since_ms) == ("mine", True, 0)
    mark = decode_mark(streamed.mark)
    assert mark is not None
    assert (mark.write, mark.batch, mark.partition) == ("query", 7, 2)
    assert mark.token == f"{streamed.run}.{streamed.token}"
    assert [decode_mark(text) for text in (None, "", "a/b/c/d", "1/2/3")] == [None] * 4


def test_a_topic_that_is_new_has_nothing_of_an_earlier_attempt(broker: BrokerThread) -> None:
    done = send(broker, "brand-new", KEYS, Context(0, 1))
    assert (done.rows, done.skipped) == (100, 0)
    assert bodies(broker, "brand-new") == KEYS


def test_a_topic_that_nobody_makes_is_told() -> None:
    with FakeCluster({"T": 1}) as cluster:
        plan = write_options(
            {"nameServer": cluster.address, "topic": "absent", "sendTimeoutMs": "1"}
        )
        batch = pa.record_batch({"body": ["x"]})
        told = attempt_of(None, plan, PLANNED, 0)
        order = layout(batch.schema, plan)
        with pytest.raises(RouteNotFoundError, match="no route to topic 'absent'"):
            write_task(iter([batch]), plan, order, told)


def test_speculation_is_refused(broker: BrokerThread) -> None:
    context = Context(**{"spark.speculation": "true"})
    with pytest.raises(ConfigError, match=re.escape("needs spark.speculation=false")):
        attempt(broker, context)
    assert attempt(broker, context, idempotencyKey="none").number == 0


def test_delays_and_keys_exclude_each_other(broker: BrokerThread) -> None:
    schema = pa.schema([("body", pa.binary()), ("k", pa.string()), ("delayLevel", pa.int32())])
    options = write_options({"nameServer": "a:1", "topic": "T", "idempotencyKey": "k"})
    with pytest.raises(ConfigError, match="idempotencyKey and the column delayLevel exclude"):
        layout(schema, options)


def test_a_retried_task_sends_what_its_first_attempt_has_not(broker: BrokerThread) -> None:
    broker.create_topic("retried", 3)
    assert send(broker, "retried", KEYS[:60], Context(1, 0)).rows == 60
    assert send(broker, "retried", ["other"], Context(2, 0)).rows == 1
    again = send(broker, "retried", KEYS, Context(1, 1))
    assert (again.rows, again.skipped, again.twice) == (40, 60, 0)
    assert bodies(broker, "retried") == sorted([*KEYS, "other"])
    # Another save() of the same rows is another write.
    other = send(broker, "retried", KEYS, Context(1, 1), Planned("other", 1_000_000))
    assert (other.rows, other.skipped) == (100, 0)


def test_equal_rows_with_different_keys_are_all_sent(broker: BrokerThread) -> None:
    broker.create_topic("equal", 1)
    plan = write_options({"nameServer": broker.namesrv, "topic": "equal", "idempotencyKey": "k"})
    batch = pa.record_batch({"body": ["same"] * 10, "k": list(range(10))})
    for number in range(2):
        told = attempt_of(Context(0, number), plan, PLANNED, 0)
        write_task(iter([batch]), plan, layout(batch.schema, plan), told)
    assert bodies(broker, "equal") == ["same"] * 10


def test_equal_keys_are_as_many_rows_as_there_are(broker: BrokerThread) -> None:
    broker.create_topic("equal-keys", 1)
    send(broker, "equal-keys", ["a"], Context(0, 0))
    again = send(broker, "equal-keys", ["a", "a", "b"], Context(0, 1))
    assert (again.rows, again.skipped) == (2, 1)


def test_a_repeated_batch_of_a_stream_finds_its_rows_in_other_partitions(
    broker: BrokerThread,
) -> None:
    broker.create_topic("streamed", 4)
    send(broker, "streamed", KEYS, in_stream(0))
    send(broker, "streamed", KEYS[:50], in_stream(1, partition=0))
    send(broker, "streamed", KEYS[50:70], in_stream(1, partition=1))
    # The query begins again, with one partition.
    again = send(broker, "streamed", KEYS, in_stream(1, run="run-2"))
    assert (again.rows, again.skipped) == (30, 70)
    following = send(broker, "streamed", KEYS, in_stream(2, run="run-2"))
    assert (following.rows, following.skipped) == (100, 0)
    assert bodies(broker, "streamed") == sorted(KEYS * 3)


def test_a_named_write_may_be_begun_again(broker: BrokerThread) -> None:
    broker.create_topic("named", 2)
    send(broker, "named", KEYS[:30], Context(0), writeId="night")
    again = send(broker, "named", KEYS, Context(5), Planned("later", 10**13), writeId="night")
    assert (again.rows, again.skipped) == (70, 30)
    assert send(broker, "named", KEYS, Context(0), writeId="day").rows == 100


def test_reading_back_ends_at_the_batch_before(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the end of a long queue is read, up to an older batch in any queue."""
    broker.create_topic("bounded", 2)
    many = [f"{number:05d}" for number in range(5000)]
    send(broker, "bounded", many, in_stream(0))
    send(broker, "bounded", KEYS, in_stream(1))
    read: list[OffsetRange] = []

    def noted(ranges: list[OffsetRange], options: Any) -> Iterator[pa.RecordBatch]:
        read.extend(ranges)
        return read_ranges(ranges, options)

    monkeypatch.setattr("turbopump.spark.read_back.read_ranges", noted)
    again = send(broker, "bounded", KEYS, in_stream(1, run="run-2"))
    assert (again.rows, again.skipped) == (0, 100)
    assert sum(wanted.end - wanted.begin for wanted in read) < 1000
    read.clear()
    assert send(broker, "bounded", KEYS, in_stream(2, run="run-2")).rows == 100
    assert sum(wanted.end - wanted.begin for wanted in read) <= 256


def test_an_older_attempt_that_still_sends_is_counted(broker: BrokerThread) -> None:
    broker.create_topic("stray", 2)
    plan = write_options({"nameServer": broker.namesrv, "topic": "stray", "idempotencyKey": "k"})
    batch = pa.record_batch({"body": [f"body {key}" for key in KEYS], "k": KEYS})
    order = layout(batch.schema, plan)
    old = Outbox(plan, attempt_of(Context(4, 0), plan, PLANNED, 0))
    new = Outbox(plan, attempt_of(Context(4, 1), plan, PLANNED, 0))
    with old, new:
        old.send_rows(batch.slice(0, 10), order)
        old.finish()
        new.send_rows(batch, order)
        old.send_rows(batch.slice(10, 5), order)
        new.finish()
        old.finish()
        assert (new.stored, new.skipped, new.count_duplicates()) == (90, 10, 5)
        assert old.count_duplicates() == 0  # it is the first attempt: nobody was there before it


class LosingProducer(PackedProducer):
    """Loses answers: of these sends, by number, and what becomes of the message."""

    lost: dict[int, str]
    sends = 0

    async def deliver(self, outgoing: Outgoing, queue: MessageQueue, timeout: float) -> SendResult:
        number = LosingProducer.sends
        LosingProducer.sends += 1
        fate = self.lost.get(number)
        if fate != "never came":
            result = await super().deliver(outgoing, queue, timeout)
            if fate is None:
                return result
        raise SendError("no answer") from ConnectionLostError("the connection broke")


@pytest.mark.parametrize("fate", ["stored", "never came"])
@pytest.mark.parametrize("ordered", [False, True])
def test_an_answer_that_was_lost_is_looked_for(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, fate: str, ordered: bool
) -> None:
    topic = f"lost-{fate.replace(' ', '-')}-{ordered}"
    broker.create_topic(topic, 2)
    LosingProducer.lost, LosingProducer.sends = {1: fate}, 0
    monkeypatch.setattr(sink, "PackedProducer", LosingProducer)
    monkeypatch.setattr(sink, "SETTLE_S", 0.0)
    options = {"orderingKey": "k"} if ordered else {}
    done = send(broker, topic, KEYS, Context(), sendBatchSize="10", **options)
    assert done.rows == 100
    assert bodies(broker, topic) == KEYS
    assert LosingProducer.sends > 10 - (fate == "stored")


def test_without_keys_an_answer_that_was_lost_means_twice(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("lost-plain", 1)
    LosingProducer.lost, LosingProducer.sends = {1: "stored"}, 0
    monkeypatch.setattr(sink, "PackedProducer", LosingProducer)
    plan = write_options(
        {"nameServer": broker.namesrv, "topic": "lost-plain", "sendBatchSize": "10"}
    )
    batch = pa.record_batch({"body": [f"body {key}" for key in KEYS]})
    told = attempt_of(None, plan, PLANNED, 0)
    assert write_task(iter([batch]), plan, layout(batch.schema, plan), told).rows == 100
    assert Counter(bodies(broker, "lost-plain")).most_common(10)[-1][1] == 2
    assert len(bodies(broker, "lost-plain")) == 110


def test_a_task_that_gives_up_says_what_may_be_stored(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("given-up", 1)
    LosingProducer.lost, LosingProducer.sends = {1: "never came"}, 0
    monkeypatch.setattr(sink, "PackedProducer", LosingProducer)
    plan = write_options(
        {
            "nameServer": broker.namesrv,
            "topic": "given-up",
            "sendBatchSize": "10",
            "retries": "0",
            "maxInFlight": "1",
        }
    )
    batch = pa.record_batch({"body": [f"body {key}" for key in KEYS]})
    told = attempt_of(Context(3, 2), plan, PLANNED, 0)
    with pytest.raises(WriteError) as caught:
        write_task(iter([batch]), plan, layout(batch.schema, plan), told)
    assert str(caught.value) == (
        "row 10 of task 3, attempt 2, was not sent: no answer (10 rows of this task are stored, "
        "10 may be)"
    )
    assert len(bodies(broker, "given-up")) == 10


def test_marks_of_an_older_write_are_not_copied(broker: BrokerThread) -> None:
    broker.create_topic("marked", 1)
    broker.create_topic("copied", 1)
    send(broker, "marked", ["a"], in_stream(0))
    options = read_options({"nameServer": broker.namesrv, "topic": "marked"})
    with Cluster(options.name_servers) as cluster:
        (queue,) = cluster.queues("marked")
        (batch,) = read_ranges([OffsetRange(queue, 0, cluster.offset_max(queue))], options)
    assert MARK in dict(batch.column("properties")[0].as_py())
    plan = write_options({"nameServer": broker.namesrv, "topic": "copied"})
    told = attempt_of(None, plan, PLANNED, 0)
    write_task(iter([batch]), plan, layout(batch.schema, plan), told)
    found = ReadBack(plan, attempt_of(in_stream(0), plan, PLANNED, 0)).find_sent_keys("copied")
    assert not found.ids
