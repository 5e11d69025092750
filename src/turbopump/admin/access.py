"""Users and policies of a cluster: asked for and changed on every server that has access control,
name servers and brokers.

Each server keeps its own, so a change may be done here and refused there: the outcome is said of
each. It must not know files, nor how answers are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from turbopump.admin.cluster import Servers
from turbopump.auth.accounts import SUBJECT, Accounts
from turbopump.errors import ClientError, ConfigError, RemotingError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    SWITCHED_OFF,
    AclInfo,
    CreateAcl,
    CreateUser,
    ListAcls,
    ListUsers,
    UserInfo,
)

OFF: Final = (
    "no server that was asked has access control: set authenticationEnabled=true in its "
    "configuration (docs/guide/access-control.md)"
)


@dataclass(frozen=True)
class Told:
    """What one server, or file, has made of a change; ``fault`` None: it is done."""

    server: str
    fault: str | None = None


@dataclass(frozen=True)
class Held:
    """What one server, or file, holds. ``amiss``: what is wrong with how it is kept, in words."""

    server: str
    users: list[UserInfo]
    acls: list[AclInfo]
    amiss: str | None = None

    def user(self, name: str) -> UserInfo | None:
        return next((user for user in self.users if user.username == name), None)

    def accounts_of(self, name: str) -> Accounts:
        """A user with the policies for them, to be asked; their password is not known. Raises
        ConfigError if there is none."""
        user = self.user(name)
        if user is None:
            raise ConfigError(f"{self.server} has no user {name}")
        info = UserInfo(
            username=name, password="?", user_type=user.user_type, user_status=user.user_status
        )
        accounts = Accounts().with_new_user(info)
        for acl in self.acls:
            if acl.subject == SUBJECT + name:
                accounts = accounts.with_acl(acl)
        return accounts


async def held(servers: Servers, addresses: Iterable[str], name: str = "") -> list[Held]:
    """The users, and the policies for them, whose name has ``name`` in it, on each server that has
    access control. Raises RemotingError, ClientError if none has."""
    found = []
    for address in addresses:
        users = await _asked(servers, address, ListUsers(filter=name))
        if users is not None:
            acls = await _asked(servers, address, ListAcls(subject_filter=SUBJECT + name))
            found.append(
                Held(
                    address,
                    fastjson.decode(users.body or b"[]", list[UserInfo]),
                    fastjson.decode((acls and acls.body) or b"[]", list[AclInfo]),
                    users.remark,
                )
            )
    if not found:
        raise ClientError(OFF)
    return found


async def _asked(servers: Servers, address: str, request: Request[Any]) -> Command | None:
    answer = await servers.exchange(address, request)
    if _is_off(answer):
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"{address}: {answer.remark or f'code {answer.code}'}")
    return answer


async def change_all(
    servers: Servers, addresses: Iterable[str], request: Request[Any], body: Body = b""
) -> list[Told]:
    """What each server that has access control makes of a change. Raises ClientError if none
    has."""
    told = []
    for address in addresses:
        try:
            answer = await servers.exchange(address, request, body)
        except RemotingError as error:
            told.append(Told(address, str(error)))
            continue
        if _is_off(answer):
            continue
        if answer.code == ResponseCode.SUCCESS:
            told.append(Told(address))
        else:
            told.append(Told(address, (answer.remark or f"code {answer.code}").strip()))
    if not told:
        raise ClientError(OFF)
    return told


def _is_off(answer: Command) -> bool:
    """Whether a server has no access control; Apache's name server does not know these requests."""
    return answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or answer.remark == SWITCHED_OFF


async def import_all(
    servers: Servers, addresses: Iterable[str], accounts: Accounts
) -> tuple[list[str], list[Told]]:
    """Make users, and the policies for them, that are not there. Which users were made where, and
    what was refused."""
    made, told = [], []
    for one in await held(servers, addresses):
        for name, user in accounts.users.items():
            if one.user(name) is not None:
                continue
            info = accounts.user_info(name)
            told += await change_all(servers, [one.server], CreateUser(username=name), info)
            acl = accounts.acl(name)
            if acl.policies:
                request = CreateAcl(subject=SUBJECT + name)
                told += await change_all(servers, [one.server], request, acl)
            made.append(f"{one.server}: {user.name}")
    return made, [one for one in told if one.fault is not None]
