"""Operations on users and policies, on a master and a slave of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.loops import in_loop
from tests.unit.broker.accounts_of_slaves import ADMIN, ON, until_same_accounts
from tests.unit.broker.replicas import MASTER, NAMESRV, SLAVE, Replicas, with_replicas

from turbopump.admin.admin import Admin
from turbopump.errors import ClientError, ConfigError

BOTH = [f"{MASTER}:10911", f"{SLAVE}:10911"]


@asynccontextmanager
async def administered(replicas: Replicas) -> AsyncIterator[Admin]:
    """A master and a slave with access control, and their administrator."""
    master, slave = await replicas.master(**ON), await replicas.slave(**ON)
    await until_same_accounts(slave, master)
    async with Admin(f"{NAMESRV}:9876", credentials=ADMIN) as admin:
        yield admin


@in_loop(with_replicas)
async def test_a_user_is_made_on_masters_and_slaves(replicas: Replicas, /) -> None:
    async with administered(replicas) as admin:
        await admin.users.create("ann", "s", server=BOTH[0])
        await admin.users.create("bob", "s", is_super=True)
        found = await admin.users.get("bob")
        assert list(found) == BOTH
        kinds = {one and (one.user_type, one.user_status, one.password) for one in found.values()}
        assert kinds == {("Super", "enable", None)}


@in_loop(with_replicas)
async def test_a_user_is_changed_and_deleted(replicas: Replicas, /) -> None:
    async with administered(replicas) as admin:
        assert await admin.users.create("ann", "s") == BOTH
        assert await admin.users.change("ann", is_enabled=False, is_super=True) == BOTH
        found = (await admin.users.get("ann"))[BOTH[0]]
        assert found is not None
        assert (found.user_type, found.user_status) == ("Super", "disable")
        assert await admin.users.delete("ann") == BOTH
        assert await admin.users.get("ann") == dict.fromkeys(BOTH)
        with pytest.raises(ConfigError):
            await admin.users.change("ann")


@in_loop(with_replicas)
async def test_policies_are_added_and_deleted(replicas: Replicas, /) -> None:
    async with administered(replicas) as admin:
        await admin.users.create("ann", "s")
        assert await admin.users.policies("ann") == dict.fromkeys(BOTH, ())
        await admin.users.add_policy("ann", ["Topic:a", "Group:g"], ["Sub"])
        await admin.users.change_policy("ann", ["Topic:a"], ["Pub"], is_denied=True)
        for listed in await admin.users.list("ann"):
            (acl,) = listed.acls
            (policy,) = acl.policies or ()
            assert {(one.resource, one.decision) for one in policy.entries or ()} == {
                ("Topic:a", "Deny"),
                ("Group:g", "Allow"),
            }
        await admin.users.delete_policy("ann", "Topic:a", is_default=False)
        (policy,) = (await admin.users.policies("ann"))[BOTH[1]]
        assert [one.resource for one in policy.entries or ()] == ["Group:g"]
        await admin.users.delete_policy("ann")
        assert await admin.users.policies("ann") == dict.fromkeys(BOTH, ())
        with pytest.raises(ConfigError, match="'a' is not a resource"):
            await admin.users.add_policy("ann", ["a"], ["Sub"])


@in_loop(with_replicas)
async def test_each_server_that_refuses_is_named(replicas: Replicas, /) -> None:
    async with administered(replicas) as admin:
        with pytest.raises(ClientError) as raised:
            await admin.users.change("nobody", is_enabled=False)
        for address in BOTH:
            assert f"{address}: The user is not exist: nobody" in str(raised.value)
        assert str(raised.value).endswith("Changed: none")


@in_loop(with_replicas)
async def test_without_access_control_there_are_no_users(replicas: Replicas, /) -> None:
    await replicas.master()
    async with Admin(f"{NAMESRV}:9876") as admin:
        for operation in (admin.users.list(), admin.users.get("a"), admin.users.create("a", "s")):
            with pytest.raises(ClientError, match="no server that was asked has access control"):
                await operation
