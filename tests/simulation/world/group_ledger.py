"""History of a group of replicas, of which one at a time is the master, and whether it is allowed.

It adds to ``ledger.py``: masters that acknowledge, the log that is left in the end, changes that
clients were told of, and clients that do not go on. Its one rule is that of the ledger: only an
answer counts, and no answer means "maybe". It must not know brokers, clients or loops.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from tests.simulation.world.ledger import Ledger, Queue, Send, Violation

LATE_S = 60.0
"""Longest time after which a request without an answer may still take effect."""
NAMED_S = 3.0
"""Longest time for which a name server may not name the newest master, after it did."""
PROGRESS_S = 30.0
"""Longest time that a client may need for its next success once all faults have ended."""


class GroupRule(enum.Enum):
    """What can be wrong with the history of a group, beside the rules of the ledger."""

    LOST_FROM_LOG = "acknowledged and not in the final log"
    UNSTABLE_READ = "delivered and not in the final log"
    TWO_MASTERS = "acknowledged by a master that another one had replaced"
    FORK = "a send begun after another's acknowledgement stands before it in the log"
    FORGOTTEN = "a change was answered, and later it is not there"
    OFFSET_BACK = "a committed offset was answered, and later another one is there"
    MASTER_FORGOTTEN = "a name server named the newest master, and later an older one or none"
    STALLED = "a client had no success in the time after all faults had ended"


class Acknowledged(NamedTuple):
    """Who acknowledged a send: the host, the master epoch in which it did, and the message's offset
    in the log."""

    host: str
    epoch: int
    log_offset: int


@dataclass(slots=True, eq=False)
class Write:
    """A change of one fact. ``ended`` is infinite while there is no answer."""

    key: str
    value: object
    begun: float
    ended: float = float("inf")
    is_answered: bool = False
    is_refused: bool = False

    def answered(self, at: float) -> None:
        """The client was told that the change was made."""
        self.is_answered, self.ended = True, at

    def maybe(self, at: float) -> None:
        """The client got no answer, or one that promises nothing."""
        self.ended = at

    def refused(self, at: float) -> None:
        """The client was told that nothing was changed."""
        self.is_refused, self.ended = True, at


class Read(NamedTuple):
    key: str
    value: object
    begun: float
    ended: float
    source: str


@dataclass
class Facts:
    """What an operator made, changed and deleted. Each key has one writer, who waits for each
    answer. A value of None means that there is no such thing; so it is before the first write."""

    writes: dict[str, list[Write]] = field(default_factory=lambda: defaultdict(list))
    reads: list[Read] = field(default_factory=list)

    def write(self, key: str, value: object, at: float) -> Write:
        """The operator begins a change; report the outcome on the result."""
        write = Write(key, value, at)
        self.writes[key].append(write)
        return write

    def read(self, key: str, value: object, begun: float, ended: float, source: str = "") -> None:
        """The operator found this value."""
        self.reads.append(Read(key, value, begun, ended, source))

    @property
    def answered(self) -> int:
        """How many changes were answered."""
        return sum(write.is_answered for writes in self.writes.values() for write in writes)

    def allowed(self, read: Read) -> list[object]:
        """Values that a read may find: the last that was answered before it, and those whose
        outcome was open then."""
        writes = [write for write in self.writes[read.key] if not write.is_refused]
        settled = [write for write in writes if write.is_answered and write.ended <= read.begun]
        last = settled[-1] if settled else None
        found: list[object] = [None if last is None else last.value]
        for write in writes:
            is_open = not write.is_answered or write.ended > read.begun
            is_recent = last is None or write.begun > last.begun - LATE_S
            if is_open and is_recent and write.begun <= read.ended:
                found.append(write.value)
        return found

    def violations(self, first: int = 0) -> Iterator[Violation]:
        """What is wrong in the reads from the first one on."""
        for read in self.reads[first:]:
            allowed = self.allowed(read)
            if read.value in allowed:
                continue
            is_offset = read.key.startswith("offset ")
            rule = GroupRule.OFFSET_BACK if is_offset else GroupRule.FORGOTTEN
            wanted = " or ".join(str(value) for value in dict.fromkeys(map(str, allowed)))
            where = f" {read.source}" if read.source else ""
            detail = f"{read.key}{where} is {read.value} at {read.ended:.3f} s, and should be"
            yield Violation(rule, f"{detail} {wanted}")


class Named(NamedTuple):
    """Answer of a name server: the epoch of the master that it names, 0 for none.

    - ``life``: the number of the name server's process. A new one knows nothing.
    - ``there``: the epoch of the newest master, if it and the name server hear each other; else 0.
    """

    at: float
    life: int
    epoch: int
    there: int


@dataclass
class Routes:
    """Masters that a name server has named. Once it has named the newest one, it goes on doing so
    while that one is there. A connection may break, so it has a little time to name it again."""

    seen: list[Named] = field(default_factory=list)

    def named(self, at: float, *, life: int, epoch: int, there: int) -> None:
        self.seen.append(Named(at, life, epoch, there))

    def violations(self) -> Iterator[Violation]:
        known: dict[int, int] = {}
        since: Named | None = None
        for one in self.seen:
            highest = known[one.life] = max(known.get(one.life, 0), one.epoch)
            is_wrong = one.epoch < one.there <= highest
            if not is_wrong:
                since = None
            elif since is None or (one.life, one.there) != (since.life, since.there):
                since = one
            elif one.at - since.at > NAMED_S:
                named = f"epoch {one.epoch}" if one.epoch else "no master"
                detail = f"{named} from {since.at:.3f} to {one.at:.3f} s instead of {one.there}"
                yield Violation(GroupRule.MASTER_FORGOTTEN, detail)
                since = None


@dataclass
class GroupLedger:
    """Write down a history, then ask ``violations``. Sends and deliveries are in ``messages``."""

    messages: Ledger = field(default_factory=lambda: Ledger(in_flight_max=1000))
    facts: Facts = field(default_factory=Facts)
    routes: Routes = field(default_factory=Routes)
    by: dict[Send, Acknowledged] = field(default_factory=dict)
    successes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def acknowledged(
        self, send: Send, queue: Queue, offset: int, at: float, by: Acknowledged
    ) -> None:
        """The producer got SEND_OK for (queue, offset) from this master."""
        send.acknowledged(queue, offset, at)
        self.by[send] = by

    def succeeded(self, client: str, at: float) -> None:
        """The client got something done."""
        self.successes[client].append(at)

    def violations(
        self,
        final: Mapping[tuple[Queue, int], bytes],
        *,
        healed: float | None = None,
        clients: Iterable[str] = (),
        groups: Mapping[str, str] = MappingProxyType({}),
        ordered: Collection[str] = (),
    ) -> list[Violation]:
        """Everything that must not have happened.

        - ``final``: the messages in the final master's log, by queue and offset.
        - ``healed``: when all faults had ended. ``clients`` had to succeed soon after that.
        - ``groups``: consumer groups, each with its topic. They had time to consume everything.
          ``ordered`` are those that take one message of a queue at a time.
        """
        found = [*self._lost(final), *self._unstable(final), *self._masters(), *self._forks()]
        found += self.messages.violations()
        for group in groups:
            found += self._of_group(group, groups[group], is_ordered=group in ordered)
        found += self.facts.violations()
        found += self.routes.violations()
        if healed is not None:
            found += self._stalled(clients, healed)
        return found

    def missing(self, group: str, topic: str) -> list[Send]:
        """Acknowledged sends of a topic that a group was not given yet."""
        return self._of_topic(group, topic).missing(group)

    def _of_topic(self, group: str, topic: str) -> Ledger:
        """The part of the ledger that one group sees."""
        messages = self.messages
        return Ledger(
            messages.in_flight_max,
            [send for send in messages.sends if send.topic == topic],
            messages.disturbances,
            [event for event in messages.consumed if event.group == group],
        )

    def _of_group(self, group: str, topic: str, *, is_ordered: bool) -> list[Violation]:
        part = self._of_topic(group, topic)
        ordered = [group] if is_ordered else []
        found = part.violations([group], ordered=ordered)
        known = set(map(str, self.messages.violations()))
        return [violation for violation in found if str(violation) not in known]

    def _lost(self, final: Mapping[tuple[Queue, int], bytes]) -> Iterator[Violation]:
        for send in self.messages.acknowledged:
            assert send.queue is not None
            body = final.get((send.queue, send.offset))
            if body != send.body:
                instead = "nothing is" if body is None else f"{body[:40]!r} is"
                by = self.by.get(send)
                master = "" if by is None else f" by {by.host} in epoch {by.epoch}"
                at = f"acknowledged at {send.ended:.3f} s{master}"
                yield Violation(GroupRule.LOST_FROM_LOG, f"{send}, {at}: {instead} there")

    def _unstable(self, final: Mapping[tuple[Queue, int], bytes]) -> Iterator[Violation]:
        for delivery in self.messages.deliveries:
            if final.get((delivery.queue, delivery.offset)) != delivery.body:
                detail = f"{delivery.consumer} saw {delivery.body[:40]!r} at {delivery}"
                yield Violation(GroupRule.UNSTABLE_READ, detail)

    def _masters(self) -> Iterator[Violation]:
        """Epochs of acknowledgements go up in real time, and each epoch has one master."""
        masters: dict[int, str] = {}
        highest: tuple[int, Send] | None = None  # of the sends that ended before
        ends = sorted(self.by, key=_end)
        over = 0
        for send in sorted(self.by, key=_begin):
            by = self.by[send]
            first = masters.setdefault(by.epoch, by.host)
            if first != by.host:
                both = f"{first} and {by.host} acknowledged in epoch {by.epoch}"
                yield Violation(GroupRule.TWO_MASTERS, both)
            while over < len(ends) and ends[over].ended < send.begun:
                epoch = self.by[ends[over]].epoch
                if highest is None or epoch > highest[0]:
                    highest = epoch, ends[over]
                over += 1
            if highest is not None and by.epoch < highest[0]:
                detail = f"{send} at {send.begun:.3f} s in epoch {by.epoch} by {by.host}"
                newer = f"{highest[1]} was acknowledged at {highest[1].ended:.3f} s"
                yield Violation(
                    GroupRule.TWO_MASTERS, f"{detail}, and {newer} in epoch {highest[0]}"
                )

    def _forks(self) -> Iterator[Violation]:
        furthest: Send | None = None  # in the log, of the sends that ended before
        ends = sorted(self.by, key=_end)
        over = 0
        for send in sorted(self.by, key=_begin):
            while over < len(ends) and ends[over].ended < send.begun:
                other = ends[over]
                if furthest is None or self.by[other].log_offset > self.by[furthest].log_offset:
                    furthest = other
                over += 1
            if furthest is None:
                continue
            own, before = self.by[send], self.by[furthest]
            if own.log_offset <= before.log_offset:
                detail = f"{send} by {own.host} at log offset {own.log_offset}"
                yield Violation(
                    GroupRule.FORK,
                    f"{detail}, begun after {furthest} by {before.host} at {before.log_offset}",
                )

    def _stalled(self, clients: Iterable[str], healed: float) -> Iterator[Violation]:
        for client in clients:
            times = [at for at in self.successes[client] if at > healed]
            if not times or min(times) > healed + PROGRESS_S:
                when = f"after {min(times) - healed:.1f} s" if times else "never"
                yield Violation(GroupRule.STALLED, f"{client}: {when}, from {healed:.1f} s on")


def _begin(send: Send) -> float:
    return send.begun


def _end(send: Send) -> float:
    return send.ended
