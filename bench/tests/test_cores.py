"""Either broker has the same cores; in a round trip none of them is the generator's."""

import os

import pytest

from bench.cores import Cores, held_to, running_on


@pytest.mark.parametrize(
    ("broker", "load", "apart"), [({0, 1}, 1, {0}), ({0, 1}, 2, {0, 1}), ({0}, 0, {0})]
)
def test_a_round_trip_keeps_the_broker_off_the_generators_core(
    broker: set[int], load: int, apart: set[int]
) -> None:
    assert Cores(frozenset(broker), load).apart == apart


def test_a_process_is_held_to_cores_and_let_go_again() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset({min(before)})
    with held_to(os.getpid(), one):
        assert os.sched_getaffinity(0) == one
    with running_on(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before
