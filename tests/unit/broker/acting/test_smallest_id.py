"""Whether a slave acts, from what the name servers say alone."""

import pytest

from turbopump.broker.acting.acting import has_smallest_id, slaves_among


@pytest.mark.parametrize(
    ("groups", "acts"),
    [
        ([{1: "b", 2: "c"}], True),
        ([{0: "a", 1: "b"}], False),
        ([{2: "c"}], False),
        ([{}, {1: "b"}], True),
        ([{}], False),
        ([{1: "b"}, {0: "a"}], False),
        ([], False),
    ],
)
def test_the_smallest_id_at_every_name_server_acts(
    groups: list[dict[int, str]], acts: bool
) -> None:
    assert has_smallest_id(1, groups) is acts


def test_the_other_slaves_are_asked_in_the_order_of_their_ids() -> None:
    assert slaves_among([{3: "d", 1: "b"}, {2: "c", 1: "b"}], 1) == ["c", "d"]
    assert slaves_among([{0: "a", 2: "c"}], 1) == []
