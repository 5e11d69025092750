"""Requests of users, as a server with access control gets them, and what it answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.stand_ins import returns
from tests.unit.remoting.transports import KeptTransport

from turbopump.auth.access_control import AccessControl, AccessSettings
from turbopump.auth.accounts import Accounts, User
from turbopump.auth.policies import Action, Decision, Entry, Policies, Resource
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.config.tls import ClientTls
from turbopump.protocol.codes import FLAG_RESPONSE
from turbopump.protocol.command import (
    Body,
    Command,
    decode_command,
    encode_command,
    request_command,
)
from turbopump.protocol.frame import FrameReader, frame_head
from turbopump.protocol.request import Request
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import Authorise, RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests

ADMIN, INNER, ANN, BOB = "admin", "broker", "ann", "bob"
USERS = {
    ADMIN: User(ADMIN, "admin's secret", is_super=True),
    INNER: User(INNER, "broker's secret"),
    ANN: User(ANN, "ann's secret"),
    BOB: User(BOB, "bob's secret"),
}
CLUSTERS = ("DefaultCluster",)
ADDRESS = "127.0.0.1"


def allow(resource: str, *actions: Action, sources: Iterable[str] = ()) -> Entry:
    return Entry(Resource.parse(resource), frozenset(actions), Decision.ALLOW, tuple(sources))


def deny(resource: str, *actions: Action, sources: Iterable[str] = ()) -> Entry:
    return Entry(Resource.parse(resource), frozenset(actions), Decision.DENY, tuple(sources))


def access(*anns: Entry, **settings: Any) -> AccessControl:
    """Access control over these users, with policies for Ann."""
    settings.setdefault("inner_user", INNER)
    accounts = Accounts(USERS, {ANN: Policies(anns)} if anns else {})
    return AccessControl(accounts, AccessSettings(**settings), returns(CLUSTERS))


def signed(
    request: Request[Any],
    body: Body = b"",
    user: str | None = ANN,
    secret: str | None = None,
    opaque: int = 1,
) -> Command:
    """A request of a user; signed with another secret, or not at all."""
    command = request_command(request, body, opaque=opaque)
    if user is not None:
        signer = RequestSigner(Credentials(user, secret or USERS[user].password))
        command.ext = signer(command.ext, command.body)
    return command


class Door:
    """A connection to a server that takes every declared request: what gets through is
    ``handled``."""

    def __init__(self, authorise: Authorise, requests: Collection[type[Request[Any]]]) -> None:
        self.handled: list[Request[Any]] = []
        self.contexts: list[RequestContext] = []
        self._transport = KeptTransport()
        router = Router(authorise)
        for declared in requests:
            router.add(declared, self._handle)
        self.connection = ServedRequests(router).wire
        self.connection.connection_made(self._transport)

    def _handle(self, request: Request[Any], context: RequestContext) -> Response[None]:
        self.handled.append(request)
        self.contexts.append(context)
        return Response()

    def send(self, command: Command, *, spaced: bool = False) -> Command:
        """The answer, which is made at once. ``spaced``: the JSON header has spaces."""
        frame = encode_command(command)
        if spaced:
            size = len(frame) - len(command.body)
            header = json.dumps(json.loads(frame[8:size])).encode()
            frame = frame_head(len(header), len(command.body)) + header + command.body
        (answer,) = self.take(frame)
        self.connection.close()
        assert answer.flag & FLAG_RESPONSE
        return answer

    def take(self, frame: bytes) -> list[Command]:
        """The answers to bytes of any kind."""
        self._transport.written.clear()
        self.connection.data_received(frame)
        return self.answers

    @property
    def answers(self) -> list[Command]:
        """What was answered to the last bytes until now."""
        return [decode_command(each) for each in FrameReader().feed(bytes(self._transport.written))]


# --- Servers that run with access control.

ADMINISTRATOR = Credentials("admin", "admin's secret")
ON: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps(
        {"username": ADMINISTRATOR.access_key, "password": ADMINISTRATOR.secret_key}
    ),
    "inner_client_authentication_credentials": json.dumps(
        {"accessKey": "inner", "secretKey": "inner's secret"}
    ),
}


class PatientClient(RemotingClient):
    """Waits longer than others for what is written to a disk, which other tests use as well."""

    async def exchange(
        self, address: str, request: Request[Any], body: Body = b"", *, timeout: float = 3.0
    ) -> Command:
        return await super().exchange(address, request, body, timeout=max(timeout, 60.0))


@asynccontextmanager
async def asking(
    credentials: Credentials | None = ADMINISTRATOR, tls: ClientTls | None = None
) -> AsyncIterator[RemotingClient]:
    signer = None if credentials is None else RequestSigner(credentials)
    client = PatientClient(signer=signer, tls=tls)
    try:
        yield client
    finally:
        await client.close()
