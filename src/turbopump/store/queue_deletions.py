"""Deleting a topic's queues: first it is noted, then done.

The one rule: what could not be noted is not done: a start after a kill would mix the messages that
are deleted with later ones.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.queue_ends import QueueEnds

Told = Callable[[int | OSError], None]
"""Gets how many queues there were, or why they are still there."""


class QueueDeletions:
    """Deletions of ``queues``, noted in ``ends``. Whoever deletes a topic whose deletion is under
    way hears of that one."""

    def __init__(self, log: CommitLog, queues: ConsumeQueueTable, ends: QueueEnds) -> None:
        self._log = log
        self._queues = queues
        self._ends = ends
        self._under_way: dict[str, list[Told]] = {}

    def delete(self, topic: str, then: Told) -> None:
        """Delete a topic's queues with their files, and tell ``then``."""
        if topic in self._under_way:
            self._under_way[topic].append(then)
        elif any(queue.topic == topic for queue in self._queues):
            self._under_way[topic] = [then]
            self._ends.forget_topic(topic, self._log.end, lambda good: self._noted(topic, good))
        else:
            then(0)

    def _noted(self, topic: str, good: bool) -> None:
        count: int | OSError = OSError(errno.EIO, "that they are to go could not be saved")
        try:
            if good:
                count = self._queues.delete(topic)
                self._ends.deleted_now(topic, self._log.end)
        except OSError as error:
            count = error
        for then in self._under_way.pop(topic):
            then(count)
