"""What a client tells brokers of itself: its groups and subscriptions, as the body of a heartbeat. Values in, a value out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from turbopump.client.routes import TopicRoute
from turbopump.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData


def _ignore(_: object = None) -> None:
    pass


@dataclass(slots=True, eq=False)
class Member:
    """A producer or consumer as its client instance sees it.

    ``consumer`` gives its consumer data as it is now (None: it only produces). The others are told: the group has changed; a route is
    new or has changed; the connection to an address has ended.
    """

    group: str
    produces: bool = False
    consumer: Callable[[], ConsumerData] | None = None
    on_group_change: Callable[[], None] = _ignore
    on_route_change: Callable[[TopicRoute], None] = _ignore
    on_disconnect: Callable[[str], None] = _ignore


def heartbeat_data(client_id: str, members: Iterable[Member]) -> HeartbeatData:
    """The client's whole truth, which is what every heartbeat says."""
    members = list(members)
    producers = dict.fromkeys(member.group for member in members if member.produces)
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=tuple(ProducerData(group_name=group) for group in producers),
        consumer_data_set=tuple(member.consumer() for member in members if member.consumer is not None),
    )
