"""A lake's messages into a topic again: by time, key or condition, paced, and once each.

The one rule: a replay has a name, and every message that it sends says the name and where it came
from (``REPLAY_ID``, ``REPLAYED_FROM``). So a replay that was stopped or killed goes on: batches
that are noted in ``LAKE/_replays`` are done, and of the one that was under way the target itself
says what it has. It must not know how messages are sent.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from turbopump.durable_files import replace_file
from turbopump.errors import ConfigError, LakeError, RouteNotFoundError
from turbopump.spark import archive as lakes
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import Offsets, decode_offsets, encode_offsets
from turbopump.spark.options import OPTIONS, Option, did_you_mean, given_values, read_options
from turbopump.spark.pipelines.lake import lake_place, locked, no_step, open_lake
from turbopump.spark.pipelines.running import Progress, unlogged_errors
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session
from turbopump.spark.write_options import WRITE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_ID: Final = "REPLAY_ID"
REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Properties of a replayed message: the replay's name, and ``broker/topic/queue/offset``."""

ROWS_PER_BATCH: Final = 50_000
PACED_S: Final = 5
"""Seconds of a rate that a batch has at most: a batch is not paced."""
HOUR_MS: Final = 3_600_000
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
    """What is noted of a replay: how far it is through a part of the lake. A part ends where the
    lake ended when it was begun; what the lake gets later is the next part. Seconds count from
    1970, of the store time."""

    v: Literal[2] = 2
    selection: dict[str, Any]
    part_begin: dict[str, Any]
    part_end: dict[str, Any]
    """Offsets in the original queues."""
    began_at: dict[str, Any]
    """The ends of the target's queues before the first message."""
    batch_at: dict[str, Any]
    """The same, before the first message that was stored from ``done_before_s`` on."""
    sent_before_s: int | None = None
    """No message of the part that was stored from this second on has been sent."""
    done_before_s: int | None = None
    """All of the part that was stored before this second is sent."""
    done: int = 0
    """Messages of all parts that are sent."""


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
    at_step: Callable[[str], None] = no_step,
) -> ReplayReport:
    """Send what the lake has of ``topic`` to ``target``, in the order of store times.

    ``begin_ms`` and ``end_ms`` (exclusive) bound the store time, ``keys`` are those of which a
    message must have one, ``where`` is a condition in Spark's SQL. ``rate``: messages a second at
    most. ``name`` is how a replay is known; without one the same selection has the same name, so
    calling again goes on: with what is left, and with what the lake has got since. Ids, keys, tags,
    flag, body and properties stay; queues and times are new. ``at_step`` hears of each batch
    ``begun``, ``looked`` (what the target has of it), ``sent`` and ``noted``.

    Raises ConfigError for a wrong argument, LakeError for what is no lake, has no bodies or does
    not have the topic, LakeInUseError while the same replay runs elsewhere, and what
    ``format("rocketmq")`` raises when it cannot write.
    """
    lake = lake_place(lake)
    spark = spark or rocketmq_session()
    progress = progress or Progress()
    stop = stop or threading.Event()
    if rows_per_batch < 1:
        raise ConfigError(f"rows_per_batch is {rows_per_batch}: expected 1 or more")
    if rate is not None:
        if rate <= 0:
            raise ConfigError(f"the rate is {rate}: expected more than 0 messages a second")
        rows_per_batch = max(1, min(rows_per_batch, int(rate * PACED_S)))
    keys = [keys] if isinstance(keys, str) else keys
    began = time.monotonic()
    selection: dict[str, Any] = {
        "topic": topic,
        "target": target,
        "begin_ms": begin_ms,
        "end_ms": end_ms,
        "keys": sorted(keys),
        "where": where,
    }
    name = _name_of(selection) if name is None else _checked_name(name)
    run = ReplayRun(
        spark=spark,
        lake=lake,
        options=_known({**(options or {}), "nameServer": name_server}),
        topic=topic,
        target=target,
        name=name,
        notes=lake / _REPLAYS / f"{name}.json",
    )
    with run.alone():
        state = run.state(selection)
        sent = present = 0
        while True:
            seconds = run.left(state)
            selected = state.done + sum(count for _, count in seconds)
            progress.expect(selected - state.done)
            for low, high, count in batches_of(seconds, rows_per_batch):
                if stop.is_set():
                    break
                run.begin_batch(state, high)
                at_step("begun")
                there = run.already_there(low, high, state)
                at_step("looked")
                run.send(run.batch(low, high, there, state))
                at_step("sent")
                present += there
                sent += count - there
                state.done += count
                run.end_batch(state, high)
                at_step("noted")
                progress.add(count)
                if rate is not None:
                    stop.wait(max(0.0, (sent + present) / rate - (time.monotonic() - began)))
            if stop.is_set() or not run.begin_next_part(state):
                break
        found, distinct = run.in_target(state.began_at)
    return ReplayReport(
        name=name,
        selected=selected,
        done=state.done,
        sent=sent,
        present=present,
        found=found,
        distinct=distinct,
        seconds=time.monotonic() - began,
        stopped=state.done < selected,
    )


def _name_of(selection: dict[str, Any]) -> str:
    """Of a replay that was given none: the same for the same selection."""
    digest = hashlib.sha256(json.dumps(selection, sort_keys=True).encode())
    return f"replay-{digest.hexdigest()[:12]}"


def _checked_name(name: str) -> str:
    if not all(each.isalnum() or each in "-_." for each in name) or name.startswith("."):
        raise ConfigError(f"a replay's name has letters, digits, - and _, not {name!r}")
    return name


def _known(options: dict[str, str]) -> dict[str, str]:
    """The options, each of which a read or a write of the target knows. Raises ConfigError."""
    both = {**WRITE_OPTIONS, **OPTIONS}
    given_values(options, both)
    return options


def _only(options: Mapping[str, str], table: Mapping[str, Option]) -> dict[str, str]:
    """Those that a table has."""
    names = {name.lower() for name in table}
    return {name: value for name, value in options.items() if name.lower() in names}


def _selected(
    spark: SparkSession, lake: Path, state: ReplayState, begin_s: int | None, end_s: int | None
) -> DataFrame:
    """The rows of the part that are to be sent, of these seconds alone, and ``second``, in which
    each was stored."""
    from pyspark.sql.functions import array_contains, col, expr, floor, split

    selection = state.selection
    columns = open_lake(lake).definition.columns
    frame = lakes.rows(spark, lake)
    if "body" not in frame.columns:
        raise LakeError(f"{lake} has no bodies, so there is nothing to send: it was made without")
    rows = frame.where(col("topic") == selection["topic"])
    rows = _between(rows, decode_offsets(state.part_begin), decode_offsets(state.part_end))
    rows = _stored(rows, selection["begin_ms"], selection["end_ms"])
    rows = _stored(
        rows, None if begin_s is None else begin_s * 1000, None if end_s is None else end_s * 1000
    )
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
    second = floor(col("storeTimestamp").cast("double")).alias("second")
    return rows.select(*sent, "storeTimestamp", second)


def _stored(rows: DataFrame, begin_ms: int | None, end_ms: int | None) -> DataFrame:
    """The rows stored between two times; None is no bound. Files of other hours are not opened."""
    from pyspark.sql.functions import col, lit, timestamp_millis, unix_date

    stored, hour = col("storeTimestamp"), unix_date("date") * 24 + col("hour")
    if begin_ms is not None:
        rows = rows.where(
            (stored >= timestamp_millis(lit(begin_ms))) & (hour >= begin_ms // HOUR_MS)
        )
    if end_ms is not None:
        rows = rows.where((stored < timestamp_millis(lit(end_ms))) & (hour <= end_ms // HOUR_MS))
    return rows


def _between(rows: DataFrame, begins: Offsets, ends: Offsets) -> DataFrame:
    """The rows of one topic between two sets of offsets."""
    from pyspark.sql.functions import coalesce, col, concat_ws, create_map, lit

    def bound(offsets: Offsets) -> Column:
        """The offset in a row's queue; 0 where there is none."""
        named = {f"{queue.broker_name}/{queue.queue_id}": at for queue, at in offsets.items()}
        found = create_map(*map(lit, chain(*named.items())))[
            concat_ws("/", "brokerName", "queueId")
        ]
        return coalesce(found, lit(0))

    if begins:
        rows = rows.where(col("queueOffset") >= bound(begins))
    return rows.where(col("queueOffset") < bound(ends) if ends else lit(False))


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
    """One run of ``replay``: what it sends, and its notes of what it has sent."""

    spark: SparkSession
    lake: Path
    options: dict[str, str]
    topic: str
    target: str
    name: str
    notes: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While it sends nobody else sends the same replay: neither would see what the other is
        about to send. Raises LakeInUseError, and LakeError if there is no lake, or one in which
        offsets of the topic come twice."""
        for queue in open_lake(self.lake).snapshot().generations:
            if queue.topic == self.topic:
                raise LakeError(
                    f"{self.lake} has several generations of {queue}, so its offsets are "
                    "not unique, as a replay needs: read the rows with lake.rows, and "
                    'write them with format("rocketmq")'
                )
        self.notes.parent.mkdir(exist_ok=True)
        alone = "sends this replay: wait until it ends, or give another name"
        with locked(self.notes.with_suffix(".lock"), self.notes, alone):
            yield

    def state(self, selection: dict[str, Any]) -> ReplayState:
        """What is noted, or a new note. Raises ConfigError for the name of another selection."""
        try:
            state = msgspec.json.decode(self.notes.read_bytes(), type=ReplayState)
        except FileNotFoundError:
            topic, topics = selection["topic"], {queue.topic for queue in lakes.offsets(self.lake)}
            if topic not in topics:
                raise LakeError(
                    f"{self.lake} does not have the topic {topic!r}{did_you_mean(topic, topics)}; "
                    f"topics: {', '.join(sorted(topics)) or 'none'}"
                ) from None
            none, ends = encode_offsets({}), self._target_ends()
            state = ReplayState(
                selection=selection, part_begin=none, part_end=none, began_at=ends, batch_at=ends
            )
            with unlogged_errors():  # a condition that cannot be is told before it has a name
                _selected(self.spark, self.lake, state, None, None)
            if not self.begin_next_part(state):
                replace_file(self.notes, msgspec.json.encode(state))
            return state
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.notes} cannot be read ({error}): give the replay another name"
            ) from None
        if state.selection != selection:
            raise ConfigError(
                f"the replay {self.name!r} was of another selection ({state.selection}): give "
                "another name"
            )
        return state

    def begin_next_part(self, state: ReplayState) -> bool:
        """Note that what the lake has got since is the next part; False if that is nothing."""
        topic = state.selection["topic"]
        offsets = lakes.offsets(self.lake).items()
        ends = encode_offsets({queue: end for queue, end in offsets if queue.topic == topic})
        if ends == state.part_end:
            return False
        state.part_begin, state.part_end = state.part_end, ends
        state.done_before_s = state.sent_before_s = None
        replace_file(self.notes, msgspec.json.encode(state))
        return True

    def left(self, state: ReplayState) -> list[tuple[int, int]]:
        """How many rows of the part that are not noted as sent each second has, in order."""
        rows = _selected(self.spark, self.lake, state, state.done_before_s, None)
        counted = rows.groupBy("second").count().orderBy("second").collect()
        return [(row["second"], row["count"]) for row in counted]

    def begin_batch(self, state: ReplayState, end_s: int) -> None:
        """Note up to which second messages may be in the target soon. A run that was killed may
        have had a larger batch: then it is that run's end."""
        if state.sent_before_s is None or state.sent_before_s < end_s:
            state.sent_before_s = end_s
            replace_file(self.notes, msgspec.json.encode(state))

    def end_batch(self, state: ReplayState, end_s: int) -> None:
        """Note that a batch is done. Messages of later seconds are looked for from here on, unless
        a larger batch has sent some of them before."""
        state.done_before_s = end_s
        if state.sent_before_s == end_s:
            state.batch_at = self._target_ends()
        replace_file(self.notes, msgspec.json.encode(state))

    def already_there(self, low: int, high: int, state: ReplayState) -> int:
        """How many messages of a batch the target has, from a run that was killed in it."""
        return (
            self._pending(low, high, state).join(self._there(state), REPLAYED_FROM, "semi").count()
        )

    def batch(self, low: int, high: int, there: int, state: ReplayState) -> DataFrame:
        """The messages of a batch that the target has not.

        Without a shuffle: where an executor is lost with its shuffle files, Spark runs tasks again
        that look like first attempts, and do not ask the target what it has.
        """
        from pyspark.sql.functions import broadcast

        rows = self._pending(low, high, state)
        if there:
            rows = rows.join(broadcast(self._there(state)), REPLAYED_FROM, "anti")
        rows = rows.sortWithinPartitions("storeTimestamp", "queueId", "queueOffset")
        return rows.drop(REPLAYED_FROM, "second", "storeTimestamp")

    def send(self, rows: DataFrame) -> None:
        """Send these rows."""
        (
            rows.write.format("rocketmq")
            .options(**_only(self.options, WRITE_OPTIONS))
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

    def _pending(self, low: int, high: int, state: ReplayState) -> DataFrame:
        from pyspark.sql.functions import (
            array,
            concat_ws,
            lit,
            map_concat,
            map_filter,
            map_from_arrays,
        )

        # The list of files anew for each batch: a lake may be compacted meanwhile.
        rows = _selected(self.spark, self.lake, state, low, high)
        origin = concat_ws("/", "brokerName", "topic", "queueId", "queueOffset")
        names, values = array(lit(REPLAY_ID), lit(REPLAYED_FROM)), array(lit(self.name), origin)
        properties = map_from_arrays(names, values)
        if "properties" in rows.columns:
            before = map_filter("properties", lambda key, _: ~key.isin(REPLAY_ID, REPLAYED_FROM))
            properties = map_concat(before, properties)
        return rows.withColumn("properties", properties).withColumn(REPLAYED_FROM, origin)

    def _there(self, state: ReplayState) -> DataFrame:
        return self._marked(state.batch_at)

    def _marked(self, since: dict[str, Any]) -> DataFrame:
        """The replay's messages in the target, from these offsets on."""
        from pyspark.sql.functions import col

        ends = self._target_ends()
        if not ends["topics"]:
            return self.spark.createDataFrame([], f"{REPLAYED_FROM} string")
        rows = (
            self.spark.read.format("rocketmq")
            .options(**_only(self.options, OPTIONS))
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
        return connected(read_options({**_only(self.options, OPTIONS), "topic": self.target}))
