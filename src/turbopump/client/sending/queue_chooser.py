"""Choice of the queue for each message.

A queue, selector or sharding key decides. Without them, queues are used one after another, and
brokers that failed are avoided. Users' queue names are translated to those of brokers (with
namespace).
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrapped, wrapped
from turbopump.client.selectors import Selector, by_hash
from turbopump.client.sending.outgoing import refuse_changed_message
from turbopump.client.setting_rules import (
    SECONDS,
    SWITCH,
    SettingRule,
    check_settings,
    is_whole,
    setting,
)
from turbopump.client.topic_route import TopicRoute
from turbopump.errors import ConfigError, RemotingError
from turbopump.message.message import Message, MessageQueue
from turbopump.message.properties import SHARDING_KEY
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.requests.offsets import GetMaxOffset

Target = MessageQueue | Callable[[Sequence[MessageQueue]], MessageQueue] | None
"""Target of a message: a queue, a function that chooses one of the queues, or None for the next
queue by round robin."""


class QueueChooser:
    """Chooser of the target queue for each message of a producer.

    ``namespace`` is the namespace of the producer, or None.
    """

    def __init__(self, namespace: str | None) -> None:
        self.namespace = namespace

    def choose_target(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        sharding_key: object,
    ) -> tuple[Message, Target]:
        """Return the message and its target. A sharding key is added to the message as a property.

        Raises ConfigError or TypeError if more than one target is given.
        """
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
                refuse_changed_message(message)
                raise
        if selector is None:
            return message, queue
        if queue is not None:
            raise TypeError("a queue and a way to choose one were given; give one of them")
        if not callable(selector):
            raise TypeError(
                f"selector={selector!r:.80} must be a function of (queues, message); see "
                "turbopump.client.selectors"
            )
        return message, partial(self._chosen, selector, message)

    def wrapped_target(self, target: Target) -> Target:
        """Return the target with the queue's name at brokers."""
        return wrapped(self.namespace, target) if isinstance(target, MessageQueue) else target

    def _chosen(
        self, selector: Selector, message: Message, queues: Sequence[MessageQueue]
    ) -> MessageQueue:
        namespace = self.namespace
        outside = queues if namespace is None else [unwrapped(namespace, each) for each in queues]
        chosen = selector(outside, message)
        if chosen not in outside:
            raise ConfigError(
                f"the selector chose {chosen!r}, which is not among the {len(outside)} "
                f"queues of {message.topic!r}"
            )
        return wrapped(namespace, chosen)


# Choice of the next message's queue: a pure function of the route, the counter, earlier
# failures, and the time. Source: apache/rocketmq ``MQFaultStrategy.selectOneMessageQueue``,
# ``TopicPublishInfo``, which avoid the broker that failed last; here those not tried yet come
# first, then the one whose failure is longest ago.


class QueueSelection(Protocol):
    """Interface of the strategies that choose a queue of a route."""

    def choose(
        self, route: TopicRoute, avoid: Sequence[str] = (), now: float = 0.0
    ) -> MessageQueue: ...


class RoundRobin:
    """Strategy that takes the queues of a topic in turn.

    There is one counter for each topic. A counter starts at random, so that producers do not all
    use the same queue.
    """

    def __init__(self, random: random.Random, faults: FaultStrategy | None = None) -> None:
        self._random = random
        self._faults = faults or FaultStrategy()
        self._next: dict[str, int] = {}

    def choose(
        self, route: TopicRoute, avoid: Sequence[str] = (), now: float = 0.0
    ) -> MessageQueue:
        """Return the queue of ``route`` for the next message. The route must have a publish queue.

        ``avoid`` lists brokers that failed, in the order of their failures. They are chosen only if
        there is no other, starting with the earliest failure. Available brokers are preferred to
        reachable ones, and reachable ones to others.
        """
        # The usual case takes one step: no broker has a fault, and the queue whose turn it is is
        # used. Otherwise two preferences compete. Availability counts more than an earlier failure
        # of this send: the outer loop relaxes availability (available, reachable, any) only when
        # every choice of avoided brokers was tried. The inner loop forgives avoided brokers one by
        # one, the earliest failure first, because that broker has had most time to recover.
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
                found = self._next_usable(route, start, avoid[forgiven:], usable)
                if found is not None:
                    return found
        return queue

    def _next_usable(
        self, route: TopicRoute, start: int, avoid: Sequence[str], usable: Callable[[str], bool]
    ) -> MessageQueue | None:
        queues = route.publish_queues
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            if queue.broker_name not in avoid and usable(queue.broker_name):
                self._next[route.topic] = start + step + 1
                return queue
        return None


@dataclass(frozen=True, slots=True)
class NearFirst:
    """Strategy that prefers one broker while this broker works.

    A queue of ``broker_name`` is chosen unless that broker is to be avoided or has no queue of the
    topic. Otherwise ``others`` choose.
    """

    broker_name: str
    others: QueueSelection

    def choose(
        self, route: TopicRoute, avoid: Sequence[str] = (), now: float = 0.0
    ) -> MessageQueue:
        if self.broker_name not in avoid:
            for queue in route.publish_queues:
                if queue.broker_name == self.broker_name:
                    return queue
        return self.others.choose(route, avoid, now)


def _any(_broker_name: str) -> bool:
    return True


# Brokers to avoid for a while: slow ones, if ``latency_faults`` is set, and those that refused or
# reset a connection. Source: apache/rocketmq ``MQFaultStrategy``,
# ``LatencyFaultToleranceImpl``.

ISOLATION_MS: Final = 10_000
"""Latency in ms that is recorded for a failed attempt."""


_DURATIONS: Final = SettingRule(
    lambda values: (
        isinstance(values, list | tuple) and all(is_whole(value) and value >= 0 for value in values)
    ),
    "must be whole numbers of ms, 0 or more, as in (50, 100, 550)",
)


@dataclass(frozen=True, slots=True)
class LatencyFaults:
    """Settings for avoiding slow brokers.

    Raises ConfigError unless both tables have the same number of durations, and the latencies rise.
    Java: ``sendLatencyFaultEnable``.
    """

    latency_max_ms: tuple[int, ...] = setting((50, 100, 550, 1800, 3000, 5000, 15000), _DURATIONS)
    """Latencies in ms, in rising order. Java: ``latencyMax``."""
    not_available_ms: tuple[int, ...] = setting((0, 0, 2000, 5000, 6000, 10000, 30000), _DURATIONS)
    """Time in ms for which a broker is avoided after an attempt with at least the latency at the
    same position. Java: ``notAvailableDuration``."""
    detector: bool = setting(False, SWITCH)
    """True avoids unreachable brokers until they answer the detector. Java:
    ``startDetectorEnable``."""
    detect_interval: float = setting(2.0, SECONDS)
    """Seconds between two requests of the detector. Java: ``detectInterval``."""
    detect_timeout: float = setting(0.2, SECONDS)
    """Timeout in seconds of a detector's request. Java: ``detectTimeout``."""

    def __post_init__(self) -> None:
        check_settings(self)
        latencies = list(self.latency_max_ms)
        rising = bool(latencies) and latencies == sorted(set(latencies))
        if not rising or len(latencies) != len(self.not_available_ms):
            raise ConfigError(
                f"latency_max_ms={self.latency_max_ms} must rise and have as many values as "
                f"not_available_ms={self.not_available_ms}"
            )

    def not_available_for(self, latency_ms: float) -> int:
        """Return the time in ms for which a broker with this latency is avoided."""
        at = bisect_right(self.latency_max_ms, latency_ms)
        return self.not_available_ms[at - 1] if at else 0


class FaultStrategy:
    """Record of the brokers that a producer avoids for a while.

    With ``settings``, slow and failing brokers are recorded. Without, only refused and reset
    connections count.
    """

    def __init__(self, settings: LatencyFaults | None = None) -> None:
        self.settings = settings
        self._tables = settings or LatencyFaults()
        self._until: dict[str, float] = {}
        self._unreachable: set[str] = set()
        self.empty = True
        """True while no broker has a fault, which is the usual case and needs no further check."""

    @property
    def unreachable(self) -> list[str]:
        """Names of the brokers that the detector has to ask."""
        return sorted(self._unreachable)

    def succeeded(self, broker_name: str, latency_ms: float, now: float) -> None:
        """Record that a broker has answered after ``latency_ms``.

        ``now`` is the time in seconds of any monotonic clock.
        """
        self._unreachable.discard(broker_name)
        self._until.pop(broker_name, None)
        if self.settings is not None:
            self._isolate(broker_name, self._tables.not_available_for(latency_ms), now)
        self.empty = not self._until and not self._unreachable

    def failed(self, broker_name: str, now: float, *, connection: bool) -> None:
        """Record that an attempt to send to a broker has failed.

        ``connection`` is True if the connection failed or was lost.
        """
        if self.settings is None and not connection:
            return
        self._isolate(broker_name, self._tables.not_available_for(ISOLATION_MS), now)
        if self.settings is not None and self.settings.detector:
            self._unreachable.add(broker_name)
        self.empty = not self._until and not self._unreachable

    def forget_outage(self, broker_name: str) -> None:
        """Record that a broker has answered the detector."""
        self._unreachable.discard(broker_name)
        self.empty = not self._until and not self._unreachable

    def forget(self, broker_name: str) -> None:
        self._until.pop(broker_name, None)
        self.forget_outage(broker_name)

    def available(self, broker_name: str, now: float) -> bool:
        """Return True if the broker is reachable and not avoided at the time ``now``."""
        until = self._until.get(broker_name)
        if until is not None and until <= now:
            del self._until[broker_name]
            self.empty = not self._until and not self._unreachable
            until = None
        return until is None and broker_name not in self._unreachable

    def expire(self, now: float) -> None:
        """Remove expired faults, also of brokers that are no longer used."""
        for broker_name in list(self._until):
            self.available(broker_name, now)

    def reachable(self, broker_name: str) -> bool:
        """Return True unless the broker must first answer the detector."""
        return broker_name not in self._unreachable

    def _isolate(self, broker_name: str, duration_ms: int, now: float) -> None:
        if duration_ms > 0:
            until = now + duration_ms / 1000
            self._until[broker_name] = max(self._until.get(broker_name, 0.0), until)


class FaultDetector:
    """Detector of recovered brokers. It asks each unreachable broker at an interval until the
    broker answers.

    Any answer shows that a broker is back. Source: apache/rocketmq
    ``LatencyFaultToleranceImpl.detectByOneRound``.
    """

    def __init__(self, instance: ClientInstance, faults: FaultStrategy) -> None:
        self._instance = instance
        self._faults = faults

    async def run(self) -> None:
        settings = self._faults.settings
        assert settings is not None
        while True:
            await asyncio.sleep(settings.detect_interval)
            timeout = settings.detect_timeout
            names = self._faults.unreachable
            await asyncio.gather(*(self._ask_broker(name, timeout) for name in names))

    async def _ask_broker(self, broker_name: str, timeout: float) -> None:
        address = self._instance.routes.address_of(broker_name)
        if address is None:
            self._faults.forget(broker_name)
            return
        question = GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0)
        try:
            await self._instance.remoting.exchange(address, question, timeout=timeout)
        except RemotingError:
            return
        self._faults.forget_outage(broker_name)
