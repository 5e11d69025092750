"""Cache of the queues of topics on all brokers. The name servers report the queues.

Source: apache/rocketmq ``TopicRouteInfoManager``.
"""

from __future__ import annotations

import logging
from typing import Final

from turbopump.auth.signatures import RequestSigner
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import ProtocolError, RemotingError
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.topics import PERM_READ
from turbopump.remoting.client import RemotingClient
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_unusable_route = RepeatedLine(
    log, logging.WARNING, "route of a name server cannot be used server=%s topic=%s cause=%s"
)

ANSWER_S: Final = 3.0
KEPT_MAX: Final = 10_000


class TopicRoutes:
    """Cache of the queues of topics on all brokers, as the name servers report them.

    A broker without name servers knows only its own queues. Source: apache/rocketmq
    ``TopicRouteInfoManager``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        clock: Clock,
        signer: RequestSigner | None = None,
    ) -> None:
        self._name_servers = config.namesrv_addresses
        self._broker_name = config.broker_name
        self._kept_s = config.load_balance_poll_name_server_interval / 1000
        self._topics = topics
        self._clock = clock
        self._remoting = RemotingClient(tls=config.client_tls, signer=signer)
        self._known: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic on all brokers. Return None if no broker has the
        topic.

        The queues are sorted. While no name server answers, the last known queues are returned.
        """
        if not self._name_servers:
            return self._own(topic)
        now = self._clock.monotonic()
        known = self._known.get(topic)
        if known is not None and now - known[0] < self._kept_s:
            return known[1]
        asked = await self._ask(topic)
        if asked is None:
            if known is not None:
                return known[1]
            return None
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
                route = await self._remoting.call(
                    server, GetRouteInfo(topic=topic), timeout=ANSWER_S
                )
            except (RemotingError, ProtocolError):
                continue
            if (fault := route.fault()) is not None:
                _unusable_route(server, topic, fault, kind=topic)
                continue
            found = [data for data in route.queue_datas if data.perm & PERM_READ]
            return sorted(
                MessageQueue(topic, data.broker_name or "", number)
                for data in found
                for number in range(data.read_queue_nums)
            )
        return None
