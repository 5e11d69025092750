"""Keys for one group's pops: a topic, or one of its queues."""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.message.handles import original_topic

ANY_QUEUE: Final = -1
"""Queue id of a pop that accepts messages of any queue."""


class TopicGroup(NamedTuple):
    """A topic, together with a consumer group that pops it."""

    topic: str
    group: str


class GroupQueue(NamedTuple):
    """A queue of a topic or of a retry topic, together with a consumer group that pops it."""

    group: str
    topic: str
    queue_id: int

    @property
    def line(self) -> TopicGroup:
        """Topic and group for this queue. Their pops read the queue.

        For a queue of a retry topic this is the original topic.
        """
        return TopicGroup(original_topic(self.topic, self.group), self.group)
