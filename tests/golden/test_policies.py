"""Which entry of a policy decides: 10,000 pairs of policies and requests, against what Apache's
evaluator said of them."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest
from tests.golden.recorded import Recorded, of_kind

from turbopump.auth.policies import (
    Decision,
    Entry,
    Policies,
    PolicyType,
    Resource,
    actions_of,
    one_of,
)


def policies_of(text: str) -> Policies:
    made: dict[PolicyType, list[Entry]] = {type_: [] for type_ in PolicyType}
    for line in filter(None, text.split(";")):
        type_, resource, actions, sources, decision = line.split(" ")
        entry = Entry(
            Resource.parse(resource),
            actions_of(actions.split(",")),
            one_of(Decision, decision, "decision"),
            () if sources == "-" else tuple(sources.split(",")),
        )
        made[PolicyType(type_)].append(entry)
    return Policies(tuple(made[PolicyType.CUSTOM]), tuple(made[PolicyType.DEFAULT]))


def verdict(policies: Policies, ask: str) -> str:
    resource, actions, address, _ = ask.split(" ")
    wanted = tuple(actions_of(actions.split(",")))
    found = policies.find_entry(Resource.parse(resource), wanted, address)
    if found is None:
        return "0"
    return "+" if found[1].decision is Decision.ALLOW else "-"


@pytest.mark.parametrize("recorded", of_kind("policies"))
def test_ours_says_what_apaches_evaluator_says(recorded: Recorded) -> None:
    seen: Counter[str] = Counter()
    wrong = []
    for line in gzip.decompress(recorded.bytes).decode().splitlines():
        entries, asks = line.split("|")
        policies = policies_of(entries)
        for ask in asks.split(";"):
            said = ask[-1]
            seen[said] += 1
            if verdict(policies, ask) != said:
                wrong.append((entries, ask, verdict(policies, ask)))
    assert sum(seen.values()) == recorded["sets"] * recorded["asks"] == 10_000
    assert min(seen.values()) > 900, "each verdict is tried"
    assert wrong == []
