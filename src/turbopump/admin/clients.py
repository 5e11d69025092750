"""Connected clients of a cluster: producers, consumers, and what they report about themselves.

Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.admin.cluster import Servers
from turbopump.admin.groups import RUNNING_TIMEOUT_S, GroupMembers, members_of
from turbopump.protocol.requests.consumers import (
    ConsumerRunningInfo,
    GetAllProducerInfo,
    GetConsumerRunningInfo,
)


@dataclass(frozen=True, slots=True, order=True)
class ProducerMember:
    """Connected producer.

    - ``version``: ordinal of Apache's ``MQVersion``.
    - ``last_heartbeat_ms``: time of its last heartbeat, in ms since 1970.
    """

    group: str
    client_id: str
    address: str
    language: str
    version: int
    last_heartbeat_ms: int


class Clients:
    """Connected producers and consumers, and what they report about themselves."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def consumers(self, group: str, *, cluster: str | None = None) -> GroupMembers:
        """Return the connected members of a consumer group, and their subscriptions.

        The same as ``groups.members``. Java: ``examineConsumerConnectionInfo``.
        """
        return await members_of(self._servers, await self._servers.masters(cluster), group)

    async def running_info(
        self, group: str, client_id: str, *, stack: bool = False, broker: str | None = None
    ) -> ConsumerRunningInfo:
        """Ask one consumer for its settings, queues and rates, through a broker.

        Sends GET_CONSUMER_RUNNING_INFO (307) to a master, which waits up to 10 s for the consumer.

        - ``stack``: also ask for the stacks of its threads (``jstack``).

        Raises ResponseError if no broker knows the consumer, and RemotingError. Java:
        ``getConsumerRunningInfo``.
        """
        address = (await self._servers.brokers_at(broker))[0]
        request = GetConsumerRunningInfo(
            consumer_group=group, client_id=client_id, jstack_enable=stack
        )
        return await self._servers.call(address, request, timeout=RUNNING_TIMEOUT_S)

    async def producers(
        self, group: str | None = None, *, broker: str | None = None, cluster: str | None = None
    ) -> list[ProducerMember]:
        """Return the connected producers, of all groups or of one, sorted by group and client id.

        Sends GET_ALL_PRODUCER_INFO (328) to each master. A producer that is connected to several
        brokers is once in the result. Raises RemotingError. Java: ``getAllProducerInfo``,
        ``examineProducerConnectionInfo``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        found = {}
        for address in addresses:
            table = (await self._servers.call(address, GetAllProducerInfo())).data or {}
            for name, members in table.items():
                for one in members:
                    client_id = one.client_id or ""
                    found[name, client_id] = ProducerMember(
                        name,
                        client_id,
                        one.remote_ip or "",
                        one.language.name if one.language is not None else "",
                        one.version,
                        one.last_update_timestamp,
                    )
        return sorted(one for one in found.values() if group in (None, one.group))
