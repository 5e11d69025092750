"""Users and policies: how they are changed, and kept as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from tests.unit.auth.signed import allow, deny

from turbopump.auth.accounts import Accounts
from turbopump.auth.policies import Action
from turbopump.errors import ConfigError
from turbopump.protocol.requests.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo


def entry(resource: str, action: str = "Pub", decision: str = "Allow") -> PolicyEntryInfo:
    return PolicyEntryInfo(resource=resource, actions=[action], decision=decision)


def acl(*entries: PolicyEntryInfo, user: str = "ann", type_: str | None = None) -> AclInfo:
    policies = [PolicyInfo(policy_type=type_, entries=list(entries))]
    return AclInfo(subject=f"User:{user}", policies=policies)


ANN = Accounts().with_new_user(UserInfo(username="ann", password="ann's secret"))


def test_a_new_user_is_normal_and_enabled() -> None:
    ann = ANN.users["ann"]
    assert (ann.password, ann.is_super, ann.enabled) == ("ann's secret", False, True)
    assert ann.info == UserInfo(username="ann", user_type="Normal", user_status="enable")
    assert "secret" not in f"{ann!r} {ann.info!r} {UserInfo(username='a', password='secret')!r}"


def test_what_is_said_of_a_user_is_changed_and_nothing_else() -> None:
    changed = ANN.with_changed_user(UserInfo(username="ann", user_status="DISABLE"))
    assert (changed.users["ann"].enabled, changed.users["ann"].password) == (False, "ann's secret")
    changed = changed.with_changed_user(UserInfo(username="ann", password="new", user_type="Super"))
    ann = changed.users["ann"]
    assert (ann.enabled, ann.password, ann.is_super) == (False, "new", True)
    assert ANN.users["ann"].enabled


def test_a_user_goes_with_the_policies_for_them() -> None:
    gone = ANN.with_acl(acl(entry("Topic:a"))).without_user("ann")
    assert (gone.users, gone.policies) == ({}, {})
    assert gone.without_user("ann") == gone


def test_an_entry_takes_the_place_of_one_for_the_same_resource() -> None:
    made = ANN.with_acl(acl(entry("Topic:a"), entry("Topic:b", "Sub")))
    made = made.with_acl(acl(entry("Topic:a", "Get", "Deny"), entry("Group:g", "Sub")))
    made = made.with_acl(acl(entry("Topic:a", "List"), type_="default"))
    assert made.policies["ann"].custom == (
        deny("Topic:a", Action.GET),
        allow("Topic:b", Action.SUB),
        allow("Group:g", Action.SUB),
    )
    assert made.policies["ann"].default == (allow("Topic:a", Action.LIST),)
    less = made.without_acl("User:ann", None, "Topic:a")
    assert less.policies["ann"].custom == made.policies["ann"].custom[1:]
    assert less.policies["ann"].default == made.policies["ann"].default
    assert made.without_acl("User:ann").policies == {}
    assert ANN.with_acl(acl(entry("Topic:a"))).without_acl("User:ann", "Custom", "Topic:a") == ANN


def test_the_text_has_everything_and_what_others_see_has_no_password() -> None:
    full = PolicyEntryInfo(
        resource="Topic:a*", actions=["Sub", "Pub"], source_ips=["10.0.0.0/8"], decision="Deny"
    )
    made = ANN.with_acl(acl(full, entry("*", "All")))
    text = made.encode()
    assert Accounts.decode(text) == made
    assert Accounts.decode(text).encode() == text
    assert json.loads(text) == {
        "users": [
            {
                "username": "ann",
                "password": "ann's secret",
                "userType": "Normal",
                "userStatus": "enable",
            }
        ],
        "acls": [
            {
                "subject": "User:ann",
                "policies": [
                    {
                        "policyType": "Custom",
                        "entries": [
                            {
                                "resource": "Topic:a*",
                                "actions": ["Pub", "Sub"],
                                "sourceIps": ["10.0.0.0/8"],
                                "decision": "Deny",
                            },
                            {"resource": "*", "actions": ["All"], "decision": "Allow"},
                        ],
                    }
                ],
            }
        ],
    }


def test_two_entries_for_one_resource_stay_two_in_the_text() -> None:
    made = ANN.with_acl(acl(entry("Topic:a", "Pub", "Deny"), entry("Topic:a", "Sub")))
    assert len(Accounts.decode(made.encode()).policies["ann"].custom) == 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "not the JSON of an account file"),
        (b'{"users": 1}', "not the JSON of an account file"),
        (b'{"user": []}', "not the JSON of an account file"),
        (b'{"users": [{"username": "a"}]}', "password can not be blank"),
        (b'{"users": [{"username": "a", "password": "b", "userType": "Root"}]}', "userType=Root"),
        (b'{"acls": [{"subject": "User:x", "policies": []}]}', "User:x is no user"),
        (
            b'{"users": [{"username": "a", "password": "p"}, {"username": "a", "password": "q"}]}',
            "The user is existed",
        ),
    ],
)
def test_a_text_that_says_what_cannot_be_is_refused_whole(text: bytes, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Accounts.decode(text)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (partial(ANN.with_new_user, UserInfo(username=" ", password="p")), "can not be blank"),
        (partial(ANN.with_new_user, UserInfo(username="a\nb", password="p")), "is not a user name"),
        (partial(ANN.with_new_user, UserInfo(username="bob")), "turbopump auth export"),
        (partial(ANN.with_new_user, UserInfo(username="ann", password="p")), "is existed"),
        (partial(ANN.with_changed_user, UserInfo(username="bob")), "is not exist"),
        (partial(ANN.with_acl, acl(entry("Topic:a"), user="bob")), "is not exist"),
        (partial(ANN.with_acl, acl()), "entries is empty"),
        (partial(ANN.with_acl, AclInfo(subject="User:ann")), "policies is empty"),
        (partial(ANN.with_acl, AclInfo(subject="ann")), "is not a subject"),
        (partial(ANN.with_acl, acl(entry("Topic:a", "Write"))), "is not a valid action"),
        (partial(ANN.with_acl, acl(entry("Topic:a", "Any"))), "needs actions"),
        (partial(ANN.with_acl, acl(entry("Topic:a", "Pub", "Maybe"))), "is not a valid decision"),
        (partial(ANN.with_acl, acl(entry("Topic:a"), type_="Main")), "is not a valid policy type"),
        (partial(ANN.without_acl, "User:ann"), "has no policy"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused_in_words(
    edit: Callable[[], Accounts], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        edit()
