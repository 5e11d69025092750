"""Consumer groups of a cluster: their names, members and offsets."""

from __future__ import annotations

from typing import Any, Final

from turbopump.admin.cluster import ask_each
from turbopump.errors import BodyError, RemotingError, ResponseError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import (
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumeStats,
)
from turbopump.protocol.requests.groups import GetAllGroups, SubscriptionGroupWrapper
from turbopump.protocol.requests.statistics import ConsumeStats
from turbopump.remoting.client import RemotingClient


async def group_names(client: RemotingClient, addresses: list[str]) -> list[str]:
    """Return the names of all groups on these brokers, sorted. Raises RemotingError."""
    tables = await ask_each(client, addresses, GetAllGroups(), SubscriptionGroupWrapper)
    return sorted({name for table in tables.values() for name in table.subscription_group_table})


async def group_members(
    client: RemotingClient, addresses: list[str], group: str
) -> dict[str, ConsumerConnection]:
    """Ask each broker for the connected members of a group. Return them by broker address.

    Brokers without members are left out. Raises RemotingError.
    """
    asked = GetConsumerConnectionList(consumer_group=group)
    return await ask_each(
        client, addresses, asked, ConsumerConnection, ResponseCode.CONSUMER_NOT_ONLINE
    )


RUNNING_TIMEOUT_S: Final = 12.0
"""Seconds to wait for the answer to a request that a broker forwards to a client.

The broker waits ten seconds for the client.
"""


async def running_info(
    client: RemotingClient, address: str, group: str, client_id: str
) -> ConsumerRunningInfo | str:
    """Ask a consumer for its status through a broker. Return the reason of a failure as text.

    - ``address``: the address of the broker.
    """
    request = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
    try:
        return await client.call(address, request, timeout=RUNNING_TIMEOUT_S)
    except ResponseError as error:
        return error.remark or f"code {error.code}"
    except (RemotingError, BodyError) as error:
        return str(error)


async def group_offsets(
    client: RemotingClient, addresses: list[str], group: str, topic: str | None = None
) -> list[dict[str, Any]]:
    """Return the offsets of a group, with one row for each queue. Raises RemotingError.

    The rows are sorted by queue.
    """
    answers = await ask_each(
        client, addresses, GetConsumeStats(consumer_group=group, topic=topic), ConsumeStats
    )
    table = {
        queue: stands for body in answers.values() for queue, stands in body.offset_table.items()
    }
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": stands.consumer_offset,
            "end": stands.broker_offset,
            "behind": stands.broker_offset - stands.consumer_offset,
            "last_timestamp": stands.last_timestamp,
        }
        for queue, stands in sorted(table.items())
    ]
