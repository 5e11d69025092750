"""The history checker on histories made by hand: it passes the good one and names what is wrong
with each bad one."""

from collections.abc import Callable

import pytest
from tests.simulation.world.ledger import Ledger, Queue, Rule, Send

Q = Queue("orders", "broker-a", 0)
Q1 = Queue("orders", "broker-a", 1)
GROUP = "group"


def sent(
    ledger: Ledger,
    body: bytes,
    offset: int,
    begun: float,
    ended: float,
    producer: str = "p",
    queue: Queue = Q,
) -> Send:
    send = ledger.send(producer, "orders", body, begun)
    send.acknowledged(queue, offset, ended)
    return send


def given(ledger: Ledger, body: bytes, offset: int, queue: Queue = Q, life: int = 0) -> None:
    ledger.delivered(GROUP, "c", queue, offset, body, life)


def good() -> Ledger:
    ledger = Ledger(in_flight_max=1)
    sent(ledger, b"m0", 0, 0.0, 1.0)
    sent(ledger, b"m1", 1, 1.0, 2.0)
    sent(ledger, b"m2", 2, 1.5, 2.5, producer="other")
    sent(ledger, b"n0", 0, 3.0, 4.0, queue=Q1)
    ledger.send("p", "orders", b"maybe stored", 5.0).maybe(6.0)
    ledger.send("p", "orders", b"maybe not", 6.0).maybe(7.0)
    ledger.send("p", "orders", b"refused", 7.0).refused(8.0)
    ledger.send("p", "orders", b"pending", 8.0)
    given(ledger, b"m0", 0)
    given(ledger, b"m1", 1)
    ledger.committed(GROUP, Q, 1)
    ledger.disturbance()
    given(ledger, b"m1", 1, life=1)
    given(ledger, b"m2", 2, life=1)
    given(ledger, b"maybe stored", 3, life=1)
    given(ledger, b"n0", 0, Q1)
    ledger.committed(GROUP, Q, 4)
    return ledger


def rules(ledger: Ledger, *, drained: bool = True) -> list[Rule]:
    return [violation.rule for violation in ledger.violations(ordered=[GROUP], drained=drained)]


def test_a_good_history_with_a_crash_in_it_is_accepted() -> None:
    ledger = good()
    assert ledger.violations(ordered=[GROUP]) == []
    assert ledger.missing(GROUP) == []
    assert len(ledger.acknowledged) == 4


def lost_at_the_end(ledger: Ledger) -> None:
    sent(ledger, b"m9", 9, 20, 21)


def lost_in_the_middle(ledger: Ledger) -> None:
    sent(ledger, b"m9", 9, 20, 21)
    sent(ledger, b"m10", 10, 22, 23)
    given(ledger, b"m10", 10, life=7)


def never_sent(ledger: Ledger) -> None:
    given(ledger, b"who?", 4, life=1)


def bytes_differ(ledger: Ledger) -> None:
    sent(ledger, b"intact", 4, 20, 21)
    given(ledger, b"intact", 4, life=1)
    given(ledger, b"int\x00ct", 5, life=1)


def in_the_wrong_topic(ledger: Ledger) -> None:
    given(ledger, b"m0", 0, Queue("payments", "broker-a", 0))
    ledger.disturbance()


def refused_and_yet_given(ledger: Ledger) -> None:
    given(ledger, b"refused", 4, life=1)


def acknowledged_twice_at_one_offset(ledger: Ledger) -> None:
    sent(ledger, b"usurper", 2, 20, 21, producer="third", queue=Q)
    ledger.sends[2].begun = ledger.sends[-1].begun  # together: only the place is wrong
    ledger.sends[2].ended = 30
    given(ledger, b"usurper", 4, life=1)


def another_body_after_a_restart(ledger: Ledger) -> None:
    ledger.send("p", "orders", b"from another life", 20).maybe(21)
    given(ledger, b"from another life", 2, life=2)


def own_order_broken(ledger: Ledger) -> None:
    sent(ledger, b"later", 5, 20, 21)
    sent(ledger, b"latest", 4, 22, 23)
    given(ledger, b"latest", 4, life=1)
    given(ledger, b"later", 5, life=1)


def real_time_broken(ledger: Ledger) -> None:
    sent(ledger, b"first", 5, 20, 21, producer="x")
    sent(ledger, b"second", 4, 22, 23, producer="y")
    given(ledger, b"second", 4, life=1)
    given(ledger, b"first", 5, life=1)


def skipped_then_given(ledger: Ledger) -> None:
    sent(ledger, b"m4", 4, 20, 21)
    sent(ledger, b"m5", 5, 22, 23)
    given(ledger, b"m5", 5, life=1)
    given(ledger, b"m4", 4, life=1)


def given_again_after_the_commit(ledger: Ledger) -> None:
    ledger.disturbance()
    given(ledger, b"m2", 2, life=2)


def commit_goes_back(ledger: Ledger) -> None:
    ledger.committed(GROUP, Q, 3)


def given_twice_without_cause(ledger: Ledger) -> None:
    given(ledger, b"n0", 0, Q1)
    given(ledger, b"n0", 0, Q1)


BAD: list[tuple[Callable[[Ledger], None], Rule]] = [
    (lost_at_the_end, Rule.LOST),
    (lost_in_the_middle, Rule.LOST),
    (never_sent, Rule.PHANTOM),
    (bytes_differ, Rule.PHANTOM),
    (in_the_wrong_topic, Rule.PHANTOM),
    (refused_and_yet_given, Rule.REFUSED_BUT_SEEN),
    (acknowledged_twice_at_one_offset, Rule.TWO_AT_ONE_OFFSET),
    (another_body_after_a_restart, Rule.TWO_AT_ONE_OFFSET),
    (own_order_broken, Rule.ORDER),
    (real_time_broken, Rule.REAL_TIME),
    (skipped_then_given, Rule.SKIP),
    (given_again_after_the_commit, Rule.REGRESS),
    (commit_goes_back, Rule.REGRESS),
    (given_twice_without_cause, Rule.DUPLICATES),
]


@pytest.mark.parametrize(
    ("spoil", "rule"),
    BAD,
    ids=lambda each: getattr(each, "__name__", each.name if isinstance(each, Rule) else ""),
)
def test_what_is_wrong_is_named_and_nothing_else(
    spoil: Callable[[Ledger], None], rule: Rule
) -> None:
    ledger = good()
    spoil(ledger)
    if spoil is another_body_after_a_restart:
        ledger.consumed.pop(-2)  # the commit to 4, which this delivery would also break
    assert set(rules(ledger)) == {rule}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for _, rule in BAD} == set(Rule)


def test_while_consumers_still_run_only_a_message_that_was_passed_is_lost() -> None:
    ledger = good()
    lost_at_the_end(ledger)
    assert rules(ledger, drained=False) == []
    ledger = good()
    lost_in_the_middle(ledger)
    assert rules(ledger, drained=False) == [Rule.LOST]


def test_a_violation_reads_as_a_sentence_with_the_facts() -> None:
    ledger = good()
    lost_at_the_end(ledger)
    assert [str(violation) for violation in ledger.violations([GROUP])] == [
        "lost (acknowledged and never consumed): p's b'm9' at orders@broker-a:0 offset 9, for "
        "group group"
    ]


def test_bodies_must_be_unique() -> None:
    ledger = good()
    sent(ledger, b"m0", 7, 20, 21)
    with pytest.raises(AssertionError, match="unique"):
        ledger.violations()
