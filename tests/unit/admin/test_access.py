"""Accounts of two servers, compared without showing a secret."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.auth.signed import USERS, allow

from turbopump.admin.access import ComparedAccounts, differing_accounts
from turbopump.auth.accounts import Accounts
from turbopump.auth.policies import Action, Policies

ANN = USERS["ann"]
A, B = allow("Topic:a", Action.PUB), allow("Topic:b", Action.SUB)
HERE = Accounts({"ann": ANN, "bob": USERS["bob"]}, {"ann": Policies((A, B))})


def with_ann(**changed: object) -> Accounts:
    return replace(HERE, users={**HERE.users, "ann": replace(ANN, **changed)})  # type: ignore[arg-type]


def having(*entries: object) -> Accounts:
    return HERE.with_policies("ann", Policies(entries))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (HERE, None),
        (having(B, A), None),
        (HERE.without_user("ann"), "ann is missing"),
        (replace(HERE, users={**HERE.users, "eve": USERS["admin"]}), "eve is only there"),
        (with_ann(password="x"), "ann has another password"),
        (with_ann(is_super=True), "ann has another type or status"),
        (with_ann(enabled=False), "ann has another type or status"),
        (having(A), "ann has other policies"),
        (having(), "ann has other policies"),
        (Accounts(), "ann is missing; bob is missing"),
        (None, "one has no access control"),
    ],
)
def test_each_difference_is_said_in_words(there: Accounts | None, says: str | None) -> None:
    one, other = (
        ComparedAccounts("h:1", HERE, passwords=True),
        ComparedAccounts("h:2", there, passwords=True),
    )
    assert differing_accounts(one, other) == says
    assert differing_accounts(other, other) is None
    unknown = ComparedAccounts("h:2", there, passwords=False)
    hidden = None if says == "ann has another password" else says
    assert differing_accounts(one, unknown) == hidden


def test_a_long_list_is_cut() -> None:
    many = Accounts({name: replace(ANN, name=name) for name in "abcdefgh"})
    says = differing_accounts(ComparedAccounts("h:1", many), ComparedAccounts("h:2", Accounts()))
    assert says is not None
    assert says.endswith("e is missing; and 3 more")
