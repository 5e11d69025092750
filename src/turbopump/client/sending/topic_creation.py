"""A new topic before its first message: made on every master that lets new topics inherit, for else
it would live on the one broker that happened to get the first message.

One rule: nothing here can fail a send; where a broker denies it or nobody knows, the send goes on,
and the log says once where the topic is. It must not know what is sent. RocketMQ: the topic comes
into being at the first send, on one broker (``createTopicInSendMessageMethod``).
"""

from __future__ import annotations

import asyncio
import logging

from turbopump.client.instance import ClientInstance
from turbopump.client.routes import DEFAULT_TOPIC_QUEUES, READABLE, WRITABLE, TopicRoute
from turbopump.errors import RemotingError, RouteNotFoundError
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.requests.topics import CreateTopic

log = logging.getLogger(__name__)


class TopicCreation:
    """Makes each topic once."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._making: dict[str, asyncio.Task[None]] = {}
        self._tried: set[str] = set()
        self.unsaid: dict[str, str] = {}
        """Topics that could not be made, and why: to be said when it is known who got the first
        message."""

    def is_due(self, route: TopicRoute) -> bool:
        """Whether the topic does not exist yet and nothing has been done about it."""
        return route.inherited and route.topic not in self._tried

    async def make(self, route: TopicRoute, timeout: float) -> None:
        """Make the topic of an inherited route; returns when it is there, or cannot be made, or
        after ``timeout`` seconds."""
        task = self._making.get(route.topic)
        if task is None:
            task = self._instance.spawn(
                self._make(route, timeout), name=f"creation of {route.topic}"
            )
            self._making[route.topic] = task
        await asyncio.wait({task}, timeout=timeout)

    def landed(self, queue: MessageQueue) -> None:
        """The first message of a topic that could not be made is on this broker."""
        why = self.unsaid.pop(queue.topic, None)
        if why is not None:
            log.warning(
                "topic was not there and could not be created topic=%s cause=%s: for now it is "
                "on broker %s alone, which "
                "got its first message; create it with `turbopump topic create %s`",
                queue.topic,
                why,
                queue.broker_name,
                queue.topic,
            )

    async def _make(self, route: TopicRoute, timeout: float) -> None:
        try:
            masters = [
                (address, count)
                for name, count in sorted(route.heirs.items())
                if (address := route.master(name)) is not None
            ]
            faults = await asyncio.gather(
                *(self._make_on(route.topic, address, count, timeout) for address, count in masters)
            )
            refused = [fault for fault in faults if fault is not None]
            if len(refused) == len(masters):
                self.unsaid[route.topic] = "; ".join(refused) or "no broker lets new topics inherit"
            else:
                if refused:
                    log.warning(
                        "new topic is not on every broker topic=%s cause=%s",
                        route.topic,
                        "; ".join(refused),
                    )
                await self._instance.routes.refresh(route.topic, inherit=True)
        except RouteNotFoundError as error:
            log.info("route of a new topic not known yet topic=%s cause=%s", route.topic, error)
        finally:
            self._tried.add(route.topic)
            del self._making[route.topic]

    async def _make_on(
        self, topic: str, address: str, default_queues: int, timeout: float
    ) -> str | None:
        queues = min(DEFAULT_TOPIC_QUEUES, default_queues)
        request = CreateTopic(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READABLE | WRITABLE,
        )
        try:
            await self._instance.remoting.call(address, request, timeout=timeout)
        except RemotingError as error:
            return str(error)
        return None
