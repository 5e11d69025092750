"""Users and policies on all servers with access control, as a subject of ``Admin``.

Each name server and broker keeps its own accounts. A change goes to every server, slaves included,
also if one of them fails. Servers without access control are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turbopump.admin.access import (
    OFF,
    ServerAccounts,
    account_servers,
    acl_of,
    ask_for_accounts,
    change_all,
    list_accounts,
    policy_type,
)
from turbopump.admin.cluster import Servers, changed_servers
from turbopump.auth.accounts import DISABLED, ENABLED, NORMAL, SUBJECT, SUPER
from turbopump.errors import ClientError, ConfigError
from turbopump.protocol import fastjson
from turbopump.protocol.command import Body
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcl,
    GetUser,
    PolicyInfo,
    UpdateAcl,
    UpdateUser,
    UserInfo,
)


class Users:
    """Operations on users and policies, on all servers with access control.

    The parameter ``server`` of an operation is the address of one name server or broker. By default
    all name servers, masters and slaves are asked, which costs one request to a name server (106).
    Operations raise ClientError if no server has access control.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def list(
        self, name: str = "", *, server: str | None = None
    ) -> tuple[ServerAccounts, ...]:
        """For each server, return the users whose name contains ``name``, with their policies.

        Servers never show passwords. Sends AUTH_LIST_USER (3005) and AUTH_LIST_ACL (3010) to each
        server. Raises RemotingError if a server cannot be asked. Java: ``listUser``, ``listAcl``.
        """
        return tuple(await list_accounts(self._servers, await self._those(server), name))

    async def get(self, user: str, *, server: str | None = None) -> dict[str, UserInfo | None]:
        """Return a user without the password, by server. None means that the server lacks the user.

        Sends AUTH_GET_USER (3004) to each server. Raises RemotingError if a server cannot be asked.
        Java: ``getUser``.
        """
        found = await self._ask(GetUser(username=user), server)
        return {
            address: fastjson.decode(body, UserInfo) if body else None
            for address, body in found.items()
        }

    async def policies(
        self, user: str, *, server: str | None = None
    ) -> dict[str, Sequence[PolicyInfo]]:
        """Return the policies of a user, by server. A user without policies has an empty sequence.

        Sends AUTH_GET_ACL (3009) to each server. Raises RemotingError if a server cannot be asked.
        Java: ``getAcl``.
        """
        found = await self._ask(GetAcl(subject=SUBJECT + user), server)
        return {
            address: (fastjson.decode(body, AclInfo).policies or ()) if body else ()
            for address, body in found.items()
        }

    async def create(
        self, user: str, password: str, *, is_super: bool = False, server: str | None = None
    ) -> Sequence[str]:
        """Create a user. Return the addresses of the servers that did it.

        - ``user``, ``password``: access key and secret key of clients.
        - ``is_super``: True for a user who may do everything. A normal user without policies may do
          nothing.

        Sends AUTH_CREATE_USER (3001) to each server. Raises ClientError if one of them refused, for
        example because it has the user; the error lists all. Java: ``createUser``.
        """
        kind = SUPER if is_super else NORMAL
        info = UserInfo(username=user, password=password, user_type=kind)
        return await self._change(CreateUser(username=user), server, info)

    async def change(
        self,
        user: str,
        *,
        password: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        server: str | None = None,
    ) -> Sequence[str]:
        """Change a user. Return the addresses of the servers that did it. None keeps a value.

        Servers apply the change to the next request of the user. Sends AUTH_UPDATE_USER (3002) to
        each server. Raises ConfigError without a value to change, and ClientError if a server
        refused; the error lists all. Java: ``updateUser``.
        """
        if password is None and is_super is None and is_enabled is None:
            raise ConfigError("give password, is_super or is_enabled")
        info = UserInfo(username=user, password=password)
        if is_super is not None:
            info.user_type = SUPER if is_super else NORMAL
        if is_enabled is not None:
            info.user_status = ENABLED if is_enabled else DISABLED
        return await self._change(UpdateUser(username=user), server, info)

    async def delete(self, user: str, *, server: str | None = None) -> Sequence[str]:
        """Delete a user and their policies. Return the addresses of the servers that did it.

        A missing user is no error. Sends AUTH_DELETE_USER (3003) to each server. Raises ClientError
        if one of them refused; the error lists all. Java: ``deleteUser``.
        """
        return await self._change(DeleteUser(username=user), server)

    async def add_policy(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        is_denied: bool = False,
        sources: Sequence[str] = (),
        is_default: bool = False,
        server: str | None = None,
    ) -> Sequence[str]:
        """Allow or deny a user actions on resources. Return the addresses of the servers that did
        it.

        - ``resources``: for example ``Topic:orders*`` or ``Group:billing``. An entry for the same
          resource is replaced.
        - ``actions``: for example ``Pub`` or ``Sub``.
        - ``sources``: addresses and ranges of clients. By default the policy is for all.

        Sends AUTH_CREATE_ACL (3006) to each server. Raises ConfigError for an invalid resource or
        action, and ClientError if a server refused; the error lists all. Java: ``createAcl``.
        """
        return await self._change(
            CreateAcl(subject=SUBJECT + user),
            server,
            acl_of(user, resources, actions, is_denied, sources, is_default),
        )

    async def change_policy(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        is_denied: bool = False,
        sources: Sequence[str] = (),
        is_default: bool = False,
        server: str | None = None,
    ) -> Sequence[str]:
        """Replace the entries of a user's policy for these resources. Parameters, result and errors
        are those of ``add_policy``.

        Servers treat this as ``add_policy``, but Apache's refuses a user without policies. Sends
        AUTH_UPDATE_ACL (3007) to each server. Java: ``updateAcl``.
        """
        return await self._change(
            UpdateAcl(subject=SUBJECT + user),
            server,
            acl_of(user, resources, actions, is_denied, sources, is_default),
        )

    async def delete_policy(
        self,
        user: str,
        resource: str | None = None,
        *,
        is_default: bool | None = None,
        server: str | None = None,
    ) -> Sequence[str]:
        """Delete the policy of a user for one resource, or all policies of the user. Return the
        addresses of the servers that did it.

        - ``is_default``: only entries of the Default policy (True) or of the Custom policy (False).

        Sends AUTH_DELETE_ACL (3008) to each server. Raises ClientError if one of them refused; the
        error lists all. Java: ``deleteAcl``.
        """
        kind = None if is_default is None else policy_type(is_default)
        request = DeleteAcl(subject=SUBJECT + user, policy_type=kind, resource=resource)
        return await self._change(request, server)

    async def _ask(self, request: Request[Any], server: str | None) -> dict[str, bytes]:
        found = {}
        for address in await self._those(server):
            answer = await ask_for_accounts(self._servers, address, request)
            if answer is not None:
                found[address] = bytes(answer.body)
        if not found:
            raise ClientError(OFF)
        return found

    async def _change(
        self, request: Request[Any], server: str | None, body: Body = b""
    ) -> Sequence[str]:
        outcomes = await change_all(self._servers, await self._those(server), request, body)
        return changed_servers({one.server: one.fault for one in outcomes})

    async def _those(self, server: str | None) -> Sequence[str]:
        if server is not None:
            return [server]
        return await account_servers(self._servers)
