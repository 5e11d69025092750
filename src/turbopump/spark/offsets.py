"""Offsets in queues. Checkpoints and options contain them as JSON.

::

    {"v":1,"topics":{"T":{"broker-a":{"0":123,"1":456}}}}   123 is the next offset to read

This format is persisted. Checkpoints live for years and Spark compares them as text. So equal
offsets always have the same (sorted) text, and version 1 never changes. Another version is refused.
Brokers and Spark are unknown here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue

VERSION: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
"""Symbols for the end (-1) and the start (-2) of a queue in offsets that a user gives, as in
Spark's Kafka source and rocketmq-spark. A checkpoint never has them."""

Offsets = dict[MessageQueue, int]


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Encode offsets in the versioned form. Spark writes this form into a checkpoint.

    The dict is sorted, so that equal offsets have equal texts.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[
            str(queue.queue_id)
        ] = offsets[queue]
    return {"v": VERSION, "topics": topics}


def decode_offsets(
    text: str | Mapping[str, Any], *, what: str = "the checkpoint", symbolic: bool = False
) -> Offsets:
    """Parse offsets from a checkpoint, or from an option of a user.

    A checkpoint has the versioned form. Users may also write the plain form
    ``{"T":{"broker-a":{"0":123}}}``. ``symbolic`` allows -1 (latest) and -2 (earliest). Raises
    ConfigError with ``what`` and the invalid part.
    """
    value: Any = text
    if isinstance(text, str):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{what}: not JSON: {error}") from None
    if isinstance(value, Mapping) and "v" in value:
        if value["v"] != VERSION:
            raise ConfigError(
                f"{what} has version {value['v']!r}; this turbopump reads version {VERSION}: use "
                "the release that wrote it"
            )
        value = value.get("topics")
    offsets: Offsets = {}
    lowest = EARLIEST if symbolic else 0
    for topic, brokers in _object(value, what, "topics").items():
        for broker, queues in _object(brokers, what, topic).items():
            for queue_id, offset in _object(queues, what, f"{topic}, {broker}").items():
                where = f"{topic}, {broker}, queue {queue_id}"
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise ConfigError(f"{what}: {where}: a queue must be a number")
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < lowest:
                    allowed = "0 or more, -1 (latest) or -2 (earliest)" if symbolic else "0 or more"
                    raise ConfigError(
                        f"{what}: {where}: the offset {offset!r} is not a whole number, {allowed}"
                    )
                offsets[MessageQueue(topic, broker, int(queue_id))] = offset
    return offsets


def _object(value: Any, what: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{what}: {where}: expected an object such as "
            f'{{"T":{{"broker-a":{{"0":123}}}}}}, not {value!r}'
        )
    return value


# Ranges of queue offsets: their division into tasks, and the limit on messages per micro-batch.
# The rule: pure arithmetic, with the same result for the same input on every machine, so that a
# repeated micro-batch reads the same messages.
TASKS_MAX: Final = 1_000_000
"""Maximum number of tasks of one read with ``maxRecordsPerPartition``. Spark takes minutes for this
many tasks."""
TASK_ROWS_MIN: Final = 1000
"""Minimum number of rows for which a further task is started. A task costs about 10 ms, as much as
reading a few thousand messages."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Range of offsets of one queue, from ``begin`` to ``end`` (exclusive)."""

    queue: MessageQueue
    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.begin


def ranges_between(
    begins: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
) -> list[OffsetRange]:
    """For each queue, return the range from its begin to its end, in the order of queues.

    A queue without a begin, or with an end that is not after the begin, has no range.
    """
    return [
        OffsetRange(queue, begins[queue], ends[queue])
        for queue in sorted(ends)
        if begins.get(queue, ends[queue]) < ends[queue]
    ]


def split_ranges(
    ranges: Iterable[OffsetRange],
    tasks_max: int | None,
    tasks_min: int | None = None,
    rows_max: int | None = None,
) -> list[list[OffsetRange]]:
    """Divide ranges of offsets into tasks. All tasks have nearly the same number of messages.

    The tasks are in the order of the ranges, and a queue may be cut.

    - ``tasks_max``: maximum number of tasks. There are fewer if they would have less than
      ``TASK_ROWS_MIN`` messages. None means one task per queue, as in Spark's Kafka source.
    - ``tasks_min``: minimum number of tasks, if there are as many messages. Overrides
      ``tasks_max``.
    - ``rows_max``: maximum number of messages per task. Overrides ``tasks_max``.

    Raises ConfigError if the result has more than ``TASKS_MAX`` tasks.
    """
    todo = [piece for piece in ranges if piece.end > piece.begin]
    total = sum(piece.count for piece in todo)
    rows_max = rows_max or max(1, total)
    small = all(piece.count <= rows_max for piece in todo)
    if tasks_max is None and len(todo) >= (tasks_min or 0) and small:
        return [[piece] for piece in todo]
    if -(-total // rows_max) > TASKS_MAX:
        raise ConfigError(
            f"{total} messages in tasks of {rows_max} at most (maxRecordsPerPartition) are more "
            f"than {TASKS_MAX} tasks: give a larger number, or read less at once (endingOffsets, "
            "maxOffsetsPerTrigger)"
        )
    tasks_min = max(tasks_min or 1, -(-total // rows_max))
    worth = min(tasks_max or 1, -(-total // TASK_ROWS_MIN))
    count = max(1, worth, min(tasks_min, total))
    tasks: list[list[OffsetRange]] = []
    done = 0
    for piece in todo:
        while piece.end > piece.begin:
            if done >= total * len(tasks) // count:
                tasks.append([])
            cut = min(piece.end, piece.begin + total * len(tasks) // count - done)
            tasks[-1].append(replace(piece, end=cut))
            done += cut - piece.begin
            piece = replace(piece, begin=cut)
    return tasks


def limit_ends(
    begins: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], rows_max: int
) -> dict[MessageQueue, int]:
    """Lower the ends of queues, so that at most ``rows_max`` messages are read in all.

    Each queue gets a share in proportion to the number of its waiting messages. Such shares keep
    queues at about the same point in time, which watermarks need. No queue starves: if ``rows_max``
    allows it, each queue gets at least one message. Otherwise the queues with the most waiting
    messages get one each. Exactly min(rows_max, all) messages are admitted.
    """
    waiting = {piece.queue: piece.count for piece in ranges_between(begins, ends)}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(ends)
    # Each queue gets one message first. The rest is shared in proportion, rounded down. The queues
    # with the largest remainders get one more each; equal ones in the order of queues, so that each
    # machine computes the same ends.
    by_length = sorted(waiting, key=lambda queue: (-waiting[queue], queue))
    shares = dict.fromkeys(by_length[:rows_max], 1)
    room = rows_max - len(shares)
    if room > 0:
        above_one = total - len(shares)
        parts = {queue: divmod(room * (waiting[queue] - 1), above_one) for queue in by_length}
        by_remainder = sorted(by_length, key=lambda queue: (-parts[queue][1], queue))
        rest = room - sum(part for part, _ in parts.values())
        for queue in by_length:
            shares[queue] += parts[queue][0]
        for queue in by_remainder[:rest]:
            shares[queue] += 1
    return {
        queue: begins[queue] + shares.get(queue, 0) if queue in waiting else end
        for queue, end in ends.items()
    }
