"""Members of one consumer group that cannot get along: they subscribe differently, or two of them have one client id.

Values in, sentences out. One rule: a connection that has died and is not closed yet is no second client: both must have sent heartbeats
since the younger of the two came. Who only pulls (``CONSUME_ACTIVELY``) may read what he likes, and broadcasting clients are all named
alike: neither is a conflict, as for apache/rocketmq ``ConsumerRunningInfo.analyzeSubscription``, which asks the clients instead.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from turbopump.broker.consumers import ConsumerGroup, Member, Wants
from turbopump.protocol.bodies.heartbeat import ConsumeType, MessageModel

SHOWN_MAX: Final = 3
"""So many clients, and so many kinds of subscriptions, are named; the others are counted."""

PeerT = TypeVar("PeerT", bound=Hashable)


def conflicts(group: ConsumerGroup[PeerT]) -> tuple[str, ...]:
    """What is wrong among the members, a sentence each."""
    if len(group.members) < 2 or group.consume_type is ConsumeType.CONSUME_ACTIVELY:
        return ()
    found = [_different(group)]
    if group.message_model is not MessageModel.BROADCASTING:
        found += _same_ids(group)
    return tuple(sentence for sentence in found if sentence)


def _different(group: ConsumerGroup[PeerT]) -> str:
    youngest = {member.client_id: member for member in sorted(group.members.values(), key=lambda member: member.since)}
    by_wants: dict[Wants, list[str]] = {}
    for member in youngest.values():
        by_wants.setdefault(member.wants, []).append(member.client_id)
    if len(by_wants) < 2:
        return ""
    common = frozenset.intersection(*by_wants)
    kinds = [f"{_listed(ids)} {_told(wants - common)}" for wants, ids in by_wants.items()]
    return (
        f"consumers of group {group.name} subscribe differently, so messages are missed: {_listed(kinds, '; ')}; make them alike, "
        "or give them groups of their own"
    )


def _same_ids(group: ConsumerGroup[PeerT]) -> list[str]:
    by_id: dict[str, list[Member]] = {}
    for member in group.members.values():
        by_id.setdefault(member.client_id, []).append(member)
    return [
        f"client id {client_id} is used by {len(members)} consumers of group {group.name}, which get the same queues; give each an "
        "instance name of its own"
        for client_id, members in by_id.items()
        if len(members) > 1 and _all_alive(members)
    ]


def _all_alive(members: list[Member]) -> bool:
    youngest = max(member.since for member in members)
    return all(member.seen > youngest or member.since == youngest for member in members)


def _told(wants: Wants) -> str:
    topics = [f"{topic} ({expression})" for topic, _, expression in sorted(wants)]
    return f"to {_listed(topics)}" if topics else "to nothing else"


def _listed(names: list[str], separator: str = ", ") -> str:
    more = len(names) - SHOWN_MAX
    return separator.join(names[:SHOWN_MAX]) + (f"{separator}and {more} more" if more > 0 else "")
