"""Class ``Admin``: all operations on a cluster, by subject.

One rule: the class knows no request. Each subject is a class of its own in the module of the same
name. All subjects share the connections of one ``Servers``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turbopump.admin.brokers import Brokers
from turbopump.admin.clients import Clients
from turbopump.admin.cluster import ANSWER_S, Servers
from turbopump.admin.dead_letters import GroupDeadLetters
from turbopump.admin.groups import Groups
from turbopump.admin.kv import Kv
from turbopump.admin.messages import Messages
from turbopump.admin.name_servers import NameServers
from turbopump.admin.offsets import Offsets
from turbopump.admin.replication import Replication
from turbopump.admin.topics import Topics
from turbopump.admin.users import Users
from turbopump.auth.signatures import Credentials
from turbopump.client.dead_letters import DeadLetters
from turbopump.client.environment import name_server_addresses
from turbopump.client.lifecycle import InContext
from turbopump.config.tls import ClientTls
from turbopump.protocol.command import Body, Command
from turbopump.protocol.request import Request


class _Finder(DeadLetters):
    """Finder of the messages for ``Admin``. It also knows if the ``Admin`` may be used."""

    _named = ("Admin", "admin")


class _CheckedServers(Servers):
    """Connections that can be used between the start and the close of an ``Admin``."""

    def __init__(
        self,
        name_servers: list[str],
        credentials: Credentials | None,
        tls: ClientTls | bool,
        check: Callable[[], object],
    ) -> None:
        super().__init__(name_servers, credentials, tls)
        self._check = check

    async def exchange(
        self, address: str, request: Request[Any], body: Body = b"", *, timeout: float = ANSWER_S
    ) -> Command:
        self._check()
        return await super().exchange(address, request, body, timeout=timeout)


class Admin(InContext):
    """Operations on a cluster, for asyncio: ``async with Admin("127.0.0.1:9876") as admin:``.

    - ``namesrv``: name servers, as for the clients. By default those of the variable
      ``NAMESRV_ADDR`` are used.
    - ``credentials``: keys for signing each request. A cluster with access control wants those of a
      user who may do the operation.
    - ``tls``: True, or a ``ClientTls`` with details.

    An operation asks a name server which brokers there are, unless it takes the address of a
    broker. It then asks the brokers one after another. Nothing is kept between two operations
    except connections.

    Operations raise RemotingError if a server cannot be asked, ResponseError if it refuses, and
    ClientError if a name does not exist. Before the start, after the close and in a forked child
    they raise NotStartedError. Constructing raises ConfigError for unusable settings.
    Source of the operations: apache/rocketmq ``DefaultMQAdminExt``.
    """

    topics: Topics
    """Topics: list, create, alter, delete; settings, routes, queues."""
    groups: Groups
    """Consumer groups: list, create, alter, delete; settings, members, lag."""
    offsets: Offsets
    """Offsets of groups in queues: show, reset, clone, set."""
    clients: Clients
    """Connected producers and consumers, and what they report about themselves."""
    messages: Messages
    """Stored messages: find, and learn which groups have consumed one."""
    dead_letters: GroupDeadLetters
    """Dead letters of groups: list, and send again."""
    brokers: Brokers
    """Brokers: list, settings, figures, cleaning."""
    name_servers: NameServers
    """Name servers: settings, and the write permission of brokers."""
    kv: Kv
    """Key-value configuration of the name servers, and globally ordered topics."""
    users: Users
    """Users and policies on all servers."""
    replication: Replication
    """Masters and slaves: in sync, behind, problems."""

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: ClientTls | bool = False,
    ) -> None:
        addresses = list(name_server_addresses(namesrv))
        self._finder = _Finder(addresses, credentials=credentials, tls=tls)
        self.servers: Servers = _CheckedServers(
            addresses, credentials, tls, lambda: self._finder.instance
        )
        """Connections of this object, for a request that no operation sends."""
        self.topics = Topics(self.servers)
        self.groups = Groups(self.servers)
        self.offsets = Offsets(self.servers)
        self.clients = Clients(self.servers, self._finder)
        self.messages = Messages(self.servers, self._finder)
        self.dead_letters = GroupDeadLetters(self._finder)
        self.brokers = Brokers(self.servers)
        self.name_servers = NameServers(self.servers)
        self.kv = Kv(self.servers)
        self.users = Users(self.servers)
        self.replication = Replication(self.servers)

    async def start(self) -> None:
        """Start the client. The first operation opens connections."""
        await self._finder.start()

    async def close(self) -> None:
        """Close all connections. A second call does nothing."""
        await self._finder.close()
        await self.servers.close()
