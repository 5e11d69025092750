"""Heartbeats: the request body with a client's groups and subscriptions. Values in, a value out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.topic_route import TopicRoute
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData
from turbopump.protocol.requests.consumers import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from turbopump.protocol.requests.send import CheckTransactionState
from turbopump.remoting.wire import Wire


def _ignore(_: object = None) -> None:
    pass


@dataclass(slots=True, eq=False)
class InstanceMember:
    """Producer or consumer as part of a client instance.

    ``consumer`` returns the current consumer data (None: a producer). The other functions are
    called when the group has changed, a route has changed, a connection has ended, or a broker asks
    about a transaction (None: no transactions).

    - ``exclusive``: a producer that allows no other of its group in the same instance.
    - ``announced``: False for a member that is in no heartbeat yet.
    - ``left``: set when the member has left its instance.
    - ``operated``: a consumer's functions for operators.
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
        """Return True if one heartbeat cannot contain both: two consumers of a group, or an
        exclusive producer."""
        if self.group != other.group:
            return False
        if self.consumer is not None or other.consumer is not None:
            return self.consumer is not None and other.consumer is not None
        return self.exclusive or other.exclusive


def heartbeat_data(
    client_id: str, members: Iterable[InstanceMember], *, unit_mode: bool = False
) -> HeartbeatData:
    """Return the body of a heartbeat, which is always the client's whole state."""
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
    """Functions that an operator can call on a consumer. Queues have the names that brokers know.

    - ``done_offsets``: end of the finished messages of each queue.
    - ``reset``: continue assigned queues at these offsets, and commit them.
    - ``running_info``: settings and queues.
    - ``consume_directly``: handle this message now.
    """

    done_offsets: Callable[[], Mapping[MessageQueue, int]]
    reset: Callable[[Mapping[MessageQueue, int]], None]
    running_info: Callable[[], ConsumerRunningInfo]
    consume_directly: Callable[[Delivery], Awaitable[ConsumeMessageDirectlyResult]]
