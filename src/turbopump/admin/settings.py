"""Settings of running servers: reading them, and changing them with the old and the new value.

All kinds of servers share this module. Source of the requests: apache/rocketmq
``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turbopump.admin.cluster import change_each
from turbopump.config import properties
from turbopump.errors import ConfigError, RemotingError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command
from turbopump.protocol.request import Request
from turbopump.remoting.client import RemotingClient, refused_by


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Change of one setting of a running server.

    - ``server``: the address of the server.
    - ``old``, ``new``: the values that the server reported before and after the change. None means
      that the server reports no such key.
    - ``wanted``: the value that was sent.
    """

    server: str
    key: str
    old: str | None
    new: str | None
    wanted: str

    @property
    def ignored(self) -> bool:
        """True if the server still reports another value than the wanted one.

        Apache's servers accept a change of an unknown key and ignore it.
        """
        return self.new != self.wanted


async def exchange_checked(
    servers: RemotingClient, address: str, request: Request[Any], body: Body = b""
) -> Command:
    """Send a request and return the whole answer. Raises RemotingError, and ResponseError if the
    server refuses."""
    answer = await servers.exchange(address, request, body)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RemotingError(
            f"{address} does not know {type(request).__name__}: it is another kind of server"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise refused_by(address, request, answer)
    return answer


async def read_settings(
    servers: RemotingClient, address: str, request: Request[Any]
) -> dict[str, str]:
    """Return all settings of a server by Apache's keys, sorted by key.

    - ``request``: the request for the settings of this kind of server.

    Raises RemotingError.
    """
    answer = await exchange_checked(servers, address, request)
    return dict(sorted(properties.decode(answer.body).items()))


async def change_settings(
    servers: RemotingClient,
    address: str,
    wanted: Mapping[str, str],
    *,
    read: Request[Any],
    update: Request[Any],
) -> list[SettingChange]:
    """Change settings of a server in one request. Return one change for each key.

    - ``read``, ``update``: the requests for this kind of server.

    The settings are read before and after. Raises ConfigError if ``wanted`` is empty, and
    RemotingError; after an error the settings are as before, or the server did not answer.
    """
    if not wanted:
        raise ConfigError("no setting to change was given")
    before = await read_settings(servers, address, read)
    await exchange_checked(servers, address, update, properties.encode(wanted).encode())
    after = await read_settings(servers, address, read)
    return [
        SettingChange(address, key, before.get(key), after.get(key), value)
        for key, value in wanted.items()
    ]


async def change_settings_of_each(
    servers: RemotingClient,
    addresses: Iterable[str],
    wanted: Mapping[str, str],
    *,
    read: Request[Any],
    update: Request[Any],
) -> list[SettingChange]:
    """Change settings of each server, also after a failure. Return one change for each server and
    key.

    Raises ConfigError if ``wanted`` is empty, and the errors of ``change_each``.
    """

    async def change(address: str) -> list[SettingChange]:
        return await change_settings(servers, address, wanted, read=read, update=update)

    done = await change_each(addresses, change)
    return [one for changes in done.values() for one in changes]
