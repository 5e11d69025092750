"""Who is served on the HA port: every combination of a master's settings and of a peer, on real
sockets."""

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.patient import ANSWER_S
from tests.unit.broker.ha_brokers import running, user
from tests.unit.remoting.certificates import Pair

from turbopump.auth.signatures import Credentials
from turbopump.broker.broker import Broker
from turbopump.broker.replication import Replication
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.tls import ClientAuth, TlsMode
from turbopump.errors import ProtocolError
from turbopump.replication.comparison import SlaveComparison
from turbopump.replication.handshake import NONCE_SIZE, SlaveHandshake
from turbopump.replication.stream import REPORT, TRANSFER_HEAD

FIRST = (REPORT.pack(0), SlaveComparison(0, 0, ()).begin())
"""What a slave says first: of Apache's, and of ours."""


class Listed(StrEnum):
    """What `haAllowedPeers` of the master has."""

    NOBODY = ""
    PEER = "127.0.0.1"
    OTHERS = "10.9.9.9"


class Speaks(StrEnum):
    """How a peer speaks, and which certificate it shows."""

    PLAIN = "in plain text"
    TLS = "TLS"
    WRONG = "TLS, with a certificate that the master does not trust"
    GOOD = "TLS, with a certificate that the master trusts"


def is_served(
    mode: TlsMode, auth: ClientAuth, accounts: bool, listed: Listed, speaks: Speaks, secret: str
) -> bool:
    """The rule. ``secret``: what the peer proves to know; empty: nothing, as Apache's brokers."""
    if speaks is not Speaks.PLAIN:
        if mode is TlsMode.DISABLED:
            return False
        if speaks is Speaks.TLS and auth is ClientAuth.REQUIRE:
            return False
        if speaks is Speaks.WRONG and auth is not ClientAuth.NONE:
            return False
    if listed is Listed.PEER:
        return secret in ("", "secret")
    if mode is TlsMode.ENFORCING and speaks is Speaks.PLAIN:
        return False
    if accounts:
        return secret == "secret"
    certified = mode is TlsMode.ENFORCING and auth is ClientAuth.REQUIRE
    return listed is Listed.NOBODY or certified


@pytest.mark.parametrize("auth", list(ClientAuth))
@pytest.mark.parametrize("mode", list(TlsMode))
@in_loop
async def test_the_rule_of_the_main_port_holds_on_the_ha_port(
    tmp_path: Path, mode: TlsMode, auth: ClientAuth
) -> None:
    server, client, other = (Pair(tmp_path, name) for name in ("server", "client", "other"))
    contexts = {
        Speaks.PLAIN: None,
        Speaks.TLS: context(server),
        Speaks.WRONG: context(server, other),
        Speaks.GOOD: context(server, client),
    }
    tls = {
        "tls_server_mode": mode,
        "tls_server_cert_path": server.certificate,
        "tls_server_key_path": server.key,
        "tls_server_need_client_auth": auth,
        "tls_server_trust_cert_path": client.certificate,
    }
    async with running(tmp_path / "store") as broker:
        for accounts, listed in itertools.product((False, True), Listed):
            config = BrokerConfig(
                **tls, **(user("secret") if accounts else {}), ha_allowed_peers=listed
            )
            secrets = ("", "secret", "guess") if accounts else ("",)
            async with ha_port(broker, config) as port:
                for speaks, secret, first in itertools.product(Speaks, secrets, FIRST):
                    wanted = is_served(mode, auth, accounts, listed, speaks, secret)
                    got = await gets_the_log(port, contexts[speaks], secret, first)
                    case = (
                        f"accounts={accounts} haAllowedPeers={listed} {speaks} {secret=} {first=}"
                    )
                    assert got == wanted, case


def context(server: Pair, shown: Pair | None = None) -> ssl.SSLContext:
    """Of a peer that trusts the server, and shows a certificate."""
    made = ssl.create_default_context(cafile=server.certificate)
    if shown is not None:
        made.load_cert_chain(shown.certificate, shown.key)
    return made


@asynccontextmanager
async def ha_port(broker: Broker, config: BrokerConfig) -> AsyncIterator[int]:
    """The HA port of a master with these settings and that broker's store."""
    link = broker.parts.listening.replication.master
    assert link is not None
    replication = Replication(config, broker.store, link.disk, broker.clock, link.history)
    port = await replication.listen(0)
    assert port is not None
    try:
        yield port
    finally:
        await replication.stop()


async def gets_the_log(port: int, tls: ssl.SSLContext | None, secret: str, first: bytes) -> bool:
    """Whether a slave that asks for the log is sent its first frame, or how the logs compare."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            try:
                if secret:
                    await shake_hands(reader, writer, secret)
                writer.write(first)
                await reader.readexactly(TRANSFER_HEAD.size)
            finally:
                writer.transport.abort()
    except (OSError, asyncio.IncompleteReadError, ProtocolError):
        return False
    return True


async def shake_hands(reader: asyncio.StreamReader, writer: Any, secret: str) -> None:
    handshake = SlaveHandshake(Credentials("broker", secret), bytes(NONCE_SIZE))
    writer.write(handshake.begin())
    rest = None
    while rest is None:
        data = await reader.read(1024)
        if not data:
            raise ConnectionResetError
        said, rest = handshake.received(data)
        writer.write(said)
