"""What was sent, acknowledged, delivered and committed in a test, and whether that history is
allowed.

Bodies are unique and the broker assigns (queue, offset), so no search is needed: every rule is one
pass over sorted records. Its one rule: only a positive acknowledgement counts as stored; a time-out
or a status such as FLUSH_DISK_TIMEOUT is "maybe". It must not know brokers, clients or loops:
the program that runs a test writes down what it saw.
"""

import enum
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.stand_ins import returns


class Queue(NamedTuple):
    """Where messages are numbered."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class Rule(enum.Enum):
    """What can be wrong with a history."""

    LOST = "acknowledged and never consumed"
    PHANTOM = "delivered and never sent, or not as it was sent"
    REFUSED_BUT_SEEN = "refused to the producer and delivered all the same"
    TWO_AT_ONE_OFFSET = "two bodies at one queue and offset"
    ORDER = "a producer's messages stand in the queue in another order than it sent them"
    REAL_TIME = "a send begun after another's acknowledgement has the lower offset"
    SKIP = "a consumer passed over a message that was there"
    REGRESS = "a consumer group went back behind what it had committed"
    DUPLICATES = "more deliveries twice than may have been in flight"


class Violation(NamedTuple):
    """One thing that must not have happened. The value of its rule says it in words."""

    rule: enum.Enum
    detail: str

    def __str__(self) -> str:
        return f"{self.rule.name.lower()} ({self.rule.value}): {self.detail}"


class SendOutcome(enum.Enum):
    PENDING = "no answer yet"
    ACKNOWLEDGED = "stored"
    MAYBE = "unknown"
    REFUSED = "not stored"


@dataclass(slots=True, eq=False)
class Send:
    """One attempt of an application to send one body. `begun` and `ended` are monotonic seconds."""

    producer: str
    topic: str
    body: bytes
    begun: float
    outcome: SendOutcome = SendOutcome.PENDING
    ended: float = float("inf")
    queue: Queue | None = None
    offset: int = -1

    def acknowledged(self, queue: Queue, offset: int, at: float) -> None:
        """The producer got SEND_OK for (queue, offset)."""
        self.outcome, self.ended = SendOutcome.ACKNOWLEDGED, at
        self.queue, self.offset = queue, offset

    def maybe(self, at: float) -> None:
        """The producer got no answer, or one that promises nothing."""
        self.outcome, self.ended = SendOutcome.MAYBE, at

    def refused(self, at: float) -> None:
        """The producer was told that nothing was stored, and no earlier try of this send may have
        been."""
        self.outcome, self.ended = SendOutcome.REFUSED, at

    def __str__(self) -> str:
        where = f" at {self.queue} offset {self.offset}" if self.queue is not None else ""
        return f"{self.producer}'s {_short(self.body)}{where}"


@dataclass(frozen=True, slots=True)
class LedgerDelivery:
    """One body handed to a consumer. `life` tells one start of a consumer (or one holding of a
    queue) from the next."""

    group: str
    consumer: str
    queue: Queue
    offset: int
    body: bytes
    life: int

    def __str__(self) -> str:
        return f"{self.queue} offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Commit:
    """The group's offset in a queue was stored by the broker: everything below is done."""

    group: str
    queue: Queue
    offset: int


@dataclass
class Ledger:
    """Write down a history, then ask `violations`.

    `in_flight_max` is how many messages of one queue a consumer may have taken and not yet
    committed when it stops: so many may come again after each `disturbance` (crash, rebalance, lost
    connection).
    """

    in_flight_max: int = 0
    sends: list[Send] = field(default_factory=list)
    disturbances: int = 0
    consumed: list[LedgerDelivery | Commit] = field(
        default_factory=list
    )  # in the order it happened

    def send(self, producer: str, topic: str, body: bytes, at: float) -> Send:
        """A producer begins to send `body`, which no other send of this ledger has; report the
        outcome on the result."""
        send = Send(producer, topic, body, at)
        self.sends.append(send)
        return send

    def delivered(
        self, group: str, consumer: str, queue: Queue, offset: int, body: bytes, life: int = 0
    ) -> None:
        self.consumed.append(LedgerDelivery(group, consumer, queue, offset, body, life))

    def committed(self, group: str, queue: Queue, offset: int) -> None:
        self.consumed.append(Commit(group, queue, offset))

    def disturbance(self) -> None:
        """Something happened after which deliveries in flight may be repeated."""
        self.disturbances += 1

    @property
    def deliveries(self) -> list[LedgerDelivery]:
        return [event for event in self.consumed if isinstance(event, LedgerDelivery)]

    @property
    def acknowledged(self) -> list[Send]:
        return [send for send in self.sends if send.outcome is SendOutcome.ACKNOWLEDGED]

    def missing(self, group: str) -> list[Send]:
        """Acknowledged sends of topics the group has consumed that it was not given yet; empty
        means caught up."""
        seen = {delivery.body for delivery in self.deliveries if delivery.group == group}
        return [send for send in self.acknowledged if send.body not in seen]

    def violations(
        self, groups: Iterable[str] = (), *, ordered: Iterable[str] = (), drained: bool = True
    ) -> list[Violation]:
        """Everything that must not have happened.

        `groups` are the consumer groups that subscribe to all that was sent. `ordered` are those
        that take one message of a queue at a time, for which skips are judged. `drained`: the
        groups have had time to consume everything; if not, a message counts as lost only when the
        group was given a later one of the same queue.
        """
        subscribed = sorted({*groups, *ordered})
        found = [*self._bodies(), *self._offsets(), *self._producer_order(), *self._real_time()]
        for group in subscribed:
            found += self._lost(group, drained)
            found += self._progress(group)
            found += self._duplicates(group)
        for group in ordered:
            found += self._skips(group)
        return found

    def _bodies(self) -> Iterator[Violation]:
        sent = {send.body: send for send in self.sends}
        assert len(sent) == len(self.sends), "bodies of a ledger must be unique"
        for delivery in self.deliveries:
            send = sent.get(delivery.body)
            where = f"{_short(delivery.body)} to {delivery.consumer} from {delivery}"
            if send is None or send.topic != delivery.queue.topic:
                yield Violation(Rule.PHANTOM, where)
            elif send.outcome is SendOutcome.REFUSED:
                yield Violation(Rule.REFUSED_BUT_SEEN, where)

    def _offsets(self) -> Iterator[Violation]:
        """One body per offset, by acknowledgements and deliveries alike, across restarts."""
        bodies: dict[tuple[Queue, int], bytes] = {}
        claims: list[Send | LedgerDelivery] = [*self.acknowledged, *self.deliveries]
        for claim in claims:
            assert claim.queue is not None
            first = bodies.setdefault((claim.queue, claim.offset), claim.body)
            if first != claim.body:
                both = f"{_short(first)} and {_short(claim.body)}"
                detail = f"{claim.queue} offset {claim.offset}: {both}"
                yield Violation(Rule.TWO_AT_ONE_OFFSET, detail)

    def _producer_order(self) -> Iterator[Violation]:
        """Sends of one producer that did not overlap stand in its queue as it sent them."""
        for sends in self._by_queue().values():
            latest: dict[str, Send] = {}
            for send in sorted(sends, key=lambda each: each.begun):
                before = latest.get(send.producer)
                if before is None or send.offset > before.offset:
                    latest[send.producer] = send
                elif before.ended <= send.begun:
                    yield Violation(Rule.ORDER, f"{before} was sent before {send}")

    def _real_time(self) -> Iterator[Violation]:
        for sends in self._by_queue().values():
            ended_first: Send | None = None  # among those with a higher offset
            for send in sorted(sends, key=lambda each: each.offset, reverse=True):
                if (
                    ended_first is not None
                    and ended_first.ended < send.begun
                    and ended_first.producer != send.producer  # one producer's own order is ORDER
                ):
                    yield Violation(
                        Rule.REAL_TIME, f"{ended_first} was acknowledged before {send} was begun"
                    )
                if ended_first is None or send.ended < ended_first.ended:
                    ended_first = send

    def _lost(self, group: str, drained: bool) -> Iterator[Violation]:
        highest: dict[Queue, int] = defaultdict(returns(-1))
        for delivery in self.deliveries:
            if delivery.group == group:
                highest[delivery.queue] = max(highest[delivery.queue], delivery.offset)
        for send in self.missing(group):
            assert send.queue is not None
            if drained or send.offset < highest[send.queue]:
                yield Violation(Rule.LOST, f"{send}, for group {group}")

    def _progress(self, group: str) -> Iterator[Violation]:
        committed: dict[Queue, int] = {}
        for event in self.consumed:
            if event.group != group:
                continue
            done = committed.get(event.queue, 0)
            if isinstance(event, Commit):
                what = f"{group} committed {event.queue} {event.offset} after {done}"
                committed[event.queue] = max(done, event.offset)
            else:
                what = f"{group} was given {event.queue} offset {event.offset}, committed to {done}"
            if event.offset < done:
                yield Violation(Rule.REGRESS, what)

    def _duplicates(self, group: str) -> Iterator[Violation]:
        # not bodies alone: a producer's retry may store one body at two offsets
        seen: set[tuple[Queue, int, bytes]] = set()
        again: dict[Queue, int] = defaultdict(int)
        for delivery in self.deliveries:
            if delivery.group == group:
                delivered = (delivery.queue, delivery.offset, delivery.body)
                again[delivery.queue] += delivered in seen
                seen.add(delivered)
        allowed = self.in_flight_max * self.disturbances
        for queue, count in again.items():
            if count > allowed:
                repeats = f"{group} was given {count} of {queue} again"
                limit = f"{self.disturbances} disturbances allow {allowed}"
                yield Violation(Rule.DUPLICATES, f"{repeats}; {limit}")

    def _skips(self, group: str) -> Iterator[Violation]:
        """Within one life of a consumer, the next offset of a queue is the next that exists or one
        it was given before."""
        existing: dict[Queue, list[int]] = defaultdict(list)
        for queue, sends in self._by_queue().items():
            existing[queue] = sorted(send.offset for send in sends)
        position: dict[tuple[str, int, Queue], int] = {}
        given: dict[Queue, set[int]] = defaultdict(set)
        for delivery in self.deliveries:
            if delivery.group != group:
                continue
            life = (delivery.consumer, delivery.life, delivery.queue)
            last = position.get(life)
            if last is not None:
                for offset in _between(existing[delivery.queue], last, delivery.offset):
                    if offset not in given[delivery.queue]:
                        went = f"{delivery.queue} offset {last} to {delivery.offset}"
                        what = f"{delivery.consumer} went from {went} without {offset}"
                        yield Violation(Rule.SKIP, what)
            position[life] = delivery.offset
            given[delivery.queue].add(delivery.offset)

    def _by_queue(self) -> dict[Queue, list[Send]]:
        queues: dict[Queue, list[Send]] = defaultdict(list)
        for send in self.acknowledged:
            assert send.queue is not None
            queues[send.queue].append(send)
        return queues


def _between(offsets: list[int], low: int, high: int) -> list[int]:
    """The members of a sorted list that lie strictly between two numbers."""
    return offsets[bisect_right(offsets, low) : bisect_left(offsets, high)]


def _short(body: bytes) -> str:
    return repr(body if len(body) <= 40 else body[:37] + b"...")
