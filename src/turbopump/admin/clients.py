"""Connected clients of a cluster: producers, consumers, and what they report about themselves.

Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turbopump.admin.cluster import Servers, ask_each
from turbopump.admin.groups import (
    RUNNING_TIMEOUT_S,
    GroupMembers,
    Member,
    group_members,
    member_of,
    members_of,
)
from turbopump.errors import ClientError, ResponseError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import (
    ConsumeMessageDirectly,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetAllProducerInfo,
    GetConsumerRunningInfo,
    GetProducerConnectionList,
    ProducerConnection,
)
from turbopump.protocol.requests.offsets import GetConsumerStatus

if TYPE_CHECKING:  # one operation needs it
    from turbopump.client import message_finder


@dataclass(frozen=True, slots=True)
class Producer(Member):
    """Connected producer.

    - ``last_heartbeat_ms``: time of its last heartbeat, in ms since 1970 UTC.
    """

    last_heartbeat_ms: int


async def producers_at(servers: Servers, address: str) -> dict[str, list[Producer]]:
    """Ask one broker for all producers that are connected to it. Return them by group.

    Raises RemotingError.
    """
    table = (await servers.ask(address, GetAllProducerInfo())).data or {}
    return {
        group: [
            Producer(
                one.client_id or "",
                (one.remote_ip or "").removeprefix("/"),  # RocketMQ: as Java shows an address
                one.language.name if one.language is not None else "",
                one.version,
                one.last_update_timestamp,
            )
            for one in sorted(producers, key=lambda one: one.client_id or "")
        ]
        for group, producers in sorted(table.items())
    }


class Clients:
    """Connected producers and consumers, and what they report about themselves.

    ``broker`` is ``brokerName``, ``brokerName:ID`` or ``HOST:PORT``. ``cluster`` means the masters
    of a cluster. Without both, an operation is for all masters.
    """

    def __init__(
        self, servers: Servers, finder: Callable[[], Awaitable[message_finder.MessageFinder]]
    ) -> None:
        self._servers = servers
        self._finder = finder

    async def consumers(
        self, group: str, *, broker: str | None = None, cluster: str | None = None
    ) -> GroupMembers:
        """Return the connected members of a consumer group, and their subscriptions.

        The same as ``groups.members``. Sends GET_CONSUMER_CONNECTION_LIST (203) to each broker.
        Raises RemotingError. Java: ``examineConsumerConnectionInfo``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await members_of(self._servers, addresses, group)

    async def producers(
        self, group: str, *, broker: str | None = None, cluster: str | None = None
    ) -> list[Member]:
        """Return the connected members of a producer group, sorted by client id.

        A producer connects to the brokers that it sends to. Sends GET_PRODUCER_CONNECTION_LIST
        (204) to each broker. Raises RemotingError. Java: ``examineProducerConnectionInfo``.
        """
        answers = await ask_each(
            self._servers,
            await self._servers.brokers_at(broker, cluster),
            GetProducerConnectionList(producer_group=group),
            ProducerConnection,
            ResponseCode.SYSTEM_ERROR,  # the code for a group without members
        )
        found = {
            one.client_id or "": one for body in answers.values() for one in body.connection_set
        }
        return [member_of(found[client_id]) for client_id in sorted(found)]

    async def all_producers(self, broker: str) -> dict[str, list[Producer]]:
        """Return all producers that are connected to one broker, by group.

        Sends GET_ALL_PRODUCER_INFO (328). The answer has 150 bytes for each producer. Raises
        RemotingError. Java: ``getAllProducerInfo``.
        """
        (address,) = await self._servers.brokers_at(broker)
        return await producers_at(self._servers, address)

    async def running_info(
        self, group: str, client_id: str, *, stack: bool = False, broker: str | None = None
    ) -> ConsumerRunningInfo:
        """Ask one consumer for its settings, queues and rates, through a broker.

        Sends GET_CONSUMER_RUNNING_INFO (307) to each master until one knows the consumer. The
        master then asks the consumer, and waits up to 10 s.

        - ``stack``: also ask for the stacks of the consumer's threads (``jstack``).

        Raises ClientError if no broker knows the consumer, ResponseError if the consumer does not
        answer, and RemotingError. Java: ``getConsumerRunningInfo``.
        """
        request = GetConsumerRunningInfo(
            consumer_group=group, client_id=client_id, jstack_enable=stack
        )
        for address in await self._servers.brokers_at(broker):
            try:
                return await self._servers.ask(address, request, timeout=RUNNING_TIMEOUT_S)
            except ResponseError as error:
                if not _is_not_online(error):
                    raise
        raise _unknown_client(group, client_id)

    async def offsets(
        self, group: str, topic: str, *, client_id: str | None = None, broker: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Ask the consumers of a group for the offsets that they know in a topic, by client id.

        Sends GET_CONSUMER_CONNECTION_LIST (203) to each master, and
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) to each master with consumers of the group. The
        master asks these consumers. A consumer that does not answer is left out.

        - ``client_id``: only this consumer.

        Raises ResponseError if a broker refuses, and RemotingError. Java: ``getConsumeStatus``.
        """
        request = GetConsumerStatus(topic=topic, group=group, client_addr=client_id)
        found: dict[str, dict[MessageQueue, int]] = {}
        # RocketMQ: a broker without consumers of the group answers with a NullPointerException.
        addresses = await self._servers.brokers_at(broker)
        for address in await group_members(self._servers, addresses, group):
            answer = await self._servers.ask(address, request, timeout=RUNNING_TIMEOUT_S)
            for client, table in answer.consumer_table.items():
                found.setdefault(client, {}).update(table)
        return found

    async def consume_directly(
        self, group: str, client_id: str, topic: str, msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Have one consumer handle a stored message now, and return the outcome.

        The offset of the group stays, so the message may be handled twice. Finds the message, then
        sends CONSUME_MESSAGE_DIRECTLY (309) to its broker, which waits up to 10 s for the consumer.

        - ``msg_id``: a unique id (``SendResult.msg_id``) or an offset message id.

        Raises MessageNotFoundError, RouteNotFoundError, ClientError if the broker of the message
        does not know the consumer, ResponseError if the consumer does not answer, and
        RemotingError. Java: ``consumeMessageDirectly``.
        """
        message = await (await self._finder()).view(topic, msg_id)
        (address,) = await self._servers.brokers_at(message.broker_name)
        request = ConsumeMessageDirectly(
            consumer_group=group, client_id=client_id, msg_id=message.offset_msg_id, topic=topic
        )
        try:
            return await self._servers.ask(address, request, timeout=RUNNING_TIMEOUT_S)
        except ResponseError as error:
            if _is_not_online(error):
                raise _unknown_client(group, client_id) from None
            raise


def _is_not_online(error: ResponseError) -> bool:
    """Return True if a broker refuses because it does not know the consumer.

    The code of the answer is that of any other failure.
    """
    return error.remark.endswith("not online")


def _unknown_client(group: str, client_id: str) -> ClientError:
    return ClientError(
        f"no broker knows a consumer {client_id} of the group {group}; turbopump group show "
        f"{group} lists its consumers"
    )
