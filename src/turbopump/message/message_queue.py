"""The name of one queue: topic, broker and queue number.

One value, frozen and ordered, used as a key wherever something is kept per queue. It must not know
what is in the queue, nor where its broker lives. Apache's peers write it as a JSON *key* too
(`{{"brokerName":…}:5}`).
"""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int32


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of one topic on one broker. Sorts by topic, then broker name, then queue id, as
    Apache's does, so that every consumer of a group computes the same allocation from the same
    list."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
