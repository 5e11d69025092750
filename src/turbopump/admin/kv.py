"""Key-value configuration of the name servers, and globally ordered topics, which are kept in it.

Each name server keeps its own table. A change goes to every name server, also if one of them fails.
A value is read from the first name server that answers. Source: apache/rocketmq
``KVConfigManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from turbopump.admin.cluster import Servers
from turbopump.errors import ClientError, ConfigError, ResponseError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import (
    DeleteKvConfig,
    GetKvConfig,
    GetKvListByNamespace,
    PutKvConfig,
)

ORDERED_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the globally ordered topics. A value is ``BROKER:QUEUES;BROKER:QUEUES``."""


class Kv:
    """Operations on the key-value configuration of the name servers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key. Return None if there is none.

        Sends GET_KV_CONFIG (101). Raises RemotingError. Java: ``getKVConfig``.
        """
        try:
            request = GetKvConfig(kv_namespace=namespace, key=key)
            return (await self._servers.ask_name_servers(request)).value
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def list(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace, sorted by key. An unknown namespace is empty.

        Sends GET_KVLIST_BY_NAMESPACE (219). Raises RemotingError. Java: ``getKVListByNamespace``.
        """
        try:
            request = GetKvListByNamespace(kv_namespace=namespace)
            return dict(sorted((await self._servers.ask_name_servers(request)).table.items()))
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key on every name server.

        Sends PUT_KV_CONFIG (100) to each name server. Raises ClientError if one of them failed; the
        error lists all. Java: ``createAndUpdateKvConfig``.
        """
        await self._change(PutKvConfig(kv_namespace=namespace, key=key, value=value))

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key on every name server. A missing key is no error.

        Sends DELETE_KV_CONFIG (102) to each name server. Raises ClientError if one of them failed;
        the error lists all. Java: ``deleteKvConfig``.
        """
        await self._change(DeleteKvConfig(kv_namespace=namespace, key=key))

    async def ordered_queues(self, topic: str) -> dict[str, int]:
        """Return the number of queues of a globally ordered topic, by brokerName.

        The result is empty if the topic is not in the table. A client sends to these queues also
        while a broker is away, so that the order of the messages is kept.

        Sends GET_KV_CONFIG (101). Raises RemotingError, and ClientError for a value that is not
        readable. Java: ``getKVConfig``.
        """
        return ordered_queues_of(await self.get(ORDERED_TOPICS, topic) or "", topic)

    async def set_ordered_queues(
        self, topic: str, queues: Mapping[str, int], *, keep_others: bool = False
    ) -> dict[str, int]:
        """Make a topic globally ordered, with this number of queues on each broker. Return the new
        table of the topic.

        - ``queues``: number of queues by brokerName.
        - ``keep_others``: True to keep the entries of other brokers.

        Sends PUT_KV_CONFIG (100) to each name server, after GET_KV_CONFIG (101) if ``keep_others``
        is True. Raises ConfigError for an impossible value, and ClientError if a name server
        failed. Java: ``createOrUpdateOrderConf``, whose ``isCluster`` is the opposite of
        ``keep_others``.
        """
        wanted = dict(queues)
        if keep_others:
            wanted = await self.ordered_queues(topic) | wanted
        await self.put(ORDERED_TOPICS, topic, _encoded(wanted))
        return wanted

    async def delete_ordered_queues(self, topic: str) -> None:
        """Remove a topic from the globally ordered topics. The topic and its messages stay.

        Sends DELETE_KV_CONFIG (102) to each name server. Raises ClientError if one of them failed.
        Java: ``deleteKvConfig``.
        """
        await self.delete(ORDERED_TOPICS, topic)

    async def ordered_topics(self) -> dict[str, dict[str, int]]:
        """Return all globally ordered topics, with the number of queues by brokerName.

        Sends GET_KVLIST_BY_NAMESPACE (219). Raises RemotingError, and ClientError for a value that
        is not readable. Java: ``getKVListByNamespace``.
        """
        table = await self.list(ORDERED_TOPICS)
        return {topic: ordered_queues_of(value, topic) for topic, value in table.items()}

    async def _change(self, request: Request[Any]) -> None:
        await self._servers.change_each(self._servers.name_servers, request)


def ordered_queues_of(value: str, topic: str) -> dict[str, int]:
    """Read the value of a globally ordered topic, for example ``broker-a:4;broker-b:4``.

    Raises ClientError if the value has another form.
    """
    found = {}
    for part in filter(None, value.split(";")):
        broker, _, number = part.rpartition(":")
        if not broker or not number.isdecimal():
            raise ClientError(
                f"the ordered queues of topic {topic} are not readable: {value!r}; expected "
                "BROKER:QUEUES;BROKER:QUEUES"
            )
        found[broker] = int(number)
    return found


def _encoded(queues: Mapping[str, int]) -> str:
    for broker, number in queues.items():
        if not broker or ":" in broker or ";" in broker or number < 1:
            raise ConfigError(
                f"{broker!r} with {number} queues is not possible: a brokerName has no : and no ; "
                "and has at least one queue"
            )
    if not queues:
        raise ConfigError("a globally ordered topic needs at least one broker with its queues")
    return ";".join(f"{broker}:{number}" for broker, number in sorted(queues.items()))
