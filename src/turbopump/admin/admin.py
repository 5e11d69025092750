"""Class ``Admin``: all operations on a cluster, by subject.

One rule: the class knows no request. Each subject is a class of its own in the module of the same
name. All subjects share the connections of one ``Servers``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from turbopump.admin.cluster import ANSWER_S, Servers
from turbopump.auth.signatures import Credentials
from turbopump.client.environment import name_server_addresses
from turbopump.client.lifecycle import InContext, not_started
from turbopump.config.tls import ClientTls
from turbopump.errors import NotStartedError
from turbopump.protocol.command import Body, Command
from turbopump.protocol.request import Request

if TYPE_CHECKING:
    from turbopump.admin.brokers import Brokers
    from turbopump.admin.clients import Clients
    from turbopump.admin.controllers import Controllers
    from turbopump.admin.dead_letters import GroupDeadLetters
    from turbopump.admin.groups import Groups
    from turbopump.admin.kv import Kv
    from turbopump.admin.messages import Messages
    from turbopump.admin.name_servers import NameServers
    from turbopump.admin.offsets import Offsets
    from turbopump.admin.replication import Replication
    from turbopump.admin.topics import Topics
    from turbopump.admin.users import Users
    from turbopump.client.dead_letters import DeadLetters

SUBJECTS: Final = {
    "topics": "Topics",
    "groups": "Groups",
    "offsets": "Offsets",
    "clients": "Clients",
    "messages": "Messages",
    "dead_letters": "GroupDeadLetters",
    "brokers": "Brokers",
    "name_servers": "NameServers",
    "kv": "Kv",
    "users": "Users",
    "replication": "Replication",
    "controllers": "Controllers",
}
"""Class of each subject, in the module of the subject's name. A module is imported on first use, so
that a command pays for its own subject only."""


class _CheckedServers(Servers):
    """Connections that can be used between the start and the close of an ``Admin``."""

    def __init__(
        self,
        name_servers: list[str],
        credentials: Credentials | None,
        tls: ClientTls | bool,
        check: Callable[[], None],
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
    broker. Brokers are asked one after another. Only connections are kept between two operations.

    Operations raise RemotingError if a server cannot be asked, ResponseError if it refuses, and
    ClientError if a name does not exist. Before the start, after the close, in a forked child and
    on another event loop they raise NotStartedError. Constructing raises ConfigError for unusable
    settings. Source of the operations: apache/rocketmq ``DefaultMQAdminExt``.
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
    controllers: Controllers
    """Controllers: who leads, replicas of broker names, elections, settings."""
    servers: Servers
    """Connections of this object, for a request that no operation sends."""

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: ClientTls | bool = False,
    ) -> None:
        addresses = list(name_server_addresses(namesrv))
        self.servers = _CheckedServers(addresses, credentials, tls, self._check_usable)
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False
        self._finder: DeadLetters | None = None

    async def start(self) -> None:
        """Start the client. The first operation opens connections, and a second ``start`` does
        nothing."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._pid = os.getpid()
        self._check_usable()

    async def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._closed = True
        if self._finder is not None:
            await self._finder.close()
        await self.servers.close()

    def __getattr__(self, name: str) -> Any:
        if name not in SUBJECTS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        subject = getattr(import_module(f"turbopump.admin.{name}"), SUBJECTS[name])
        if name == "dead_letters":
            made = subject(self._started_finder)
        elif name in ("clients", "messages"):
            made = subject(self.servers, self._started_finder)
        else:
            made = subject(self.servers)
        setattr(self, name, made)
        return made

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *SUBJECTS})

    async def _started_finder(self) -> DeadLetters:
        """Return the finder of messages and dead letters, whose connections are its own. The first
        call starts it."""
        self._check_usable()
        if self._finder is None:
            from turbopump.client.dead_letters import DeadLetters  # few operations need it

            self._finder = DeadLetters(
                self.servers.name_servers, credentials=self.servers.credentials, tls=self._tls
            )
        await self._finder.start()
        return self._finder

    def _check_usable(self) -> None:
        if self._loop is None:
            raise not_started("Admin", "admin")
        if self._closed:
            raise NotStartedError("this Admin is closed; start a new one")
        if os.getpid() != self._pid or asyncio.get_running_loop() is not self._loop:
            raise NotStartedError(
                "this Admin was started in another process or on another event loop; start a new "
                "one here"
            )
