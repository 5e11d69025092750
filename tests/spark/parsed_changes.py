"""Bodies of a topic's messages as the changes that a task finds in them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from turbopump.spark.changes.canal import CanalFormat
from turbopump.spark.changes.change import ChangeFormat, ChangeOptions
from turbopump.spark.options import BODY_FAULT
from turbopump.spark.pipelines.change_writing import ParsedMessages

Sent = tuple[int, int, bytes]
"""Queue, offset and body of a message."""


def message_rows(sent: Sequence[Sent]) -> pa.RecordBatch:
    """The messages as rows of a task."""
    count = len(sent)
    return pa.record_batch(
        {
            "topic": ["T"] * count,
            "brokerName": ["b"] * count,
            "queueId": pa.array([queue for queue, _, _ in sent], pa.int32()),
            "queueOffset": pa.array([offset for _, offset, _ in sent], pa.int64()),
            "body": pa.array([body for _, _, body in sent], pa.binary()),
            BODY_FAULT: pa.nulls(count, pa.string()),
        }
    )


def parsed(
    sent: Sequence[Sent], form: ChangeFormat | None = None, zone: str = "UTC"
) -> ParsedMessages:
    found = ParsedMessages(form or CanalFormat(ChangeOptions()), zone)
    found.add(message_rows(sent))
    return found


def changes_in(sent: Sequence[Sent]) -> list[pa.Table]:
    """The changes in messages, which must be good."""
    messages = parsed(sent)
    streams = [table.replace_schema_metadata(None) for table in messages.streams()]
    assert not messages.reasons
    return streams
