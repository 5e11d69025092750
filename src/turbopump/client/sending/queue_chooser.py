"""Where a message is to go, between the user's words and the way of a message: a queue, a selector,
a sharding key; with the namespace put on and taken off again.

One rule: users see names without namespace, the way of a message names with it. It must not know
brokers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from turbopump.client.namespace import unwrap, wrap
from turbopump.client.routes import TopicRoute
from turbopump.client.selectors import Selector, by_hash
from turbopump.client.sending.faults import FaultStrategy
from turbopump.client.sending.outgoing import refuse_odd
from turbopump.client.sending.send_attempts import Target
from turbopump.errors import ConfigError
from turbopump.message.message import Message
from turbopump.message.message_queue import MessageQueue
from turbopump.message.properties import SHARDING_KEY


class QueueChooser:
    """For one producer and its namespace."""

    def __init__(self, namespace: str | None) -> None:
        self.namespace = namespace

    def aim(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        sharding_key: object,
    ) -> tuple[Message, Target]:
        """The message, with its sharding key if it has one, and where it is to go. Raises
        ConfigError, TypeError if that is said twice."""
        if sharding_key is not None:
            if selector is not None:
                raise ConfigError(
                    "a selector and a sharding_key were given, and both choose the "
                    "queue; give one of them"
                )
            selector = by_hash(sharding_key)
            try:
                message = message.with_property(SHARDING_KEY, str(sharding_key))
            except (AttributeError, TypeError):
                refuse_odd(message)
                raise
        if selector is None:
            return message, queue
        if queue is not None:
            raise TypeError("a queue and a way to choose one were given; give one of them")
        if not callable(selector):
            raise TypeError(
                f"selector={selector!r:.80} is no function of (queues, message); see "
                "turbopump.client.selectors"
            )
        chosen_by = selector
        return message, lambda queues: self._chosen(chosen_by, queues, message)

    def inside(self, target: Target) -> Target:
        """What the way of a message calls it."""
        return self._wrapped(target) if isinstance(target, MessageQueue) else target

    def outside(self, queue: MessageQueue) -> MessageQueue:
        """What the user calls it."""
        return MessageQueue(unwrap(self.namespace, queue.topic), queue.broker_name, queue.queue_id)

    def _chosen(
        self, selector: Selector, queues: Sequence[MessageQueue], message: Message
    ) -> MessageQueue:
        outside = queues if self.namespace is None else [self.outside(queue) for queue in queues]
        chosen = selector(outside, message)
        if chosen not in outside:
            raise ConfigError(
                f"the selector chose {chosen!r}, which is none of the "
                f"{len(outside)} queues of {message.topic!r}"
            )
        return self._wrapped(chosen)

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return MessageQueue(wrap(self.namespace, queue.topic), queue.broker_name, queue.queue_id)


# TODO-PROSE from selection.py:
# Which queue the next message goes to: round robin from a random start, past brokers that failed
# or are left alone.
#
# One rule: the decision is a pure function of the route, the counter, what failed before and what
# time it is. It must not know how sending works. Source: apache/rocketmq
# ``MQFaultStrategy.selectOneMessageQueue``, ``TopicPublishInfo``, which avoid the broker that failed
# last; here those not tried yet come first, then the one whose failure is longest ago.


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
