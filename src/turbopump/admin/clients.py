"""Connected clients of a cluster: producers, consumers, and what they report about themselves.

Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from turbopump.admin.cluster import Servers
from turbopump.admin.groups import RUNNING_TIMEOUT_S, GroupMembers, members_of
from turbopump.protocol.requests.consumers import ConsumerRunningInfo, GetConsumerRunningInfo


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
