"""Which entry of a policy decides."""

from __future__ import annotations

import pytest
from tests.unit.auth.signed import allow, deny

from turbopump.auth.policies import Action, Decision, Entry, Policies, PolicyType, Resource
from turbopump.errors import ConfigError

PUB, SUB, GET, ALL, ANY = Action.PUB, Action.SUB, Action.GET, Action.ALL, Action.ANY
ORDERS = Resource.parse("Topic:orders")
HERE = "10.1.2.3"


def decides(policies: Policies, resource: Resource = ORDERS, *actions: Action) -> str | None:
    found = policies.find_entry(resource, actions or (PUB,), HERE)
    return None if found is None else str(found[1])


def are_allowed(policies: Policies, *actions: Action) -> bool:
    found = policies.find_entry(ORDERS, actions, HERE)
    return found is not None and found[1].decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("of_policy", "asked", "matches"),
    [
        ("Topic:orders", "Topic:orders", True),
        ("Topic:orders", "Topic:orders2", False),
        ("Topic:orders", "Group:orders", False),
        ("Topic:ord*", "Topic:orders", True),
        ("Topic:ord*", "Topic:word", False),
        ("Topic:*", "Topic:orders", True),
        ("Topic:*", "Group:orders", False),
        ("*", "Group:orders", True),
        ("Cluster:*", "Cluster:DefaultCluster", True),
        ("topic:a*b*", "Topic:a-", True),  # what follows the first star counts for nothing
        ("Topic:a*b", "Topic:axb", False),
        ("Topic:a*b", "Topic:a*b", True),
    ],
)
def test_a_resource_stands_for_names(of_policy: str, asked: str, matches: bool) -> None:
    assert Resource.parse(of_policy).matches(Resource.parse(asked)) is matches


@pytest.mark.parametrize("text", ["", "orders", "Topic:", "Topic: ", "Queue:orders", "Unknown:x"])
def test_a_text_that_is_no_resource_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Resource.parse(text)


@pytest.mark.parametrize("text", ["Topic:orders", "Topic:ord*", "Group:*", "*", "Cluster:c"])
def test_a_resource_is_written_as_it_is_read(text: str) -> None:
    assert str(Resource.parse(text)) == text


def test_the_nearest_entry_decides() -> None:
    entries = [
        allow("*", ALL),
        deny("Topic:*", ALL),
        allow("Topic:ord*", ALL),
        deny("Topic:orde*", ALL),
        allow("Topic:orders", PUB),
    ]
    for nearest in reversed(range(5)):
        assert decides(Policies(tuple(entries))) == str(entries[nearest])
        assert decides(Policies(tuple(reversed(entries)))) == str(entries[nearest])
        del entries[nearest]
    assert decides(Policies()) is None


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
)
def test_a_topic_of_the_broker_s_own_is_allowed_by_its_full_name_alone(topic: str) -> None:
    own = Resource.parse(f"Topic:{topic}")
    wide = [allow("*", ALL), allow("Topic:*", ALL), allow(f"Topic:{topic[:9]}*", ALL)]
    assert decides(Policies(tuple(wide), tuple(wide)), own) is None
    assert decides(Policies((*wide, allow(f"Topic:{topic}", PUB))), own) == f"Allow Pub on {own}"
    assert decides(Policies((*wide, deny("Topic:*", PUB))), own) == "Deny Pub on Topic:*"


def test_the_default_policy_counts_where_nothing_of_the_custom_one_matches() -> None:
    policies = Policies((deny("Topic:*", SUB),), (allow("Topic:orders", ALL),))
    assert policies.find_entry(ORDERS, (SUB,), HERE) == (PolicyType.CUSTOM, deny("Topic:*", SUB))
    assert policies.find_entry(ORDERS, (PUB,), HERE) == (
        PolicyType.DEFAULT,
        allow("Topic:orders", ALL),
    )
    assert not are_allowed(policies, SUB)
    assert are_allowed(policies, PUB)


def test_of_several_actions_any_is_enough_and_all_stands_for_each() -> None:
    policies = Policies((allow("Topic:orders", SUB),))
    assert are_allowed(policies, PUB, SUB, GET)
    assert not are_allowed(policies, PUB, GET)
    assert are_allowed(policies, ANY)
    assert are_allowed(Policies((allow("Topic:orders", ALL),)), GET)


def test_for_one_resource_deny_comes_before_allow() -> None:
    both = deny("Topic:orders", PUB), allow("Topic:orders", SUB)
    for entries in (both, both[::-1]):
        assert not are_allowed(Policies(entries), PUB, SUB, GET)
        assert are_allowed(Policies(entries), SUB)
        assert not are_allowed(Policies(entries), PUB)


@pytest.mark.parametrize(
    ("source", "address", "matches"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.2.0/24", "10.1.2.255", True),
        ("10.1.2.77/24", "10.1.2.0", True),
        ("10.1.2.0/24", "10.1.3.0", False),
        ("0.0.0.0/0", "203.0.113.9", True),
        ("10.1.2.3/32", "10.1.2.3", True),
        ("10.1.2.0/24", "::ffff:10.1.2.9", True),
        ("2001:db8::/32", "2001:db8:1::1", True),
        ("2001:db8::/32", "2001:db9::1", False),
        ("2001:db8::1", "2001:0db8:0:0::1", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("::/0", "10.1.2.3", True),  # as numbers, whatever the family
        ("::/96", "10.1.2.3", True),
        ("10.0.0.0/8", "2001:db8::1", False),
        ("10.0.0.0/8", "?", False),
    ],
)
def test_an_entry_is_meant_for_addresses(source: str, address: str, matches: bool) -> None:
    entry = allow("Topic:orders", PUB, sources=[source])
    assert entry.matches(ORDERS, (PUB,), address) is matches
    assert allow("Topic:orders", PUB).matches(ORDERS, (PUB,), address)


@pytest.mark.parametrize(
    "source", ["", "localhost/8", "10.1", "10.0.0.0/33", "::1/129", "10.0.0.0/", "10.0.0.0/a"]
)
def test_what_is_no_address_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="not a source address"):
        allow("Topic:orders", PUB, sources=[source])


@pytest.mark.parametrize("actions", [[], [ANY], [PUB, ANY]])
def test_an_entry_needs_actions_and_any_is_none(actions: list[Action]) -> None:
    with pytest.raises(ConfigError, match="needs actions"):
        Entry(ORDERS, frozenset(actions), Decision.ALLOW)


def test_an_entry_says_what_it_means() -> None:
    entry = deny("Topic:ord*", SUB, PUB, sources=["10.0.0.0/8", "::1"])
    assert str(entry) == "Deny Pub,Sub on Topic:ord* from 10.0.0.0/8,::1"
