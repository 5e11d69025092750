"""Operations on name servers, on two running name servers of ours."""

from __future__ import annotations

import pytest
from tests.loops import in_loop
from tests.unit.admin.two_name_servers import two_name_servers

from turbopump.admin.admin import Admin
from turbopump.errors import ClientError, RemotingError, ResponseError
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.topics import PERM_READ, PERM_WRITE
from turbopump.testing.broker_in_loop import running_broker


@in_loop
async def test_a_setting_is_changed_on_every_name_server() -> None:
    async with two_name_servers() as (addresses, _), Admin(addresses) as admin:
        assert admin.name_servers.addresses == addresses
        changes = await admin.name_servers.change_settings({"enableTopicList": "false"})
        assert [(one.server, one.old, one.new) for one in changes] == [
            (address, "true", "false") for address in addresses
        ]
        found = await admin.name_servers.settings()
        assert [found[one]["enableTopicList"] for one in addresses] == ["false", "false"]


@in_loop
async def test_a_change_of_one_name_server_leaves_the_other_one() -> None:
    async with two_name_servers() as (addresses, _), Admin(addresses) as admin:
        await admin.name_servers.change_settings({"enableTopicList": "false"}, addresses[1])
        (found,) = (await admin.name_servers.settings(addresses[0])).values()
        assert found["enableTopicList"] == "true"


@in_loop
async def test_a_name_server_that_failed_is_named_beside_the_changed_one() -> None:
    async with two_name_servers() as (addresses, servers), Admin(addresses) as admin:
        await servers[0].close()
        with pytest.raises(ClientError) as raised:
            await admin.name_servers.change_settings({"enableTopicList": "false"})
        assert str(raised.value).startswith(f"not changed: {addresses[0]}: ")
        assert str(raised.value).endswith(f"Changed: {addresses[1]}")


@in_loop
async def test_the_refusal_of_an_only_name_server_is_its_own_error() -> None:
    async with running_broker() as running, Admin(running.namesrv) as admin:
        with pytest.raises(ResponseError, match="kvConfigPath"):
            await admin.name_servers.change_settings({"kvConfigPath": "/x"})


@in_loop
async def test_a_broker_is_another_kind_of_server() -> None:
    async with running_broker() as running, Admin(running.namesrv) as admin:
        with pytest.raises(RemotingError, match="GetNamesrvConfig: it is another kind of server"):
            await admin.name_servers.settings(running.broker_address)


@in_loop
async def test_the_write_permission_of_a_broker_is_wiped_and_restored() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        await running.create_topic("orders")

        async def perm() -> int | None:
            route = await admin.servers.ask_name_servers(GetRouteInfo(topic="orders"))
            return route.queue_datas[0].perm

        (wiped,) = (await admin.name_servers.wipe_write_permission("a")).values()
        assert await perm() == PERM_READ
        (restored,) = (await admin.name_servers.restore_write_permission("a")).values()
        assert await perm() == PERM_READ | PERM_WRITE
        assert wiped == restored > 0
        assert await admin.name_servers.wipe_write_permission("b") == {running.namesrv: 0}
