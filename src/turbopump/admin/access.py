"""Users and policies on all servers with access control: listing and changing them.

Each name server and broker keeps its own accounts. One server may make a change that another
refuses, so every server has its own outcome. Files and the display of answers are unknown here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from turbopump.admin.cluster import Servers
from turbopump.auth.accounts import SUBJECT, Accounts, User
from turbopump.auth.policies import Policies, Resource, actions_of
from turbopump.auth.sealing import NONCE_SIZE, unseal
from turbopump.documentation import page_url
from turbopump.errors import ClientError, RemotingError, TurbopumpError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    SEALED,
    SWITCHED_OFF,
    AclInfo,
    CreateAcl,
    CreateUser,
    ListAcls,
    ListUsers,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)

OFF: Final = (
    "no server that was asked has access control: set authenticationEnabled=true in its "
    f"configuration ({page_url('docs/guide/access-control.md')})"
)


NO_REMARK: Final = "not set any response code"
"""Remark of Apache's brokers in an answer that has none of its own. Source: apache/rocketmq
``RemotingCommand.createResponseCommand``."""
NAMED_MAX: Final = 5
"""Maximum number of users that a comparison names. Further users are counted."""


@dataclass(frozen=True)
class ChangeOutcome:
    """Outcome of a change of accounts on one server or in one file.

    - ``fault``: the reason for a failure, or None after success.
    """

    server: str
    fault: str | None = None


@dataclass(frozen=True)
class ServerAccounts:
    """Users and policies that one server or one file has.

    - ``warning``: a warning if other users of the machine may access the file, or None.
    """

    server: str
    users: list[UserInfo]
    acls: list[AclInfo]
    warning: str | None = None

    def user(self, name: str) -> UserInfo | None:
        return next((user for user in self.users if user.username == name), None)

    @property
    def accounts(self) -> Accounts:
        """Copy of the users and policies as ``Accounts``, without passwords.

        Raises ConfigError for an invalid value.
        """
        accounts = Accounts()
        for user in self.users:
            accounts = accounts.with_new_user(msgspec.structs.replace(user, password="?"))
        for acl in self.acls:
            if (acl.subject or "").removeprefix(SUBJECT) in accounts.users:
                accounts = accounts.with_acl(acl)
        return accounts


async def account_servers(servers: Servers) -> list[str]:
    """Return the addresses of all servers that may have accounts, in the order for a change: name
    servers, masters, slaves.

    In another order a slave could copy an older state over its change. Raises RemotingError.
    """
    return [*servers.name_servers, *await servers.members()]


async def list_accounts(
    servers: Servers, addresses: Iterable[str], name: str = ""
) -> list[ServerAccounts]:
    """For each server, return the users whose name contains ``name``, with their policies.

    Servers without access control are left out. Raises RemotingError if a server cannot be asked,
    and ClientError if no server has access control.
    """
    found = []
    for address in addresses:
        users = await ask_for_accounts(servers, address, ListUsers(filter=name))
        if users is not None:
            acls = await ask_for_accounts(servers, address, ListAcls(subject_filter=SUBJECT + name))
            found.append(
                ServerAccounts(
                    address,
                    fastjson.decode(users.body or b"[]", list[UserInfo]),
                    fastjson.decode((acls and acls.body) or b"[]", list[AclInfo]),
                    None if users.remark == NO_REMARK else users.remark,
                )
            )
    if not found:
        raise ClientError(OFF)
    return found


@dataclass(frozen=True)
class ComparedAccounts:
    """Accounts of one server, to be compared with those of another server.

    - ``accounts``: the accounts, or None if the server has no access control.
    - ``passwords``: True if the accounts contain real passwords, which a server shows to Super
      users only.
    - ``warning``: the server's warning about its accounts file, or None.
    """

    server: str
    accounts: Accounts | None
    passwords: bool = False
    warning: str | None = None


async def accounts_at(servers: Servers, address: str) -> ComparedAccounts | None:
    """Ask one server for its accounts.

    Return None if the caller has no credentials, or if the server refuses or does not answer.
    """
    credentials = servers.credentials
    if credentials is None:
        return None
    nonce = secrets.token_hex(NONCE_SIZE)
    try:
        answer = await servers.exchange(address, ListUsers(nonce=nonce))
        if _is_off(answer):
            return ComparedAccounts(address, None)
        if SEALED in (answer.ext or {}):
            accounts = Accounts.decode(unseal(answer.body, credentials.secret_key, nonce))
            return ComparedAccounts(address, accounts, passwords=True, warning=answer.remark)
        (its,) = await list_accounts(servers, [address])
        return ComparedAccounts(address, its.accounts, warning=its.warning)
    except TurbopumpError:
        return None


def differing_accounts(one: ComparedAccounts, other: ComparedAccounts) -> str | None:
    """Describe how the accounts of ``other`` differ from those of ``one``. Return None if they are
    equal.

    The description has no secrets.
    """
    if one.accounts is None or other.accounts is None:
        if one.accounts is other.accounts:
            return None
        return "one has no access control"
    found = list(_differing(one.accounts, other.accounts, one.passwords and other.passwords))
    if not found:
        return None
    if len(found) > NAMED_MAX:
        found[NAMED_MAX:] = [f"and {len(found) - NAMED_MAX} more"]
    return "; ".join(found)


def _differing(one: Accounts, other: Accounts, passwords: bool) -> Iterator[str]:
    for name in sorted({*one.users, *other.users}):
        user = one.users.get(name)
        its = other.users.get(name)
        if its is None:
            yield f"{name} is missing"
        elif user is None:
            yield f"{name} is only there"
        elif passwords and user.password != its.password:
            yield f"{name} has another password"
        elif _kind(user) != _kind(its):
            yield f"{name} has another type or status"
        elif _entries(one, name) != _entries(other, name):
            yield f"{name} has other policies"


def _kind(user: User) -> tuple[bool, bool]:
    return user.is_super, user.enabled


def _entries(accounts: Accounts, name: str) -> set[Any]:
    mine = accounts.policies.get(name, Policies())
    return {(type_, entry) for type_, entries in mine.by_type() for entry in entries}


async def ask_for_accounts(servers: Servers, address: str, request: Request[Any]) -> Command | None:
    """Ask one server about users or policies. Return None if it has no access control.

    Raises RemotingError, also if the server refuses.
    """
    answer = await servers.exchange(address, request)
    if _is_off(answer):
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"{address}: {answer.remark or f'code {answer.code}'}")
    return answer


async def change_all(
    servers: Servers, addresses: Iterable[str], request: Request[Any], body: Body = b""
) -> list[ChangeOutcome]:
    """Send the same change of accounts to each server. Return one outcome for each server.

    Servers without access control are left out. Raises ClientError if no server has access control.
    """
    outcomes = []
    for address in addresses:
        try:
            answer = await servers.exchange(address, request, body)
        except RemotingError as error:
            outcomes.append(ChangeOutcome(address, str(error)))
            continue
        if _is_off(answer):
            continue
        if answer.code == ResponseCode.SUCCESS:
            outcomes.append(ChangeOutcome(address))
        else:
            outcomes.append(
                ChangeOutcome(address, (answer.remark or f"code {answer.code}").strip())
            )
    if not outcomes:
        raise ClientError(OFF)
    return outcomes


def _is_off(answer: Command) -> bool:
    """Return True if the answer shows that a server has no access control.

    Apache's name server does not know such requests.
    """
    return answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or answer.remark == SWITCHED_OFF


async def import_all(
    servers: Servers, addresses: Iterable[str], accounts: Accounts
) -> tuple[list[str], list[ChangeOutcome]]:
    """On each server, create the users of ``accounts`` that the server lacks, with their policies.

    Return a line for each created user, and the changes that failed. Raises ClientError if no
    server has access control.
    """
    made: list[str] = []
    outcomes: list[ChangeOutcome] = []
    all_held: list[ServerAccounts] = []
    for address in addresses:
        try:
            all_held += await list_accounts(servers, [address])
        except RemotingError as error:
            outcomes.append(ChangeOutcome(address, str(error)))
        except ClientError:  # no access control
            continue
    if not all_held and not outcomes:
        raise ClientError(OFF)
    for one in all_held:
        for name, user in accounts.users.items():
            if one.user(name) is not None:
                continue
            info = accounts.user_info(name)
            outcomes += await change_all(servers, [one.server], CreateUser(username=name), info)
            acl = accounts.acl_info(name)
            if acl.policies:
                request = CreateAcl(subject=SUBJECT + name)
                outcomes += await change_all(servers, [one.server], request, acl)
            made.append(f"{one.server}: {user.name}")
    return made, [one for one in outcomes if one.fault is not None]


def policy_type(is_default: bool) -> str:
    """Return the name of a type of policies in requests."""
    return "Default" if is_default else "Custom"


def acl_of(
    user: str,
    resources: Sequence[str],
    actions: Sequence[str],
    is_denied: bool,
    sources: Sequence[str],
    is_default: bool,
) -> AclInfo:
    """Return a policy as requests have it. Raises ConfigError for an invalid resource or action."""
    entries = [
        PolicyEntryInfo(
            resource=str(Resource.parse(resource)),
            actions=sorted(actions_of(actions)),
            source_ips=list(sources) or None,
            decision="Deny" if is_denied else "Allow",
        )
        for resource in resources
    ]
    policies = [PolicyInfo(policy_type=policy_type(is_default), entries=entries)]
    return AclInfo(subject=SUBJECT + user, policies=policies)
