"""Table of the connected consumers and producers, by group.

Heartbeats add clients. Clients are removed when they unregister, when their connection ends, or
when they are silent for too long.

A connection is only a key in this module. A method that changes a group returns True, and its
caller then notifies the members. Objects that exist in thousands are in no reference cycle and have
``gc=False``, so that Python's collector, which blocks the event loop, does not scan them.

Source: apache/rocketmq ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from turbopump.broker.subscriptions import SubscriptionFilter, Wants, subscription_keys
from turbopump.protocol.requests.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)

LOCKS_TELL_S: Final = 60.0
"""Seconds for which a member counts as ordered after a lock request. Clients renew their locks
every 20 s."""

DEPRECATED_BEGINNINGS: Final = frozenset(
    {
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST,
        ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET,
        ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET,
    }
)
"""Values that mean the last offset, as in apache/rocketmq
``RebalancePushImpl.computePullFromWhere``."""

PeerT = TypeVar("PeerT", bound=Hashable)
KeyT = TypeVar("KeyT", bound=Hashable)


class MemberInfo(msgspec.Struct, frozen=True, gc=False):
    """Information about a consumer, from its own heartbeat. An unknown field is None.

    - ``wants``: the subscriptions.
    - ``consume_from``: where to begin in a new queue. Always None for pull consumers, because
      Java's lite pull consumer always sends "last".
    - ``ordered``: True if the consumer consumes in order. Only our clients send this field.
    """

    wants: Wants = ()
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from: ConsumeFromWhere | None = None
    ordered: bool | None = None


class Member(msgspec.Struct, gc=False):
    """One client in a group.

    - ``seen`` and ``since``: the time of the last and of the first heartbeat, in monotonic seconds.
    - ``language``: the number of the client's language (``LanguageCode``).
    - ``info``: the information from a heartbeat with this ``fingerprint`` (0 if none was sent).
    - ``retries_max``: the client's own maximum of retries, or None if not sent.
    - ``started_at``: the start time of the client, in ms since 1970.
    - ``locking``: the time of the last lock request, in monotonic seconds, or None."""

    client_id: str
    version: int
    seen: float
    language: int = 0
    since: float = 0.0
    info: MemberInfo = MemberInfo()
    fingerprint: int = 0
    retries_max: int | None = None
    started_at: int = 0
    locking: float | None = None

    @property
    def ordered(self) -> bool | None:
        """True if the member consumes in order. None if that is unknown.

        A recent lock request shows that a member consumes in order. A member without lock requests
        may also have no queue.
        """
        locks = self.locking is not None and self.seen - self.locking < LOCKS_TELL_S
        if self.info.ordered is None and locks:
            return True
        return self.info.ordered

    @property
    def shares(self) -> bool:
        """False for a broadcasting member, which gets every message instead of a share."""
        return self.info.message_model is not MessageModel.BROADCASTING

    @property
    def pushed(self) -> bool:
        """True for a push consumer, whose client library fetches the messages."""
        return self.info.consume_type is not ConsumeType.CONSUME_ACTIVELY


class ConsumerGroup(msgspec.Struct, Generic[PeerT], gc=False):
    """A consumer group that has connected members.

    A join costs the same in a group of two and in a group of thousands.
    """

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: dict[str, SubscriptionFilter] = {}
    members: dict[PeerT, Member] = {}
    fingerprint: int = 0
    id_list: bytes = b""
    """Client ids, encoded as the body of an answer. Empty after a change."""
    sorted_ids: tuple[str, ...] = ()
    """Client ids in sorted order. Empty after a change."""
    _said: dict[MemberInfo, int] = {}
    _ids: dict[str, int] = {}
    """Number of members with each client id. ``_said`` has the number of members with each
    information."""

    @property
    def alike(self) -> bool:
        """True if all members sent the same information and no two share a client id."""
        return len(self._said) < 2 and len(self._ids) == len(self.members)

    def join(self, peer: PeerT, member: Member) -> None:
        self.leave(peer)
        self.members[peer] = member
        _count(self._said, member.info, 1)
        _count(self._ids, member.client_id, 1)

    def leave(self, peer: PeerT) -> bool:
        """Remove a connection from the group. Return False if the connection was no member."""
        member = self.members.pop(peer, None)
        self.id_list = b""
        self.sorted_ids = ()
        if member is None:
            return False
        _count(self._said, member.info, -1)
        _count(self._ids, member.client_id, -1)
        return True

    def describe(self, member: Member, info: MemberInfo) -> None:
        """Store the information that a member sent about itself."""
        if info != member.info:
            _count(self._said, member.info, -1)
            _count(self._said, info, 1)
        member.info = info


def _count(counts: dict[KeyT, int], key: KeyT, more: int) -> None:
    count = counts.pop(key, 0) + more
    if count:
        counts[key] = count


class ClientTable(Generic[PeerT]):
    """Table of all known consumers and producers, by group and connection."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup[PeerT]] = {}
        self.producers: dict[str, dict[PeerT, Member]] = {}
        self.producing: dict[str, PeerT] = {}
        """Connection of each producer, by client id. The connection is that of the last
        heartbeat."""
        self._consumes: dict[PeerT, dict[str, None]] = {}
        self._produces: dict[PeerT, dict[str, None]] = {}
        """Producer groups of each connection."""

    def add_consumer(
        self,
        peer: PeerT,
        client_id: str,
        version: int,
        data: ConsumerData,
        subscriptions: dict[str, SubscriptionFilter],
        now: float,
        language: int = 0,
        fingerprint: int = 0,
    ) -> bool:
        """Record a heartbeat of a consumer and its decoded subscriptions.

        Return True if the members or the subscriptions of the group have changed.
        """
        assert data.group_name is not None
        group = self.groups.setdefault(data.group_name, ConsumerGroup(data.group_name))
        member, changed = self._note_member(group, peer, client_id, version, now)
        member.language = language
        group.describe(member, member_info(data))
        member.fingerprint = group.fingerprint = fingerprint
        member.retries_max = data.max_reconsume_times
        member.started_at = data.started_at or 0
        group.consume_from_where = data.consume_from_where or group.consume_from_where
        group.consume_type = data.consume_type or group.consume_type
        group.message_model = data.message_model or group.message_model
        if subscriptions.keys() != group.subscriptions.keys():
            changed = True
        for topic, old in group.subscriptions.items():
            new = subscriptions.get(topic)
            if new is not None and new.data.sub_version <= old.data.sub_version:
                subscriptions[topic] = old
        group.subscriptions = subscriptions
        return changed

    def retries_max(self, group_name: str) -> int | None:
        """Return the number of retries before a message of a group becomes a dead letter.

        The number is that of the member that started last, among those that sent one. Return None
        if no member sent a number.
        """
        group = self.groups.get(group_name)
        members = group.members.values() if group is not None else ()
        telling = [member for member in members if member.retries_max is not None]
        if telling:
            return max(telling, key=lambda member: member.started_at).retries_max
        return None

    def keep_consumer(
        self,
        peer: PeerT,
        client_id: str,
        version: int,
        group_name: str,
        now: float,
        fingerprint: int,
    ) -> bool | None:
        """Record a heartbeat that repeats an earlier one with the same ``fingerprint``.

        Any member of the group may have sent the earlier heartbeat. Return True if the members of
        the group have changed. Return None if no member has this fingerprint, so that the client
        must send the full heartbeat.
        """
        group = self.groups.get(group_name)
        if group is None or group.fingerprint != fingerprint:
            return None
        twin = next(
            (member for member in group.members.values() if member.fingerprint == fingerprint), None
        )
        if twin is None:
            return None
        member, changed = self._note_member(group, peer, client_id, version, now)
        if member.fingerprint != fingerprint:
            group.describe(member, twin.info)
            member.fingerprint = fingerprint
            member.retries_max = twin.retries_max
            member.started_at = twin.started_at
        return changed

    def note_lock(self, peer: PeerT, client_id: str, group_name: str, now: float) -> None:
        """Record that a client has requested queue locks for a consumer group."""
        group = self.groups.get(group_name)
        member = group.members.get(peer) if group is not None else None
        if member is not None and member.client_id == client_id:
            member.locking = now

    def add_producer(
        self, peer: PeerT, client_id: str, version: int, group: str, now: float, language: int = 0
    ) -> None:
        members = self.producers.setdefault(group, {})
        before = members.get(peer)
        members[peer] = Member(client_id, version, now, language)
        self._produces.setdefault(peer, {})[group] = None
        self.producing[client_id] = peer
        if before is not None and before.client_id != client_id:
            self._forget_producing(before.client_id, peer)

    def find_producer(self, client_id: str) -> PeerT | None:
        """Return the connection of the producer with this client id, or None."""
        return self.producing.get(client_id)

    def remove_consumer(self, peer: PeerT, group_name: str) -> bool:
        """Remove a connection from a consumer group. Return False if the connection was no
        member."""
        group = self.groups.get(group_name)
        if group is None or not group.leave(peer):
            return False
        _forget(self._consumes, peer, group_name)
        if not group.members:
            del self.groups[group_name]
        return True

    def remove_producer(self, peer: PeerT, group: str) -> None:
        members = self.producers.get(group)
        left = None if members is None else members.pop(peer, None)
        if left is None:
            return
        _forget(self._produces, peer, group)
        if not members:
            del self.producers[group]
        self._forget_producing(left.client_id, peer)

    def _forget_producing(self, client_id: str, peer: PeerT) -> None:
        if self.producing.get(client_id) is not peer:
            return
        known = (self.producers[group][peer] for group in self._produces.get(peer, ()))
        if not any(member.client_id == client_id for member in known):
            del self.producing[client_id]

    def remove_peer(self, peer: PeerT) -> Iterator[str]:
        """Remove a connection from all groups, and yield the name of each consumer group.

        The generator removes one consumer group per iteration, so that the caller can pause between
        groups.
        """
        for group in list(self._produces.get(peer, ())):
            self.remove_producer(peer, group)
        for group in list(self._consumes.get(peer, ())):
            self.remove_consumer(peer, group)
            yield group

    def silent_since(self, before: float) -> list[PeerT]:
        """Return the connections whose last heartbeat came before ``before``, in monotonic
        seconds."""
        members: list[tuple[PeerT, Member]] = [
            item for group in self.groups.values() for item in group.members.items()
        ]
        members += [item for producers in self.producers.values() for item in producers.items()]
        return list(dict.fromkeys(peer for peer, member in members if member.seen < before))

    def client_ids(self, group_name: str) -> list[str]:
        """Return the client ids of the members of a consumer group, without duplicates."""
        group = self.groups.get(group_name)
        members = group.members.values() if group is not None else ()
        return list(dict.fromkeys(member.client_id for member in members))

    def sorted_ids(self, group_name: str) -> tuple[str, ...]:
        """Return the client ids of the members of a consumer group in sorted order, without
        duplicates."""
        group = self.groups.get(group_name)
        if group is None:
            return ()
        if not group.sorted_ids:
            group.sorted_ids = tuple(sorted(self.client_ids(group_name)))
        return group.sorted_ids

    def members(self, group_name: str) -> list[PeerT]:
        group = self.groups.get(group_name)
        if group is not None:
            return list(group.members)
        return []

    def find_consumer(self, group_name: str, client_id: str) -> PeerT | None:
        """Return the connection of the member with this client id, or None."""
        group = self.groups.get(group_name)
        members = group.members.items() if group is not None else ()
        return next((peer for peer, member in members if member.client_id == client_id), None)

    def subscribers(self, topic: str) -> list[str]:
        """Return the names of the consumer groups that subscribe to a topic now."""
        return [name for name, group in self.groups.items() if topic in group.subscriptions]

    def _note_member(
        self, group: ConsumerGroup[PeerT], peer: PeerT, client_id: str, version: int, now: float
    ) -> tuple[Member, bool]:
        """Record that a member was seen now. Return the member, and True for a new member."""
        member = group.members.get(peer)
        if member is None or member.client_id != client_id:
            member = Member(client_id, version, now, since=now)
            group.join(peer, member)
            self._consumes.setdefault(peer, {})[group.name] = None
            return member, True
        member.version = version
        member.seen = now
        return member, False


def _forget(groups: dict[PeerT, dict[str, None]], peer: PeerT, group: str) -> None:
    of_peer = groups[peer]
    del of_peer[group]
    if not of_peer:
        del groups[peer]


def member_info(data: ConsumerData) -> MemberInfo:
    """Extract the information about a consumer from its heartbeat."""
    consume_from = data.consume_from_where
    if data.consume_type is ConsumeType.CONSUME_ACTIVELY:
        consume_from = None
    elif consume_from in DEPRECATED_BEGINNINGS:
        consume_from = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    return MemberInfo(
        wants=subscription_keys(data.subscription_data_set),
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from=consume_from,
        ordered=data.ordered,
    )
