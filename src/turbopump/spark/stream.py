"""Streaming reads for ``spark.readStream.format("rocketmq")``. A reader finds the start of a query,
then the end and the tasks of each micro-batch.

A micro-batch is defined only by two sets of offsets in the checkpoint, so a repeated one reads the
same messages. Offsets stored in the broker (``commitGroup``) are never read back. Between calls,
the reader remembers only state that a restart may lose: the target of AvailableNow, how long few
messages have waited, and unreachable brokers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from turbopump.errors import ClientError, ConfigError, DataLossError, ResponseError, TurbopumpError
from turbopump.message.message import MessageQueue
from turbopump.message.pulled import DamagedEntry, pulled_entries
from turbopump.spark import planning, reading
from turbopump.spark.cluster import OFFLINE_ERRORS, PLANNING_PATIENCE_S, Cluster
from turbopump.spark.offsets import (
    OffsetRange,
    Offsets,
    decode_offsets,
    encode_offsets,
    limit_ends,
    ranges_between,
)
from turbopump.spark.options import ReadOptions, options_of_mode
from turbopump.spark.plain_errors import plain_errors

_log = logging.getLogger(__name__)

AWAY_S: Final = 5.0
"""Seconds before a broker that did not answer is asked again, because each attempt may cost a
time-out."""
ROUTE_S: Final = 1.0
"""Seconds for which a route is valid. An idle query asks for the latest offsets every 10 ms."""
_SAMPLE_ROWS: Final = 32


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark reader of a streaming query on RocketMQ topics.

    A new query begins at ``startingOffsets`` (default ``latest``), and a restarted one at its
    checkpoint. ``now`` returns seconds since 1970.
    """

    def __init__(self, options: ReadOptions, now: Callable[[], float] = time.time) -> None:
        of_batches = options_of_mode(options, "batch")
        if of_batches:
            raise ConfigError(
                f"{' and '.join(of_batches)} {'are' if len(of_batches) > 1 else 'is'} for batch "
                "reads; a stream ends by its trigger (availableNow), and Spark pushes no filters "
                "into it"
            )
        self._options = options
        self._now = now
        self._cluster: Cluster | None = None
        self._target: Offsets | None = None
        self._waiting_since: float | None = None
        self._away_until: dict[str, float] = {}
        self._route: list[MessageQueue] = []
        self._route_until = 0.0
        self._absent: frozenset[MessageQueue] = frozenset()
        self._warned_of: set[MessageQueue] = set()
        self._committed: Offsets = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options = self._options
        begin = options.begin("latest")
        with reading.connected(options, patience=PLANNING_PATIENCE_S) as cluster:
            queues = planning.queues_wanted(cluster, options)
            planning.check_named(queues, begin)
            return encode_offsets(planning.offsets_at(cluster, queues, begin, options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the read limit of the options for Spark.

        Spark cannot combine limits, so any limit but ReadAllAvailable stands for all options.
        """
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begins = decode_offsets(start)
        # Spark calls this only after the batch that ended at ``start`` is done.
        self._commit_progress(begins)
        ends = self._next_ends(begins)
        if isinstance(limit, ReadAllAvailable):
            return encode_offsets(ends)
        if self._must_wait(begins, ends):
            return encode_offsets({queue: begins.get(queue, end) for queue, end in ends.items()})
        if self._options.bytes_per_trigger_max is not None:
            rows_max = self._rows_within(begins, ends, self._options.bytes_per_trigger_max)
            ends = limit_ends(begins, ends, rows_max)
        if isinstance(limit, ReadMaxRows):
            ends = limit_ends(begins, ends, limit.max_rows)
        return encode_offsets(ends)

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return encode_offsets(self._queue_ends(skip=self._options.broker_offline != "fail"))

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._route_until = 0.0
        self._target = self._queue_ends(skip=self._options.broker_offline == "skip")

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return planning.tasks(decode_offsets(start), decode_offsets(end), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read_partition(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of a finished micro-batch for ``commitGroup``.

        Other tools can then see the progress. Only the checkpoint decides what was read.
        """
        self._commit_progress(decode_offsets(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _next_ends(self, begins: Offsets) -> Offsets:
        """For each queue, return the end of the next micro-batch. The checkpoint stores these ends.

        A queue that is missing or too short keeps its offset. A new queue begins at its first
        message.
        """
        seen = self._target
        if seen is None:
            seen = self._queue_ends(skip=self._options.broker_offline != "fail")
        ends: Offsets = {}
        for queue, end in seen.items():
            if queue not in begins:
                # A queue was added while the query runs. This batch only records the queue's start
                # in the checkpoint. The next batch then reads from there, and both of its ends are
                # in the checkpoint.
                ends[queue] = self._connected().offset_min(queue)
            elif end < begins[queue]:
                ends[queue] = begins[queue]
                self._check_not_shorter(queue, begins[queue])
            else:
                ends[queue] = end
                self._warned_of.discard(queue)
        absent = begins.keys() - seen.keys()
        for queue in sorted(absent):
            ends[queue] = begins[queue]
            self._check_absent(queue, begins[queue])
        self._absent = frozenset(absent)
        return ends

    def _check_absent(self, queue: MessageQueue, begin: int) -> None:
        """Handle a queue that was read before and is missing now. Raise an error or log a warning.

        Usually the queue returns with its broker, unless its topic now has fewer queues.
        AvailableNow has no later batch, so a missing queue may be an error there. If a missing
        queue is no error, it is logged once.
        """
        named = planning.is_asked_for(queue, self._options)
        on_broker = {each for each in self._route if each.broker_name == queue.broker_name}
        if queue not in on_broker and any(each.topic == queue.topic for each in on_broker):
            self._report_loss(queue, "no longer exists, because its topic has fewer queues now")
        elif (  # options may select fewer queues than the checkpoint has
            named
            and self._needs_brokers()
            and (
                self._options.fail_on_data_loss
                or any(each.topic == queue.topic for each in self._route)
            )
        ):
            raise ClientError(
                f"{queue} is not in the route: its broker is away, or its topic was deleted. "
                "Start the broker, or set the option brokerOfflineStrategy to skip"
            )
        elif queue not in self._absent:
            why = (
                "is not in the route at the moment"
                if named
                else "is not selected by the options any more"
            )
            _log.warning("%s %s; its offset %d is kept", queue, why, begin)

    def _check_not_shorter(self, queue: MessageQueue, begin: int) -> None:
        """Check a queue whose end seems to be before the last read offset. Raise an error or log a
        warning.

        Such a queue was deleted and made again, or lost its end. The target of AvailableNow may be
        older than the batch that a restart repeats. So the queue is asked for its present end.
        """
        cluster = self._connected()
        end = cluster.offset_max(queue)
        if end >= begin:
            return
        if not cluster.is_read_from_slave(queue):
            self._report_loss(queue, f"ends at {end}, but it was read up to {begin} already")
            return
        text = (
            f"the master of {queue} is away, and its slave ends at {end}, before the last "
            "read offset"
        )
        if self._needs_brokers():
            raise ClientError(
                f"{text}. Start the master, or set the option brokerOfflineStrategy to skip"
            )
        self._warn_once(queue, f"{text}; the offset {begin} is kept")

    def _needs_brokers(self) -> bool:
        """Return True if a missing broker is an error.

        With AvailableNow, this is the default, because there is no later batch.
        """
        strategy = self._options.broker_offline
        return strategy == "fail" or (self._target is not None and strategy != "skip")

    def _warn_once(self, queue: MessageQueue, text: str) -> None:
        """Log a warning about a queue, but only once until the queue is in order again.

        Spark asks every 10 ms.
        """
        if queue not in self._warned_of:
            self._warned_of.add(queue)
            _log.warning("%s", text)

    def _report_loss(self, queue: MessageQueue, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{queue} {text}: the topic or broker was deleted and made again, or lost "
                "its end. Start with a new checkpoint, or set the option failOnDataLoss "
                "to false to wait until it grows beyond"
            )
        instead = "waiting until it grows beyond, as failOnDataLoss is false"
        self._warn_once(queue, f"{queue} {text}; {instead}")

    def _queue_ends(self, *, skip: bool) -> Offsets:
        """Return the present end of each queue.

        With ``skip``, queues of unreachable brokers are left out for now. Without ``skip``, an
        unreachable broker is an error.
        """
        is_fresh = self._now() >= self._route_until
        queues = planning.chosen(self._known_queues(lenient=skip), self._options)
        ends: Offsets = {}
        try:
            for broker, of_broker in planning.by_broker(queues):
                ends |= self._broker_ends(broker, of_broker, skip=skip)
        except ResponseError:
            if is_fresh:
                raise
            self._route_until = 0.0  # the queue may have been deleted since
            return self._queue_ends(skip=skip)
        return ends

    def _broker_ends(self, broker: str, queues: list[MessageQueue], *, skip: bool) -> Offsets:
        cluster = self._connected()
        if not skip:
            return cluster.offsets_max(queues)
        if self._away_until.get(broker, 0) > self._now():
            return {}
        try:
            ends = cluster.offsets_max(queues)
        except OFFLINE_ERRORS as error:
            self._away_until[broker] = self._now() + AWAY_S
            self._route_until = 0.0
            _log.warning("broker %s is away: %s", broker, error)
            return {}
        self._away_until.pop(broker, None)
        return ends

    def _known_queues(self, *, lenient: bool) -> list[MessageQueue]:
        """Return all queues of the topics, from a route at most ``ROUTE_S`` old.

        While a queue that was read is missing, the route is looked up in each call.
        """
        if self._now() >= self._route_until:
            queues = planning.queues_of(self._connected(), self._options, lenient=lenient)
            self._route = queues
            self._route_until = 0.0 if self._absent else self._now() + ROUTE_S
        return self._route

    # Size of a micro-batch.
    def _must_wait(self, begins: Offsets, ends: Offsets) -> bool:
        """Return True if the micro-batch must wait for more messages.

        The micro-batch waits until there are ``minOffsetsPerTrigger`` messages, or until a message
        has waited for ``maxTriggerDelay``. The waiting time is counted from the messages' store
        times, so a restart does not reset it. The waiting time is also counted from the first sight
        of the messages, in case the broker's clock is ahead.
        """
        least = self._options.offsets_per_trigger_min
        waiting = ranges_between(begins, ends)
        if least is None or self._target is not None or not waiting:
            return False
        if sum(piece.count for piece in waiting) >= least:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            now = self._now()
            try:
                stored_ms = [
                    self._connected().stored_ms(piece.queue, piece.begin) for piece in waiting
                ]
            except OFFLINE_ERRORS:
                stored_ms = []
            except ClientError:
                return False  # the message is lost; the batch that reads it reports that
            self._waiting_since = min([now, *(each / 1000 for each in stored_ms)])
        if self._now() - self._waiting_since < self._options.trigger_delay_max_ms / 1000:
            return True
        self._waiting_since = None
        return False

    def _rows_within(self, begins: Offsets, ends: Offsets, size_max: int) -> int:
        """Estimate how many waiting messages fit into ``size_max`` stored bytes. The result is at
        least 1.

        The estimate reads the first waiting messages of each queue, and the messages near the
        resulting end of the batch. The larger average counts.
        """
        waiting = ranges_between(begins, ends)
        first = [self._average_size(piece.queue, piece.begin) for piece in waiting]
        share = _share_within(waiting, first, size_max)
        last = [
            self._average_size(piece.queue, piece.begin + max(0, end - _SAMPLE_ROWS))
            for piece in waiting
            for end in (int(piece.count * share),)
        ]
        share = _share_within(waiting, list(map(max, first, last)), size_max)
        return max(1, int(sum(piece.count for piece in waiting) * share))

    def _average_size(self, queue: MessageQueue, offset: int) -> float:
        answer = self._connected().pull(queue, offset, _SAMPLE_ROWS)
        sizes = [len(entry) for entry in pulled_entries(answer.body, _ignore_damage)]
        return sum(sizes) / len(sizes) if sizes else 0.0

    # Progress that other tools can see.
    def _commit_progress(self, done: Offsets) -> None:
        """Commit offsets for the group ``commitGroup``.

        A failure is only a warning, because the query does not depend on these offsets.
        """
        group = self._options.commit_group
        changed = {
            queue: offset for queue, offset in done.items() if self._committed.get(queue) != offset
        }
        if group is None or not changed:
            return
        try:
            self._connected().commit_group_offsets(group, changed)
        except TurbopumpError as error:
            _log.warning("the offsets of group %s could not be committed: %s", group, error)
        else:
            self._committed |= changed

    def _connected(self) -> Cluster:
        if self._cluster is None:
            skips = self._options.broker_offline != "fail"
            self._cluster = reading.connected(
                self._options, broker_patience=PLANNING_PATIENCE_S if skips else None
            )
        return self._cluster


class RefusedStream(DataSourceStreamReader):
    """Stream reader in place of an error. It raises the error when Spark first calls the reader.

    PySpark 4.3 hides an error of ``streamReader`` itself behind an UnboundLocalError of its own.
    """

    def __init__(self, error: TurbopumpError) -> None:
        self._error = error

    @plain_errors
    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815


def _ignore_damage(_damage: DamagedEntry) -> None:
    """Ignore a damaged message in an estimate. The batch with this message reports the damage."""


def _share_within(waiting: list[OffsetRange], averages: list[float], size_max: int) -> float:
    """Return the share of all ranges that has ``size_max`` bytes in total, at most 1.

    The same share of each range is meant. ``averages`` has the average message size in each range.
    """
    size = sum(piece.count * average for piece, average in zip(waiting, averages, strict=True))
    return min(1.0, size_max / size) if size else 1.0
