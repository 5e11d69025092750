"""The judge of the campaign is judged: a history that is as it should be is accepted, and the same
history with one wrong is refused, with the name of that wrong."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from tests.crash.campaign import TOPIC_OF, History, Place, Sent, Stored, Verdict, body_of

KILL_MS = 50_000
"""Of the broker ``a``, which has everything."""


class Tale(NamedTuple):
    """What a verdict is asked about."""

    history: History
    stored: list[Stored]
    letters: dict[str, set[str]]

    def stores(self, message_id: str, offset: int, at_ms: int) -> Place:
        place = Place("a", TOPIC_OF.get(message_id.split("-")[1], "plain"), 0, offset)
        self.stored.append(Stored(place, message_id, at_ms))
        return place

    def moves(self, message_id: str, offset: int) -> None:
        """It is stored, and got, at another offset than its answer said."""
        at = next(n for n, one in enumerate(self.stored) if one.id == message_id)
        place = self.stored[at].place._replace(offset=offset)
        self.stored[at] = self.stored[at]._replace(place=place)
        self.history.got["o"] = [
            (place if each == message_id else was, each, at_ms)
            for was, each, at_ms in self.history.got["o"]
        ]

    def got_at(self, message_id: str) -> Place:
        return next(place for place, each, _ in self.history.got["o"] if each == message_id)


def good() -> Tale:
    """Two acknowledged messages of every kind, one a second, each got 100 ms after it was
    stored."""
    tale = Tale(History(groups=("o",)), [], {"o": {"o-dead-0-1", "o-dead-0-2"}})
    tale.history.kills["a"].append(KILL_MS)
    offsets = dict.fromkeys(TOPIC_OF.values(), 0)
    now = 10_000
    for number in (1, 2):
        for kind, topic in TOPIC_OF.items():
            now += 1000
            message_id = f"o-{kind}-0-{number}"
            wait = 500 if topic == "later" else 0
            sent = tale.history.sent[message_id] = Sent(now, now + wait)
            sent.answered(Place("a", topic, 0, offsets[topic]), True, now + 10)
            if kind == "rollback" or (kind == "asked" and number == 1):
                continue
            place = tale.stores(message_id, offsets[topic], now + wait + 1)
            offsets[topic] += 1
            tale.history.note("o", place, body_of(message_id), now + wait + 100)
    return tale


def faults_of(tale: Tale) -> list[str]:
    return Verdict(tale.history, tale.stored, tale.letters).faults


def test_a_history_that_is_as_it_should_be_is_accepted() -> None:
    assert faults_of(good()) == []


def test_what_a_kill_may_repeat_is_accepted_and_counted() -> None:
    tale = good()
    tale.stored.append(Stored(Place("a", "later", 0, 4), "o-timer-0-1", KILL_MS + 800))
    tale.stored[:] = [
        one._replace(store_ms=KILL_MS - 900)
        if one.id == "o-timer-0-1" and one.store_ms < KILL_MS
        else one
        for one in tale.stored
    ]
    place = tale.got_at("o-plain-0-2")
    tale.history.note("o", place, body_of("o-plain-0-2"), KILL_MS - 5000)
    tale.history.got["o"] = [one for one in tale.history.got["o"] if one[2] >= KILL_MS - 5000] + [
        (place, "o-plain-0-2", KILL_MS + 900)
    ]
    verdict = Verdict(tale.history, tale.stored, tale.letters)
    assert verdict.faults == []
    assert verdict.figures["timer delivered twice"] == 1
    assert verdict.figures["plain got twice"] == 1


def unseen(tale: Tale) -> None:
    tale.history.seen["o", "pop"].discard("o-pop-0-1")


def no_letter(tale: Tale) -> None:
    tale.letters["o"].discard("o-dead-0-2")


def altered(tale: Tale) -> None:
    body = body_of("o-plain-0-1")
    tale.history.note("o", tale.got_at("o-plain-0-1"), body[:-1] + b"?", 12_000)


def never_sent(tale: Tale) -> None:
    tale.stores("o-plain-0-9", 2, 40_000)


def of_another_topic(tale: Tale) -> None:
    tale.history.seen["o", "plain"].add("o-pop-0-1")


def rolled_back(tale: Tale) -> None:
    tale.stores("o-asked-0-1", 3, 40_000)


def moved(tale: Tale) -> None:
    tale.moves("o-plain-0-2", 2)


def replaced(tale: Tale) -> None:
    place = tale.got_at("o-plain-0-2")
    tale.history.got["o"].append((place, "o-plain-0-1", KILL_MS + 1))


def lanes_mixed(tale: Tale) -> None:
    one, other = (tale.history.sent[f"o-ordered-0-{number}"] for number in (1, 2))
    one.place, other.place = other.place, one.place
    tale.moves("o-ordered-0-1", 1)
    tale.moves("o-ordered-0-2", 0)


def begun_later_and_before(tale: Tale) -> None:
    one, other = (tale.history.sent[f"o-plain-0-{number}"] for number in (1, 2))
    one.place, other.place = other.place, one.place
    tale.moves("o-plain-0-1", 1)
    tale.moves("o-plain-0-2", 0)


def passed_over(tale: Tale) -> None:
    first, second = (each for each in tale.history.got["o"] if each[0].topic == "ordered")
    tale.history.got["o"] = [second, first]


def early(tale: Tale) -> None:
    tale.history.sent["o-delay-0-1"].due_ms += 2


def delivered_twice_long_before_the_kill(tale: Tale) -> None:
    tale.stores("o-delay-0-1", 9, KILL_MS + 100)


def delivered_twice_without_a_kill(tale: Tale) -> None:
    tale.stores("o-timer-0-2", 9, KILL_MS - 100)


def committed_twice(tale: Tale) -> None:
    for at_ms in (KILL_MS - 10, KILL_MS + 10):
        tale.stores("o-asked-0-4", 7, at_ms)
    sent = tale.history.sent["o-asked-0-4"] = Sent(40_000, 40_000)
    sent.answered(Place("a", "tx", 0, 7), False, 40_010)


def got_twice_long_before_the_kill(tale: Tale) -> None:
    place = tale.got_at("o-plain-0-1")
    tale.history.note("o", place, body_of("o-plain-0-1"), KILL_MS + 100)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (unseen, "lost: o never got, of pop"),
        (no_letter, "lost: no dead letter"),
        (altered, "altered, or never sent"),
        (never_sent, "altered, or never sent"),
        (of_another_topic, "altered, or never sent"),
        (rolled_back, "rolled back and seen"),
        (moved, "not where it was stored"),
        (replaced, "not where it was got"),
        (lanes_mixed, "reordered: o-ordered-0-1 behind 2"),
        (begun_later_and_before, "reordered: o-plain-0-2 was begun after"),
        (passed_over, "passed over"),
        (early, "early"),
        (delivered_twice_long_before_the_kill, "delivered twice"),
        (delivered_twice_without_a_kill, "delivered twice"),
        (committed_twice, "delivered twice"),
        (got_twice_long_before_the_kill, "got twice"),
    ],
)
def test_one_wrong_is_named(wrong: Callable[[Tale], None], name: str) -> None:
    tale = good()
    wrong(tale)
    assert any(fault.startswith(name) for fault in faults_of(tale)), faults_of(tale)
