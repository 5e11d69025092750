"""Bodies of heartbeats. A heartbeat tells a broker the groups and subscriptions of a client.

The functions of this module take values and return values; they send nothing.
"""

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
    """One producer or consumer of a client instance.

    - ``group``: name of the group.
    - ``produces``: True for a producer.
    - ``consumer``: returns the current consumer data. None for a producer.
    - ``on_group_change``: called when members have joined or left the group.
    - ``on_route_change``: called with the new route of a topic.
    - ``on_disconnect``: called with the address of a closed connection.
    - ``on_transaction_check``: called when a broker asks for the state of a transaction. None
      without transactions.
    - ``exclusive``: True for a producer that allows no other of its group in the same instance.
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
        """Return True if the two members cannot be in the same heartbeat.

        Two consumers of one group cannot. An exclusive producer cannot be with another producer of
        its group.
        """
        if self.group != other.group:
            return False
        if self.consumer is not None or other.consumer is not None:
            return self.consumer is not None and other.consumer is not None
        return self.exclusive or other.exclusive


def heartbeat_data(
    client_id: str, members: Iterable[InstanceMember], *, unit_mode: bool = False
) -> HeartbeatData:
    """Return the body of a heartbeat. It always lists every announced member of the client."""
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
    """Functions of a consumer that an operator can call through a broker.

    Queues have the names that brokers know.

    - ``done_offsets``: returns the offset after the finished messages of each queue.
    - ``reset``: continues assigned queues at the given offsets, and commits them.
    - ``running_info``: returns the settings and queues.
    - ``consume_directly``: handles the given message now.
    """

    done_offsets: Callable[[], Mapping[MessageQueue, int]]
    reset: Callable[[Mapping[MessageQueue, int]], None]
    running_info: Callable[[], ConsumerRunningInfo]
    consume_directly: Callable[[Delivery], Awaitable[ConsumeMessageDirectlyResult]]
