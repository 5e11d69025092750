"""Masters of the same cluster with another name, to which an acting slave sends what is due.

Routes of the name servers show which masters take sends. Source: apache/rocketmq
``EscapeBridge.putMessageToRemoteBroker``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from typing import Final

from turbopump.auth.signatures import RequestSigner
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import ProtocolError, RemotingError, ResponseError, StoreError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import MASTER_ID, GetBrokerClusterInfo, GetRouteInfo
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import PERM_WRITE
from turbopump.remoting.client import RemotingClient

log = logging.getLogger(__name__)

ANSWER_S: Final = 3.0
"""Seconds to wait for an answer. RocketMQ: ``SEND_TIMEOUT``."""
KEPT_S: Final = 5.0
"""Seconds for which a route is used before a name server is asked again."""
KEPT_MAX: Final = 10_000
"""Maximum number of routes in memory."""
TRIED_MAX: Final = 3
"""Maximum number of masters that are tried for one message."""
_STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""Codes of answers to a send whose message is stored."""


@dataclass(frozen=True, slots=True)
class OtherMaster:
    """Master that takes sends to a topic.

    - ``queues``: the number of its queues of the topic, or 0 if it does not have the topic yet.
    """

    name: str
    address: str
    queues: int


class OtherMasters:
    """Sender to the other masters of a cluster. The masters are used in rotation."""

    def __init__(self, config: BrokerConfig, clock: Clock, signer: RequestSigner | None) -> None:
        self._config = config
        self._clock = clock
        self._remoting = RemotingClient(tls=config.client_tls, signer=signer)
        self._known: dict[str, tuple[float, list[OtherMaster]]] = {}
        self._turns = count()

    async def send(self, request: SendMessageV2, body: bytes) -> str:
        """Store a message in any queue of its topic on another master. Return that master's name.

        Raises StoreError if there is no other master, or if none stores the message.
        """
        if not self._config.enable_remote_escape:
            raise StoreError(
                "messages wait for the master, because enableRemoteEscape is off on this slave"
            )
        masters = await self._masters_for(request.topic)
        if not masters:
            raise StoreError(
                f"no other master of cluster {self._config.broker_cluster_name} takes messages of "
                f"topic {request.topic}"
            )
        fault = ""
        for _ in range(min(len(masters), TRIED_MAX)):
            turn = next(self._turns)
            master = masters[turn % len(masters)]
            request.queue_id = turn // len(masters) % max(master.queues, 1)
            request.broker_name = master.name
            try:
                answer = await self._remoting.exchange(
                    master.address, request, body, timeout=ANSWER_S
                )
            except RemotingError as error:
                fault = str(error)
            else:
                if answer.code in _STORED:
                    return master.name
                name = type(request).__name__
                refused = ResponseError(
                    answer.code, answer.remark, request=name, address=master.address
                )
                fault = str(refused)
            self._known.pop(request.topic, None)
        raise StoreError(f"no other master stored a message of topic {request.topic}: {fault}")

    async def close(self) -> None:
        await self._remoting.close()

    async def _masters_for(self, topic: str) -> list[OtherMaster]:
        """Return the masters that have queues of a topic, or else all other masters of the
        cluster."""
        now = self._clock.monotonic()
        known = self._known.get(topic)
        if known is not None and now - known[0] < KEPT_S:
            return known[1]
        found = await self._masters_with(topic) or await self._masters_of_cluster()
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        if found:
            self._known[topic] = (now, found)
        return found

    async def _masters_with(self, topic: str) -> list[OtherMaster]:
        for server in self._config.namesrv_addresses:
            try:
                route = await self._remoting.call(
                    server, GetRouteInfo(topic=topic), timeout=ANSWER_S
                )
            except (RemotingError, ProtocolError):  # also: it does not know the topic
                continue
            if route.fault() is not None:
                continue
            addresses = {data.broker_name: data.broker_addrs for data in route.broker_datas}
            found = [
                OtherMaster(
                    queue.broker_name or "",
                    addresses.get(queue.broker_name, {}).get(MASTER_ID, ""),
                    queue.write_queue_nums,
                )
                for queue in route.queue_datas
                if queue.perm & PERM_WRITE and queue.write_queue_nums > 0
            ]
            others = [one for one in found if one.address and one.name != self._config.broker_name]
            if others:
                return others
        return []

    async def _masters_of_cluster(self) -> list[OtherMaster]:
        """Return all other masters of the cluster.

        A master without the topic creates it, if it is a retry topic or if
        ``autoCreateTopicEnable`` is on there.
        """
        for server in self._config.namesrv_addresses:
            try:
                info = await self._remoting.call(server, GetBrokerClusterInfo(), timeout=ANSWER_S)
            except (RemotingError, ProtocolError):
                continue
            found = [
                OtherMaster(name, data.broker_addrs[MASTER_ID], 0)
                for name, data in info.broker_addr_table.items()
                if data.cluster == self._config.broker_cluster_name
                and MASTER_ID in data.broker_addrs
                and name != self._config.broker_name
            ]
            if found:
                return found
        return []
