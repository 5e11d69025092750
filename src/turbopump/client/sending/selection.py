"""Which queue the next message goes to: round robin from a random start, past brokers that failed
or are left alone.

One rule: the decision is a pure function of the route, the counter, what failed before and what
time it is. It must not know how sending works. Source: apache/rocketmq
``MQFaultStrategy.selectOneMessageQueue``, ``TopicPublishInfo``, which avoid the broker that failed
last; here those not tried yet come first, then the one whose failure is longest ago.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from turbopump.client.routes import TopicRoute
from turbopump.client.sending.fault_strategy import FaultStrategy
from turbopump.message.message_queue import MessageQueue


class Selection(Protocol):
    """A way to choose."""

    def choose(
        self, route: TopicRoute, avoid: Sequence[str] = (), now: float = 0.0
    ) -> MessageQueue: ...


class RoundRobin:
    """A counter per topic, each from a random start, so that producers started together do not
    march in step."""

    def __init__(self, random: random.Random, faults: FaultStrategy | None = None) -> None:
        self._random = random
        self._faults = faults or FaultStrategy()
        self._next: dict[str, int] = {}

    def choose(
        self, route: TopicRoute, avoid: Sequence[str] = (), now: float = 0.0
    ) -> MessageQueue:
        """The next queue. ``avoid``: the brokers that failed, in order, the last one last. None of
        them if there is another, else the one that failed longest ago, and the last one only if it
        is alone; all that among brokers that are available, or at least reachable.

        ``route`` has at least one publish queue.
        """
        start = self._next.get(route.topic)
        if start is None:
            start = self._random.randrange(1 << 30)
        self._next[route.topic] = start + 1
        faults = self._faults
        if not faults.empty:
            faults.expire(now)
        queue = route.publish_queues[start % len(route.publish_queues)]
        if faults.empty:
            if not avoid or queue.broker_name not in avoid:
                return queue
            wanted: tuple[Callable[[str], bool], ...] = (_any,)
        else:
            wanted = (lambda name: faults.available(name, now), faults.reachable, _any)
        for usable in wanted:
            for forgiven in range(max(len(avoid), 1)):
                found = self._look(route, start, avoid[forgiven:], usable)
                if found is not None:
                    return found
        return queue

    def _look(
        self, route: TopicRoute, start: int, avoid: Sequence[str], usable: Callable[[str], bool]
    ) -> MessageQueue | None:
        queues = route.publish_queues
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            if queue.broker_name not in avoid and usable(queue.broker_name):
                self._next[route.topic] = start + step + 1
                return queue
        return None


class NearFirst:
    """On ``broker_name`` unless it is to be avoided or has no queue of the topic; else as
    ``others`` choose."""

    def __init__(self, broker_name: str, others: Selection) -> None:
        self._broker_name = broker_name
        self._others = others

    def choose(
        self, route: TopicRoute, avoid: Sequence[str] = (), now: float = 0.0
    ) -> MessageQueue:
        near = self._broker_name
        if near not in avoid:
            for queue in route.publish_queues:
                if queue.broker_name == near:
                    return queue
        return self._others.choose(route, avoid, now)


def _any(_broker_name: str) -> bool:
    return True
