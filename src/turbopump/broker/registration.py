"""The broker's registration with the name servers: at its start, every 30 s, and at once when a
topic changes.

Each name server has a task of its own. One that cannot be reached is tried again at the next turn,
and logged once until it answers. Source: apache/rocketmq ``BrokerOuterAPI.registerBrokerAll``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from turbopump.broker.topics import READ_WRITE, TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import ProtocolError, RemotingError
from turbopump.message.codec import body_crc32
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.namesrv import (
    GetRouteInfo,
    RegisterBroker,
    RegisterBrokerBody,
    UnregisterBroker,
)
from turbopump.protocol.requests.topics import PERM_READ, TopicConfigAndMappingSerializeWrapper
from turbopump.remoting.client import RemotingClient

log = logging.getLogger(__name__)


class NameServerRegistration:
    """Keeps the name servers up to date. ``address`` and ``ha_address``: what they are told,
    ``host:port`` each.

    If reading or writing is not in the broker's own permission (``brokerPermission``), clients see
    every topic here without what is missing, and send or read elsewhere (apache/rocketmq
    ``BrokerController.registerBrokerAll``).
    """

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, address: str, ha_address: str
    ) -> None:
        self._config = config
        self._name_servers = config.namesrv_addresses
        self._timeout = config.register_broker_timeout_mills / 1000
        self._topics = topics
        self._address = address
        self._ha_address = ha_address
        self._remoting = RemotingClient()
        self._unreachable: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def soon(self) -> None:
        """Register with all name servers, beside the caller; with one that is being told at the
        moment, once more after that."""
        for server in self._name_servers:
            task = self._tasks.get(server)
            if task is not None and not task.done():
                self._again.add(server)
            else:
                self._tasks[server] = asyncio.ensure_future(self._register_until_current(server))

    async def now(self, within: float | None = None) -> None:
        """Register with all name servers and wait until each has answered or failed, ``within``
        seconds at most; a silent one can take ``timeout`` twice, and is told all the same when it
        answers later."""
        self.soon()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within)

    async def close(self) -> None:
        """Unregister everywhere (as far as they answer within two seconds) and close the
        connections."""
        for task in self._tasks.values():
            task.cancel()
        request = UnregisterBroker(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        reachable = [server for server in self._name_servers if server not in self._unreachable]
        await asyncio.gather(
            *(
                self._remoting.call(server, request, timeout=min(self._timeout, 2.0))
                for server in reachable
            ),
            return_exceptions=True,
        )
        await self._remoting.close()

    async def _register_until_current(self, server: str) -> None:
        while True:
            self._again.discard(server)
            await self._register(server)
            if server not in self._again:
                return

    async def _register(self, server: str) -> None:
        config, wrapper = self._config, self._topics.wrapper()
        table = wrapper.topic_config_table
        if config.broker_permission & READ_WRITE != READ_WRITE:
            table = {
                name: msgspec.structs.replace(topic, perm=topic.perm & config.broker_permission)
                for name, topic in table.items()
            }
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
                data_version=wrapper.data_version, topic_config_table=table
            )
        ).encode()
        request = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=config.broker_id,
            enable_acting_master=False,
            compressed=False,
            body_crc32=body_crc32(body),
        )
        try:
            await self._remoting.call(server, request, body, timeout=self._timeout)
        except RemotingError as error:
            if server not in self._unreachable:
                self._unreachable.add(server)
                log.warning(f"registration failed namesrv={server} cause={error}")
        else:
            if server in self._unreachable:
                self._unreachable.discard(server)
                log.info("registration works again namesrv=%s", server)


ANSWER_S: Final = 3.0
KEPT_MAX: Final = 10_000


class TopicRoutes:
    """The queues that a topic has on all brokers, asked of the name servers and relied upon for a
    while. A broker without name servers knows its own. Source: apache/rocketmq
    ``TopicRouteInfoManager``."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, clock: Clock) -> None:
        self._name_servers = config.namesrv_addresses
        self._broker_name = config.broker_name
        self._kept_s = config.load_balance_poll_name_server_interval / 1000
        self._topics = topics
        self._clock = clock
        self._remoting = RemotingClient()
        self._known: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Readable queues, sorted; None where nobody knows of any. While no name server answers,
        those of the last time."""
        if not self._name_servers:
            return self._own(topic)
        now = self._clock.monotonic()
        known = self._known.get(topic)
        if known is not None and now - known[0] < self._kept_s:
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
                route = await self._remoting.call(
                    server, GetRouteInfo(topic=topic), timeout=ANSWER_S
                )
            except (RemotingError, ProtocolError):
                continue
            found = [data for data in route.queue_datas if data.perm & PERM_READ]
            return sorted(
                MessageQueue(topic, data.broker_name or "", number)
                for data in found
                for number in range(data.read_queue_nums)
            )
        return None
