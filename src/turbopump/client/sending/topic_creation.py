"""Creation of a new topic before its first message is sent."""

from __future__ import annotations

import asyncio
import logging

from turbopump.client.instance import ClientInstance
from turbopump.client.topic_route import DEFAULT_TOPIC_QUEUES, READABLE, WRITABLE, TopicRoute
from turbopump.errors import RemotingError, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.codes import LanguageCode
from turbopump.protocol.requests.topics import FLAG_UNIT, CreateTopic

log = logging.getLogger(__name__)


class TopicCreation:
    """Creator of new topics. A new topic is created before its first message is sent.

    Each topic is created once, on every master that allows automatic creation. A failure here fails
    no send. The log then names the broker that has the topic.

    Only this project's brokers are asked, because they do not change a topic that an operator has
    created meanwhile. RocketMQ: the first send creates the topic, only on the broker that receives
    it (``createTopicInSendMessageMethod``).
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._making: dict[str, asyncio.Task[None]] = {}
        self.tried: set[str] = set()
        """Topics that were created, or whose creation failed."""
        self.unsaid: dict[str, str] = {}
        """Reasons of failed creations by topic. Each is logged when a broker gets the first
        message."""

    async def create_topic(self, route: TopicRoute, timeout: float) -> None:
        """Create a new topic on the brokers, and wait at most ``timeout`` seconds.

        ``route`` is the route that the new topic inherits.
        """
        task = self._making.get(route.topic)
        if task is None:
            work = self._create_on_masters(route, timeout)
            task = self._instance.spawn(work, name=f"creation of {route.topic}")
            self._making[route.topic] = task
        await asyncio.wait({task}, timeout=timeout)

    def log_first_broker(self, queue: MessageQueue) -> None:
        """Log the only broker of a topic that could not be created. It got the topic's first
        message."""
        why = self.unsaid.pop(queue.topic, None)
        if why is not None:
            log.warning(
                "topic did not exist and could not be created: only the broker of the first "
                "message has it; create it with `turbopump topic create` topic=%s broker=%s "
                "cause=%s",
                queue.topic,
                queue.broker_name,
                why,
            )

    async def _create_on_masters(self, route: TopicRoute, timeout: float) -> None:
        try:
            masters = [
                (address, count)
                for name, count in sorted(route.heirs.items())
                if (address := route.master(name)) is not None
            ]
            faults = await asyncio.gather(
                *(
                    self._create_on(route.topic, address, count, timeout)
                    for address, count in masters
                )
            )
            refused = [fault for fault in faults if fault is not None]
            if len(refused) == len(masters):
                self.unsaid[route.topic] = "; ".join(refused) or "no broker lets new topics inherit"
            else:
                if refused:
                    text = "new topic is not on every broker topic=%s cause=%s"
                    log.warning(text, route.topic, "; ".join(refused))
                await self._instance.routes.refresh(route.topic, inherit=True)
        except RouteNotFoundError as error:
            log.info("route of a new topic not known yet topic=%s cause=%s", route.topic, error)
        finally:
            self.tried.add(route.topic)
            del self._making[route.topic]

    async def _create_on(
        self, topic: str, address: str, default_queues: int, timeout: float
    ) -> str | None:
        queues = min(DEFAULT_TOPIC_QUEUES, default_queues)
        request = CreateTopic(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READABLE | WRITABLE,
            topic_sys_flag=FLAG_UNIT if self._instance.unit_mode else None,
            if_absent=True,
        )
        instance = self._instance
        try:
            # Apache's broker would change the queues of a topic that an operator has created
            if await instance.language(address) == LanguageCode.PYTHON:
                await instance.remoting.call(address, request, timeout=timeout)
        except RemotingError as error:
            return str(error)
        return None
