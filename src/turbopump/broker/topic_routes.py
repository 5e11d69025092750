"""The queues that a topic has on all brokers, asked of the name servers and relied upon for a
while.

A broker without name servers knows its own. Source: apache/rocketmq ``TopicRouteInfoManager``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.errors import ProtocolError, RemotingError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.route import TopicRouteData
from turbopump.protocol.bodies.topics import PERM_READ
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.remoting.client import RemotingClient

ANSWER_S: Final = 3.0
KEPT_MAX: Final = 10_000


class TopicRoutes:
    """``interval`` in seconds: how long an answer is relied upon."""

    def __init__(
        self,
        name_servers: Sequence[str],
        topics: TopicTable,
        broker_name: str,
        clock: Clock,
        interval: float,
    ) -> None:
        self._name_servers = list(name_servers)
        self._topics = topics
        self._broker_name = broker_name
        self._clock = clock
        self._interval = interval
        self._remoting = RemotingClient()
        self._known: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Readable queues, sorted; None where nobody knows of any. While no name server answers,
        those of the last time."""
        if not self._name_servers:
            return self._own(topic)
        now = self._clock.monotonic()
        known = self._known.get(topic)
        if known is not None and now - known[0] < self._interval:
            return known[1]
        asked = await self._ask(topic)
        if asked is None:
            return known[1] if known is not None else None
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        self._known[topic] = (now, asked)
        return asked

    async def close(self) -> None:
        await self._remoting.close()

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.find(topic)
        if config is None or not config.readable:
            return None
        return [
            MessageQueue(topic, self._broker_name, number)
            for number in range(config.read_queue_nums)
        ]

    async def _ask(self, topic: str) -> list[MessageQueue] | None:
        for server in self._name_servers:
            try:
                answer = await self._remoting.exchange(
                    server, GetRouteInfo(topic=topic), timeout=ANSWER_S
                )
                if answer.code != ResponseCode.SUCCESS:
                    continue
                route = fastjson.decode(answer.body, TopicRouteData)
            except (RemotingError, ProtocolError):
                continue
            found = [data for data in route.queue_datas if data.perm & PERM_READ]
            return sorted(
                MessageQueue(topic, data.broker_name or "", number)
                for data in found
                for number in range(data.read_queue_nums)
            )
        return None
