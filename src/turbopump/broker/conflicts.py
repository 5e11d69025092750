"""Search for conflicts in a consumer group, for example members with different subscriptions.

Two connected members with the same client id are also a conflict. A connection that has died but is
not closed yet does not count as a second member: both must have sent a heartbeat since the younger
one joined. Information that a member has not sent never makes a conflict. A client that only pulls
(``CONSUME_ACTIVELY``) may read any queue, and all broadcasting clients of a host have the same id.
Neither is a conflict, as for apache/rocketmq ``ConsumerRunningInfo.analyzeSubscription``, which
asks the clients instead. Apache's brokers compare nothing: ``ConsumerGroupInfo.updateChannel``
keeps the contents of the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final, TypeVar

from turbopump.broker.client_table import Member
from turbopump.protocol.requests.clients import ConsumeFromWhere, ConsumeType, MessageModel

SHOWN_MAX: Final = 3
"""Maximum number of clients, and of different subscriptions, that a conflict names. The others are
only counted."""

MODELS: Final = {MessageModel.BROADCASTING: "broadcasting", MessageModel.CLUSTERING: "clustering"}
TYPES: Final = {
    ConsumeType.CONSUME_PASSIVELY: "by push",
    ConsumeType.CONSUME_ACTIVELY: "by pull",
    ConsumeType.CONSUME_POP: "by pop",
}
BEGINNINGS: Final = {
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET: "from the first message",
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET: "from the last",
    ConsumeFromWhere.CONSUME_FROM_TIMESTAMP: "from a time",
}
ORDERS: Final = {True: "in order", False: "not in order"}

ValueT = TypeVar("ValueT", bound=Hashable)


def _no(_topic: str) -> bool:
    return False


def find_conflicts(
    group: str, members: Collection[Member], pops: Callable[[str], bool] = _no
) -> tuple[str, ...]:
    """Return the conflicts among the members of a consumer group, as one sentence each.

    ``pops`` returns True for a topic if the broker may tell push consumers to pop its messages
    instead of pulling them.
    """
    if len(members) < 2:
        return ()
    by_age = sorted(members, key=lambda member: member.since)
    youngest = list({member.client_id: member for member in by_age}.values())
    differ = len({member.info for member in youngest}) > 1
    return (
        *(
            (
                f"consumers of group {group} {what}; use the same settings for all, or "
                "another group for some"
            )
            for what in (_differences(youngest, pops) if differ else ())
            if what
        ),
        *_same_ids(group, [member for member in members if member.shares]),
    )


def _differences(members: list[Member], pops: Callable[[str], bool]) -> tuple[str, ...]:
    sharing = [member for member in members if member.shares]
    pushed = [member for member in sharing if member.pushed]
    if all(member.info.consume_type is not ConsumeType.CONSUME_POP for member in sharing):
        pops = _no
    models = _by_value(members, lambda member: member.info.message_model)
    types = _by_value(sharing, lambda member: _type(member, pops))
    orders = _by_value(pushed, lambda member: member.ordered)
    beginnings = _by_value(pushed, lambda member: member.info.consume_from)
    return (
        _subscriptions(member for member in members if member.pushed),
        _differ(
            "are broadcasting and clustering, so those that are clustering miss messages",
            models,
            MODELS,
        ),
        _differ(
            "fetch messages in different ways, so messages are missed or consumed twice",
            types,
            TYPES,
        ),
        _differ("are ordered and not, so no order holds", orders, ORDERS),
        _differ(
            "begin at different offsets, which counts for queues in which the group has no offset "
            "yet",
            beginnings,
            BEGINNINGS,
        ),
    )


def _by_value(
    members: Iterable[Member], said: Callable[[Member], ValueT | None]
) -> dict[ValueT, list[str]]:
    """For each value that ``said`` returns, return the client ids of its members. A member with the
    value None is left out."""
    ids: dict[ValueT, list[str]] = {}
    for member in members:
        value = said(member)
        if value is not None:
            ids.setdefault(value, []).append(member.client_id)
    return ids


def _subscriptions(members: Iterable[Member]) -> str:
    by_wants = _by_value(members, lambda member: member.info.wants)
    if len(by_wants) < 2:
        return ""
    common = frozenset.intersection(*map(frozenset, by_wants))
    kinds = [
        f"{_listed(sorted(ids))} {_topics(one for one in wants if one not in common)}"
        for wants, ids in by_wants.items()
    ]
    return f"subscribe differently, so messages are missed: {_listed(sorted(kinds), '; ')}"


def _differ(how: str, by_value: dict[ValueT, list[str]], names: dict[ValueT, str]) -> str:
    if len(by_value) < 2:
        return ""
    return f"{how}: " + "; ".join(
        f"{_listed(sorted(ids))} {names[value]}" for value, ids in sorted(by_value.items())
    )


def _type(member: Member, pops: Callable[[str], bool]) -> ConsumeType | None:
    """Return the consume type of a member. Return None if its heartbeat does not show the type.

    A push consumer that asks the broker for its queues may pull or pop.
    """
    kind = member.info.consume_type
    asks = any(pops(topic) for topic, _, _ in member.info.wants)
    if kind is ConsumeType.CONSUME_PASSIVELY and asks:
        return None
    return kind


def _same_ids(group: str, members: Iterable[Member]) -> list[str]:
    by_id: dict[str, list[Member]] = {}
    for member in members:
        by_id.setdefault(member.client_id, []).append(member)
    return [
        (
            f"client id {client_id} is used by {len(members)} consumers of group {group}, "
            "which therefore get the same queues; give each another instance name"
        )
        for client_id, members in by_id.items()
        if len(members) > 1 and _all_alive(members)
    ]


def _all_alive(members: list[Member]) -> bool:
    youngest = max(member.since for member in members)
    return all(member.seen > youngest or member.since == youngest for member in members)


def _topics(wants: Iterable[tuple[str, str, str]]) -> str:
    topics = [f"{topic} ({expression})" for topic, _, expression in wants]
    if topics:
        return f"to {_listed(topics)}"
    return "to nothing else"


def _listed(names: list[str], separator: str = ", ") -> str:
    more = len(names) - SHOWN_MAX
    return separator.join(names[:SHOWN_MAX]) + (f"{separator}and {more} more" if more > 0 else "")
