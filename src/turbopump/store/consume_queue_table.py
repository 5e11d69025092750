"""Every consume queue of a store: topic, then queue id. Queues come into being with their first unit."""

from __future__ import annotations

from collections.abc import Iterator

from turbopump.errors import StoreDamagedError
from turbopump.store.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.disk import Disk
from turbopump.store.files import StorePaths


class ConsumeQueueTable:
    """The queues below ``paths.consume_queues``; ``file_size`` in bytes."""

    def __init__(self, disk: Disk, paths: StorePaths, file_size: int) -> None:
        self._disk = disk
        self._paths = paths
        self._file_size = max(file_size, UNIT_SIZE)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.damaged = False
        """Whether there are files that do not belong together: then every queue must be rebuilt."""

    def load(self) -> None:
        """Open the queues that are on disk. Directories that are not queues are passed over."""
        root = self._paths.consume_queues
        for topic in self._disk.list_directory(root):
            for name in self._disk.list_directory(root / topic):
                if name.isascii() and name.isdigit():
                    queue = self._make(topic, int(name))
                    try:
                        queue.load()
                    except StoreDamagedError:
                        self.damaged = True

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue if it has ever had a message."""
        return self._queues.get((topic, queue_id))

    def find_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new, empty one has no files yet."""
        queue = self._queues.get((topic, queue_id))
        return queue if queue is not None else self._make(topic, queue_id)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    @property
    def units(self) -> int:
        """The sum of all queues' ends: less than it was, if a queue or the last of its files is lost."""
        return sum(queue.max_index for queue in self)

    def rebuild(self) -> None:
        """Delete every queue's files: the dispatcher will fill them again from the log."""
        self.damaged = False
        for key, queue in list(self._queues.items()):
            queue.remove()
            self._queues[key] = ConsumeQueue(
                self._disk, self._paths.consume_queue(queue.topic, queue.queue_id), queue.topic, queue.queue_id, self._file_size
            )

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._paths.consume_queue(topic, queue_id)
        queue = ConsumeQueue(self._disk, directory, topic, queue_id, self._file_size)
        self._queues[topic, queue_id] = queue
        return queue
