"""Search of the target for rows that an earlier attempt has sent. Rows are found by their keys.

Every message of a write with an idempotency key has two properties::

    SPARK_WRITE = write "/" batch "/" partition "/" run "." token    who sent it
    SPARK_KEY   = the idempotency key of the row

- ``write``: id of the streaming query (its checkpoint), the option ``writeId``, or an id of one
  ``save()``.
- ``batch``: number of the micro-batch, else 0.
- ``run``: run of the query.
- ``token``: random id of one attempt of one task.

The rule: only the target is searched, so there is no state that could be lost. A queue is read
backwards from its end. The search stops at a message of an older batch of the same write, or at a
time before which the batch cannot have begun. The sending of rows is unknown here.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from turbopump.client.sent_already import SenderMark, SentAlready
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import Cluster
from turbopump.spark.encode import KEY, MARK
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import ReadOptions
from turbopump.spark.reading import read_ranges
from turbopump.spark.write_options import WriteOptions

CLOCKS_DIFFER_MS: Final = 60_000
"""Milliseconds by which the clocks of drivers and brokers may differ."""
STREAM_READ_BACK_MS: Final = 3_600_000
_STEP: Final = 128
_STEP_MAX: Final = 1 << 16

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
_SPECULATION: Final = "spark.speculation"


@dataclass(frozen=True, slots=True)
class Planned:
    """Identity of a planned write: an id, and the time of planning (ms since 1970 UTC)."""

    id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Attempt of a Spark task to write rows.

    - ``any_partition``: True if an earlier attempt may have had the rows in another partition.
    - ``looks``: True if there may have been an earlier attempt.
    - ``since_ms``: time before which no attempt of this batch began.
    """

    write: str
    batch: int
    partition: int
    number: int
    run: str
    token: str
    any_partition: bool
    looks: bool
    since_ms: int

    @property
    def mark(self) -> str:
        return f"{self.write}/{self.batch}/{self.partition}/{self.run}.{self.token}"

    @property
    def who(self) -> str:
        return f"task {self.partition}, attempt {self.number}"


def attempt_of(
    context: TaskContext | None, options: WriteOptions, planned: Planned, now_ms: int
) -> TaskAttempt:
    """Describe the running attempt, from Spark's task context.

    Raises ConfigError if the write has idempotency keys and Spark may run two attempts at a time.
    """
    query = _property_of(context, _QUERY)
    batch = _property_of(context, _BATCH)
    run = _property_of(context, _RUN)
    speculates = _property_of(context, _SPECULATION) == "true"
    if options.idempotency_key is not None and speculates:
        raise ConfigError(
            "idempotencyKey needs spark.speculation=false: two attempts of a task would "
            "run at the same time, and neither sees the messages that the other is "
            "sending"
        )
    number = 0 if context is None else context.attemptNumber()
    streams = query is not None and batch is not None
    if streams:
        write = query if options.write_id is None else f"{query}.{options.write_id}"
        since_ms = now_ms - (options.read_back_ms or STREAM_READ_BACK_MS)
    elif options.write_id is not None:
        write = options.write_id
        since_ms = 0
        if options.read_back_ms is not None:
            since_ms = planned.at_ms - options.read_back_ms
    else:
        write = planned.id
        since_ms = planned.at_ms
    return TaskAttempt(
        write=str(write),
        batch=int(batch) if streams and batch is not None else 0,
        partition=0 if context is None else context.partitionId(),
        number=number,
        run=(run if streams and run else planned.id)[:8],
        token=secrets.token_hex(4),
        any_partition=streams or options.write_id is not None,
        looks=streams or options.write_id is not None or number > 0,
        since_ms=max(since_ms - CLOCKS_DIFFER_MS, 0),
    )


def _property_of(context: TaskContext | None, name: str) -> str | None:
    return None if context is None else context.getLocalProperty(name)


@dataclass(frozen=True, slots=True)
class Mark:
    """Sender of a message: the parsed property ``SPARK_WRITE``."""

    write: str
    batch: int
    partition: int
    token: str
    """Run of the query and token of the attempt."""


def decode_mark(text: str | None) -> Mark | None:
    """Parse the property ``SPARK_WRITE``. Return None if the text is not such a property."""
    parts = (text or "").rsplit("/", 3)
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return Mark(parts[0], int(parts[1]), int(parts[2]), parts[3])


@dataclass(eq=False)
class SentKeys(SentAlready):
    """Keys of one batch's rows, if a topic already has these rows.

    ``again`` is True if another attempt of this partition has sent some of these rows.
    """

    again: bool = False


@dataclass(eq=False)
class ReadBack:
    """Reader of the target topics, for one attempt. It finds rows that need not be sent again.

    The calls block. Only one thread may use the reader at a time.
    """

    options: WriteOptions
    attempt: TaskAttempt

    def __post_init__(self) -> None:
        self._mark = SenderMark(MARK, f"{self.attempt.write}/", KEY)

    def find_sent_keys(self, topic: str) -> SentKeys:
        """Find the rows that earlier attempts have sent to a topic. Return their keys.

        Raises the errors of reading the topic.
        """
        found = SentKeys()
        since_ms = self.attempt.since_ms
        with self._cluster() as cluster:
            queues = cluster.queues(topic)
            found.read_to = {queue: cluster.offset_max(queue) for queue in queues}
            if not self.attempt.looks:
                return found
            lows = {queue: cluster.offset_min(queue) for queue in queues}
        left = {queue: end for queue, end in found.read_to.items() if end > lows[queue]}
        # Spark begins a batch after the older one is complete. So a message of an older batch
        # proves that no message of this batch lies before it in its queue. In other queues, this
        # batch only has messages with later store times, but for the difference of the clocks.
        step = _STEP
        while left:  # all queues in parallel: a find in one limits the search in the others
            for queue, end in list(left.items()):
                begin = max(lows[queue], end - step)
                oldest_ms, older_ms = self._count_keys(OffsetRange(queue, begin, end), found)
                if older_ms is not None:
                    since_ms = max(since_ms, older_ms - CLOCKS_DIFFER_MS)
                if older_ms is not None or begin == lows[queue] or oldest_ms < since_ms:
                    del left[queue]
                else:
                    left[queue] = begin
            step = min(step * 4, _STEP_MAX)
        return found

    def _count_keys(self, wanted: OffsetRange, found: SentKeys) -> tuple[int, int | None]:
        """Count the keys of this batch in a range of a queue, and add them to ``found``.

        The first result is the store time of the oldest message. The second is the store time of a
        message of an older batch of this write, or None if there is none.
        """
        mine = self.attempt
        oldest_ms = older_ms = None
        for times, marked in self._read_marks(wanted):
            if oldest_ms is None and len(times):
                oldest_ms = times[0].value // 1000
            for at, mark, key in marked:
                same_partition = mark.partition == mine.partition
                if mark.batch < mine.batch:
                    older_ms = times[at].value // 1000
                elif mark.batch == mine.batch and (mine.any_partition or same_partition):
                    found.ids[key] += 1
                    found.again |= same_partition
        return (0 if oldest_ms is None else oldest_ms), older_ms

    def stray_keys(self, found: SentKeys) -> Counter[str]:
        """Find keys that an older attempt of this partition has sent late, after ``found`` was
        read.

        This attempt may have sent the same rows.
        """
        mine = self.attempt
        return Counter(
            key
            for mark, key in self._marks_since(found.read_to)
            if (mark.batch, mark.partition) == (mine.batch, mine.partition)
            and mark.token != f"{mine.run}.{mine.token}"
        )

    def own_keys(self, queue: MessageQueue, begin: int) -> Counter[str]:
        """From an offset of a queue on, find the keys that this attempt has sent. Return their
        counts."""
        token = f"{self.attempt.run}.{self.attempt.token}"
        return Counter(
            key for mark, key in self._marks_since({queue: begin}) if mark.token == token
        )

    def _cluster(self) -> Cluster:
        options = self.options
        return Cluster(options.name_servers, credentials=options.credentials, tls=options.tls)

    def _marks_since(self, begins: Mapping[MessageQueue, int]) -> Iterator[tuple[Mark, str]]:
        """For each message of this write, yield its sender and its key.

        Each queue is read from the offset in ``begins`` to its end.
        """
        with self._cluster() as cluster:
            ends = {queue: cluster.offset_max(queue) for queue in begins}
        for queue, begin in begins.items():
            if ends[queue] > begin:
                for _, marked in self._read_marks(OffsetRange(queue, begin, ends[queue])):
                    for _, mark, key in marked:
                        yield mark, key

    def _read_marks(
        self, wanted: OffsetRange
    ) -> Iterator[tuple[pa.TimestampArray, list[tuple[int, Mark, str]]]]:
        """Read a range of a queue. For each batch, yield the store times of all messages.

        With the times comes a list of the messages of this write. For each of them, the list has
        the number in the batch, the sender and the key.
        """
        options = ReadOptions(
            name_servers=self.options.name_servers,
            topics=(wanted.queue.topic,),
            columns=("storeTimestamp", "properties"),
            credentials=self.options.credentials,
            tls=self.options.tls,
            fail_on_data_loss=False,  # a lost message counts as not sent, and is sent again
        )
        for batch in read_ranges([wanted], options):
            times, properties = batch.columns
            senders = pc.map_lookup(properties, pa.scalar(self._mark.sender), "last")
            ours = pc.starts_with(senders, self._mark.prefix).fill_null(False)
            keys = pc.map_lookup(properties, pa.scalar(self._mark.id), "last")
            marked = []
            for at in pc.indices_nonzero(ours).to_pylist():
                mark = decode_mark(senders[at].as_py())
                if mark is not None:
                    marked.append((at, mark, keys[at].as_py()))
            yield times, marked
