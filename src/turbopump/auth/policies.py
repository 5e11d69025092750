"""Policies of users. For a request, one entry of the policies decides about each resource.

An entry allows or denies some actions on a resource, perhaps only from some addresses. A question
names one resource and one or several actions, of which any one is enough. The decision::

    Use the entries of the Custom policy that match resource, action and address; if there are
    none, those of the Default policy; if there are none, deny.
    Of several entries the first in this order decides: a literal name, a longer prefix, a shorter
    prefix, ``Topic:*``, ``*``; for the same resource Deny before Allow.

    A broker's own topics can be allowed by a literal name only: they contain messages of other
    topics, which ``Topic:*`` would otherwise give out despite a Deny for one of those topics.

RocketMQ has no such rule for a broker's own topics, and has the other rules since 5.4.0. Up to
5.3.3 ``Topic:*`` comes before a literal name, a shorter prefix before a longer one, and Allow
before Deny (apache/rocketmq #9539).

Source: apache/rocketmq ``AclAuthorizationHandler``, ``Resource``, ``PolicyEntry``,
``IPAddressUtils``. Requests are unknown here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from turbopump.errors import ConfigError
from turbopump.message.rules import is_brokers_own

EnumT = TypeVar("EnumT", bound=StrEnum)


class ResourceType(StrEnum):
    """Types of the resources that policies protect."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    """Pattern of names in a policy's resource. The kinds are in order of precedence.

    The kinds are one name, a prefix, and all names.
    """

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"
    ANY = "ANY"


class Action(StrEnum):
    """Actions on a resource.

    In a policy, ``ALL`` means every action. In a question, ``ANY`` means that any action is enough.
    """

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    """Decision of a policy's entry about a request."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """Types of policies. ``DEFAULT`` applies if no entry of ``CUSTOM`` matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class Resource:
    """Resource: in a request, one topic, group or cluster; in a policy, one of them or many."""

    type: ResourceType
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Parse the text of a resource, such as ``Topic:orders`` or ``Group:billing-*``.

        ``Topic:*`` means all topics, and ``*`` all resources. Raises ConfigError for other text.
        """
        if text == "*":
            return cls(ResourceType.ANY, "", Pattern.ANY)
        kind, colon, name = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError(
                f"{text[:80]!r} is not a resource: expected Topic:NAME, Group:NAME or "
                "Cluster:NAME, with * at the end for a prefix, or * for all"
            )
        type_ = one_of(ResourceType, kind, "resource type")
        if name == "*":
            return cls(type_, "", Pattern.ANY)
        # RocketMQ: text after the first * is ignored.
        if name.endswith("*"):
            return cls(type_, name[: name.index("*")], Pattern.PREFIXED)
        return cls(type_, name)

    def __str__(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        if self.pattern is Pattern.LITERAL:
            return f"{self.type}:{self.name}"
        return f"{self.type}:{self.name}*"

    def matches(self, asked: Resource) -> bool:
        """Return True if this resource of a policy matches the resource in question."""
        if self.type is not asked.type:
            return self.type is ResourceType.ANY
        if self.pattern is Pattern.LITERAL:
            return self.name == asked.name
        return self.pattern is Pattern.ANY or asked.name.startswith(self.name)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key of a matching resource. The most specific resource has the smallest key."""
        return (
            self.type is ResourceType.ANY,
            _RANKS[self.pattern],
            -len(self.name) if self.pattern is Pattern.PREFIXED else 0,
        )


_RANKS = {pattern: rank for rank, pattern in enumerate(Pattern)}


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a policy. It allows or denies actions on one resource.

    ``sources`` has addresses and CIDR ranges. An empty tuple means all addresses.
    """

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    sources: tuple[str, ...] = ()
    _ranges: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ConfigError for actions or addresses that no policy may have."""
        if not self.actions or Action.ANY in self.actions:
            raise ConfigError(
                f"the entry for {self.resource} needs actions other than Any: All, Pub, "
                "Sub, Create, Update, Delete, Get or List"
            )
        object.__setattr__(self, "_ranges", tuple(map(_address_range, self.sources)))

    def matches(self, asked: Resource, actions: Sequence[Action], source: str) -> bool:
        """Return True if the entry decides about one of these actions on the resource.

        ``source`` is the address of the requester.
        """
        return (
            self.resource.matches(asked)
            and (
                Action.ALL in self.actions
                or Action.ANY in actions
                or not self.actions.isdisjoint(actions)
            )
            and (not self._ranges or self._is_from(source))
        )

    def _is_from(self, source: str) -> bool:
        address = _address(source)
        return address is not None and any(low <= address[0] <= high for low, high in self._ranges)

    @property
    def allows_many(self) -> bool:
        """True if the entry allows an action on more than one name."""
        return self.decision is Decision.ALLOW and self.resource.pattern is not Pattern.LITERAL

    @property
    def actions_in_order(self) -> list[Action]:
        return [action for action in Action if action in self.actions]

    def __str__(self) -> str:
        actions = ",".join(self.actions_in_order)
        text = f"{self.decision} {actions} on {self.resource}"
        if self.sources:
            text += f" from {','.join(self.sources)}"
        return text


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies of one user.

    ``custom`` and ``default`` keep the order in which entries were added.
    """

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()
    _tables: tuple[tuple[PolicyType, _Table], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tables = tuple((type_, _Table(entries)) for type_, entries in self.by_type())
        object.__setattr__(self, "_tables", tables)

    def find_entry(
        self, asked: Resource, actions: Sequence[Action], source: str
    ) -> tuple[PolicyType, Entry] | None:
        """Find the entry that decides about a request. Return its policy type and the entry, or
        None for deny."""
        kept = asked.type is ResourceType.TOPIC and is_brokers_own(asked.name)
        for type_, table in self._tables:
            for entries in table.entries_for(asked):
                matching = [
                    entry
                    for entry in entries
                    if entry.matches(asked, actions, source) and not (kept and entry.allows_many)
                ]
                if matching:
                    return type_, min(matching, key=_order)
        return None

    def allow_somewhere(self, type_: ResourceType, action: Action, source: str) -> bool:
        """Return True if an entry allows an action on some resource of this type."""
        return any(
            entry.decision is Decision.ALLOW
            and entry.matches(replace(entry.resource, type=type_), (action,), source)
            for entry in (*self.custom, *self.default)
            if entry.resource.type in (type_, ResourceType.ANY)
        )

    def by_type(self) -> tuple[tuple[PolicyType, tuple[Entry, ...]], ...]:
        """Return the Custom and the Default policy, in order of precedence."""
        return (PolicyType.CUSTOM, self.custom), (PolicyType.DEFAULT, self.default)

    def with_entries(
        self, type_: PolicyType, entries: Iterable[Entry], *, append: bool = False
    ) -> Policies:
        """Return a copy with more entries in the policy of one type.

        A new entry replaces the first one for the same resource, unless ``append`` is set. Raises
        ConfigError if there are no entries.
        """
        made = list(dict(self.by_type())[type_])
        more = list(entries)
        if not more:
            raise ConfigError(f"The policy entries is empty: the {type_} policy needs some")
        for entry in more:
            same = [at for at, old in enumerate(made) if old.resource == entry.resource]
            if same and not append:
                made[same[0]] = entry
            else:
                made.append(entry)
        return self._with_policy(type_, made)

    def without_entry(self, type_: PolicyType, resource: Resource) -> Policies:
        """Return a copy without the first entry for a resource. A missing entry is no error."""
        made = list(dict(self.by_type())[type_])
        for at, entry in enumerate(made):
            if entry.resource == resource:
                del made[at]
                break
        return self._with_policy(type_, made)

    def _with_policy(self, type_: PolicyType, entries: Iterable[Entry]) -> Policies:
        made = tuple(entries)
        if type_ is PolicyType.CUSTOM:
            return replace(self, custom=made)
        return replace(self, default=made)


class _Table:
    """Table of entries, with an index of literal names.

    A user may have thousands of entries, and each request would otherwise search all of them. A
    literal name comes before all others.
    """

    __slots__ = ("_literal", "_others")

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._literal: dict[Resource, list[Entry]] = {}
        self._others: list[Entry] = []
        for entry in entries:
            resource = entry.resource
            if resource.pattern is Pattern.LITERAL and resource.type is not ResourceType.ANY:
                self._literal.setdefault(resource, []).append(entry)
            else:
                self._others.append(entry)

    def entries_for(self, asked: Resource) -> tuple[Sequence[Entry], Sequence[Entry]]:
        """Return the entries that may match the resource, the most specific first."""
        return self._literal.get(asked, ()), self._others


def _order(entry: Entry) -> tuple[tuple[bool, int, int], bool]:
    return entry.resource.rank, entry.decision is Decision.ALLOW


def one_of(kind: type[EnumT], text: str, what: str) -> EnumT:
    """Return the member of an enumeration with this value, ignoring case.

    Raises ConfigError if there is no such member.
    """
    for member in kind:
        if member.value.lower() == text.lower():
            return member
    known = ", ".join(member.value for member in kind)
    raise ConfigError(f"{text[:80]!r} is not a valid {what}: expected one of {known}")


def actions_of(texts: Iterable[str]) -> frozenset[Action]:
    """Return the actions with these names.

    Raises ConfigError for an unknown name.
    """
    return frozenset(one_of(Action, text, "action") for text in texts)


# --- Addresses. RocketMQ compares them as numbers, whatever their family: 10.0.0.1 is in ::/0, too.


@lru_cache(maxsize=1024)
def _address(text: str) -> tuple[int, int] | None:
    """Convert an IP address to a number and its number of bits. Return None for other text.

    An IPv4 address mapped into IPv6 becomes IPv4.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return int(address), address.max_prefixlen


def _address_range(text: str) -> tuple[int, int]:
    """Return the first and the last address of a CIDR range, as numbers.

    For a single address, both are that address. Raises ConfigError for other text.
    """
    head, slash, tail = text.partition("/")
    address = _address(head)
    if address is not None:
        number, bits = address
        if not slash:
            return number, number
        if tail.isascii() and tail.isdigit() and len(tail) <= 3 and int(tail) <= bits:
            rest = (1 << (bits - int(tail))) - 1
            return number & ~rest, number | rest
    raise ConfigError(
        f"{text[:80]!r} is not a source address: expected 10.0.0.1, 10.0.0.0/8 or the same in IPv6"
    )
