"""Users and policies of a server, with methods to change them.

An ``Accounts`` is immutable: an edit returns a new one, or raises ConfigError with a sentence for
the requester. Its text is one JSON object, in the terms of the requests that change it
(``protocol/requests/access.py``)::

    {"users": [{"username": …, "password": …, "userType": "Super"|"Normal",
                "userStatus": "enable"|"disable"}, …],
     "acls":  [{"subject": "User:NAME", "policies": [{"policyType": "Custom"|"Default", "entries":
                [{"resource": …, "actions": […], "sourceIps": […], "decision": "Allow"|"Deny"}]}]}]}

The passwords are in plain text, since HMAC needs the secret itself. Source of the rules of change:
apache/rocketmq ``AuthenticationMetadataManagerImpl``, ``AuthorizationMetadataManagerImpl``. Files
are unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

import msgspec

from turbopump.auth.policies import (
    Decision,
    Entry,
    Policies,
    PolicyType,
    Resource,
    actions_of,
    one_of,
)
from turbopump.auth.signatures import SigningKey
from turbopump.errors import ConfigError
from turbopump.message.rules import is_unicode
from turbopump.protocol.requests.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from turbopump.struct_decoders import decoder_of

T = TypeVar("T")
NAME_SIZE_MAX: Final = 255
SUBJECT: Final = "User:"
SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"


@dataclass(frozen=True)
class User:
    """User of a server. A Super user may do everything."""

    name: str
    password: str = field(repr=False)
    is_super: bool = False
    enabled: bool = True

    @cached_property
    def key(self) -> SigningKey:
        """Key that checks the signatures of this user."""
        return SigningKey(self.password)

    @property
    def info(self) -> UserInfo:
        """Description of the user without the password, as other users may see it."""
        return UserInfo(
            username=self.name,
            user_type=SUPER if self.is_super else NORMAL,
            user_status=ENABLED if self.enabled else DISABLED,
        )


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    users: list[UserInfo] = []
    acls: list[AclInfo] = []


class AccountsChange(msgspec.Struct, kw_only=True):
    """Difference between two sets of accounts: the new value of each user and policy that differs.

    None stands for a deleted user, or for a user without policies. Passwords are in plain text.
    """

    users: dict[str, UserInfo | None] = {}
    acls: dict[str, AclInfo | None] = {}


@dataclass(frozen=True)
class Accounts:
    """Users of a server and their policies. Both are stored by user name."""

    users: Mapping[str, User] = field(default_factory=dict)
    policies: Mapping[str, Policies] = field(default_factory=dict)

    def allowed_more_than(self, later: Accounts) -> bool:
        """Return True if ``later`` may give a user fewer permissions than these accounts.

        That is assumed if a user or a policy of these accounts differs there.
        """
        users = later.users
        policies = later.policies
        return any(users.get(name) != user for name, user in self.users.items()) or any(
            policies.get(name) != mine for name, mine in self.policies.items()
        )

    def change_to(self, later: Accounts) -> AccountsChange:
        """Return the difference between these accounts and later ones."""
        users = {
            name: later.user_info(name) if name in later.users else None
            for name in {**self.users, **later.users}
            if self.users.get(name) != later.users.get(name)
        }
        acls = {
            name: later.acl_info(name) if name in later.policies else None
            for name in {**self.policies, **later.policies}
            if self.policies.get(name) != later.policies.get(name)
        }
        return AccountsChange(users=users, acls=acls)

    def with_change(self, change: AccountsChange) -> Accounts:
        """Return a copy in which the users and policies of a change replace the old ones.

        Raises ConfigError if the change has an invalid user or policy.
        """
        users = dict(self.users)
        policies = dict(self.policies)
        for name, info in change.users.items():
            users.pop(name, None)
            if info is not None:
                users[name] = _new_user(info, {})
        for name, acl in change.acls.items():
            policies.pop(name, None)
            if acl is not None:
                policies[name] = _merged(None, acl)
        kept = {name: mine for name, mine in policies.items() if name in users}
        return Accounts(users, kept)

    # --- as text

    @classmethod
    def decode(cls, text: bytes) -> Accounts:
        """Return the users and policies in the text of a file or answer.

        Raises ConfigError if the text is invalid. Unknown content is refused too, because it might
        be a Deny.
        """
        try:
            content = decoder_of(_Content, strict=True).decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"not the JSON of an account file: {error}") from None
        users: dict[str, User] = {}
        policies: dict[str, Policies] = {}
        for info in content.users:
            user = _new_user(info, users)
            users[user.name] = user
        for acl in content.acls:
            name = _user_name(acl.subject)
            if name in policies or name not in users:
                why = "has two entries of acls" if name in policies else "is no user"
                raise ConfigError(f"{acl.subject} {why}")
            policies[name] = _merged(None, acl)
        found = cls(users, policies)
        found.encode()  # cached, because slaves ask twice a second
        return found

    def encode(self) -> bytes:
        """Return users and policies as text, with passwords."""
        return self._text

    @cached_property
    def _text(self) -> bytes:
        users = [self.user_info(name) for name in self.users]
        content = _Content(users, [self.acl_info(name) for name in self.policies])
        return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"

    def user_info(self, name: str) -> UserInfo:
        """Return a user with the password, for a file or for another server."""
        user = self.users[name]
        return msgspec.structs.replace(user.info, password=user.password)

    # --- users

    def with_new_user(self, info: UserInfo, *, again: bool = False) -> Accounts:
        """Return a copy with one more user.

        The user is Normal and enabled unless ``info`` says otherwise. With ``again`` an equal
        existing user is no error.
        """
        if again and info.username in self.users and self.with_changed_user(info) == self:
            return self
        return self._with_user(_new_user(info, self.users))

    def with_changed_user(self, info: UserInfo) -> Accounts:
        """Return a copy in which an existing user has the values of ``info``."""
        old = self.users.get(info.username or "")
        if old is None:
            raise ConfigError(f"The user is not exist: {info.username}")
        return self._with_user(_changed(old, info))

    def without_user(self, name: str) -> Accounts:
        """Return a copy without this user and their policies. An unknown user is no error."""
        return Accounts(_without(self.users, name), _without(self.policies, name))

    def _with_user(self, user: User) -> Accounts:
        return replace(self, users={**self.users, user.name: user})

    def with_more(self, others: Accounts) -> Accounts:
        """Return a copy with additional users: those of ``others`` that are missing here, with
        their policies."""
        new = [name for name in others.users if name not in self.users]
        return Accounts(
            {**self.users, **{name: others.users[name] for name in new}},
            {
                **self.policies,
                **{name: others.policies[name] for name in new if name in others.policies},
            },
        )

    # --- policies

    def acl_infos(
        self, subject: str = "", resource: str = "", *, exact: bool = False
    ) -> list[AclInfo]:
        """Search the policies by subject and resource. Each must contain the given text.

        With ``exact`` the subject must be equal.
        """
        found = []
        for name in self.policies:
            of = SUBJECT + name
            if of != subject if exact else subject not in of:
                continue
            acl = self.acl_info(name)
            for policy in acl.policies or ():
                entries = policy.entries or []
                policy.entries = [one for one in entries if resource in (one.resource or "")]
            acl.policies = [policy for policy in acl.policies or () if policy.entries]
            if acl.policies:
                found.append(acl)
        return found

    def acl_info(self, name: str) -> AclInfo:
        """Return the policies of a user, as other users may see them."""
        mine = self.policies.get(name, Policies())
        policies = [
            PolicyInfo(policy_type=type_.value, entries=[_entry_info(entry) for entry in entries])
            for type_, entries in mine.by_type()
            if entries
        ]
        return AclInfo(subject=SUBJECT + name, policies=policies)

    def with_acl(self, info: AclInfo) -> Accounts:
        """Return a copy with more policies for an existing user.

        A new entry replaces an entry for the same resource. The first policies of a user are stored
        unchanged.
        """
        name = _user_name(info.subject)
        if name not in self.users:
            raise ConfigError(f"The subject of {info.subject} is not exist: create the user first")
        return self.with_policies(name, _merged(self.policies.get(name), info))

    def without_acl(
        self,
        subject: str | None,
        policy_type: str | None = None,
        resource: str | None = None,
        *,
        again: bool = False,
    ) -> Accounts:
        """Return a copy without some or all policies of a subject.

        With ``resource``, only the entry for that resource is removed, from the policy of this type
        (None means Custom). With ``again`` missing policies are no error.
        """
        name = _user_name(subject)
        mine = self.policies.get(name)
        if mine is None:
            if again:
                return self
            raise ConfigError(f"The acl is not exist: {subject} has no policy")
        if not resource:
            return replace(self, policies=_without(self.policies, name))
        type_ = one_of(PolicyType, policy_type or PolicyType.CUSTOM, "policy type")
        return self.with_policies(name, mine.without_entry(type_, Resource.parse(resource)))

    def with_policies(self, name: str, policies: Policies) -> Accounts:
        """Return a copy in which an existing user has ``policies`` instead of the previous ones."""
        if not policies.custom and not policies.default:
            return replace(self, policies=_without(self.policies, name))
        return replace(self, policies={**self.policies, name: policies})


def name_fault(name: str) -> str | None:
    """Return the reason why a user name is invalid, or None."""
    if not name.strip():
        return "username can not be blank"
    if len(name) > NAME_SIZE_MAX or not is_unicode(name) or not name.isprintable():
        return (
            f"{name[:80]!r} is not a user name: expected up to {NAME_SIZE_MAX} printable characters"
        )
    return None


def _new_user(info: UserInfo, others: Mapping[str, User]) -> User:
    name = info.username or ""
    password = info.password or ""
    fault = name_fault(name)
    if fault is not None:
        raise ConfigError(fault)
    if name in others:
        raise ConfigError(f"The user is existed: {name}; update changes them")
    if not password.strip():
        raise ConfigError(
            f"password can not be blank: the user {name} needs one. Servers never show "
            "passwords, so copyUser cannot copy them: use `turbopump auth export` on the "
            "machine of a server that has the user"
        )
    return _changed(User(name, password), info)


def _merged(mine: Policies | None, info: AclInfo) -> Policies:
    """Return a user's policies, extended with those of ``info``.

    ``mine`` is None if the user has no policies yet.
    """
    if not info.policies:
        raise ConfigError(f"The policies is empty: {info.subject} needs entries")
    merged = mine or Policies()
    for policy in info.policies:
        type_ = one_of(PolicyType, policy.policy_type or PolicyType.CUSTOM, "policy type")
        entries = [_entry(entry) for entry in policy.entries or ()]
        merged = merged.with_entries(type_, entries, append=mine is None)
    return merged


def _changed(user: User, info: UserInfo) -> User:
    if info.password is not None and info.password.strip():
        user = replace(user, password=info.password)
    if not is_unicode(user.password):
        raise ConfigError(f"the password of {user.name} is not valid Unicode")
    if info.user_type is not None:
        user = replace(user, is_super=_is(info.user_type, SUPER, NORMAL, "userType"))
    if info.user_status is not None:
        user = replace(user, enabled=_is(info.user_status, ENABLED, DISABLED, "userStatus"))
    return user


def _is(text: str, yes: str, no: str, what: str) -> bool:
    if text.lower() not in (yes.lower(), no.lower()):
        raise ConfigError(f"{what}={text[:80]}: expected {yes} or {no}")
    return text.lower() == yes.lower()


def _user_name(subject: str | None) -> str:
    if subject is None or not subject.startswith(SUBJECT) or subject == SUBJECT:
        raise ConfigError(f"{subject!r:.80} is not a subject: expected User:NAME")
    return subject.removeprefix(SUBJECT)


def _without(table: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in table.items() if key != name}


def _entry(info: PolicyEntryInfo) -> Entry:
    return Entry(
        Resource.parse(info.resource or ""),
        actions_of(info.actions or ()),
        one_of(Decision, info.decision or "", "decision"),
        tuple(info.source_ips or ()),
    )


def _entry_info(entry: Entry) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=str(entry.resource),
        actions=[action.value for action in entry.actions_in_order],
        source_ips=list(entry.sources) or None,
        decision=entry.decision.value,
    )
