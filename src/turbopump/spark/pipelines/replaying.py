"""A lake's messages into a topic again: by time, key or condition, paced, and once each.

The one rule: a replay has a name, and every message that it sends says the name and where it came
from (``REPLAY_ID``, ``REPLAYED_FROM``). So a replay that was stopped or killed goes on: batches
that are noted in ``LAKE/_replays`` are done, and of the one that was under way the target itself
says what it has. It must not know how messages are sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turbopump.errors import ConfigError, LakeError, RouteNotFoundError
from turbopump.spark import archive as lakes
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import encode_offsets
from turbopump.spark.options import read_options
from turbopump.spark.pipelines.lake import open_lake, sync_directory
from turbopump.spark.pipelines.running import Progress
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLAY_ID: Final = "REPLAY_ID"
REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Properties of a replayed message: the replay's name, and ``broker/topic/queue/offset``."""

ROWS_PER_BATCH: Final = 50_000
SENT_COLUMNS: Final = (
    "brokerName",
    "topic",
    "queueId",
    "queueOffset",
    "body",
    "keys",
    "tags",
    "flag",
    "msgId",
    "properties",
)
_REPLAYS: Final = "_replays"


class ReplayState(msgspec.Struct, kw_only=True):
    """What is noted of a replay. Seconds count from 1970, of the store time."""

    v: int = 1
    selection: dict[str, Any]
    total: int
    began_at: dict[str, Any]
    """The ends of the target's queues before the first message."""
    batch_at: dict[str, Any]
    """The same, before the batch that is under way."""
    done_before_s: int | None = None
    """All that was stored before this second is sent."""
    done: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """What a replay has done: ``selected`` messages in all; in this run ``sent``, and ``present``:
    there already, from a run that was killed. ``found`` and ``distinct`` count what the target has
    of the replay."""

    name: str
    selected: int
    done: int
    sent: int
    present: int
    found: int
    distinct: int
    seconds: float
    stopped: bool

    @property
    def agrees(self) -> bool:
        """Whether the target has each message once that was sent so far."""
        return self.found == self.distinct == self.done and (
            self.stopped or self.done == self.selected
        )


def replay(
    lake: str | Path,
    topic: str,
    target: str,
    *,
    name_server: str,
    spark: SparkSession | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    keys: Sequence[str] = (),
    where: str | None = None,
    rate: float | None = None,
    name: str | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
    options: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> ReplayReport:
    """Send what the lake has of ``topic`` to ``target``, in the order of store times.

    ``begin_ms`` and ``end_ms`` (exclusive) bound the store time, ``keys`` are those of which a
    message must have one, ``where`` is a condition in Spark's SQL. ``rate``: messages a second at
    most. ``name`` is how a replay is known; without one the same selection has the same name, so
    calling again goes on, and does nothing if it was done. Ids, keys, tags, flag, body and
    properties stay; queues and times are new.

    Raises ConfigError for a wrong argument, LakeError for what is no lake or has no bodies, and
    what ``format("rocketmq")`` raises when it cannot write.
    """
    spark = spark or rocketmq_session()
    progress = progress or Progress()
    stop = stop or threading.Event()
    began = time.monotonic()
    selection: dict[str, Any] = {
        "topic": topic,
        "target": target,
        "begin_ms": begin_ms,
        "end_ms": end_ms,
        "keys": sorted(keys),
        "where": where,
    }
    if name is None:
        digest = hashlib.sha256(json.dumps(selection, sort_keys=True).encode())
        name = f"replay-{digest.hexdigest()[:12]}"
    if not all(each.isalnum() or each in "-_." for each in name) or name.startswith("."):
        raise ConfigError(f"a replay's name has letters, digits, - and _, not {name!r}")
    run = ReplayRun(
        spark=spark,
        rows=_selected(spark, Path(lake), selection),
        options={**(options or {}), "nameServer": name_server},
        target=target,
        name=name,
        notes=Path(lake) / _REPLAYS / f"{name}.json",
    )
    seconds = run.seconds()
    state = run.state(selection, sum(count for _, count in seconds))
    left = [
        each for each in seconds if state.done_before_s is None or each[0] >= state.done_before_s
    ]
    progress.expect(sum(count for _, count in left))
    sent = present = 0
    for low, high, count in batches_of(left, rows_per_batch):
        if stop.is_set():
            break
        there = run.already_there(low, high, state)
        run.send(low, high, there, state)
        present += there
        sent += count - there
        state.done += count
        state.done_before_s = high
        run.note(state)
        progress.add(count)
        if rate is not None:
            stop.wait(max(0.0, (sent + present) / rate - (time.monotonic() - began)))
    found, distinct = run.in_target(state.began_at)
    return ReplayReport(
        name=name,
        selected=state.total,
        done=state.done,
        sent=sent,
        present=present,
        found=found,
        distinct=distinct,
        seconds=time.monotonic() - began,
        stopped=state.done < state.total,
    )


def _selected(spark: SparkSession, lake: Path, selection: dict[str, Any]) -> DataFrame:
    """The rows to send, and ``second``, in which each was stored."""
    from pyspark.sql.functions import array_contains, col, expr, floor, lit, split, timestamp_millis

    columns = open_lake(lake).definition.columns
    frame = lakes.rows(spark, lake)
    if "body" not in frame.columns:
        raise LakeError(f"{lake} has no bodies, so there is nothing to send: it was made without")
    rows = frame.where(col("topic") == selection["topic"])
    time_of = col("storeTimestamp")
    if selection["begin_ms"] is not None:
        rows = rows.where(time_of >= timestamp_millis(lit(selection["begin_ms"])))
    if selection["end_ms"] is not None:
        rows = rows.where(time_of < timestamp_millis(lit(selection["end_ms"])))
    if selection["keys"]:
        if "keys" not in columns:
            raise LakeError(f"{lake} has no column keys to select by")
        words = split(col("keys"), " ")
        wanted = [array_contains(words, key) for key in selection["keys"]]
        condition = wanted[0]
        for each in wanted[1:]:
            condition = condition | each
        rows = rows.where(condition)
    if selection["where"] is not None:
        rows = rows.where(expr(selection["where"]))
    sent = [name for name in SENT_COLUMNS if name == "topic" or name in columns]
    second = floor(time_of.cast("double")).alias("second")
    return rows.select(*sent, time_of, second)


def batches_of(seconds: list[tuple[int, int]], rows_max: int) -> Iterator[tuple[int, int, int]]:
    """``(from, to, rows)``: whole seconds together, up to so many rows where one has not more."""
    low, rows = None, 0
    for second, count in seconds:
        if low is not None and rows + count > rows_max:
            yield low, second, rows
            low, rows = None, 0
        low = second if low is None else low
        rows += count
    if low is not None:
        yield low, seconds[-1][0] + 1, rows


@dataclass(frozen=True, kw_only=True)
class ReplayRun:
    """One run of ``replay``: the rows that it sends, and its notes of what it has sent."""

    spark: SparkSession
    rows: DataFrame
    options: dict[str, str]
    target: str
    name: str
    notes: Path

    def seconds(self) -> list[tuple[int, int]]:
        """How many rows each second has, in order."""
        counted = self.rows.groupBy("second").count().orderBy("second").collect()
        return [(row["second"], row["count"]) for row in counted]

    def state(self, selection: dict[str, Any], total: int) -> ReplayState:
        """What is noted, or a new note. Raises ConfigError for the name of another selection."""
        try:
            state = msgspec.json.decode(self.notes.read_bytes(), type=ReplayState)
        except FileNotFoundError:
            ends = self._target_ends()
            state = ReplayState(selection=selection, total=total, began_at=ends, batch_at=ends)
            self.notes.parent.mkdir(exist_ok=True)
            self._write(state)
            return state
        if state.selection != selection:
            raise ConfigError(
                f"the replay {self.name!r} was of another selection ({state.selection}): give "
                "another name"
            )
        state.total = total
        return state

    def note(self, state: ReplayState) -> None:
        """A batch is done; the next one begins here."""
        state.batch_at = self._target_ends()
        self._write(state)

    def already_there(self, low: int, high: int, state: ReplayState) -> int:
        """How many messages of a batch the target has, from a run that was killed in it."""
        return self._pending(low, high).join(self._there(state), REPLAYED_FROM, "semi").count()

    def send(self, low: int, high: int, there: int, state: ReplayState) -> None:
        """Send the messages of a batch that the target has not."""
        from pyspark.sql.functions import col

        rows = self._pending(low, high)
        if there:
            rows = rows.join(self._there(state), REPLAYED_FROM, "anti")
        (
            rows.sort(col("storeTimestamp"), col("queueId"), col("queueOffset"))
            .drop(REPLAYED_FROM, "second", "storeTimestamp")
            .write.format("rocketmq")
            .options(**self.options)
            .option("topic", self.target)
            .option("idempotencyKey", "auto")
            .mode("append")
            .save()
        )

    def in_target(self, began_at: dict[str, Any]) -> tuple[int, int]:
        """How many messages of the replay the target has, and of how many origins."""
        from pyspark.sql.functions import count, count_distinct

        found = self._marked(began_at).agg(count("*"), count_distinct(REPLAYED_FROM)).first()
        assert found is not None
        return found[0], found[1]

    def _pending(self, low: int, high: int) -> DataFrame:
        from pyspark.sql.functions import (
            array,
            col,
            concat_ws,
            lit,
            map_concat,
            map_filter,
            map_from_arrays,
        )

        rows = self.rows.where((col("second") >= low) & (col("second") < high))
        origin = concat_ws("/", "brokerName", "topic", "queueId", "queueOffset")
        names, values = array(lit(REPLAY_ID), lit(REPLAYED_FROM)), array(lit(self.name), origin)
        properties = map_from_arrays(names, values)
        if "properties" in rows.columns:
            before = map_filter("properties", lambda key, _: ~key.isin(REPLAY_ID, REPLAYED_FROM))
            properties = map_concat(before, properties)
        return rows.withColumn("properties", properties).withColumn(REPLAYED_FROM, origin)

    def _there(self, state: ReplayState) -> DataFrame:
        return self._marked(state.batch_at).select(REPLAYED_FROM).distinct()

    def _marked(self, since: dict[str, Any]) -> DataFrame:
        """The replay's messages in the target, from these offsets on."""
        from pyspark.sql.functions import col

        ends = self._target_ends()
        if not ends["topics"]:
            return self.spark.createDataFrame([], f"{REPLAYED_FROM} string")
        rows = (
            self.spark.read.format("rocketmq")
            .options(**self.options)
            .option("topic", self.target)
            .option("columns", "properties")
            .option("startingOffsets", json.dumps(since) if since["topics"] else "earliest")
            .option("endingOffsets", json.dumps(ends))
            .load()
        )
        properties = col("properties")
        return rows.where(properties[REPLAY_ID] == self.name).select(
            properties[REPLAYED_FROM].alias(REPLAYED_FROM)
        )

    def _target_ends(self) -> dict[str, Any]:
        """The ends of the target's queues; no topic if there is none yet."""
        with self._cluster() as cluster:
            try:
                queues = cluster.queues(self.target)
            except RouteNotFoundError:
                return encode_offsets({})
            return encode_offsets(cluster.offsets_max(queues))

    def _cluster(self) -> Cluster:
        return connected(read_options({**self.options, "topic": self.target}))

    def _write(self, state: ReplayState) -> None:
        draft = self.notes.with_suffix(f".{os.getpid()}")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.notes)
        sync_directory(self.notes.parent)
