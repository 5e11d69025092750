"""Topic route: the queues of one topic, and the addresses of its brokers.

A route is a plain value, made from a name server's answer. The asyncio clients and Spark's blocking
client share the rules. The rules choose the queues for sends and reads, and the broker to read from
while a master is away. Connections are unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from turbopump import errors
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.namesrv import MASTER_ID, TopicRouteData

READABLE: Final = 4
WRITABLE: Final = 2
INHERITABLE: Final = 1
DEFAULT_TOPIC_QUEUES: Final = 4
"""Maximum number of queues per broker that a new topic gets from the default topic
(``defaultTopicQueueNums``)."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Queues of one topic, and the addresses of its brokers.

    - ``publish_queues``: queues that can be sent to.
    - ``subscribe_queues``: queues that can be read.
    - ``addresses``: ``host:port`` by broker name and broker id. Id 0 is the master.
    - ``inherited``: True if the topic does not exist yet. This is the route that the default
      topic would give to it.
    - ``heirs``: brokers on which a new topic may inherit from this one, each with the number
      of queues.
    - ``clusters``: names of the brokers' clusters.
    - ``masterless``: brokers that would take sends, but have no master now.
    - ``spread``: True if more than one broker has queues to send to.
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    inherited: bool = False
    heirs: Mapping[str, int] = field(default_factory=dict)
    clusters: frozenset[str] = frozenset()
    masterless: frozenset[str] = frozenset()
    spread: bool = field(init=False)

    def __post_init__(self) -> None:
        brokers = {queue.broker_name for queue in self.publish_queues}
        object.__setattr__(self, "spread", len(brokers) > 1)

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or None if there is no master now."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def lacks_master(self, broker_name: str | None = None) -> bool:
        """Return True if this broker would take sends, but has no master now.

        Without ``broker_name``, return True if nothing can be sent to the topic for that reason.
        """
        if broker_name is None:
            return bool(self.masterless) and not self.publish_queues
        return broker_name in self.masterless

    def readable_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return an address for reading the broker's queues, or None if no address is known.

        The address belongs to the member with this id, or else to any member. Source:
        apache/rocketmq ``findBrokerAddressInSubscribe``.
        """
        members = self.addresses.get(broker_name, {})
        return members.get(broker_id) or next(iter(members.values()), None)

    def every_address(self, *, slaves: bool) -> set[str]:
        """Return the addresses of all masters. With ``slaves``, also return those of all slaves."""
        return {
            address
            for members in self.addresses.values()
            for id_, address in members.items()
            if slaves or id_ == MASTER_ID
        }


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Convert the answer of a name server to a route.

    Raises BodyError if a number is out of bounds, and RouteNotFoundError for a static topic.
    Source: apache/rocketmq ``topicRouteData2TopicPublishInfo``, ``…SubscribeInfo``.
    """
    fault = data.fault()
    if fault is not None:
        raise errors.BodyError(f"the route of topic {topic!r} cannot be used: {fault}")
    if data.topic_queue_mapping_by_broker:
        # RocketMQ: ``topicRouteData2EndpointsForStaticTopic``. Taken for an ordinary one, its
        # messages would go to queues in which no consumer looks for them.
        raise errors.RouteNotFoundError(
            f"{topic} is a static topic (its route has topicQueueMappingByBroker), and "
            "this client knows ordinary topics only: use another topic, or Apache's client"
        )
    addresses = {
        broker.broker_name or "": dict(sorted(broker.broker_addrs.items()))
        for broker in data.broker_datas
    }
    publish: list[MessageQueue] = []
    subscribe: list[MessageQueue] = []
    heirs: dict[str, int] = {}
    masterless: set[str] = set()
    for queues in data.queue_datas:
        name = queues.broker_name or ""
        writable = queues.write_queue_nums
        if queues.perm & WRITABLE and writable:
            if MASTER_ID in addresses.get(name, {}):
                publish += [MessageQueue(topic, name, number) for number in range(writable)]
            else:
                masterless.add(name)
        if queues.perm & READABLE:
            readable = range(queues.read_queue_nums)
            subscribe += [MessageQueue(topic, name, number) for number in readable]
        if queues.perm & INHERITABLE:
            heirs[name] = writable
    if data.order_topic_conf:
        # a globally ordered topic has fixed queues, also while brokers are down
        ordered = data.ordered_queues()
        publish = [MessageQueue(topic, name, i) for name, count in ordered for i in range(count)]
    clusters = frozenset(broker.cluster for broker in data.broker_datas if broker.cluster)
    publish.sort()
    subscribe.sort()
    return TopicRoute(
        topic,
        tuple(publish),
        tuple(subscribe),
        addresses,
        heirs=heirs,
        clusters=clusters,
        masterless=frozenset(masterless),
    )


def inherited_route(topic: str, default: TopicRoute) -> TopicRoute:
    """Return the route that a new ``topic`` inherits from the default topic. It has at most four
    queues per broker."""
    queues = tuple(
        MessageQueue(topic, q.broker_name, q.queue_id)
        for q in default.publish_queues
        if q.queue_id < DEFAULT_TOPIC_QUEUES
    )
    return replace(default, topic=topic, publish_queues=queues, subscribe_queues=(), inherited=True)
