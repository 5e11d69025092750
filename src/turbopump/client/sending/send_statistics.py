"""How a producer's sends went, by broker: counts and times that only grow, for whoever watches
them.

One rule: it costs a send well under a microsecond, so there are sums and no distribution; a rate is
the difference of two looks. It must not know how sending works. Source of what is counted:
apache/rocketmq has it in its broker only; its producer logs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


class BrokerSends:
    """The attempts at one broker. An attempt is one request: a batch is one, and so is each retry;
    a oneway send is none."""

    __slots__ = ("failed", "longest_s", "stored", "stored_s")

    def __init__(self) -> None:
        self.stored = 0
        """Attempts after which the message was stored."""
        self.failed = 0
        """Attempts that were refused, timed out or found no connection."""
        self.stored_s = 0.0
        """Seconds that those which were stored took, all together: from the call to the answer."""
        self.longest_s = 0.0

    @property
    def mean_ms(self) -> float:
        """How long one that was stored took on average, in milliseconds; 0 if there was none."""
        return self.stored_s * 1000 / self.stored if self.stored else 0.0

    def __repr__(self) -> str:
        return (
            f"<stored={self.stored} failed={self.failed} mean={self.mean_ms:.3f} ms "
            f"longest={self.longest_s * 1000:.1f} ms>"
        )


class SendStatistics:
    """The sends of one producer. ``brokers``: broker name to its attempts."""

    __slots__ = ("_brokers", "given_up")

    def __init__(self) -> None:
        self._brokers: Final[dict[str, BrokerSends]] = {}
        self.given_up = 0
        """Sends that ended in an error, after all their attempts: a batch is one, and so is each
        message whose time ended before that of its automatic batch."""

    @property
    def brokers(self) -> Mapping[str, BrokerSends]:
        return self._brokers

    @property
    def stored(self) -> int:
        """Attempts after which the message was stored, at all brokers."""
        return sum(broker.stored for broker in self._brokers.values())

    @property
    def failed(self) -> int:
        """Attempts that failed, at all brokers."""
        return sum(broker.failed for broker in self._brokers.values())

    def count_stored(self, broker_name: str, seconds: float) -> None:
        """An attempt went well. About 0.15 µs."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            broker = self._brokers[broker_name] = BrokerSends()
        broker.stored += 1
        broker.stored_s += seconds
        if seconds > broker.longest_s:
            broker.longest_s = seconds

    def count_failed(self, broker_name: str) -> None:
        """An attempt did not."""
        self._brokers.setdefault(broker_name, BrokerSends()).failed += 1

    def __repr__(self) -> str:
        return (
            f"SendStatistics(stored={self.stored}, failed={self.failed}, "
            f"given_up={self.given_up}, brokers={self._brokers})"
        )
