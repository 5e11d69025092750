"""Users and policies in the records of the log: sealed, and at the next master."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from tests.loops import in_loop
from tests.unit.broker.accounts_of_slaves import (
    ADMIN,
    BILLING,
    ON,
    accounts_of,
    until_same_accounts,
)
from tests.unit.broker.replica.groups import HOSTS, Group, with_empty_group
from tests.unit.broker.replicas import log_of

from turbopump.auth.accounts import SUBJECT, Accounts
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker.broker import Broker
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    PolicyEntryInfo,
    PolicyInfo,
    UpdateUser,
    UserInfo,
)
from turbopump.remoting.client import RemotingClient

ACL: Final = AclInfo(
    subject=SUBJECT + "billing",
    policies=[
        PolicyInfo(entries=[PolicyEntryInfo(resource="Topic:T", actions=["All"], decision="Allow")])
    ],
)


async def changed(
    host: str, request: Request[Any], body: Body = b"", credentials: Credentials = ADMIN
) -> None:
    """Send a request as this user, and expect that it is done."""
    remoting = RemotingClient(signer=RequestSigner(credentials))
    try:
        answer = await remoting.exchange(f"{host}:10911", request, body, timeout=10)
    finally:
        await remoting.close()
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def make_user(host: str) -> None:
    await changed(host, CreateUser(username="billing"), UserInfo(password=BILLING.secret_key))


async def change_user(host: str) -> None:
    await make_user(host)
    await changed(host, UpdateUser(username="billing"), UserInfo(user_type="Super"))


async def delete_user(host: str) -> None:
    await make_policy(host)
    await changed(host, DeleteUser(username="billing"))


async def make_policy(host: str) -> None:
    await make_user(host)
    await changed(host, CreateAcl(subject=ACL.subject), ACL)


async def delete_policy(host: str) -> None:
    await make_policy(host)
    await changed(host, DeleteAcl(subject=ACL.subject))


def is_made(accounts: Accounts) -> bool:
    user = accounts.users.get("billing")
    return user is not None and user.password == BILLING.secret_key


def is_super(accounts: Accounts) -> bool:
    return accounts.users["billing"].is_super


def is_gone(accounts: Accounts) -> bool:
    return "billing" not in accounts.users and "billing" not in accounts.policies


def may(accounts: Accounts) -> bool:
    return "billing" in accounts.policies


def may_not(accounts: Accounts) -> bool:
    return "billing" in accounts.users and "billing" not in accounts.policies


Change = Callable[[str], Awaitable[None]]
CHANGES: Final[dict[str, tuple[Change, Callable[[Accounts], bool]]]] = {
    "user made": (make_user, is_made),
    "user changed": (change_user, is_super),
    "user deleted": (delete_user, is_gone),
    "policy made": (make_policy, may),
    "policy deleted": (delete_policy, may_not),
}


async def closed_group(group: Group) -> Broker:
    """Start replicas with access control. Return their first master."""
    await group.start_controller()
    for host in HOSTS:
        await group.replica(host, **ON)
    return await group.master_other_than()


@pytest.mark.parametrize("name", CHANGES)
@in_loop(with_empty_group)
async def test_an_answered_change_of_accounts_is_at_the_next_master(
    group: Group, /, name: str
) -> None:
    change, is_there = CHANGES[name]
    first = await closed_group(group)
    await change(first.host)
    group.kill(first.host)
    assert is_there(accounts_of(await group.master_other_than(first.host)))


@in_loop(with_empty_group)
async def test_accounts_are_there_after_a_crash_of_all_and_no_password_is_in_the_log(
    group: Group, /
) -> None:
    first = await closed_group(group)
    await make_policy(first.host)
    assert BILLING.secret_key.encode() not in log_of(first.store)
    for host in HOSTS:
        group.kill(host)
    for host in HOSTS:
        group.mend(host)
        await group.replica(host, **ON)
    master = await group.master_other_than()
    assert is_made(accounts_of(master))
    assert may(accounts_of(master))
    for host in HOSTS:
        broker = group.replicas[host].broker
        assert broker is not None
        await until_same_accounts(master, broker)
