"""Search for queues that were deleted and made again. A broker's messages are compared with the
rows in a lake.

A row and a message at one offset are the same if their identifying columns (``IDENTITY``) are
equal. Only columns of the lake are compared. If the row or the message no longer exists, nothing
can be compared, and they count as the same. The consequences are unknown here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from turbopump.errors import StoredMessageError
from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import Cluster
from turbopump.spark.decode import decode
from turbopump.spark.options import arrow_schema
from turbopump.spark.pipelines.lake import GENERATION, DataFile, Lake, Snapshot

IDENTITY: Final = ("msgId", "offsetMsgId", "commitLogOffset", "bodyCrc", "storeTimestamp")
_UNIQUE: Final = ("msgId", "offsetMsgId")
"""Columns that each identify a message among the messages of all brokers."""

Row = dict[str, Any]


def columns_of(lake: Lake) -> tuple[str, ...]:
    """Return those columns of a lake that identify a message, such as the store time."""
    return tuple(name for name in IDENTITY if name in lake.definition.columns)


def tells_brokers_apart(lake: Lake) -> bool:
    """Return True if a lake's identifying columns can tell brokers apart.

    Messages of two brokers then always differ in these columns.
    """
    return any(name in lake.definition.columns for name in _UNIQUE)


def changed_queues(
    cluster: Cluster, lake: Lake, snapshot: Snapshot, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, int]:
    """Find queues that were deleted and made again after they were archived.

    In such a queue, the newest row in the lake differs from the broker's message at the same
    offset. The result maps each such queue to this offset. The lake must have all ``queues``. Each
    queue costs one pull.
    """
    newest = {
        queue: there.end - 1
        for queue in queues
        if (there := snapshot.ranges[queue]).begin < there.end
    }
    rows = rows_at(lake, snapshot, newest)
    return {
        queue: newest[queue]
        for queue, row in rows.items()
        if differs(row, message_at(cluster, queue, newest[queue], columns_of(lake)))
    }


def first_difference(
    cluster: Cluster, lake: Lake, snapshot: Snapshot, queue: MessageQueue, low: int, high: int
) -> int:
    """Find the first offset at which the broker's message differs from the row in the lake.

    Offsets from ``low`` to ``high`` are searched. If no message differs, ``high`` is returned. The
    binary search costs a pull and a read of the lake per step.
    """

    def differ(offset: int) -> bool:
        row = rows_at(lake, snapshot, {queue: offset}).get(queue)
        return row is not None and differs(
            row, message_at(cluster, queue, offset, columns_of(lake))
        )

    return low + bisect_left(range(low, high), True, key=differ)


def differs(row: Row, message: Row | None) -> bool:
    """Return True if a message differs from the row in the lake.

    A missing message (None) does not differ.
    """
    return message is not None and row != message


def message_at(
    cluster: Cluster, queue: MessageQueue, offset: int, columns: tuple[str, ...]
) -> Row | None:
    """Return some columns of the broker's message at an offset. Return None if the message
    cannot be read."""
    answer = cluster.pull(queue, offset, 1)
    try:
        found = decode(
            answer.body, queue.broker_name, columns, queue_offsets=range(offset, offset + 1)
        )
        for batch in found:
            return dict(batch.to_pylist()[0])
    except StoredMessageError:
        pass
    return None


def rows_at(
    lake: Lake, snapshot: Snapshot, wanted: Mapping[MessageQueue, int]
) -> dict[MessageQueue, Row]:
    """For each queue, read the row at one offset from the lake.

    A row has the identifying columns (``columns_of``). Only rows of a queue's newest generation
    count. Missing rows are left out. The newest files are opened first, and only files that may
    contain the offsets.
    """
    columns = columns_of(lake)
    schema = arrow_schema((*columns, "brokerName", "queueId", "queueOffset"))
    schema = schema.append(pa.field(GENERATION, pa.int32()))
    left = dict(wanted)
    hours: dict[tuple[str, int], list[DataFile]] = defaultdict(list)
    topics = {queue.topic for queue in wanted}
    for file in snapshot.files:
        if file.topic in topics:
            hours[file.date, file.hour].append(file)
    found: dict[MessageQueue, Row] = {}
    for hour in sorted(hours, reverse=True):
        if not left:
            break
        offsets = set(left.values())
        files = [file for file in hours[hour] if file.may_have(offsets)]
        for topic in {file.topic for file in files}:
            rows = ds.dataset(
                [str(lake.root / file.path) for file in files if file.topic == topic],
                schema=schema,
                format="parquet",
            ).to_table(filter=ds.field("queueOffset").isin(offsets))
            for row in rows.to_pylist():
                queue = MessageQueue(topic, row["brokerName"], row["queueId"])
                generation = snapshot.generations.get(queue)
                if left.get(queue) == row["queueOffset"] and row[GENERATION] == generation:
                    found[queue] = {name: row[name] for name in columns}
                    del left[queue]
    return found
