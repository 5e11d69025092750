"""Counters of events that no table of the broker remembers, for the metrics.

A handler adds to its counter when the event has happened. The modules of the subjects declare the
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from turbopump.broker.counters.creations import Creations
from turbopump.broker.counters.dead_letters import DeadLetterCounts
from turbopump.broker.counters.labels import SystemLabel
from turbopump.broker.counters.messages_in import MessagesIn
from turbopump.broker.counters.transactions import TransactionCounts

TOPICS_AT_ONCE: Final = 256
"""Number of topics that are looked up in one step."""


class DelayedTotal:
    """Number and bytes of the delayed messages that were delivered."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0

    def add(self, size: int) -> None:
        """Count a delivered message of ``size`` bytes."""
        self.count += 1
        self.size += size


class CountedEvents:
    """Counters of one broker since its start.

    - ``is_system``: the label of topics and groups of the system.
    - ``is_slave``: True if the queues grow without sends.
    """

    def __init__(self, is_system: SystemLabel | None = None, *, is_slave: bool = False) -> None:
        self.is_system = is_system or SystemLabel()
        self.messages_in = MessagesIn(self.is_system, walked=not is_slave)
        self.delayed = DelayedTotal()
        self.dead_letters = DeadLetterCounts(self.is_system)
        self.transactions = TransactionCounts()
        self.creations = Creations(self.is_system)

    def forget_topic(self, topic: str) -> None:
        """Delete the counters of a deleted topic."""
        self.messages_in.forget_topic(topic)
        self.dead_letters.forget(topic=topic)
        self.transactions.forget_topic(topic)

    def forget_gone(self, has_topic: Callable[[str], bool]) -> Iterator[None]:
        """Delete the counters of topics that do not exist, in steps.

        Some events come after the deletion of their topic: a delayed message becomes due, a
        transaction ends, a message is given up.
        """
        topics = [
            *self.messages_in.topics(),
            *self.transactions.topics(),
            *self.dead_letters.topics(),
        ]
        for number, topic in enumerate(topics):
            if number % TOPICS_AT_ONCE == 0:
                yield
            if not has_topic(topic):
                self.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        """Delete the counters of a deleted consumer group."""
        self.dead_letters.forget(group=group)
