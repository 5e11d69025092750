"""The checker of a group's history on histories made by hand: it passes the good one and names what
is wrong with each bad one."""

import enum
from collections.abc import Callable

import pytest
from tests.simulation.world.group_ledger import (
    LATE_S,
    NAMED_S,
    PROGRESS_S,
    Acknowledged,
    GroupLedger,
    GroupRule,
)
from tests.simulation.world.ledger import Queue, Rule

Q = Queue("orders", "broker-a", 0)
HEALED = 200.0
Final = dict[tuple[Queue, int], bytes]


def sent(
    ledger: GroupLedger, body: bytes, offset: int, begun: float, ended: float, by: Acknowledged
) -> None:
    send = ledger.messages.send(f"producer of {body!r}", "orders", body, begun)
    ledger.acknowledged(send, Q, offset, ended, by)


def good() -> tuple[GroupLedger, Final]:
    """The master is replaced while a send is under way, whose answer comes late."""
    ledger = GroupLedger()
    sent(ledger, b"m0", 0, 0, 1, Acknowledged("A", 1, 100))
    sent(ledger, b"m1", 1, 2, 9, Acknowledged("A", 1, 200))
    sent(ledger, b"m2", 2, 4, 5, Acknowledged("B", 2, 300))
    sent(ledger, b"m3", 3, 20, 21, Acknowledged("A", 3, 400))
    ledger.messages.send("p", "orders", b"maybe", 22).maybe(23)
    for offset in range(4):
        ledger.messages.delivered("g", "c", Q, offset, b"m%d" % offset)
    made = ledger.facts.write("topic a", 4, 0)
    ledger.facts.read("topic a", None, 0, 1)
    made.answered(2)
    ledger.facts.write("topic a", 8, 3).maybe(6)
    ledger.facts.read("topic a", 8, 7, 8)
    ledger.facts.read("topic a", 4, 9, 10)  # it was not confirmed
    ledger.facts.write("topic a", 5, 100).refused(101)
    ledger.facts.write("topic a", 6, 102).answered(103)
    ledger.facts.read("topic a", 6, 104, 105)
    ledger.facts.write("offset a", 7, 1).answered(2)
    ledger.facts.read("offset a", 7, 3, 4)
    ledger.succeeded("c", HEALED + PROGRESS_S)
    for at, life, epoch, there in (
        (0, 1, 1, 1),
        (5, 1, 1, 2),  # the new master is not registered yet
        (9, 1, 2, 2),
        (10, 1, 0, 2),  # its connection broke
        (10 + NAMED_S, 1, 2, 2),
        (20, 1, 1, 0),  # the two do not hear each other
        (29, 1, 1, 0),
        (30, 2, 1, 2),  # another process of the name server knows nothing
        (39, 2, 1, 2),
    ):
        ledger.routes.named(at, life=life, epoch=epoch, there=there)
    return ledger, {(Q, offset): b"m%d" % offset for offset in range(4)}


def broken(ledger: GroupLedger, final: Final) -> set[enum.Enum]:
    found = ledger.violations(final, healed=HEALED, clients=["c"], groups={"g": "orders"})
    return {violation.rule for violation in found}


def test_a_group_is_given_only_its_own_topic() -> None:
    ledger, final = good()
    payments = Queue("payments", "broker-a", 0)
    send = ledger.messages.send("p", "payments", b"paid", 30)
    ledger.acknowledged(send, payments, 0, 31, Acknowledged("A", 3, 500))
    final[payments, 0] = b"paid"
    assert broken(ledger, final) == set()
    assert [one.body for one in ledger.missing("g", "payments")] == [b"paid"]


def test_a_good_history_is_accepted() -> None:
    ledger, final = good()
    assert ledger.violations(final, healed=HEALED, clients=["c"], groups={"g": "orders"}) == []


def seen_and_cut_away(ledger: GroupLedger, _final: Final) -> None:
    ledger.messages.delivered("g", "c", Q, 4, b"maybe")


def old_master_goes_on(ledger: GroupLedger, final: Final) -> None:
    sent(ledger, b"m4", 4, 30, 31, Acknowledged("B", 2, 500))
    ledger.messages.delivered("g", "c", Q, 4, b"m4")
    final[Q, 4] = b"m4"


def two_masters_of_an_epoch(ledger: GroupLedger, final: Final) -> None:
    sent(ledger, b"m4", 4, 30, 31, Acknowledged("C", 3, 500))
    ledger.messages.delivered("g", "c", Q, 4, b"m4")
    final[Q, 4] = b"m4"


def two_logs(ledger: GroupLedger, final: Final) -> None:
    sent(ledger, b"m4", 4, 30, 31, Acknowledged("A", 3, 300))
    ledger.messages.delivered("g", "c", Q, 4, b"m4")
    final[Q, 4] = b"m4"


def topic_vanishes(ledger: GroupLedger, _final: Final) -> None:
    ledger.facts.read("topic a", None, 110, 111)


def old_settings_come_back(ledger: GroupLedger, _final: Final) -> None:
    ledger.facts.read("topic a", 4, 110, 111)


def much_too_late(ledger: GroupLedger, _final: Final) -> None:
    ledger.facts.write("topic a", 9, 110 + LATE_S).answered(112 + LATE_S)
    ledger.facts.write("topic a", 10, 113 + LATE_S).answered(114 + LATE_S)
    ledger.facts.read("topic a", 8, 115 + LATE_S, 116 + LATE_S)


def offset_goes_back(ledger: GroupLedger, _final: Final) -> None:
    ledger.facts.write("offset a", 9, 5).answered(6)
    ledger.facts.read("offset a", 7, 8, 9)


def client_waits(ledger: GroupLedger, _final: Final) -> None:
    ledger.successes["c"] = [HEALED - 1, HEALED + PROGRESS_S + 1]


def older_master_is_named(ledger: GroupLedger, _final: Final) -> None:
    for at, epoch in ((40, 3), (41, 2), (42 + NAMED_S, 2)):
        ledger.routes.named(at, life=2, epoch=epoch, there=3)


def no_master_is_named(ledger: GroupLedger, _final: Final) -> None:
    for at, epoch in ((40, 3), (41, 0), (42 + NAMED_S, 0)):
        ledger.routes.named(at, life=2, epoch=epoch, there=3)


def never_consumed(ledger: GroupLedger, final: Final) -> None:
    sent(ledger, b"m4", 4, 30, 31, Acknowledged("A", 3, 500))
    final[Q, 4] = b"m4"


BAD: list[tuple[Callable[[GroupLedger, Final], None], enum.Enum]] = [
    (seen_and_cut_away, GroupRule.UNSTABLE_READ),
    (old_master_goes_on, GroupRule.TWO_MASTERS),
    (two_masters_of_an_epoch, GroupRule.TWO_MASTERS),
    (two_logs, GroupRule.FORK),
    (topic_vanishes, GroupRule.FORGOTTEN),
    (old_settings_come_back, GroupRule.FORGOTTEN),
    (much_too_late, GroupRule.FORGOTTEN),
    (offset_goes_back, GroupRule.OFFSET_BACK),
    (client_waits, GroupRule.STALLED),
    (older_master_is_named, GroupRule.MASTER_FORGOTTEN),
    (no_master_is_named, GroupRule.MASTER_FORGOTTEN),
    (never_consumed, Rule.LOST),
]


@pytest.mark.parametrize(("spoil", "rule"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_what_is_wrong_is_named_and_nothing_else(
    spoil: Callable[[GroupLedger, Final], None], rule: enum.Enum
) -> None:
    ledger, final = good()
    spoil(ledger, final)
    assert broken(ledger, final) == {rule}


def test_what_a_new_master_has_cut_away_is_lost_also_if_it_was_consumed() -> None:
    ledger, final = good()
    del final[Q, 2]
    assert broken(ledger, final) == {GroupRule.LOST_FROM_LOG, GroupRule.UNSTABLE_READ}


def test_another_message_in_its_place_is_a_loss() -> None:
    ledger, final = good()
    final[Q, 3] = b"usurper"
    assert broken(ledger, final) == {GroupRule.LOST_FROM_LOG, GroupRule.UNSTABLE_READ}


def test_a_loss_reads_as_a_sentence_with_the_facts() -> None:
    ledger, final = good()
    ledger.messages.consumed.clear()
    del final[Q, 2]
    assert [str(violation) for violation in ledger.violations(final)] == [
        "lost_from_log (acknowledged and not in the final log): producer of b'm2''s b'm2' at "
        "orders@broker-a:0 offset 2, acknowledged at 5.000 s by B in epoch 2: nothing is there"
    ]
