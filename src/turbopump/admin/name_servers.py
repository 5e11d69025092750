"""Name servers: their settings, and the write permission of brokers that they hold.

Each name server keeps its own state. A change goes to every name server, also if one of them
fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from turbopump.admin.cluster import Servers, change_each
from turbopump.admin.settings import SettingChange, change_settings_of_each, read_settings
from turbopump.protocol.requests.namesrv import (
    AddWritePerm,
    GetNamesrvConfig,
    GetRouteInfo,
    UpdateNamesrvConfig,
    WipeWritePerm,
)
from turbopump.protocol.requests.topics import PERM_WRITE


class NameServers:
    """Operations on the name servers of a cluster: settings, and the write permission of brokers.

    The parameter ``server`` of an operation is the address of one name server. By default all name
    servers are asked.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    @property
    def addresses(self) -> list[str]:
        """Addresses of all name servers, as given to this object.

        Java: ``getNameServerAddressList``.
        """
        return list(self._servers.name_servers)

    async def settings(self, server: str | None = None) -> dict[str, dict[str, str]]:
        """Return the settings of each name server, by its address and by Apache's keys.

        Sends GET_NAMESRV_CONFIG (319) to each name server. Raises RemotingError. Java:
        ``getNameServerConfig``.
        """
        return {
            address: await read_settings(self._servers, address, GetNamesrvConfig())
            for address in self._those(server)
        }

    async def change_settings(
        self, wanted: Mapping[str, str], server: str | None = None
    ) -> list[SettingChange]:
        """Change settings of each name server. Return one change for each server and key.

        Sends UPDATE_NAMESRV_CONFIG (318) to each name server, and GET_NAMESRV_CONFIG (319) before
        and after. Raises ConfigError if ``wanted`` is empty, and ClientError if a name server
        failed; the error lists all. Java: ``updateNameServerConfig``.
        """
        return await change_settings_of_each(
            self._servers,
            self._those(server),
            wanted,
            read=GetNamesrvConfig(),
            update=UpdateNamesrvConfig(),
        )

    async def wipe_write_permission(self, broker: str, server: str | None = None) -> dict[str, int]:
        """Remove the write permission of a broker, so that clients send to other brokers.

        - ``broker``: the brokerName.

        Return the number of changed topics, by the address of the name server. Clients notice
        within 30 s. The change lasts until ``restore_write_permission``, or until the broker
        restarts. An unknown broker is no error: the number is 0.

        Sends WIPE_WRITE_PERM_OF_BROKER (205) to each name server. Raises ClientError if one of them
        failed; the error lists all. Java: ``wipeWritePermOfBroker``.
        """
        return await self._set_write_permission(broker, server, wiped=True)

    async def restore_write_permission(
        self, broker: str, server: str | None = None
    ) -> dict[str, int]:
        """Restore the write permission that ``wipe_write_permission`` has removed.

        Return the number of changed topics, by the address of the name server.

        Sends ADD_WRITE_PERM_OF_BROKER (327) to each name server. Errors are those of
        ``wipe_write_permission``. Java: ``addWritePermOfBroker``.
        """
        return await self._set_write_permission(broker, server, wiped=False)

    async def _set_write_permission(
        self, broker: str, server: str | None, *, wiped: bool
    ) -> dict[str, int]:
        async def change(address: str) -> int:
            return await set_write_permission_at(self._servers, address, broker, wiped=wiped)

        return await change_each(self._those(server), change)

    async def is_writable(self, broker: str, server: str) -> bool:
        """Return True if clients of a name server may send to a broker.

        Each broker has a topic of its own name, whose route shows the permission. One request
        (105). Raises RemotingError, and ResponseError if the broker is unknown.
        """
        route = await self._servers.call(server, GetRouteInfo(topic=broker))
        return any(one.perm & PERM_WRITE for one in route.queue_datas if one.broker_name == broker)

    def _those(self, server: str | None) -> list[str]:
        return [server] if server is not None else self.addresses


async def set_write_permission_at(
    servers: Servers, address: str, broker: str, *, wiped: bool
) -> int:
    """Remove or restore the write permission of a broker at one name server. Return the number of
    changed topics.

    Raises RemotingError.
    """
    if wiped:
        wipe = WipeWritePerm(broker_name=broker)
        return (await servers.ask(address, wipe)).wipe_topic_count
    add = AddWritePerm(broker_name=broker)
    return (await servers.ask(address, add)).add_topic_count
