"""Arbitrary bytes, and good ones that were damaged, are read or refused with the one error; never
anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz_targets import TARGETS
from tests.fuzzing import examples

EXAMPLES = 150


@pytest.mark.parametrize("name", TARGETS)
@examples(EXAMPLES)
@given(data=st.binary(max_size=300))
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name].take(data)


@pytest.mark.parametrize("name", TARGETS)
@examples(EXAMPLES)
@given(
    damages=st.lists(
        st.tuples(st.integers(0, 2000), st.integers(0, 8), st.binary(max_size=8)), max_size=4
    )
)
def test_good_bytes_that_were_damaged(name: str, damages: list[tuple[int, int, bytes]]) -> None:
    data = TARGETS[name].good
    for at, removed, put in damages:
        at %= len(data) + 1
        data = data[:at] + put + data[at + removed :]
    TARGETS[name].take(data)


@pytest.mark.parametrize("name", TARGETS)
def test_good_bytes_cut_anywhere(name: str) -> None:
    good = TARGETS[name].good
    for size in range(0, len(good), max(len(good) // 100, 1)):
        TARGETS[name].take(good[:size])
