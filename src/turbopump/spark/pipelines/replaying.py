"""Replay of a lake's messages into a topic: selected by time, key or condition, at a limited rate,
and each message once.

The rule: a replay has a name, and every message that it sends has the name and its origin as
properties (``REPLAY_ID``, ``REPLAYED_FROM``). So a stopped or killed replay can continue. Completed
batches are recorded in ``LAKE/_replays``. For the batch that was interrupted, the target topic is
searched. The sending of messages is unknown here.
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

from turbopump.disk.durable_files import replace_file
from turbopump.errors import ConfigError, LakeError, RouteNotFoundError
from turbopump.spark import archive as lakes
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import Offsets, decode_offsets, encode_offsets
from turbopump.spark.options import OPTIONS, Option, did_you_mean, given_values, read_options
from turbopump.spark.pipelines.lake import lake_place, locked, no_step, open_lake
from turbopump.spark.pipelines.running import RowProgress, unlogged_errors
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session
from turbopump.spark.write_options import WRITE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_ID: Final = "REPLAY_ID"
REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Name of the property with a message's origin, ``broker/topic/queue/offset``. ``REPLAY_ID`` has
the replay's name."""

ROWS_PER_BATCH: Final = 50_000
PACED_S: Final = 5
"""Maximum seconds of messages in a batch at the given rate, because a batch is sent without
pauses."""
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
    """Stored progress of a replay through one part of the lake.

    A part ends where the lake ended when the part was begun; later messages are the next part.
    Seconds are store times since 1970.
    """

    v: Literal[2] = 2
    selection: dict[str, Any]
    part_begin: dict[str, Any]
    part_end: dict[str, Any]
    """End offsets in the original queues."""
    began_at: dict[str, Any]
    """Ends of the target's queues before the first message of the replay."""
    batch_at: dict[str, Any]
    """Ends of the target's queues before the first message with a store time from ``done_before_s``
    on."""
    sent_before_s: int | None = None
    """Second before which messages of the part may have been sent. Messages stored from this second
    on were not sent."""
    done_before_s: int | None = None
    """Second before which all messages of the part are sent."""
    done: int = 0
    """Number of sent messages of all parts."""


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """Result of a replay.

    - ``selected``: number of selected messages in all.
    - ``sent``: messages sent by this run.
    - ``present``: messages already in the target, from a killed run.
    - ``found``, ``distinct``: messages of the replay in the target, and their distinct origins.
    """

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
        """True if the target has each sent message exactly once."""
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
    progress: RowProgress | None = None,
    at_step: Callable[[str], None] = no_step,
) -> ReplayReport:
    """Send the lake's messages of ``topic`` to ``target``, in the order of store times. Ids, keys,
    tags, flag, body and properties stay; queues and times are new.

    - ``begin_ms``, ``end_ms``: range of store times, the end exclusive.
    - ``keys``: a message must have one of these.
    - ``where``: a condition in Spark's SQL.
    - ``rate``: maximum messages per second.
    - ``name``: name of the replay. By default, the same selection has the same name. Calling again
      with the same name continues, also with messages that the lake has got since.
    - ``at_step``: called for each batch with ``begun``, ``looked`` (after the search in the
      target), ``sent`` and ``noted``.

    Raises ConfigError for an invalid argument. Raises LakeError if there is no lake, or if the lake
    has no bodies or lacks the topic. Raises LakeInUseError while the same replay runs elsewhere.
    Also raises the errors of a write with ``format("rocketmq")``.
    """
    lake = lake_place(lake)
    spark = spark or rocketmq_session()
    progress = progress or RowProgress()
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
    """Return the default name of a replay, the same for the same selection."""
    digest = hashlib.sha256(json.dumps(selection, sort_keys=True).encode())
    return f"replay-{digest.hexdigest()[:12]}"


def _checked_name(name: str) -> str:
    if not all(each.isalnum() or each in "-_." for each in name) or name.startswith("."):
        raise ConfigError(f"a replay's name has letters, digits, - and _, not {name!r}")
    return name


def _known(options: dict[str, str]) -> dict[str, str]:
    """Return the options. Raises ConfigError for one that neither a read nor a write of the target
    knows."""
    both = {**WRITE_OPTIONS, **OPTIONS}
    given_values(options, both)
    return options


def _only(options: Mapping[str, str], table: Mapping[str, Option]) -> dict[str, str]:
    """Return the options that are in ``table``."""
    names = {name.lower() for name in table}
    return {name: value for name, value in options.items() if name.lower() in names}


def _selected(
    spark: SparkSession, lake: Path, state: ReplayState, begin_s: int | None, end_s: int | None
) -> DataFrame:
    """Return the selected rows of the part, of these seconds only, with their store time as
    ``second``."""
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
    """Return the rows stored between two times; None: no limit. Files of other hours are not
    opened."""
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
    """Return the rows of one topic between two sets of offsets."""
    from pyspark.sql.functions import coalesce, col, concat_ws, create_map, lit

    def bound(offsets: Offsets) -> Column:
        """Return a column with the offset for each row's queue; 0 if there is none."""
        named = {f"{queue.broker_name}/{queue.queue_id}": at for queue, at in offsets.items()}
        found = create_map(*map(lit, chain(*named.items())))[
            concat_ws("/", "brokerName", "queueId")
        ]
        return coalesce(found, lit(0))

    if begins:
        rows = rows.where(col("queueOffset") >= bound(begins))
    return rows.where(col("queueOffset") < bound(ends) if ends else lit(False))


def batches_of(seconds: list[tuple[int, int]], rows_max: int) -> Iterator[tuple[int, int, int]]:
    """Group whole seconds into batches of at most ``rows_max`` rows; one second may have more.
    Yield ``(from, to, rows)``."""
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
    """State of one run of ``replay``, and its stored progress."""

    spark: SparkSession
    lake: Path
    options: dict[str, str]
    topic: str
    target: str
    name: str
    notes: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the replay's lock, because two runs would not see what the other is about to send.

        Raises LakeInUseError if another run has the lock. Raises LakeError if there is no lake, or
        if its offsets of the topic are not unique.
        """
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
        """Return the stored progress; begin a new one if there is none. Raises ConfigError if the
        name was used for another selection."""
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
            with unlogged_errors():  # report an invalid condition before the name is stored
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
        """Begin a part with the messages that the lake has got since. Return False if there are
        none."""
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
        """Return the number of unsent rows of the part for each second, in order."""
        rows = _selected(self.spark, self.lake, state, state.done_before_s, None)
        counted = rows.groupBy("second").count().orderBy("second").collect()
        return [(row["second"], row["count"]) for row in counted]

    def begin_batch(self, state: ReplayState, end_s: int) -> None:
        """Store the second before which messages may be in the target soon. A killed run may have
        had a larger batch; then its end stays."""
        if state.sent_before_s is None or state.sent_before_s < end_s:
            state.sent_before_s = end_s
            replace_file(self.notes, msgspec.json.encode(state))

    def end_batch(self, state: ReplayState, end_s: int) -> None:
        """Record that a batch is complete. Later searches in the target begin here, unless a larger
        batch of a killed run may have sent more."""
        state.done_before_s = end_s
        if state.sent_before_s == end_s:
            state.batch_at = self._target_ends()
        replace_file(self.notes, msgspec.json.encode(state))

    def already_there(self, low: int, high: int, state: ReplayState) -> int:
        """Return how many messages of a batch the target has, from a run that was killed in this
        batch."""
        return (
            self._pending(low, high, state).join(self._there(state), REPLAYED_FROM, "semi").count()
        )

    def batch(self, low: int, high: int, there: int, state: ReplayState) -> DataFrame:
        """Return the messages of a batch that the target does not have.

        The query has no shuffle. If an executor is lost with its shuffle files, Spark repeats tasks
        as if they were first attempts, and these would not search the target.
        """
        from pyspark.sql.functions import broadcast

        rows = self._pending(low, high, state)
        if there:
            rows = rows.join(broadcast(self._there(state)), REPLAYED_FROM, "anti")
        rows = rows.sortWithinPartitions("storeTimestamp", "queueId", "queueOffset")
        return rows.drop(REPLAYED_FROM, "second", "storeTimestamp")

    def send(self, rows: DataFrame) -> None:
        """Send these rows to the target."""
        (
            rows.write.format("rocketmq")
            .options(**_only(self.options, WRITE_OPTIONS))
            .option("topic", self.target)
            .option("idempotencyKey", "auto")
            .mode("append")
            .save()
        )

    def in_target(self, began_at: dict[str, Any]) -> tuple[int, int]:
        """Return the number of messages of the replay in the target, and of their distinct
        origins."""
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

        # Read the list of files again for each batch, because a lake may be compacted meanwhile.
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
        """Return the replay's messages in the target, from these offsets on."""
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
        """Return the ends of the target's queues; empty if the topic does not exist yet."""
        with self._cluster() as cluster:
            try:
                queues = cluster.queues(self.target)
            except RouteNotFoundError:
                return encode_offsets({})
            return encode_offsets(cluster.offsets_max(queues))

    def _cluster(self) -> Cluster:
        return connected(read_options({**_only(self.options, OPTIONS), "topic": self.target}))
