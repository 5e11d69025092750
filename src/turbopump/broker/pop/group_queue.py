"""Topics and queues as the groups that pop them see them."""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.message.handles import original_topic

ANY_QUEUE: Final = -1
"""Queue id of a pop that accepts messages of any queue."""


class TopicGroup(NamedTuple):
    """A topic and a consumer group that pops it."""

    topic: str
    group: str


class GroupQueue(NamedTuple):
    """A queue of a topic, or of a retry topic, as one group sees it."""

    group: str
    topic: str
    queue_id: int

    @property
    def line(self) -> TopicGroup:
        """The topic and group whose pops read this queue.

        For a queue of a retry topic this is the original topic.
        """
        return TopicGroup(original_topic(self.topic, self.group), self.group)
