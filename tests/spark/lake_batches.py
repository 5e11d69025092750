"""Batches for a lake without Spark or a broker: messages of one topic, in the steps of `archive`.
As a program, this archives in a process of its own, which kills itself with SIGKILL before the
given step:

    python -m tests.spark.lake_batches LAKE FORMAT STEP
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from turbopump.message.message import MessageQueue
from turbopump.spark.options import BODY_FAULT, arrow_schema
from turbopump.spark.pipelines.bodies import avro_bodies
from turbopump.spark.pipelines.lake import (
    Definition,
    Lake,
    LakeBatch,
    Snapshot,
    create_or_open,
    no_step,
    staged_name,
)
from turbopump.spark.pipelines.writing import FileWriting

COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "body", "storeTimestamp")
QUEUES = [MessageQueue("T", "broker-a", 0), MessageQueue("%RETRY%g", "broker-b", 1)]
BATCHES = 3
BATCH_ROWS = 40
"""Rows per queue. Every seventh body does not fit."""
HOUR_US = 3_600_000_000
AVRO = '{"type":"record","name":"R","fields":[{"name":"n","type":"long"}]}'


def definition(format_name: str, *, bodies: bool = True) -> Definition:
    return Definition(
        format=format_name, columns=COLUMNS, bodies=avro_bodies(AVRO) if bodies else None
    )


def messages(queue: MessageQueue, begin: int, end: int) -> pa.RecordBatch:
    """The messages of a queue; the hour changes each fifty offsets."""
    offsets = range(begin, end)
    columns = {
        "topic": [queue.topic] * len(offsets),
        "brokerName": [queue.broker_name] * len(offsets),
        "queueId": [queue.queue_id] * len(offsets),
        "queueOffset": list(offsets),
        "body": [b"" if at % 7 == 0 else zigzag(at) for at in offsets],
        "storeTimestamp": [400_000 * HOUR_US + at // 50 * HOUR_US + at for at in offsets],
        BODY_FAULT: [None] * len(offsets),
    }
    schema = arrow_schema(list(columns))
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def zigzag(number: int) -> bytes:
    """A long as Avro writes it."""
    rest, found = number << 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def append_next(lake: Lake, before: Snapshot, at_step: Callable[[str], None]) -> Snapshot:
    """Commit the next batch, as ``archive`` does."""
    begins = dict.fromkeys(QUEUES, 0)
    begins |= {queue: archived.end for queue, archived in before.ranges.items()}
    ends = before.unfinished or {queue: begin + BATCH_ROWS for queue, begin in begins.items()}
    stem = staged_name(f"{before.version + 1:08d}")
    writing = FileWriting(str(lake.staging), stem, lake.definition)
    report = writing.write(messages(queue, begins[queue], ends[queue]) for queue in ends)
    at_step("written")
    batch = LakeBatch(begins=begins, ends=ends, lost={}, files=tuple(report.files))
    return lake.append(before, batch, at_step)


def archive_all(
    root: Path, wanted: Definition, at_step: Callable[[str], None] = no_step
) -> Snapshot:
    """Continue from the lake's offsets up to the end, and compact the lake."""
    lake = create_or_open(root, wanted)
    at_step("opened")
    with lake.writing():
        snapshot = lake.snapshot()
        while any(snapshot.ranges.get(q) is None for q in QUEUES) or any(
            archived.end < BATCHES * BATCH_ROWS for archived in snapshot.ranges.values()
        ):
            snapshot = append_next(lake, snapshot, at_step)
        at_step("all there")
        lake.compact(files_min=2, size_target=1 << 20)
        at_step("compacted")
        return lake.snapshot()


if __name__ == "__main__":
    left = [int(sys.argv[3])]

    def kill(_name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    archive_all(Path(sys.argv[1]), definition(sys.argv[2]), kill)
