"""Who is connected: consumers by group with their subscriptions, producers by group. Learnt from heartbeats, forgotten when a client
unregisters, its connection ends, or it stays silent.

Source: apache/rocketmq ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``. It knows connections only as keys; telling
a group's members that it has changed is the caller's, who gets True from what changes one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from turbopump.filtering.tag import code_filter, parse_tags, tag_codes
from turbopump.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel, SubscriptionData

PeerT = TypeVar("PeerT", bound=Hashable)


@dataclass(slots=True)
class Subscription:
    """What a group wants of one topic; ``codes`` empty: everything."""

    data: SubscriptionData
    codes: frozenset[int]

    @property
    def accept(self) -> object:
        return code_filter(self.codes)


@dataclass(slots=True)
class Member:
    """One client in a group. ``seen`` on the monotonic clock, seconds."""

    client_id: str
    version: int
    seen: float


@dataclass(slots=True)
class ConsumerGroup(Generic[PeerT]):
    """A group while it has members."""

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[PeerT, Member] = field(default_factory=dict)
    fingerprint: int = 0


class ClientTable(Generic[PeerT]):
    """Every known client, by connection."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup[PeerT]] = {}
        self.producers: dict[str, dict[PeerT, Member]] = {}

    def add_consumer(self, peer: PeerT, client_id: str, version: int, data: ConsumerData, now: float) -> bool:
        """Note a heartbeat of a consumer; True if the group's members or subscriptions have changed by it.

        Raises ValueError for a tag expression that cannot be read.
        """
        assert data.group_name is not None
        subscriptions = {
            subscription.topic: read_subscription(subscription)
            for subscription in data.subscription_data_set
            if subscription.topic
        }
        group = self.groups.setdefault(data.group_name, ConsumerGroup(data.group_name))
        changed = self._note_member(group, peer, client_id, version, now)
        group.consume_type = data.consume_type or group.consume_type
        group.message_model = data.message_model or group.message_model
        for topic, new in subscriptions.items():
            old = group.subscriptions.get(topic)
            if old is None:
                changed = True
            if old is None or new.data.sub_version > old.data.sub_version:
                group.subscriptions[topic] = new
        for topic in [topic for topic in group.subscriptions if topic not in subscriptions]:
            del group.subscriptions[topic]
            changed = True
        return changed

    def keep_consumer(self, peer: PeerT, client_id: str, version: int, group_name: str, now: float) -> bool:
        """Note a heartbeat that repeats no subscriptions; True if the group's members have changed by it."""
        group = self.groups.setdefault(group_name, ConsumerGroup(group_name))
        return self._note_member(group, peer, client_id, version, now)

    def add_producer(self, peer: PeerT, client_id: str, version: int, group: str, now: float) -> None:
        self.producers.setdefault(group, {})[peer] = Member(client_id, version, now)

    def remove_consumer(self, peer: PeerT, group_name: str) -> bool:
        """True if the peer was a member."""
        group = self.groups.get(group_name)
        if group is None or group.members.pop(peer, None) is None:
            return False
        if not group.members:
            del self.groups[group_name]
        return True

    def remove_producer(self, peer: PeerT, group: str) -> None:
        members = self.producers.get(group)
        if members is not None and members.pop(peer, None) is not None and not members:
            del self.producers[group]

    def remove_peer(self, peer: PeerT) -> list[str]:
        """Forget a connection; the consumer groups that it leaves."""
        for group in [name for name, members in self.producers.items() if peer in members]:
            self.remove_producer(peer, group)
        return [name for name in list(self.groups) if self.remove_consumer(peer, name)]

    def silent_since(self, before: float) -> list[PeerT]:
        """Connections whose clients have not sent a heartbeat since ``before`` (monotonic seconds)."""
        members: list[tuple[PeerT, Member]] = [item for group in self.groups.values() for item in group.members.items()]
        members += [item for producers in self.producers.values() for item in producers.items()]
        return list(dict.fromkeys(peer for peer, member in members if member.seen < before))

    def client_ids(self, group_name: str) -> list[str]:
        """The ids of a group's members, each once."""
        group = self.groups.get(group_name)
        return list(dict.fromkeys(member.client_id for member in group.members.values())) if group else []

    def members(self, group_name: str) -> Iterable[PeerT]:
        group = self.groups.get(group_name)
        return list(group.members) if group else []

    def _note_member(self, group: ConsumerGroup[PeerT], peer: PeerT, client_id: str, version: int, now: float) -> bool:
        member = group.members.get(peer)
        group.members[peer] = Member(client_id, version, now)
        return member is None or member.client_id != client_id


def read_subscription(data: SubscriptionData) -> Subscription:
    """A subscription with its tag codes. C++ clients send no codes: they are made from the tags or the expression."""
    if data.expression_type not in (None, "", "TAG"):
        return Subscription(data, frozenset())
    tags = frozenset(data.tags_set) or parse_tags(data.sub_string)
    return Subscription(data, tag_codes(tags) | frozenset(data.code_set))
