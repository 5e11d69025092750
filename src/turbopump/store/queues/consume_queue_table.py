"""Every consume queue of a store: topic, then queue id. Queues come into being with their first
unit.

Topics with ``queue.type=BatchCQ`` are not served: they have no queue here. Their messages stay in
the log, and Apache's files of their queues (``batchconsumequeue/``) stay as they are.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbopump.errors import MessageError, StoreDamagedError
from turbopump.store.disk import Disk, Segment
from turbopump.store.files import StorePaths
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.mapped_file import OpenFiles
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.queue_ends import QueueEnds


def unserved_text(topic: str) -> str:
    """The refusal of whatever asks for a queue of a BatchCQ topic."""
    return (
        f"topic={topic} is a BatchCQ topic (queue.type=BatchCQ), which this broker does not serve; "
        "serve it with Apache's broker, or use a topic without that attribute"
    )


class ConsumeQueueTable:
    """The queues of the store at ``paths``; ``file_size`` in bytes.

    ``is_batch`` tells whether a topic has ``queue.type=BatchCQ``; None: the topic is not known.
    ``deleted_until`` tells up to which offset of the log the messages of a topic were deleted with
    it.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        file_size: int,
        is_batch: Callable[[str], bool | None] = lambda _topic: None,
        deleted_until: Callable[[str], int] = lambda _topic: 0,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._file_size = max(file_size, UNIT_SIZE)
        self._is_batch = is_batch
        self._deleted_until = deleted_until
        self._open_files = OpenFiles(disk.maps_max)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.batch_topics: dict[str, int] = {}
        """Topics of which Apache's broker left batch queues, and how many queues each may have."""
        self.damaged = False
        """Whether there are files that do not belong together: then every queue must be rebuilt."""

    def load(self) -> None:
        """Open the queues that are on disk. Directories that are not queues are passed over; the
        files of a topic that is not served are removed."""
        for topic in self._disk.list_directory(self._paths.batch_consume_queues):
            ids = self._queue_ids(self._paths.batch_consume_queues / topic)
            self.batch_topics[topic] = max(ids, default=0) + 1
        for topic in self._disk.list_directory(self._paths.consume_queues):
            directory = self._paths.consume_queues / topic
            for queue_id in self._queue_ids(directory):
                self._load(self._make(topic, queue_id, directory / str(queue_id)))
        self.remove_unserved()

    def _queue_ids(self, directory: Path) -> list[int]:
        # "00" is no second directory of queue 0
        return [
            int(name)
            for name in self._disk.list_directory(directory)
            if name.isascii() and name.isdigit() and name == str(int(name))
        ]

    def _load(self, queue: ConsumeQueue) -> None:
        try:
            queue.load()
        except StoreDamagedError:
            self.damaged = True

    def is_known(self, topic: str) -> bool:
        """True if there is such a topic."""
        return self._is_batch(topic) is not None

    def is_unserved(self, topic: str) -> bool:
        """True for a BatchCQ topic. Where the topic is not known (its table is lost), Apache's
        files of its queues tell."""
        known = self._is_batch(topic)
        return topic in self.batch_topics if known is None else known

    def remove_unserved(self) -> None:
        """Remove queues that were begun before their topic was known to be a BatchCQ topic. With
        them Apache's broker would not start."""
        for key, queue in list(self._queues.items()):
            if self.is_unserved(queue.topic):
                del self._queues[key]
                self._remove_files(queue)

    def _remove_files(self, queue: ConsumeQueue) -> None:
        queue.remove()
        directory = self._paths.consume_queues / queue.topic
        if not self._disk.list_directory(directory):
            self._disk.remove(directory)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue if it has ever had a message."""
        return self._queues.get((topic, queue_id))

    def find_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new, empty one has no files yet. Raises MessageError for a topic that is not
        served."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            return queue
        if self.is_unserved(topic):
            raise MessageError(unserved_text(topic))
        return self._make(topic, queue_id)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    @property
    def units(self) -> int:
        """The sum of all queues' ends: less than it was, if a queue or the last of its files is
        lost."""
        return sum(queue.max_index for queue in self)

    def delete(self, topic: str, until: int | None = None) -> int:
        """Delete a topic's queues with their files; how many there were. Its messages stay in the
        log until that is trimmed. ``until``: only queues whose last message lies before that offset
        of the log.

        In one piece, so that a queue made anew finds its directory empty. Raises OSError.
        """
        gone = [
            queue
            for queue in self
            if queue.topic == topic
            and (
                until is None
                or not queue.max_index
                or self._is_before(queue, queue.max_index - 1, until)
            )
        ]
        for queue in gone:
            del self._queues[topic, queue.queue_id]
            self._remove_files(queue)
        if topic in self.batch_topics:
            self._remove_batch_files(topic)
        return len(gone)

    def _remove_batch_files(self, topic: str) -> None:
        """Remove Apache's files of a deleted topic: its broker does not start with queues whose
        topic it does not know."""
        directory = self._paths.batch_consume_queues / topic
        for queue in self._disk.list_directory(directory):
            for file in self._disk.list_directory(directory / queue):
                self._disk.remove(directory / queue / file)
            self._disk.remove(directory / queue)
        self._disk.remove(directory)
        del self.batch_topics[topic]

    def finish_deletions(self, deleted: Mapping[str, int]) -> dict[str, int]:
        """Delete what a kill has left of queues whose topic was deleted when the log ended at the
        offset given. Raises OSError.

        Only queues whose messages all lie before that offset are deleted. The topics returned have
        a queue that goes on behind it. The kill came before the deletion, nobody got an answer to
        it, and the topic stays as it is. (Or the queue's first unit is wrong, which is no reason to
        lose the others.) The value for each is the offset of the first message that it still has:
        what may have been deleted earlier lies before that.
        """
        old, across = [], dict[str, int]()
        for queue in self:
            if not queue.max_index or queue.topic not in deleted:
                continue
            begins = self._is_before(queue, queue.min_index, deleted[queue.topic])
            ends = self._is_before(queue, queue.max_index - 1, deleted[queue.topic])
            if begins and ends:
                old.append(queue)
            elif begins:
                across[queue.topic] = deleted[queue.topic]
        for queue in old:
            if queue.topic not in across:
                del self._queues[queue.topic, queue.queue_id]
                queue.remove()
        for queue in self:
            unit = (
                queue.unit(queue.min_index) if queue.topic in across and queue.max_index else None
            )
            if unit is not None:
                across[queue.topic] = min(unit[0], across[queue.topic])
        return across

    @staticmethod
    def _is_before(queue: ConsumeQueue, index: int, offset: int) -> bool:
        unit = queue.unit(index)
        return unit is not None and unit[1] > 1 and unit[0] < offset

    def make_anew(self, queue: ConsumeQueue) -> ConsumeQueue:
        """An empty queue instead of this one, whose files are deleted."""
        queue.remove()
        return self._make(queue.topic, queue.queue_id)

    def rebuild(self) -> None:
        """Delete every queue's files: the dispatcher will fill them again from the log."""
        self.damaged = False
        for queue in list(self):
            self.make_anew(queue)

    def take_dirty(self) -> list[Segment]:
        """What was written since this was last asked; it counts as clean from now on."""
        return self._open_files.take_dirty()

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()

    def _make(self, topic: str, queue_id: int, directory: Path | None = None) -> ConsumeQueue:
        if directory is None:
            directory = self._paths.consume_queue(topic, queue_id)
        queue = ConsumeQueue(
            self._disk, directory, topic, queue_id, self._file_size, self._open_files
        )
        queue.deleted_until = self._deleted_until(topic)
        self._queues[topic, queue_id] = queue
        return queue


# A deletion that cannot be saved is not done: after a kill, a start would mix the deleted messages
# with later ones.

DeletionDone = Callable[[int | OSError], None]
"""Gets how many queues there were, or why they are still there."""


@dataclass(slots=True, eq=False)
class QueueDeletions:
    """Deletions of ``queues``, saved in ``ends`` first. A second deletion of a topic that is being
    deleted gets the outcome of the first."""

    log: CommitLog
    queues: ConsumeQueueTable
    ends: QueueEnds
    _under_way: dict[str, list[DeletionDone]] = field(default_factory=dict)

    def delete(self, topic: str, then: DeletionDone, until: int | None = None) -> None:
        """Delete a topic's queues with their files, and tell ``then``. ``until``: what lies behind
        that offset of the log is of a newer topic of that name, and stays."""
        if topic in self._under_way:
            self._under_way[topic].append(then)
        elif topic in self.queues.batch_topics or any(
            queue.topic == topic for queue in self.queues
        ):
            self._under_way[topic] = [then]
            at = self.log.end if until is None else until
            self.ends.forget_topic(topic, at, lambda good: self._noted(topic, good, until))
        else:
            then(0)

    def _noted(self, topic: str, good: bool, until: int | None) -> None:
        count: int | OSError = OSError(errno.EIO, "that they are to go could not be saved")
        try:
            if good:
                count = self.queues.delete(topic, until)
                self.ends.deleted_now(topic, self.log.end if until is None else until)
        except OSError as error:
            count = error
        for then in self._under_way.pop(topic):
            then(count)
