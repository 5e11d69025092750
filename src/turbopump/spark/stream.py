"""``spark.readStream.format("rocketmq")``: where a query begins, how far the next micro-batch goes,
and its tasks.

The one rule: a micro-batch is two sets of offsets out of the checkpoint and nothing else, so a
replayed one reads the same messages. Nothing is stored in the broker. It must not remember anything
between calls that a restart would lose, but the target of AvailableNow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from turbopump.errors import ConfigError, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.spark import reading
from turbopump.spark.cluster import PLANNING_PATIENCE_S, Cluster
from turbopump.spark.offsets import Offsets, admit, decode_offsets, encode_offsets
from turbopump.spark.options import ReadOptions
from turbopump.spark.plain_errors import plain_errors

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A new query begins at ``startingOffsets`` (default latest), a restarted one where its
    checkpoint says."""

    def __init__(self, options: ReadOptions) -> None:
        if options.ending is not None or options.ending_timestamp_ms is not None:
            raise ConfigError(
                "endingOffsets and endingTimestamp are for batch reads; a stream ends by its "
                "trigger (availableNow)"
            )
        self._options = options
        self._cluster: Cluster | None = None
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with Cluster(self._options.name_servers, patience=PLANNING_PATIENCE_S) as cluster:
            queues = reading.all_queues(cluster, self._options.topics)
            return encode_offsets(
                reading.starting_offsets(cluster, queues, self._options, "latest")
            )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begins = decode_offsets(start)
        ends = self._ends(begins)
        if isinstance(limit, ReadMaxRows):
            ends = admit(begins, ends, limit.max_rows)
        return encode_offsets(ends)

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return encode_offsets(self._present_queue_ends())

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._queue_ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return reading.tasks(decode_offsets(start), decode_offsets(end), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, reading.RangesPartition)
        return reading.read_ranges(partition.ranges, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint alone says what was read."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _ends(self, begins: Offsets) -> Offsets:
        """How far each queue may be read now, in the checkpoint's terms."""
        seen = self._target if self._target is not None else self._present_queue_ends()
        ends: Offsets = {}
        for queue, end in seen.items():
            if queue not in begins:
                # A queue that was added while the query runs. This batch only writes its beginning
                # into the checkpoint, so that the batch that reads it has both ends from there.
                ends[queue] = self._connected().offset_min(queue)
            elif end < begins[queue]:
                ends[queue] = begins[queue]
                self._check_not_shorter(queue, begins[queue])
            else:
                ends[queue] = end
        present = {(queue.topic, queue.broker_name) for queue in seen}
        for queue in sorted(begins.keys() - seen.keys()):
            ends[queue] = begins[queue]
            if (queue.topic, queue.broker_name) in present:
                self._lost(f"{queue} is no longer a queue of its topic, which has fewer now")
            else:
                text = "%s is not in the route at the moment; its offset %d is kept"
                _log.warning(text, queue, begins[queue])
        return ends

    def _check_not_shorter(self, queue: MessageQueue, begin: int) -> None:
        """A queue that ends before what was read of it was made anew, or lost its end.

        The target of AvailableNow alone does not tell: it may have been taken before the batch that
        a restart repeats was planned. So the queue is asked for its end of this moment.
        """
        end = self._connected().offset_max(queue)
        if end < begin:
            self._lost(f"{queue} ends at {end}, but it was read up to {begin} already")

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise reading.DataLossError(
                f"{text}: the topic or broker was made anew, or lost its end. Start with a new "
                "checkpoint, or set the option failOnDataLoss to false to wait until it grows "
                "beyond"
            )
        _log.warning("%s; waiting until it grows beyond, as failOnDataLoss is false", text)

    def _queue_ends(self) -> Offsets:
        cluster = self._connected()
        return {
            queue: cluster.offset_max(queue)
            for queue in reading.all_queues(cluster, self._options.topics)
        }

    def _present_queue_ends(self) -> Offsets:
        """As ``_queue_ends``, but a topic whose brokers are all away has none for the moment."""
        cluster = self._connected()
        ends: Offsets = {}
        for topic in self._options.topics:
            try:
                ends |= {queue: cluster.offset_max(queue) for queue in cluster.queues(topic)}
            except RouteNotFoundError as error:
                _log.warning("%s", error)
        return ends

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.name_servers)
        return self._cluster
