"""Heartbeats: a client's groups and subscriptions, as the body of a request. Values in, a value
out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.routes import TopicRoute
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData
from turbopump.protocol.requests.consumers import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from turbopump.protocol.requests.send import CheckTransactionState
from turbopump.remoting.wire import Wire


def _ignore(_: object = None) -> None:
    pass


@dataclass(slots=True, eq=False)
class InstanceMember:
    """Producer or consumer as its client instance sees it.

    ``consumer`` returns its consumer data as of now (None: it only produces). The other functions
    are called when the group has changed, a route is new or has changed, the connection to an
    address has ended, or a broker asks about a transaction (None: it has none).

    ``exclusive``: a producer that allows no other of its group beside it. ``announced``: False for
    a member that takes no part in the group yet and is in no heartbeat. ``left``: set when it has
    left its instance. ``operated``: calls that an operator may make, if it consumes.
    """

    group: str
    produces: bool = False
    consumer: Callable[[], ConsumerData] | None = None
    on_group_change: Callable[[], None] = _ignore
    on_route_change: Callable[[TopicRoute], None] = _ignore
    on_disconnect: Callable[[str], None] = _ignore
    on_transaction_check: Callable[[CheckTransactionState, ReceivedMessage, Wire], None] | None = (
        None
    )
    exclusive: bool = False
    announced: bool = True
    left: bool = False
    operated: Operated | None = None

    @property
    def kind(self) -> str:
        return "producer" if self.consumer is None else "consumer"

    def clashes_with(self, other: InstanceMember) -> bool:
        """Return True if one heartbeat cannot hold both: two consumers of a group, or an exclusive
        producer."""
        if self.group != other.group:
            return False
        if self.consumer is not None or other.consumer is not None:
            return self.consumer is not None and other.consumer is not None
        return self.exclusive or other.exclusive


def heartbeat_data(
    client_id: str, members: Iterable[InstanceMember], *, unit_mode: bool = False
) -> HeartbeatData:
    """Return the body of a heartbeat: always the client's whole state."""
    members = [member for member in members if member.announced]
    producers = dict.fromkeys(member.group for member in members if member.produces)
    consumers = tuple(member.consumer() for member in members if member.consumer is not None)
    for consumer in consumers:
        consumer.unit_mode = unit_mode
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=tuple(ProducerData(group_name=group) for group in producers),
        consumer_data_set=consumers,
    )


@dataclass(frozen=True, slots=True)
class Operated:
    """Calls that an operator can make to a consumer; queues by the names that brokers know.

    ``done_offsets``: end of the finished messages of each queue. ``reset``: continue assigned
    queues at these offsets, and report them to the broker. ``running_info``: settings and queues.
    ``consume_directly``: handle this message now.
    """

    done_offsets: Callable[[], Mapping[MessageQueue, int]]
    reset: Callable[[Mapping[MessageQueue, int]], None]
    running_info: Callable[[], ConsumerRunningInfo]
    consume_directly: Callable[[Delivery], Awaitable[ConsumeMessageDirectlyResult]]
