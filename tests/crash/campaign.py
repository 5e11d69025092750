"""Three brokers under every kind of load at once, and what they owe at the end: the history of a
campaign of kills, and the verdict.

A message's id says everything of it: `letter-kind-lane-number`, and its body follows from the id.
The letter is the client's: `o` ours, `j` Java's (`clients/java/five/Campaign.java` does what is
here). Every client's groups consume what all clients send. Its one rule: the clients judge nothing;
what was acknowledged, given out and stored is written down here, and compared when all is read.

    kind     topic     sent                                  owed
    plain    plain     to any broker, with retries           to every group
    ordered  ordered   a lane to a queue of its own          in order, nothing passed over
    delay    later     with a delay level                    not early; twice only around a kill
    timer    later     for a time                            not early; twice only around a kill
    commit   tx        committed at once                     once
    rollback tx        rolled back at once                   never
    asked    tx        decided when the broker asks (even    once, or never
                       numbers are committed)
    pop      pop       to groups that pop                    to every group
    dead     dead      to groups whose handlers refuse it    to the dead letters of every group
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

QUEUES = 4
LANES = 3
"""Of each kind and client, one for each broker where that matters."""
LEVELS_S = (1, 2, 1, 1)
"""Delay levels; retries of a group begin with the third."""
TIMER_MS = (500, 3000)
TOPIC_OF = {
    "plain": "plain",
    "ordered": "ordered",
    "delay": "later",
    "timer": "later",
    "commit": "tx",
    "rollback": "tx",
    "asked": "tx",
    "pop": "pop",
    "dead": "dead",
}
TOPICS = tuple(dict.fromkeys(TOPIC_OF.values()))
PLACED = ("plain", "ordered", "pop", "dead")
"""Topics whose messages are stored at once where the answer says. The others are stored elsewhere
first."""
DELIVERED_TWICE_MS = 1000
"""A delivery at a delay level or by a timer may come again if a kill follows within this time: what
durability.md promises."""
GOT_TWICE_MS = 5000 + 1000
"""A group may get a message again if a kill follows within this time: clients commit every 5 s, and
these brokers save offsets every second."""
STALLS_MS = 1500
"""What a machine may add to either."""
STALLS_BESIDE_OTHERS_MS = 20_000
"""The same, of one that runs other tests as well."""
_CYCLE = bytes(97 + i * 7 % 26 for i in range(26)) * 42


def body_of(message_id: str) -> bytes:
    """The body of a message, by its id."""
    name = message_id.encode()
    crc = zlib.crc32(name)
    begin, size = crc * 15 % 26, (crc >> 8) % 1000
    return name + b"|" + _CYCLE[begin : begin + size]


class Place(NamedTuple):
    broker: str
    topic: str
    queue_id: int
    offset: int


@dataclass(slots=True)
class Sent:
    """Times in ms since 1970. ``place`` None: not acknowledged, it may be stored or not.
    ``due_ms``: not to be seen before."""

    begun_ms: int
    due_ms: int
    place: Place | None = None
    acknowledged_ms: int | None = None

    def answered(self, place: Place, ok: bool, at_ms: int) -> None:
        """``ok``: SEND_OK. Every other answer promises nothing."""
        self.place = place
        self.acknowledged_ms = at_ms if ok else None


class Stored(NamedTuple):
    """A message as a topic holds it. ``id``: as ``id_in``."""

    place: Place
    id: str
    store_ms: int


def id_in(body: bytes) -> str:
    """The id of a message, or the beginning of a body that is none of ours, or not whole."""
    message_id = body.split(b"|", 1)[0].decode(errors="replace")
    return message_id if body == body_of(message_id) else f"not as it was sent: {body[:60]!r}"


def kind_of(message_id: str) -> str:
    return message_id.split("-")[1]


def number_of(message_id: str) -> int:
    return int(message_id.rsplit("-", 1)[1])


def is_committed(message_id: str) -> bool:
    """Whether a message of a transaction is to be seen."""
    kind = kind_of(message_id)
    return kind == "commit" or (kind == "asked" and number_of(message_id) % 2 == 0)


@dataclass
class History:
    """``kills``: broker → when it was killed, in ms since 1970."""

    groups: tuple[str, ...]
    sent: dict[str, Sent] = field(default_factory=dict)
    seen: dict[tuple[str, str], set[str]] = field(default_factory=partial(defaultdict, set))
    """By group and topic."""
    got: dict[str, list[tuple[Place, str, int]]] = field(default_factory=partial(defaultdict, list))
    """By group, in the order in which it came: the place, the id, when it came. Without what may
    come by way of a retry topic, whose places are others."""
    kills: dict[str, list[int]] = field(default_factory=partial(defaultdict, list))

    def note(self, group: str, place: Place, body: bytes, at_ms: int) -> None:
        """A group got a message."""
        message_id = id_in(body)
        self.seen[group, place.topic].add(message_id)
        if place.topic not in ("pop", "dead"):
            self.got[group].append((place, message_id, at_ms))

    @property
    def acknowledged(self) -> int:
        return sum(one.acknowledged_ms is not None for one in self.sent.values())

    def owed(self) -> dict[str, set[str]]:
        """What every group must get, by topic: what was acknowledged and not rolled back."""
        owed: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        for message_id, one in self.sent.items():
            topic = TOPIC_OF[kind_of(message_id)]
            if one.acknowledged_ms is not None and (topic != "tx" or is_committed(message_id)):
                owed[topic].add(message_id)
        return owed

    def missing(self, owed: dict[str, set[str]]) -> dict[tuple[str, str], set[str]]:
        """What groups did not get of ``owed``, by group and topic."""
        return {
            (group, topic): rest
            for group in self.groups
            for topic, ids in owed.items()
            if (rest := ids - self.seen[group, topic])
        }


@dataclass
class Verdict:
    """``faults``: what must not have happened. ``figures``: what may."""

    history: History
    stored: list[Stored]
    letters: dict[str, set[str]]
    """By group: the ids of its dead letters."""
    stalls_ms: int = STALLS_MS
    faults: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lost()
        self._phantoms()
        self._places()
        self._order()
        self._real_time()
        self._passed_over()
        self._delivered_early_or_twice()
        self._got_twice()

    def _lost(self) -> None:
        owed = self.history.owed()
        for (group, topic), rest in self.history.missing(owed).items():
            self._fault(f"lost: {group} never got, of {topic}", rest)
        for group in self.history.groups:
            self._fault(f"lost: no dead letter of {group}", owed["dead"] - self.letters[group])

    def _fault(self, what: str, ids: Iterable[object]) -> None:
        found = sorted(map(str, ids))
        if found:
            self.faults.append(f"{what}: {len(found)}: {', '.join(found[:5])}")

    def _phantoms(self) -> None:
        """What is stored, or was given out, was sent, as it is; nothing of a rolled back
        transaction."""
        known = {message_id: TOPIC_OF[kind_of(message_id)] for message_id in self.history.sent}
        found = [(one.place.topic, one.id) for one in self.stored]
        found += [(topic, each) for (_, topic), ids in self.history.seen.items() for each in ids]
        found += [("dead", each) for ids in self.letters.values() for each in ids]
        self._fault(
            "altered, or never sent", {one for topic, one in found if known.get(one) != topic}
        )
        self._fault(
            "rolled back and seen",
            {
                one
                for topic, one in found
                if topic == "tx" and one in known and not is_committed(one)
            },
        )

    def _places(self) -> None:
        """One message at one place: where its answer said, and where groups got it."""
        there = {one.place: one.id for one in self.stored}
        sent = self.history.sent.items()
        said = [(one.place, each) for each, one in sent if one.acknowledged_ms is not None]
        said = [
            (place, each) for place, each in said if place is not None and place.topic in PLACED
        ]
        got = {(place, each) for every in self.history.got.values() for place, each, _ in every}
        self._fault(
            "not where it was stored", {each for place, each in said if there.get(place) != each}
        )
        self._fault(
            "not where it was got", {each for place, each in got if there.get(place) != each}
        )

    def _order(self) -> None:
        """A lane's messages lie in their order."""
        last: dict[str, int] = {}
        for one in sorted(self.stored):
            if one.place.topic == "ordered" and one.id in self.history.sent:
                lane, number = one.id.rsplit("-", 1)[0], number_of(one.id)
                if number <= last.get(lane, -1):
                    self.faults.append(f"reordered: {one.id} behind {last[lane]} at {one.place}")
                last[lane] = number

    def _real_time(self) -> None:
        """A send that was begun after another's acknowledgement lies behind it."""
        first: dict[tuple[str, str, int], tuple[int, str]] = {}
        acknowledged = [
            (one.place, one.begun_ms, one.acknowledged_ms, message_id)
            for message_id, one in self.history.sent.items()
            if one.place is not None and one.acknowledged_ms is not None
        ]
        for place, begun, ended, message_id in sorted(acknowledged, reverse=True):
            if place.topic in PLACED:
                before = first.get(place[:3], (ended, message_id))
                if before[0] < begun:
                    self.faults.append(f"reordered: {message_id} was begun after {before[1]} ended")
                first[place[:3]] = min(before, (ended, message_id))

    def _passed_over(self) -> None:
        """An ordered group gets no message before all those that lie before it."""
        for group, got in self.history.got.items():
            following: dict[tuple[str, int], int] = defaultdict(int)
            for place, _, _ in got:
                if place.topic == "ordered":
                    queue = place.broker, place.queue_id
                    if place.offset > following[queue]:
                        text = f"{place} came before offset {following[queue]}"
                        self.faults.append(f"passed over: for {group} {text}")
                    following[queue] = max(following[queue], place.offset + 1)

    def _delivered_early_or_twice(self) -> None:
        copies: dict[str, list[Stored]] = defaultdict(list)
        for one in self.stored:
            if one.place.topic not in PLACED and one.id in self.history.sent:
                copies[one.id].append(one)
        for message_id, each in copies.items():
            each.sort(key=lambda one: one.store_ms)
            early = self.history.sent[message_id].due_ms - each[0].store_ms
            if early > 0:
                self.faults.append(f"early: {message_id} by {early} ms at {each[0].place}")
            for first, again in pairwise(each):
                self.figures[f"{kind_of(message_id)} delivered twice"] += 1
                limit = 0 if first.place.topic == "tx" else DELIVERED_TWICE_MS
                what = f"delivered twice: {message_id} at {first.place} and {again.place}"
                self._repeated(what, first.place.broker, first.store_ms, again.store_ms, limit)

    def _got_twice(self) -> None:
        for group, got in self.history.got.items():
            last: dict[Place, int] = {}
            for place, message_id, at_ms in got:
                if place in last:
                    self.figures[f"{place.topic} got twice"] += 1
                    what = f"got twice: {message_id} by {group} at {place}"
                    self._repeated(what, place.broker, last[place], at_ms, GOT_TWICE_MS)
                last[place] = at_ms

    def _repeated(
        self, what: str, broker: str, first_ms: int, again_ms: int, limit_ms: int
    ) -> None:
        """What came again: a kill must have followed within the limit."""
        since = [at - first_ms for at in self.history.kills[broker] if first_ms <= at <= again_ms]
        ago = min(since, default=None)
        if ago is None or not limit_ms or ago > limit_ms + self.stalls_ms:
            self.faults.append(f"{what}, {ago} ms before a kill, {again_ms - first_ms} ms after")
        else:
            key = f"{what.split(':')[0]}, longest ms before the kill"
            self.figures[key] = max(ago, self.figures[key])
