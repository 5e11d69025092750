"""Who becomes the master."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from turbopump.controller.election import Candidate, elect, elect_first

GIB = 1 << 30
CANDIDATES = st.builds(
    Candidate,
    id=st.integers(1, 5),
    epoch=st.integers(0, 3),
    max_offset=st.integers(0, 2**63 - 1),
    priority=st.integers(0, 2),
)


def test_logs_that_differ_by_three_gib_are_compared_as_64_bit_numbers() -> None:
    for longer, shorter in ((1, 2), (2, 1)):
        candidates = [Candidate(longer, 4, 5 * GIB), Candidate(shorter, 4, 2 * GIB)]
        assert elect(candidates, candidates, confirmed=0).elected == longer


def test_a_later_epoch_counts_more_than_a_longer_log() -> None:
    candidates = [Candidate(1, 4, 9000), Candidate(2, 5, 100)]
    assert elect(candidates, candidates, confirmed=0).elected == 2


def test_of_equal_logs_the_smaller_priority_is_elected_and_then_the_smaller_id() -> None:
    candidates = [Candidate(1, 4, 100, 7), Candidate(3, 4, 100, 5), Candidate(2, 4, 100, 5)]
    found = elect(candidates, candidates, confirmed=100)
    assert [one.id for one in found.candidates] == [2, 3, 1]  # equal ones are all there
    assert found.elected == 2


def test_a_member_that_lost_confirmed_messages_is_not_elected() -> None:
    longest_but_old, short = Candidate(1, 4, 5 * GIB - 1), Candidate(2, 4, 2 * GIB)
    found = elect([longest_but_old, short], [], confirmed=5 * GIB)
    assert found.elected is None
    assert found.behind == (longest_but_old, short)


def test_only_an_unclean_election_looks_outside_of_the_set() -> None:
    outside = Candidate(3, 4, 90)
    assert elect([], [outside], confirmed=100).elected is None
    found = elect([], [outside], confirmed=100, unclean=True)
    assert (found.elected, found.unclean) == (3, True)
    member = Candidate(1, 4, 100)
    found = elect([member], [member, Candidate(3, 4, 900)], confirmed=100, unclean=True)
    assert (found.elected, found.unclean) == (1, False)


def test_a_designated_replica_is_elected_or_nobody() -> None:
    members = [Candidate(1, 4, 100), Candidate(2, 4, 90)]
    assert elect(members, members, confirmed=90, only=2).elected == 2
    assert elect(members, members, confirmed=91, only=2).elected is None
    assert elect(members, members, confirmed=0, only=3).elected is None


def test_the_first_master_is_the_asker_unless_another_has_more() -> None:
    empty = [Candidate(1, -1, 0), Candidate(2, -1, 0)]
    assert elect_first(empty, 2).elected == 2
    assert elect_first([], 2).elected == 2
    assert elect_first([Candidate(1, 0, 500), Candidate(2, 0, 0)], 2).elected == 1
    assert elect_first(empty, None).elected == 1
    assert elect_first([], None).elected is None


@given(st.lists(CANDIDATES, unique_by=lambda one: one.id), st.integers(0, 2**63 - 1))
def test_whoever_is_elected_has_what_was_confirmed_and_no_eligible_one_has_more(
    members: list[Candidate], confirmed: int
) -> None:
    found = elect(members, members, confirmed=confirmed)
    able = [one for one in members if one.max_offset >= confirmed]
    if found.elected is None:
        assert not able
        return
    (winner,) = (one for one in able if one.id == found.elected)
    assert all((one.epoch, one.max_offset) <= (winner.epoch, winner.max_offset) for one in able)
    assert len(found.candidates) == len(members)
