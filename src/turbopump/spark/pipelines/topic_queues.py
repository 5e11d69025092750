"""Queues of the topics of an archive, compared with the lake.

A queue may be new, unreachable, or read from a slave. It may have been deleted and made again, and
its broker may have been renamed. Each time the brokers are asked, this module decides which queues
can be read, and up to which offset. A topic or queue that cannot be read is a fault; the others
continue. Reading and writing messages is unknown here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from turbopump.errors import DataLossError, RouteNotFoundError, TurbopumpError
from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines import made_again
from turbopump.spark.pipelines.lake import Lake, Snapshot

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class TopicQueues:
    """Queues that a run of ``archive`` reads, as the brokers have them now.

    Each call asks the brokers. Faults and comparisons are remembered for the next call.

    - ``starting``: start of a queue that the lake does not know (``archive``).
    - ``follow``: True if the run continues until it is stopped.
    - ``restart_queues``: True if a queue that was made again begins another generation.
    """

    cluster: Cluster
    lake: Lake
    topics: list[str]
    starting: str | int
    follow: bool
    fail_on_data_loss: bool
    restart_queues: bool
    restarted: set[MessageQueue] = field(default_factory=set)
    """Queues that began another generation in this run."""
    _faults: dict[str, TurbopumpError] = field(default_factory=dict)
    """Faults of topics and queues that are left out, by name."""
    _changed: set[MessageQueue] = field(default_factory=set)
    """Queues that were made again, so that the lake has rows of other messages."""
    _absent: frozenset[MessageQueue] = frozenset()
    _behind: set[MessageQueue] = field(default_factory=set)
    """Queues whose slave has less than the lake, after a warning was logged."""
    _compared: set[MessageQueue] = field(default_factory=set)
    """Queues whose newest row in the lake matches the broker's message. A queue that disappears is
    compared again when it returns."""
    _renamed: dict[MessageQueue, int | None] = field(default_factory=dict)
    """Offset at which a queue begins if the lake has its messages under the name of another broker,
    otherwise None."""

    def readable_ends(self, snapshot: Snapshot) -> tuple[Snapshot, Offsets]:
        """Return the newest version of the lake. For each readable queue, return its present end.

        If ``restart_queues`` is set, queues that were deleted and made again begin another
        generation in the lake. Otherwise these queues are left out.
        """
        ends = self._present_ends(snapshot)
        if self.restart_queues and self._changed:
            snapshot = self._restart_changed(snapshot, ends)
        return snapshot, {queue: end for queue, end in ends.items() if queue not in self._changed}

    def begin_of(self, snapshot: Snapshot, queue: MessageQueue, end: int) -> int:
        """Return the offset at which the next batch begins in a queue.

        ``end`` is the present end of the queue.
        """
        there = snapshot.ranges.get(queue)
        if there is not None:
            return there.end
        renamed = self._renamed.get(queue)
        if renamed is not None:
            return renamed
        if isinstance(self.starting, int):
            return min(end, self.cluster.offset_at(queue, self.starting))
        is_new_topic = all(known.topic != queue.topic for known in snapshot.ranges)
        if self.starting == "latest" and is_new_topic:
            return end
        return self.cluster.offset_min(queue)

    def may_begin_at_end(self, queue: MessageQueue) -> bool:
        """Return True if a new queue may begin at its end, without messages to read.

        The lake must then store this begin.
        """
        return self.starting == "latest" or self._renamed.get(queue) is not None

    def wait_for_brokers(self) -> None:
        """Wait until the brokers of the topics answer.

        Topics that are left out because of a fault are not waited for.
        """
        for topic in set(self.topics) - self._faults.keys():
            self.cluster.offsets_max(self.cluster.queues_of_known(topic))

    def raise_fault(self, archived: int) -> None:
        """Raise the first fault of a topic or queue. Log the other faults.

        ``archived`` is the number of messages that were archived from the other topics and queues.
        Without a fault, the call does nothing.
        """
        note = f"{archived:,} messages of the others were archived" if archived else None
        raise_first(self._faults.values(), note)

    def _existing_queues(self, snapshot: Snapshot) -> list[MessageQueue]:
        """Return the queues of the topics. Missing topics are left out.

        A missing topic is a fault, with one exception: the lake has the topic, and the run follows
        its topics or may lose messages.
        """
        found: list[MessageQueue] = []
        known = {queue.topic for queue in snapshot.ranges}
        for topic in self.topics:
            try:
                found += self.cluster.queues(topic)
            except RouteNotFoundError as error:
                if topic in known and (self.follow or not self.fail_on_data_loss):
                    continue  # _report_absent reports it
                self._leave_out(topic, error)
            else:
                self._faults.pop(topic, None)
        return found

    def _leave_out(self, name: str, fault: TurbopumpError) -> None:
        """Record the fault of a topic or queue, because the run leaves it out.

        A run that follows its topics may never end, so the fault is logged at once.
        """
        if self.follow and name not in self._faults:
            _log.error("%s; the others continue", fault)
        self._faults[name] = fault

    def _present_ends(self, snapshot: Snapshot) -> Offsets:
        found = self.cluster.offsets_max(self._existing_queues(snapshot))
        self._report_absent(snapshot, found)
        self._compared &= found.keys()
        self._changed.clear()
        same = set[MessageQueue]()
        for queue, end in list(found.items()):
            there = snapshot.ranges.get(queue)
            if there is None:
                self._find_old_name(snapshot, queue, end)
            elif there.end <= end:
                same.add(queue)
            elif self.cluster.is_read_from_slave(queue):
                del found[queue]
                if queue not in self._behind:
                    text = "the master of %s is away, and its slave has less than the lake"
                    _log.warning(text, queue)
                self._behind.add(queue)
            else:
                self._leave_out_changed(
                    queue, f"ends at {end}, but the lake has it up to {there.end} already"
                )
        differing = made_again.changed_queues(
            self.cluster, self.lake, snapshot, same - self._compared
        )
        for queue, offset in differing.items():
            self._leave_out_changed(queue, f"has another message at offset {offset} than the lake")
        self._compared |= same - differing.keys()
        for queue in found.keys() - self._changed:
            self._faults.pop(str(queue), None)
        return found

    def _leave_out_changed(self, queue: MessageQueue, what: str) -> None:
        self._changed.add(queue)
        if not self.restart_queues:
            fault = DataLossError(
                f"{queue} {what}: the topic or broker was deleted and made again, or lost "
                "its end. Use --restart-queue (restart_queues) to begin another "
                "generation of the queue"
            )
            self._leave_out(str(queue), fault)

    def _restart_changed(self, snapshot: Snapshot, ends: Offsets) -> Snapshot:
        """For each queue that was made again after a deletion, begin another generation in the
        lake.

        The generation begins after the last message that lake and broker have in common. If there
        is no such message, it begins at the broker's first message.
        """
        mins = self.cluster.offsets_min(self._changed)
        begins: Offsets = {}
        for queue in sorted(self._changed):
            there = snapshot.ranges[queue]
            low = max(there.begin, mins[queue])
            high = min(there.end, ends[queue])
            at = low
            if self.lake.has_messages:
                at = made_again.first_difference(
                    self.cluster, self.lake, snapshot, queue, low, max(low, high)
                )
            # Messages are only appended: behind the first that differs, all differ.
            begins[queue] = at if at > low else mins[queue]
            text = "%s was made again, or lost its end; generation %d begins at offset %d"
            _log.warning(text, queue, there.generation + 1, begins[queue])
        snapshot = self.lake.restart(snapshot, begins)
        self.restarted |= self._changed
        self._changed.clear()
        return snapshot

    def _find_old_name(self, snapshot: Snapshot, queue: MessageQueue, end: int) -> None:
        """Look in the lake for a new queue's messages under the name of another broker.

        A broker may have been renamed together with its store.
        """
        if queue in self._renamed or not made_again.tells_brokers_apart(self.lake):
            return
        self._renamed[queue] = None
        alike = {
            old: min(there.end, end) - 1
            for old, there in snapshot.ranges.items()
            if (old.topic, old.queue_id) == (queue.topic, queue.queue_id)
            and there.begin < min(there.end, end)
        }
        columns = made_again.columns_of(self.lake)
        rows = made_again.rows_at(self.lake, snapshot, alike)
        for old in sorted(rows, key=alike.__getitem__):
            if rows[old] == made_again.message_at(self.cluster, queue, alike[old], columns):
                self._renamed[queue] = alike[old] + 1
                _log.warning(
                    "%s has the messages of %s, which the lake has up to offset %d: the broker was "
                    "renamed. The queue is read from there on",
                    queue, old, alike[old] + 1,
                )  # fmt: skip

    def _report_absent(self, snapshot: Snapshot, found: Offsets) -> None:
        """Report queues that are in the lake but on no broker now.

        If the broker of a queue is missing, the queue is logged once. If the broker no longer has
        the queue, this is a fault.
        """
        present = {(queue.topic, queue.broker_name) for queue in found}
        absent = snapshot.ranges.keys() - found.keys()
        was_absent = self._absent
        self._absent = frozenset(absent)
        for queue in sorted(absent):
            if queue.topic not in self.topics:
                continue
            if (queue.topic, queue.broker_name) not in present:
                if queue not in was_absent:
                    _log.warning("%s is not in the route now; the others continue", queue)
            elif self.fail_on_data_loss:
                fault = DataLossError(
                    f"{queue} no longer exists, because its topic has fewer queues now: "
                    "use --skip-lost (fail_on_data_loss) to continue without it"
                )
                self._leave_out(str(queue), fault)


def check_a_topic_exists(cluster: Cluster, topics: Sequence[str]) -> None:
    """Raise RouteNotFoundError if none of the topics exists."""
    queues: list[MessageQueue] = []
    faults: list[TurbopumpError] = []
    for topic in topics:
        try:
            queues += cluster.queues(topic)
        except RouteNotFoundError as error:
            faults.append(error)
    if not queues:
        raise_first(faults)


def raise_first(faults: Collection[TurbopumpError], note: str | None = None) -> None:
    """Raise the first fault, with a note. Log the other faults.

    Without a fault, the call does nothing.
    """
    if not faults:
        return
    first, *others = faults
    for fault in others:
        _log.error("%s", fault)
    if note is not None:
        first.add_note(note)
    raise first
