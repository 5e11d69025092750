"""Members of one consumer group that cannot get along: they subscribe or consume differently, or
two of them have one client id.

Values in, sentences out. One rule: a connection that has died and is not closed yet is no second
client: both must have sent heartbeats since the younger of the two came. What a member has not said
is never held against it. Who only pulls (``CONSUME_ACTIVELY``) may read what he likes, and
broadcasting clients are all named alike: neither is a conflict, as for apache/rocketmq
``ConsumerRunningInfo.analyzeSubscription``, which asks the clients instead. Apache's brokers
compare nothing: ``ConsumerGroupInfo.updateChannel`` takes over what the last heartbeat said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final, TypeVar

from turbopump.broker.consumers import Member, Wants
from turbopump.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel

SHOWN_MAX: Final = 3
"""So many clients, and so many kinds of subscriptions, are named; the others are counted."""

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


def conflicts(
    group: str, members: Collection[Member], pops: Callable[[str], bool] = _no
) -> tuple[str, ...]:
    """What is wrong among the members of ``group``, a sentence each. ``pops``: whether push
    consumers may be popping a topic, since the broker tells those that ask for their share to."""
    if len(members) < 2:
        return ()
    sharing = [
        member for member in members if member.told.message_model is not MessageModel.BROADCASTING
    ]
    young = list(
        {
            member.client_id: member for member in sorted(members, key=lambda member: member.since)
        }.values()
    )
    found = () if len({member.told for member in young}) == 1 else _differences(young, pops)
    return (
        *(
            f"consumers of group {group} {what}; make them alike, or give them groups of their own"
            for what in found
            if what
        ),
        *_same_ids(group, sharing),
    )


def _differences(members: list[Member], pops: Callable[[str], bool]) -> tuple[str, ...]:
    sharing = [
        member for member in members if member.told.message_model is not MessageModel.BROADCASTING
    ]
    pushed = [
        member for member in sharing if member.told.consume_type is not ConsumeType.CONSUME_ACTIVELY
    ]
    if all(member.told.consume_type is not ConsumeType.CONSUME_POP for member in sharing):
        pops = _no
    return (
        _subscriptions(
            member
            for member in members
            if member.told.consume_type is not ConsumeType.CONSUME_ACTIVELY
        ),
        _differ(
            "are broadcasting and clustering, so those that are clustering miss messages",
            *(members, lambda member: member.told.message_model, MODELS),
        ),
        _differ(
            "fetch messages in different ways, so messages are missed or come twice",
            *(sharing, lambda member: _type(member, pops), TYPES),
        ),
        _differ(
            "are ordered and not, so no order holds", pushed, lambda member: member.ordered, ORDERS
        ),
        _differ(
            "begin at different places, which counts for queues in which the group has no place yet",
            *(pushed, lambda member: member.told.consume_from, BEGINNINGS),
        ),
    )


def _subscriptions(members: Iterable[Member]) -> str:
    by_wants: dict[Wants, list[str]] = {}
    for member in members:
        by_wants.setdefault(member.told.wants, []).append(member.client_id)
    if len(by_wants) < 2:
        return ""
    common = frozenset.intersection(*by_wants)
    kinds = [f"{_listed(sorted(ids))} {_topics(wants - common)}" for wants, ids in by_wants.items()]
    return f"subscribe differently, so messages are missed: {_listed(sorted(kinds), '; ')}"


def _differ(
    how: str,
    members: Iterable[Member],
    said: Callable[[Member], ValueT | None],
    names: dict[ValueT, str],
) -> str:
    by_value: dict[ValueT, list[str]] = {}
    for member in members:
        value = said(member)
        if value is not None:
            by_value.setdefault(value, []).append(member.client_id)
    if len(by_value) < 2:
        return ""
    return f"{how}: " + "; ".join(
        f"{_listed(sorted(ids))} {names[value]}" for value, ids in sorted(by_value.items())
    )


def _type(member: Member, pops: Callable[[str], bool]) -> ConsumeType | None:
    """A push consumer that asks the broker for its share is told by it to pull or to pop, and its
    heartbeat does not say that it asks."""
    told = member.told
    if told.consume_type is ConsumeType.CONSUME_PASSIVELY and any(
        pops(topic) for topic, _, _ in told.wants
    ):
        return None
    return told.consume_type


def _same_ids(group: str, members: Iterable[Member]) -> list[str]:
    by_id: dict[str, list[Member]] = {}
    for member in members:
        by_id.setdefault(member.client_id, []).append(member)
    return [
        f"client id {client_id} is used by {len(members)} consumers of group {group}, which get "
        "the same queues; give each an "
        "instance name of its own"
        for client_id, members in by_id.items()
        if len(members) > 1 and _all_alive(members)
    ]


def _all_alive(members: list[Member]) -> bool:
    youngest = max(member.since for member in members)
    return all(member.seen > youngest or member.since == youngest for member in members)


def _topics(wants: Wants) -> str:
    topics = [f"{topic} ({expression})" for topic, _, expression in sorted(wants)]
    return f"to {_listed(topics)}" if topics else "to nothing else"


def _listed(names: list[str], separator: str = ", ") -> str:
    more = len(names) - SHOWN_MAX
    return separator.join(names[:SHOWN_MAX]) + (f"{separator}and {more} more" if more > 0 else "")
