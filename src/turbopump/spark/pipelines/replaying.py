"""Replaying of messages from a lake into a topic, each message once.

Messages are selected by time, key or condition, and sent at a limited rate. The rule: a replay has
a name, and every message that it sends has the name and its origin as properties (``REPLAY_ID``,
``REPLAYED_FROM``). So a stopped or killed replay can continue. Completed batches are recorded in
``LAKE/_replays``. For the batch that was interrupted, the target topic is searched. The sending of
messages is unknown here.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from turbopump.blocking.stop_signals import StopRequest
from turbopump.disk.durable_files import replace_file
from turbopump.errors import ConfigError, LakeError, RouteNotFoundError
from turbopump.spark import archive as lakes
from turbopump.spark.job_metrics import JobCounts, JobMetrics
from turbopump.spark.offsets import Offsets, decode_offsets, encode_offsets
from turbopump.spark.options import OPTIONS, Option, did_you_mean, given_values, read_options
from turbopump.spark.pipelines.lake import lake_place, locked_file, no_step, open_lake
from turbopump.spark.pipelines.row_progress import RowProgress
from turbopump.spark.pipelines.running import unlogged_errors
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session
from turbopump.spark.write_options import WRITE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_ID: Final = "REPLAY_ID"
REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Name of the property with the origin of a message, ``broker/topic/queue/offset``. ``REPLAY_ID``
has the name of the replay."""

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
    """Stored progress of a replay in the present part of a lake.

    A part ends where the lake's data ended at the begin of the part. Later messages belong to the
    next part. Seconds are store times since 1970.
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
    """Counts and outcome of one run of ``replay``.

    - ``selected``: number of selected messages in all.
    - ``sent``: number of messages sent by this run.
    - ``present``: number of messages that the target already had, from a killed run.
    - ``found``, ``distinct``: number of messages of the replay in the target, and number of their
      distinct origins.
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
    stop: threading.Event | StopRequest | None = None,
    progress: RowProgress | None = None,
    metrics: JobMetrics | None = None,
    at_step: Callable[[str], None] = no_step,
) -> ReplayReport:
    """Send messages of a lake to a topic again, in the order of store times.

    The messages of the topic ``topic`` go to the topic ``target``. Ids, keys, tags, flag, body and
    properties stay; queues and times are new.

    - ``begin_ms``, ``end_ms``: range of store times, the end exclusive.
    - ``keys``: a message must have one of these.
    - ``where``: a condition in Spark's SQL.
    - ``rate``: maximum messages per second.
    - ``name``: name of the replay. By default, the same selection has the same name. Calling again
      with the same name continues, also with messages that the lake has got since.
    - ``metrics``: counts of the run, under the name of the replay.
    - ``at_step``: called for each batch with ``begun``, ``looked`` (after the search in the
      target), ``sent`` and ``noted``.

    Raises ConfigError for an invalid argument. Raises LakeError if there is no lake, or if the lake
    has no bodies or lacks the topic. Raises LakeInUseError while the same replay runs elsewhere.
    Also raises the errors of a write with ``format("rocketmq")``.
    """
    lake = lake_place(lake)
    if rows_per_batch < 1:
        raise ConfigError(f"rows_per_batch is {rows_per_batch}: expected 1 or more")
    if rate is not None:
        if rate <= 0:
            raise ConfigError(f"the rate is {rate}: expected more than 0 messages per second")
        rows_per_batch = max(1, min(rows_per_batch, int(rate * PACED_S)))
    if isinstance(keys, str):
        keys = [keys]
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
        spark=spark or rocketmq_session(),
        lake=lake,
        options=_known({**(options or {}), "nameServer": name_server}),
        selection=selection,
        name=name,
        notes=lake / _REPLAYS / f"{name}.json",
        counts=(metrics or JobMetrics()).job("replay", name),
    )
    with run.locked():
        run.load_state()
        run.send_all(
            rows_per_batch, rate, stop or threading.Event(), progress or RowProgress(), at_step
        )
        return run.report()


def _name_of(selection: dict[str, Any]) -> str:
    """Return the default name of a replay. The same selection always has the same name."""
    digest = hashlib.sha256(json.dumps(selection, sort_keys=True).encode())
    return f"replay-{digest.hexdigest()[:12]}"


def _checked_name(name: str) -> str:
    if not all(each.isalnum() or each in "-_." for each in name) or name.startswith("."):
        raise ConfigError(f"{name!r} is not a name of a replay: use letters, digits, - and _")
    return name


def _known(options: dict[str, str]) -> dict[str, str]:
    """Check that each option is an option of a read or of a write. Return the options.

    Raises ConfigError for any other option.
    """
    both = {**WRITE_OPTIONS, **OPTIONS}
    given_values(options, both)
    return options


def _only(options: Mapping[str, str], table: Mapping[str, Option]) -> dict[str, str]:
    """Keep the options whose names are in a table of options."""
    names = {name.lower() for name in table}
    return {name: value for name, value in options.items() if name.lower() in names}


def _stored(rows: DataFrame, begin_ms: int | None, end_ms: int | None) -> DataFrame:
    """Select the rows with a store time between two times. Files of other hours are not opened.

    None means no limit.
    """
    from pyspark.sql.functions import col, lit, timestamp_millis, unix_date

    stored = col("storeTimestamp")
    hour = unix_date("date") * 24 + col("hour")
    if begin_ms is not None:
        rows = rows.where(
            (stored >= timestamp_millis(lit(begin_ms))) & (hour >= begin_ms // HOUR_MS)
        )
    if end_ms is not None:
        rows = rows.where((stored < timestamp_millis(lit(end_ms))) & (hour <= end_ms // HOUR_MS))
    return rows


def _between(rows: DataFrame, begins: Offsets, ends: Offsets) -> DataFrame:
    """Select the rows of one topic whose queue offsets are between two sets of offsets."""
    from pyspark.sql.functions import coalesce, col, concat_ws, create_map, lit

    def bound(offsets: Offsets) -> Column:
        """Return a column that has an offset for each row, looked up by the queue of the row.

        An unknown queue has the offset 0.
        """
        named = {f"{queue.broker_name}/{queue.queue_id}": at for queue, at in offsets.items()}
        found = create_map(*map(lit, chain(*named.items())))[
            concat_ws("/", "brokerName", "queueId")
        ]
        return coalesce(found, lit(0))

    if begins:
        rows = rows.where(col("queueOffset") >= bound(begins))
    return rows.where(col("queueOffset") < bound(ends) if ends else lit(False))


def batches_of(seconds: list[tuple[int, int]], rows_max: int) -> Iterator[tuple[int, int, int]]:
    """Group whole seconds of store time into batches of at most ``rows_max`` rows.

    A single second may have more rows. Yields ``(from, to, rows)``, with ``to`` exclusive.
    """
    low = None
    rows = 0
    for second, count in seconds:
        if low is not None and rows + count > rows_max:
            yield low, second, rows
            low = None
            rows = 0
        if low is None:
            low = second
        rows += count
    if low is not None:
        yield low, seconds[-1][0] + 1, rows


@dataclass(eq=False, kw_only=True)
class ReplayRun:
    """State of one run of ``replay``.

    The stored progress is in the file ``notes``.
    """

    spark: SparkSession
    lake: Path
    options: dict[str, str]
    selection: dict[str, Any]
    name: str
    notes: Path
    counts: JobCounts = field(default_factory=lambda: JobMetrics().job("replay", ""))
    began: float = field(default_factory=time.monotonic)
    state: ReplayState = field(init=False)
    selected: int = 0
    sent: int = 0
    present: int = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the replay. No other run can then send messages of this replay.

        Raises LakeInUseError if another run has the lock. Raises LakeError if there is no lake, or
        if its offsets of the topic are not unique.
        """
        for queue in open_lake(self.lake).snapshot().generations:
            if queue.topic == self.selection["topic"]:
                raise LakeError(
                    f"{self.lake} has several generations of {queue}, so its offsets are "
                    "not unique, as a replay needs: read the rows with lake.rows, and "
                    'write them with format("rocketmq")'
                )
        self.notes.parent.mkdir(exist_ok=True)
        refusal = "sends this replay: wait until it ends, or give another name"
        with locked_file(self.notes.with_suffix(".lock"), self.notes, refusal):
            yield

    def load_state(self) -> None:
        """Load the stored progress of the replay. If there is none, begin the replay.

        Raises ConfigError if the name was used for another selection.
        """
        try:
            self.state = msgspec.json.decode(self.notes.read_bytes(), type=ReplayState)
        except FileNotFoundError:
            self._begin_replay()
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.notes} cannot be read ({error}): give the replay another name"
            ) from None
        if self.state.selection != self.selection:
            raise ConfigError(
                f"the replay {self.name!r} was of another selection ({self.state.selection}): "
                "give another name"
            )

    def _begin_replay(self) -> None:
        topic = self.selection["topic"]
        topics = {queue.topic for queue in lakes.offsets(self.lake)}
        if topic not in topics:
            raise LakeError(
                f"{self.lake} does not have the topic {topic!r}{did_you_mean(topic, topics)}; "
                f"topics: {', '.join(sorted(topics)) or 'none'}"
            ) from None
        none = encode_offsets({})
        ends = self._target_ends()
        self.state = ReplayState(
            selection=self.selection, part_begin=none, part_end=none, began_at=ends, batch_at=ends
        )
        with unlogged_errors():  # report an invalid condition before the name is stored
            self._selected(None, None)
        if not self._begin_next_part():
            self._store_state()

    def _store_state(self) -> None:
        replace_file(self.notes, msgspec.json.encode(self.state))

    def _begin_next_part(self) -> bool:
        """Begin a new part, if messages were added to the lake after the last part began.

        Returns False if there are no such messages.
        """
        topic = self.selection["topic"]
        offsets = lakes.offsets(self.lake).items()
        ends = encode_offsets({queue: end for queue, end in offsets if queue.topic == topic})
        state = self.state
        if ends == state.part_end:
            return False
        state.part_begin = state.part_end
        state.part_end = ends
        state.done_before_s = None
        state.sent_before_s = None
        self._store_state()
        return True

    def send_all(
        self,
        rows_per_batch: int,
        rate: float | None,
        stop: threading.Event | StopRequest,
        progress: RowProgress,
        at_step: Callable[[str], None],
    ) -> None:
        """Send the selected messages in batches, until all are sent or ``stop`` is set."""
        while True:
            seconds = self.unsent_seconds()
            unsent = sum(count for _, count in seconds)
            self.selected = self.state.done + unsent
            progress.expect(unsent)
            self.counts.note_left(unsent)
            for low, high, count in batches_of(seconds, rows_per_batch):
                if stop.is_set():
                    return
                began = time.monotonic()
                self._send_batch(low, high, count, at_step)
                progress.add(count)
                unsent -= count
                self.counts.note_left(unsent)
                self.counts.count_batch(count, time.monotonic() - began)
                if rate is not None:
                    due_s = (self.sent + self.present) / rate
                    stop.wait(max(0.0, self.began + due_s - time.monotonic()))
            if stop.is_set() or not self._begin_next_part():
                return

    def _send_batch(self, low: int, high: int, count: int, at_step: Callable[[str], None]) -> None:
        """Send one batch of messages, and store the progress.

        The batch has the messages stored from second ``low`` up to ``high`` (exclusive).

        The order makes a kill at any step harmless. ``sent_before_s`` is stored before the first
        message is sent, so the next run knows for which seconds it must search the target. Messages
        of the batch that the target has are left out. ``batch_at`` moves behind the batch only
        after the whole batch is sent, so the search begins before every message that may be
        repeated.
        """
        state = self.state
        # A killed run may have had a larger batch; then its end stays.
        if state.sent_before_s is None or state.sent_before_s < high:
            state.sent_before_s = high
            self._store_state()
        at_step("begun")
        sent_rows = self._sent_origins(state.batch_at)
        present = self._pending(low, high).join(sent_rows, REPLAYED_FROM, "semi").count()
        at_step("looked")
        self._send(self.unsent_rows(low, high, search=present > 0))
        at_step("sent")
        self.present += present
        self.sent += count - present
        state.done += count
        state.done_before_s = high
        # Later searches begin here, unless a larger batch of a killed run may have sent more.
        if state.sent_before_s == high:
            state.batch_at = self._target_ends()
        self._store_state()
        at_step("noted")

    def unsent_seconds(self) -> list[tuple[int, int]]:
        """For each second of store time, return the number of unsent messages, in order.

        Only messages of the present part count.
        """
        rows = self._selected(self.state.done_before_s, None)
        counted = rows.groupBy("second").count().orderBy("second").collect()
        return [(row["second"], row["count"]) for row in counted]

    def unsent_rows(self, low: int, high: int, *, search: bool) -> DataFrame:
        """Return the rows of a batch that are still to be sent.

        With ``search``, the target is searched, and messages that it already has are left out.

        The query has no shuffle. If an executor is lost with its shuffle files, Spark repeats tasks
        as if they were first attempts, and these would not search the target.
        """
        from pyspark.sql.functions import broadcast

        rows = self._pending(low, high)
        if search:
            sent_rows = self._sent_origins(self.state.batch_at)
            rows = rows.join(broadcast(sent_rows), REPLAYED_FROM, "anti")
        rows = rows.sortWithinPartitions("storeTimestamp", "queueId", "queueOffset")
        return rows.drop(REPLAYED_FROM, "second", "storeTimestamp")

    def report(self) -> ReplayReport:
        """Count the messages of the replay in the target. Return the report of the run."""
        from pyspark.sql.functions import count, count_distinct

        origins = self._sent_origins(self.state.began_at)
        counts = origins.agg(count("*"), count_distinct(REPLAYED_FROM)).first()
        assert counts is not None
        return ReplayReport(
            name=self.name,
            selected=self.selected,
            done=self.state.done,
            sent=self.sent,
            present=self.present,
            found=counts[0],
            distinct=counts[1],
            seconds=time.monotonic() - self.began,
            stopped=self.state.done < self.selected,
        )

    def _selected(self, begin_s: int | None, end_s: int | None) -> DataFrame:
        """Select rows of the present part. Their store times are in a range of seconds.

        The column ``second`` has the store time. None means no limit.
        """
        from pyspark.sql.functions import array, arrays_overlap, col, expr, floor, lit, split

        state = self.state
        selection = state.selection
        columns = open_lake(self.lake).definition.columns
        frame = lakes.rows(self.spark, self.lake)
        if "body" not in frame.columns:
            raise LakeError(
                f"{self.lake} has no column body, so there is nothing to send: replay a lake that "
                "keeps bodies"
            )
        rows = frame.where(col("topic") == selection["topic"])
        rows = _between(rows, decode_offsets(state.part_begin), decode_offsets(state.part_end))
        rows = _stored(rows, selection["begin_ms"], selection["end_ms"])
        if begin_s is not None:
            rows = _stored(rows, begin_s * 1000, None)
        if end_s is not None:
            rows = _stored(rows, None, end_s * 1000)
        if selection["keys"]:
            if "keys" not in columns:
                raise LakeError(
                    f"{self.lake} has no column keys: select the messages with a condition instead"
                )
            wanted = array(*map(lit, selection["keys"]))
            rows = rows.where(arrays_overlap(split(col("keys"), " "), wanted))
        if selection["where"] is not None:
            rows = rows.where(expr(selection["where"]))
        sent = [name for name in SENT_COLUMNS if name == "topic" or name in columns]
        second = floor(col("storeTimestamp").cast("double")).alias("second")
        return rows.select(*sent, "storeTimestamp", second)

    def _pending(self, low: int, high: int) -> DataFrame:
        """Select the rows of some seconds. Add the properties that identify the replay."""
        from pyspark.sql.functions import (
            array,
            concat_ws,
            lit,
            map_concat,
            map_filter,
            map_from_arrays,
        )

        # Read the list of files again for each batch, because a lake may be compacted meanwhile.
        rows = self._selected(low, high)
        origin = concat_ws("/", "brokerName", "topic", "queueId", "queueOffset")
        names = array(lit(REPLAY_ID), lit(REPLAYED_FROM))
        values = array(lit(self.name), origin)
        properties = map_from_arrays(names, values)
        if "properties" in rows.columns:
            before = map_filter("properties", lambda key, _: ~key.isin(REPLAY_ID, REPLAYED_FROM))
            properties = map_concat(before, properties)
        return rows.withColumn("properties", properties).withColumn(REPLAYED_FROM, origin)

    def _send(self, rows: DataFrame) -> None:
        """Send rows to the target topic, once each."""
        (
            rows.write.format("rocketmq")
            .options(**_only(self.options, WRITE_OPTIONS))
            .option("topic", self.selection["target"])
            .option("idempotencyKey", "auto")
            .mode("append")
            .save()
        )

    def _sent_origins(self, since: dict[str, Any]) -> DataFrame:
        """Return the origins of messages in the target that this replay has sent.

        The target is read from the offsets ``since``.
        """
        from pyspark.sql.functions import col

        ends = self._target_ends()
        if not ends["topics"]:
            return self.spark.createDataFrame([], f"{REPLAYED_FROM} string")
        rows = (
            self.spark.read.format("rocketmq")
            .options(**_only(self.options, OPTIONS))
            .option("topic", self.selection["target"])
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
        """Return the end offset of each queue of the target.

        If the target does not exist, there are no offsets.
        """
        target = self.selection["target"]
        options = read_options({**_only(self.options, OPTIONS), "topic": target})
        with connected(options) as cluster:
            try:
                queues = cluster.queues(target)
            except RouteNotFoundError:
                return encode_offsets({})
            return encode_offsets(cluster.offsets_max(queues))
