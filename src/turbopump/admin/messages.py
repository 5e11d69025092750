"""Stored messages of a cluster: finding them, and learning who has consumed one.

Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from turbopump.admin.cluster import Servers
from turbopump.client.consumer.offsets import Time
from turbopump.client.message_finder import FoundMessages, MessageFinder
from turbopump.message.message import MessageQueue, ReceivedMessage


class Messages:
    """Stored messages: find by id, key, time or offset; learn which groups have consumed one.

    The searches are those of ``MessageFinder``.
    """

    def __init__(self, servers: Servers, finder: MessageFinder) -> None:
        self._servers = servers
        self._finder = finder

    async def by_id(self, topic: str, msg_id: str) -> ReceivedMessage:
        """Return the message of a topic with this id. Java: ``viewMessage``.

        - ``msg_id``: a unique id (``SendResult.msg_id``) or an offset message id.

        Sends VIEW_MESSAGE_BY_ID (33) or QUERY_MESSAGE (12). Raises MessageNotFoundError,
        RouteNotFoundError and RemotingError.
        """
        return await self._finder.view(topic, msg_id)

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at this offset of a queue.

        Sends PULL_MESSAGE (11). Raises MessageNotFoundError, RouteNotFoundError, RemotingError.
        """
        return await self._finder.at(queue, offset)

    async def by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 32,
        *,
        begin: Time | None = None,
        end: Time | None = None,
    ) -> FoundMessages:
        """Return the newest messages of a topic with this key. Java: ``queryMessage``.

        - ``begin``, ``end``: limits of the store time, in ms or as datetimes; both included.

        Sends QUERY_MESSAGE (12) to each broker of the topic. Raises RouteNotFoundError.
        """
        return await self._finder.by_key(topic, key, max_messages, begin=begin, end=end)

    async def by_time(
        self, topic: str, begin: Time, end: Time | None = None, max_messages: int = 32
    ) -> FoundMessages:
        """Return the oldest messages of a topic stored between two times; both are included.

        Searches each queue (29), then reads it (11). Raises RouteNotFoundError.
        """
        return await self._finder.by_time(topic, begin, end, max_messages)
