"""Plan of a read: queues, offsets and tasks.

The plan asks the cluster once, so that tasks get plain numbers. A topic or queue that the user
names and the cluster lacks is an error here, never a smaller read. Spark is unknown here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from turbopump.errors import ConfigError, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import OFFLINE_ERRORS, Cluster
from turbopump.spark.offsets import EARLIEST, LATEST, Offsets, ranges_between, split_ranges
from turbopump.spark.options import EVERY_BROKER, ReadBound, ReadOptions
from turbopump.spark.reading import RangesPartition, report_loss

_log = logging.getLogger(__name__)


def topics_wanted(cluster: Cluster, options: ReadOptions) -> list[str]:
    """Return the topics that the options select, sorted.

    A pattern selects the topics that match it now. A pattern matches retry and dead-letter topics
    only if it begins with ``%``; ``^`` and ``(`` before that are ignored. It never matches the
    brokers' own topics.
    """
    if options.assigned is not None:
        return sorted(options.assigned)
    pattern = options.topic_pattern
    if pattern is None:
        return list(options.topics)
    with_percent = pattern.lstrip("^(").startswith("%")
    return [
        topic
        for topic in cluster.topics()
        if re.fullmatch(pattern, topic) and (with_percent or not topic.startswith("%"))
    ]


def queues_of(
    cluster: Cluster,
    options: ReadOptions,
    *,
    lenient: bool = False,
    gone: dict[str, RouteNotFoundError] | None = None,
) -> list[MessageQueue]:
    """Return all queues of the topics that the options select.

    A topic without a route raises RouteNotFoundError, with three exceptions. With ``lenient``, the
    topic is left out. If a pattern has just found the topic, it is left out, because it is being
    deleted. Without ``fail_on_data_loss``, it is left out and added to ``gone``.
    """
    queues: list[MessageQueue] = []
    for topic in topics_wanted(cluster, options):
        try:
            queues += cluster.queues(topic)
        except RouteNotFoundError as error:
            if lenient or options.topic_pattern is not None:
                continue
            if options.fail_on_data_loss:
                raise
            if gone is not None:
                gone[topic] = error
    return queues


def chosen(queues: Iterable[MessageQueue], options: ReadOptions) -> list[MessageQueue]:
    """Select queues by the option ``assign``. Without this option, return all queues."""
    if options.assigned is None:
        return list(queues)
    return [queue for queue in queues if is_asked_for(queue, options)]


def is_asked_for(queue: MessageQueue, options: ReadOptions) -> bool:
    """Return True if the options select this queue. The queue need not exist."""
    if options.assigned is not None:
        brokers = options.assigned.get(queue.topic, {})
        ids = brokers.get(queue.broker_name, brokers.get(EVERY_BROKER, frozenset()))
        return queue.queue_id in ids
    if options.topic_pattern is not None:
        return re.fullmatch(options.topic_pattern, queue.topic) is not None
    return queue.topic in options.topics


def queues_wanted(cluster: Cluster, options: ReadOptions) -> list[MessageQueue]:
    """Return the queues to read.

    A warning reports a read from a slave, or a topic that is left out. Raises ConfigError if an
    assigned queue does not exist or a named topic has no queues. Raises the errors of
    ``queues_of``, also if no topic exists.
    """
    gone: dict[str, RouteNotFoundError] = {}
    queues = queues_of(cluster, options, gone=gone)
    for error in gone.values():
        if not queues:
            raise error
        report_loss(False, str(error), "", "the others are read")
    for topic in sorted(set(options.topics) - {queue.topic for queue in queues} - gone.keys()):
        raise ConfigError(
            f"topic {topic!r} has no queue to read: its brokers do not let it be read (perm), or "
            "it has no read queues (readQueueNums). Alter the topic"
        )
    if options.topic_pattern is not None and not queues:
        _log.warning("subscribePattern %r matches no topic now", options.topic_pattern)
    wanted = chosen(queues, options)
    for topic, brokers in (options.assigned or {}).items():
        for broker, ids in brokers.items():
            of_broker = {
                queue.queue_id
                for queue in wanted
                if queue.topic == topic and broker in (queue.broker_name, EVERY_BROKER)
            }
            if ids - of_broker:
                there = _listed(queue for queue in queues if queue.topic == topic)
                raise ConfigError(
                    f"assign names queue {min(ids - of_broker)} of {topic!r} on broker {broker!r}, "
                    f"but there are only {there}"
                )
    for broker, queues_there in by_broker(wanted):
        if cluster.is_read_from_slave(queues_there[0]):
            text = "the master of broker %s is away: its slave is read, which may have less"
            _log.warning(text, broker)
    return wanted


def reachable_queues(cluster: Cluster, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues whose broker answers, sorted.

    A warning names each broker that does not answer.
    """
    found: list[MessageQueue] = []
    for broker, of_broker in by_broker(queues):
        try:
            cluster.offset_max(of_broker[0])
        except OFFLINE_ERRORS as error:
            text = "broker %s is away (%s) and is left out, because brokerOfflineStrategy is skip"
            _log.warning(text, broker, error)
        else:
            found += of_broker
    return sorted(found)


def by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    """Group the queues by broker. For each broker, return its name and its queues."""
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return sorted(brokers.items())


def check_named(queues: Iterable[MessageQueue], bound: ReadBound) -> None:
    """Raise ConfigError if offsets or times were given for a queue that does not exist."""
    named = set(bound.timestamps)
    if not isinstance(bound.offsets, str):
        named |= bound.offsets.keys()
    absent = named - set(queues)
    if absent:
        raise ConfigError(
            f"the given offsets name {_listed(sorted(absent))}, but there are only "
            f"{_listed(queues)}"
        )


def offsets_at(
    cluster: Cluster, queues: Iterable[MessageQueue], bound: ReadBound, options: ReadOptions
) -> Offsets:
    """For each queue, return the offset at which the read begins or ends.

    Raises ConfigError for a time after the last message, if the options make that an error. Raises
    DataLossError for a given or committed offset after the end of its queue. Without
    ``fail_on_data_loss``, the end is used instead, with a warning.
    """
    found = {queue: _offset_at(cluster, queue, bound, options) for queue in queues}
    found |= cluster.offsets_min(queue for queue in found if found[queue] == EARLIEST)
    found |= cluster.offsets_max(queue for queue in found if found[queue] == LATEST)
    return found


def _offset_at(
    cluster: Cluster, queue: MessageQueue, bound: ReadBound, options: ReadOptions
) -> int:
    """Return the offset at which the read of one queue begins or ends.

    The result may be EARLIEST or LATEST. The caller looks these up for all queues together.
    """
    time_ms = bound.time_of(queue)
    if time_ms is not None:
        offset = cluster.offset_at(queue, time_ms)
        if bound.time_beyond == "error" and offset >= cluster.offset_max(queue):
            raise ConfigError(
                f"{queue} has no message stored at or after {time_ms}: give an earlier time, or "
                f"leave {bound.option}OffsetsByTimestampStrategy=error out to take its end"
            )
        return offset
    if bound.group is not None:
        committed = cluster.group_offset(queue, bound.group)
        if committed is not None:
            said = f"group {bound.group} has committed"
            return _checked_offset(cluster, queue, committed, said, options)
    if isinstance(bound.offsets, str):
        return EARLIEST if bound.offsets == "earliest" else LATEST
    offset = bound.offsets.get(queue, EARLIEST)
    if offset in (EARLIEST, LATEST):
        return offset
    return _checked_offset(cluster, queue, offset, f"{bound.option}Offsets says", options)


def _checked_offset(
    cluster: Cluster, queue: MessageQueue, offset: int, said: str, options: ReadOptions
) -> int:
    end = cluster.offset_max(queue)
    if offset <= end:
        return offset
    report_loss(
        options.fail_on_data_loss,
        f"{said} {offset} for {queue}, which ends at {end}",
        ": the topic or broker was deleted and made again, or lost its end. Give an "
        "offset that the queue has, or set the option failOnDataLoss to false to use its "
        "end instead",
        "using its end",
    )
    return end


def check_begins_before_end(
    queues: Iterable[MessageQueue], begin: ReadBound, end: ReadBound
) -> None:
    """Raise ConfigError if a queue's given begin is after its given end."""
    for queue in queues:
        start_ms, start = _given_bound(begin, queue)
        end_ms, stop = _given_bound(end, queue)
        if start_ms is not None and end_ms is not None and start_ms > end_ms:
            raise ConfigError(
                f"{_time_option(begin)} {start_ms} of {queue} is later than its "
                f"{_time_option(end)} {end_ms}"
            )
        if start is not None and stop is not None and start > stop:
            raise ConfigError(
                f"startingOffsets {start} of {queue} is beyond its endingOffsets {stop}"
            )


def _given_bound(bound: ReadBound, queue: MessageQueue) -> tuple[int | None, int | None]:
    """Return the given time and the given offset of a queue. At most one of them is not None.

    Only an offset given as a number counts. Both are None for ``earliest``, ``latest`` and a group.
    """
    time_ms = bound.time_of(queue)
    if time_ms is not None or bound.group is not None or isinstance(bound.offsets, str):
        return time_ms, None
    offset = bound.offsets.get(queue, EARLIEST)
    return None, offset if offset >= 0 else None


def _time_option(bound: ReadBound) -> str:
    return f"{bound.option}{'OffsetsByTimestamp' if bound.timestamp_ms is None else 'Timestamp'}"


def tasks(
    begins: Offsets, ends: Offsets, options: ReadOptions, tags: frozenset[str] | None = None
) -> list[RangesPartition]:
    """Divide the ranges between two sets of offsets into Spark tasks.

    There is at least one task, which may be empty.
    """
    parts = split_ranges(
        ranges_between(begins, ends),
        options.partitions_max,
        options.partitions_min,
        options.partition_rows_max,
    )
    return [RangesPartition(ranges, tags) for ranges in parts or [[]]]


def _listed(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(map(str, queues)) or "none"
