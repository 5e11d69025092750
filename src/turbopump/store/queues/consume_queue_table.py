"""All consume queues of a store, by topic and queue id. A queue is created with its first unit.

Topics with ``queue.type=BatchCQ`` are not served, and have no queue here. Their messages stay in
the log, and Apache's files of their queues (``batchconsumequeue/``) stay unchanged.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import MessageError, StoreDamagedError
from turbopump.store.files import StorePaths
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.queue_ends import QueueEnds
from turbopump.store.sparse_files import OpenFiles


def unserved_text(topic: str) -> str:
    """Return the text that refuses a request about a queue of a BatchCQ topic."""
    return (
        f"topic={topic} is a BatchCQ topic (queue.type=BatchCQ), which this broker does not serve; "
        "serve it with Apache's broker, or use a topic without that attribute"
    )


class ConsumeQueueTable:
    """All consume queues of a store, by topic and queue id.

    - ``paths``: paths of the store.
    - ``file_size``: size of a queue file in bytes.
    - ``is_batch``: returns True if a topic has ``queue.type=BatchCQ``, and None for an unknown
      topic.
    - ``deleted_until``: returns the log offset up to which the messages of a topic were
      deleted with it.
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
        """Topics with batch queues of Apache's broker, and the largest queue id plus one of
        each."""
        self.damaged = False
        """True if some files do not belong together. Then every queue must be rebuilt."""

    def load(self) -> None:
        """Open the queues that exist on the disk.

        Directories with other names are ignored. The queue files of topics that are not served are
        removed.
        """
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
        """Return True if the topic exists."""
        return self._is_batch(topic) is not None

    def is_unserved(self, topic: str) -> bool:
        """Return True for a BatchCQ topic, which this broker does not serve.

        If the topic is unknown because its table is lost, Apache's queue files decide.
        """
        known = self._is_batch(topic)
        return topic in self.batch_topics if known is None else known

    def remove_unserved(self) -> None:
        """Remove the queues of BatchCQ topics.

        They were created before their topic was known to be one. Apache's broker would not start
        with them.
        """
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
        """Return the queue of a topic, or None if the queue has never had a message."""
        return self._queues.get((topic, queue_id))

    def find_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue of a topic, and create it if it is missing.

        A new queue is empty and has no files yet. Raises MessageError for a topic that is not
        served.
        """
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
        """Sum of the ends of all queues. It shrinks if a queue or its last file is lost."""
        return sum(queue.max_index for queue in self)

    def delete(self, topic: str, until: int | None = None) -> int:
        """Delete the queues of a topic with their files, and return the number of deleted queues.

        The messages stay in the log until it is trimmed. With ``until``, only queues whose last
        message lies before that log offset are deleted.

        The call runs without interruption, so that a queue created later finds its directory empty.
        Raises OSError.
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
        """Remove the queue files that Apache's broker has made for a deleted topic.

        Apache's broker does not start with queues of an unknown topic.
        """
        directory = self._paths.batch_consume_queues / topic
        for queue in self._disk.list_directory(directory):
            for file in self._disk.list_directory(directory / queue):
                self._disk.remove(directory / queue / file)
            self._disk.remove(directory / queue)
        self._disk.remove(directory)
        del self.batch_topics[topic]

    def finish_deletions(self, deleted: Mapping[str, int]) -> dict[str, int]:
        """Finish topic deletions that a kill has interrupted.

        ``deleted`` maps each topic to the end of the log at its deletion. Raises OSError.

        Only queues whose messages all lie before that offset are deleted. The returned topics have
        a queue that continues behind it: the kill came before the deletion and its answer, so the
        topic stays. (Or the first unit of the queue is wrong, which is no reason to lose the
        others.) The value of a returned topic is the log offset of its first remaining message.
        Messages deleted by an earlier deletion lie before that offset.
        """
        old = []
        across = dict[str, int]()
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
            if queue.topic not in across or not queue.max_index:
                continue
            unit = queue.unit(queue.min_index)
            if unit is not None:
                across[queue.topic] = min(unit[0], across[queue.topic])
        return across

    @staticmethod
    def _is_before(queue: ConsumeQueue, index: int, offset: int) -> bool:
        unit = queue.unit(index)
        return unit is not None and unit[1] > 1 and unit[0] < offset

    def make_anew(self, queue: ConsumeQueue) -> ConsumeQueue:
        """Delete the files of a queue, and replace it by an empty queue."""
        queue.remove()
        return self._make(queue.topic, queue.queue_id)

    def rebuild(self) -> None:
        """Empty all queues by deleting their files. The dispatcher can then fill the queues again
        from the log."""
        self.damaged = False
        for queue in list(self):
            self.make_anew(queue)

    def take_dirty(self) -> list[Segment]:
        """Return the segments of all queues that were written since the last call.

        They count as clean from now on.
        """
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


# A deletion that cannot be saved is not carried out. After a kill, a start would mix the deleted
# messages with later ones.

DeletionDone = Callable[[int | OSError], None]
"""Called with the number of deleted queues, or with the error because of which they remain."""


@dataclass(slots=True, eq=False)
class QueueDeletions:
    """Deletes the queues of a topic, after recording the deletion.

    ``ends`` saves the record. Concurrent deletions of one topic share the outcome of the first.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    ends: QueueEnds
    _under_way: dict[str, list[DeletionDone]] = field(default_factory=dict)

    def delete(self, topic: str, then: DeletionDone, until: int | None = None) -> None:
        """Delete the queues of a topic with their files, and then call ``then``.

        With ``until``, messages behind that log offset stay, because they belong to a newer topic
        of the same name.
        """
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
