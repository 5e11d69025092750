"""Which queue the next message goes to: round robin from a random start, past brokers that failed or are left alone.

One rule: the decision is a pure function of the route, the counter, what failed before and what time it is. It must not know how sending
works.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Protocol

from turbopump.client.routes import TopicRoute
from turbopump.client.sending.fault_strategy import FaultStrategy
from turbopump.message.message_queue import MessageQueue


class Selection(Protocol):
    """A way to choose."""

    def choose(self, route: TopicRoute, avoid: Collection[str] = (), now: float = 0.0) -> MessageQueue: ...


class RoundRobin:
    """A counter per topic, each from a random start, so that producers started together do not march in step."""

    def __init__(self, random: random.Random, faults: FaultStrategy | None = None) -> None:
        self._random = random
        self._faults = faults or FaultStrategy()
        self._next: dict[str, int] = {}

    def choose(self, route: TopicRoute, avoid: Collection[str] = (), now: float = 0.0) -> MessageQueue:
        """The next queue, on a broker not in ``avoid`` if there is one, best on one that is available, or at least reachable.

        ``route`` has at least one publish queue.
        """
        start = self._next.get(route.topic)
        if start is None:
            start = self._random.randrange(1 << 30)
        self._next[route.topic] = start + 1
        faults = self._faults
        if not faults.empty:
            faults.expire(now)
        if faults.empty:
            queue = route.publish_queues[start % len(route.publish_queues)]
            if not avoid or queue.broker_name not in avoid:
                return queue
        else:
            for usable in (lambda name: faults.available(name, now), faults.reachable):
                found = self._look(route, start, avoid, usable)
                if found is not None:
                    return found
        return self._look(route, start, avoid, _any) or route.publish_queues[start % len(route.publish_queues)]

    def _look(
        self, route: TopicRoute, start: int, avoid: Collection[str], usable: Callable[[str], bool]
    ) -> MessageQueue | None:
        queues = route.publish_queues
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            if queue.broker_name not in avoid and usable(queue.broker_name):
                self._next[route.topic] = start + step + 1
                return queue
        return None


class NearFirst:
    """On ``broker_name`` unless it is to be avoided or has no queue of the topic; else as ``others`` choose."""

    def __init__(self, broker_name: str, others: Selection) -> None:
        self._broker_name = broker_name
        self._others = others

    def choose(self, route: TopicRoute, avoid: Collection[str] = (), now: float = 0.0) -> MessageQueue:
        near = self._broker_name
        if near not in avoid:
            for queue in route.publish_queues:
                if queue.broker_name == near:
                    return queue
        return self._others.choose(route, avoid, now)


def _any(_broker_name: str) -> bool:
    return True
