"""Which queue the next message goes to: round robin from a random start.

One rule: the decision is a pure function of the route, the counter and what failed before. It must not know how sending works.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from turbopump.client.routes import TopicRoute
from turbopump.message.message_queue import MessageQueue


class RoundRobin:
    """A counter per topic, each from a random start, so that producers started together do not march in step."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def choose(self, route: TopicRoute, avoid: Collection[str] = ()) -> MessageQueue:
        """The next queue, on a broker that is not in ``avoid`` if there is one. ``route`` has at least one publish queue."""
        queues = route.publish_queues
        start = self._next.get(route.topic)
        if start is None:
            start = self._random.randrange(1 << 30)
        self._next[route.topic] = start + 1
        count = len(queues)
        queue = queues[start % count]
        if not avoid or queue.broker_name not in avoid:
            return queue
        for step in range(1, count):
            other = queues[(start + step) % count]
            if other.broker_name not in avoid:
                self._next[route.topic] = start + step + 1
                return other
        return queue
