"""A controller with access control over TLS: who may send it what, and how it signs its notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from tests.loops import in_loop
from tests.unit.auth.over_tls import over_tls
from tests.unit.auth.signed import ADMINISTRATOR
from tests.unit.remoting.certificates import Pair

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.config.controller_config import ControllerConfig
from turbopump.config.tls import ClientTls
from turbopump.controller import Controller
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests import controller as requests
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from turbopump.protocol.requests.namesrv import BrokerHeartbeat
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.router import HELD, RequestContext, Router
from turbopump.remoting.server import RemotingServer

INNER: Final = Credentials("inner", "inner's secret")
OPERATOR: Final = Credentials("operator", "operator's secret")
GROUP: Final[dict[str, Any]] = {"cluster_name": "c", "broker_name": "a"}
APPLY: Final = requests.ApplyBrokerId(
    **GROUP, applied_broker_id=1, register_check_code="127.0.0.1:1;17"
)
ELECT: Final = requests.ElectMaster(**GROUP, broker_id=1, designate_elect=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("certificate"))


class Guarded:
    """A controller that takes users over TLS alone, and clients of several users."""

    def __init__(self, pair: Pair) -> None:
        self._tls = ClientTls(trust=pair.certificate)
        config = ControllerConfig(bind_address="127.0.0.1", listen_port=0, **over_tls(pair))
        self.controller = Controller(config)
        self._clients: dict[Credentials | None, RemotingClient] = {}

    async def ask(
        self, user: Credentials | None, request: Request[Any], body: bytes = b""
    ) -> Command:
        if user not in self._clients:
            signer = None if user is None else RequestSigner(user)
            self._clients[user] = RemotingClient(tls=self._tls, signer=signer)
        address = self.controller.address
        return await self._clients[user].exchange(address, request, body, timeout=30.0)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        await self.controller.close()


@asynccontextmanager
async def guarded(pair: Pair) -> AsyncIterator[Guarded]:
    world = Guarded(pair)
    await world.controller.start()
    try:
        yield world
    finally:
        await world.close()


def _policies(*entries: tuple[str, str]) -> bytes:
    found = [
        PolicyEntryInfo(resource=resource, actions=[action], decision="Allow")
        for resource, action in entries
    ]
    return fastjson.encode(AclInfo(policies=[PolicyInfo(policy_type="Custom", entries=found)]))


@in_loop
async def test_strangers_do_nothing_and_users_what_their_policies_say(pair: Pair) -> None:
    denied = ResponseCode.NO_PERMISSION
    metadata = requests.GetControllerMetadata()
    beat = BrokerHeartbeat(**GROUP, broker_addr="127.0.0.1:1", broker_id=1)
    async with guarded(pair) as world:
        for request in (APPLY, ELECT, metadata, beat):
            assert (await world.ask(None, request)).code == denied
        assert (await world.ask(INNER, APPLY)).code == 0
        assert (await world.ask(INNER, beat)).code == 0
        user = UserInfo(username="operator", password=OPERATOR.secret_key)
        create = CreateUser(username="operator")
        assert (await world.ask(ADMINISTRATOR, create, fastjson.encode(user))).code == 0
        assert (await world.ask(OPERATOR, ELECT)).code == denied
        acl = CreateAcl(subject="User:operator")
        for body in (_policies(("Cluster:c", "Update")), _policies(("Cluster:other", "Get"))):
            assert (await world.ask(ADMINISTRATOR, acl, body)).code == 0
        assert (await world.ask(OPERATOR, ELECT)).code == 0
        assert (await world.ask(OPERATOR, metadata)).code == denied  # Get on the cluster
        assert (await world.ask(OPERATOR, beat)).code == denied  # brokers alone


@in_loop
async def test_a_notice_of_a_new_master_is_signed_and_goes_over_tls(pair: Pair) -> None:
    told: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    def notice(_request: Any, _body: Any, context: RequestContext) -> Any:
        told.set_result(dict(context.command.ext or {}))
        return HELD

    router = Router()
    router.add_with_body(requests.NotifyRoleChanged, notice)
    async with guarded(pair) as world:
        replica = RemotingServer(router, tls=world.controller.config.server_tls)
        _host, port = await replica.listen("127.0.0.1", 0)
        assert (await world.ask(INNER, APPLY)).code == 0
        beat = BrokerHeartbeat(**GROUP, broker_addr=f"127.0.0.1:{port}", broker_id=1)
        assert (await world.ask(INNER, beat)).code == 0
        assert (await world.ask(INNER, ELECT)).code == 0
        async with asyncio.timeout(30.0):
            fields = await told
        assert (fields["AccessKey"], fields["masterBrokerId"]) == ("inner", "1")
        await replica.close()
