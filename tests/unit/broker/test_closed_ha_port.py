"""The HA port of brokers with access control or TLS, on real sockets: who is let in, by which
means, and what both sides log. Every combination of settings: ``test_ha_port_rules.py``."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.patient import ANSWER_S
from tests.unit.broker.ha_brokers import running, slave_of, user
from tests.unit.broker.ha_status import ha_status
from tests.unit.remoting.certificates import Pair
from tests.unit.remoting.handshakes import Handshake
from tests.unit.remoting.serving import RawPeer, raw_peer
from tests.waits import until, until_logged

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker import slave_tables
from turbopump.broker.broker import Broker
from turbopump.broker.replication import Replication
from turbopump.broker.replication_settings import weak_promises
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.config.tls import ClientAuth, ClientTls, TlsMode
from turbopump.event_loop import loop_factory
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.replication import NOT_PROVED, PROVED, ExchangeHAInfo
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.repeated_line import report_all
from turbopump.replication import ha_port
from turbopump.replication.handshake import HELLO
from turbopump.replication.stream import REPORT


async def sent(master: Broker, tls: ClientTls | None = None) -> None:
    """It has a message."""
    signer = RequestSigner(Credentials("broker", "secret"))
    remoting = RemotingClient(signer=signer, tls=tls, connect_timeout=ANSWER_S)
    try:
        for request in (
            CreateTopic(topic="T", read_queue_nums=1, write_queue_nums=1),
            SendMessageV2(topic="T", queue_id=0),
        ):
            answer = await remoting.exchange(master.address, request, b"x" * 1000, timeout=ANSWER_S)
            assert answer.code == ResponseCode.SUCCESS, answer
    finally:
        await remoting.close()


async def copies(master: Broker, slave: Broker, tls: ClientTls | None = None) -> None:
    """What the master is sent is in the slave's log."""
    await sent(master, tls)
    await until(lambda: slave.store.log.end == master.store.log.end > 0)


@in_loop
async def test_brokers_of_one_cluster_copy_with_a_handshake(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "m", **user("secret")) as master,
        slave_of(master, tmp_path / "s", **user("secret")) as slave,
    ):
        await copies(master, slave)


def on_servers_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story on the loop that servers run on."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(story())


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@in_loop(on_servers_loop)
async def test_they_copy_by_tls_as_their_tls_settings_say(tmp_path: Path, mode: TlsMode) -> None:
    pair = Pair(tmp_path)
    server = {
        "tls_server_mode": mode,
        "tls_server_cert_path": pair.certificate,
        "tls_server_key_path": pair.key,
        "tls_client_trust_cert_path": pair.certificate,
    }
    tls = {**user("secret"), "tls_enable": True, "tls_client_trust_cert_path": pair.certificate}
    async with (
        running(tmp_path / "m", **user("secret"), **server) as master,
        slave_of(master, tmp_path / "s", **tls) as slave,
    ):
        await copies(master, slave, pair.trusted())
        assert slave.parts.listening.replication.slave is not None
        assert slave.parts.listening.replication.slave.peer is not None
        assert slave.parts.listening.replication.slave.peer.encrypted


@pytest.mark.parametrize("end", [44, None])
@in_loop(on_servers_loop)
async def test_a_slave_copies_by_tls_though_strangers_do_not_end_their_handshakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int | None
) -> None:
    monkeypatch.setattr(ha_port, "STRANGERS_MAX", 8)
    pair, hello = Pair(tmp_path), Handshake().hello[:end]
    server = {"tls_server_cert_path": pair.certificate, "tls_server_key_path": pair.key}
    tls = {**user("secret"), "tls_enable": True, "tls_client_trust_cert_path": pair.certificate}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        master = await enter(running(tmp_path / "m", **user("secret"), **server))
        host, port = master.parts.listening.ha_address.split(":")
        for _ in range(20):
            stranger = await enter(raw_peer(host, int(port)))
            stranger.write(hello)
        slave = await enter(slave_of(master, tmp_path / "s", **tls))
        await copies(master, slave, pair.trusted())


@in_loop
async def test_a_slave_that_does_not_trust_the_certificate_of_its_master_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(tmp_path)
    server = {"tls_server_cert_path": pair.certificate, "tls_server_key_path": pair.key}
    other = Pair(tmp_path, "other")
    tls = {"tls_enable": True, "tls_client_trust_cert_path": other.certificate}
    async with (
        running(tmp_path / "m", **user("secret"), **server) as master,
        slave_of(master, tmp_path / "s", **user("secret"), **tls),
    ):
        await until_logged(caplog, "its certificate is not trusted")
        await until_logged(caplog, "TLS failed peer=127.0.0.1:")


@pytest.mark.parametrize(
    ("masters", "slaves", "at_master", "at_slave"),
    [
        (
            user("secret"),
            user("guess"),
            "it has other innerClientAuthenticationCredentials",
            "both brokers need the same innerClientAuthenticationCredentials",
        ),
        (
            user("secret"),
            {},
            "it sent no credentials",
            "refused this slave: read the reason in its log",
        ),
        (
            {"authentication_enabled": True},
            user("secret"),
            "this broker has no innerClientAuthenticationCredentials",
            "both brokers need the same innerClientAuthenticationCredentials",
        ),
        (
            {},
            user("secret"),
            "the slave does not speak the HA protocol",
            "refused this slave: read the reason in its log",
        ),
    ],
)
@in_loop
async def test_a_refused_slave_is_one_line_in_the_log_of_both(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    masters: dict[str, Any],
    slaves: dict[str, Any],
    at_master: str,
    at_slave: str,
) -> None:
    async with (
        running(tmp_path / "m", **masters) as master,
        slave_of(master, tmp_path / "s", **slaves),
    ):
        await until_logged(caplog, at_slave)
        report_all()
        lines = [record.getMessage() for record in caplog.records]
        assert sum("HA connection" in line and at_master in line for line in lines) == 1, lines
        assert sum("the slave does not copy" in line and at_slave in line for line in lines) == 1


@in_loop
async def test_an_address_that_both_allow_needs_neither_handshake_nor_tls(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    server = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": pair.certificate,
        "tls_server_key_path": pair.key,
        "tls_client_trust_cert_path": pair.certificate,
        "ha_allowed_peers": "127.0.0.1",
    }
    async with (
        running(tmp_path / "m", **user("secret"), **server) as master,
        slave_of(master, tmp_path / "s") as slave,
    ):
        await copies(master, slave, pair.trusted())


def certificates(directory: Path) -> tuple[dict[str, Any], dict[str, Any], ClientTls]:
    """Settings of a master that takes TLS with certificates alone, of a slave that shows one, and
    a client that does."""
    server, client = Pair(directory), Pair(directory, "client")
    master = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": server.certificate,
        "tls_server_key_path": server.key,
        "tls_server_need_client_auth": ClientAuth.REQUIRE,
        "tls_server_trust_cert_path": client.certificate,
    }
    slave = {
        "tls_enable": True,
        "tls_client_trust_cert_path": server.certificate,
        "tls_client_cert_path": client.certificate,
        "tls_client_key_path": client.key,
    }
    return master, slave, server.trusted(client)


@in_loop(on_servers_loop)
async def test_certificates_suffice_without_accounts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    masters, slaves, tls = certificates(tmp_path)
    without = {**slaves, "tls_client_cert_path": "", "tls_client_key_path": ""}
    async with running(tmp_path / "m", **masters) as master:
        async with slave_of(master, tmp_path / "s"):
            await until_logged(caplog, "it does not use TLS (tls.server.mode=enforcing)")
        async with slave_of(master, tmp_path / "s", **without):
            await until_logged(caplog, "read the reason in its log")
            await until_logged(caplog, "peer did not return a certificate")
            assert master.parts.listening.replication.figures()["haSlaves"] == "0"
        async with slave_of(master, tmp_path / "s", **slaves) as slave:
            await copies(master, slave, tls)
            assert is_encrypted(slave)


@in_loop(on_servers_loop)
async def test_a_running_pair_is_upgraded_to_tls_in_the_order_that_the_guide_says(
    tmp_path: Path,
) -> None:
    # A release before this one spoke plain text there without accounts, as what is listed does.
    masters, slaves, tls = certificates(tmp_path)
    here, there = tmp_path / "m", tmp_path / "s"
    listed = {"ha_allowed_peers": "127.0.0.1"}
    async with running(here, **masters, **listed) as master:  # its old slave is served
        async with slave_of(master, there) as slave:
            await copies(master, slave, tls)
            assert not is_encrypted(slave)
        async with slave_of(master, there, **slaves) as slave:
            await copies(master, slave, tls)
            assert is_encrypted(slave)
    async with running(here, **masters) as master, slave_of(master, there, **slaves) as slave:
        await copies(master, slave, tls)
        assert is_encrypted(slave)


@in_loop(on_servers_loop)
async def test_tls_is_switched_on_in_a_running_pair_in_the_order_that_the_guide_says(
    tmp_path: Path,
) -> None:
    masters, slaves, tls = certificates(tmp_path)
    permissive = {**masters, "tls_server_mode": TlsMode.PERMISSIVE}
    async with running(tmp_path / "m", **permissive) as master:
        async with slave_of(master, tmp_path / "s") as slave:
            await copies(master, slave)
        async with slave_of(master, tmp_path / "s", **slaves) as slave:
            await copies(master, slave)
            assert is_encrypted(slave)
    async with (
        running(tmp_path / "m", **masters) as master,
        slave_of(master, tmp_path / "s", **slaves) as slave,
    ):
        await copies(master, slave, tls)


def is_encrypted(slave: Broker) -> bool:
    link = slave.parts.listening.replication.slave
    assert link is not None
    assert link.peer is not None
    return link.peer.encrypted


@in_loop
async def test_a_slave_speaks_no_tls_to_a_master_of_apaches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replication, "figures", lambda _self: {})  # Apache's has no such keys
    masters, slaves, _ = certificates(tmp_path)
    masters["tls_server_mode"] = TlsMode.PERMISSIVE
    async with (
        running(tmp_path / "m", **masters) as master,
        slave_of(master, tmp_path / "s", **slaves, ha_master_address="") as slave,
    ):
        await told_of(master, slave)
        await until_logged(caplog, "is Apache's, which speaks no TLS there: name 127.0.0.1")
        assert not ha_status(master).ha_connection_info
    slaves["ha_allowed_peers"] = "127.0.0.1"
    async with (
        running(tmp_path / "m", **masters) as master,
        slave_of(master, tmp_path / "s", **slaves, ha_master_address="") as slave,
    ):
        await told_of(master, slave)
        await copies(master, slave)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("accounts", [False, True])
@in_loop
async def test_a_slave_that_is_upgraded_first_copies_from_a_master_that_compares_no_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounts: bool, tls: bool
) -> None:
    masters, slaves, client = certificates(tmp_path) if tls else ({}, {}, None)
    rules = user("secret") if accounts else {}
    async with running(tmp_path / "m", **rules, **masters) as master:
        await sent(master, client)
        for upgraded in (False, False, True):
            with monkeypatch.context() as patch:
                if not upgraded:
                    patch.setattr(slave_tables, "COMPARES", "no such key")
                async with slave_of(
                    master, tmp_path / "s", **rules, **slaves, ha_master_address=""
                ) as slave:
                    assert slave.parts.copying.slave_tables is not None
                    slave.parts.copying.slave_tables.master_is_at(master.address)
                    slave.parts.listening.replication.master_is_at(
                        master.parts.listening.ha_address
                    )
                    await copies(master, slave, client)
                    wanted = [PROVED if upgraded else NOT_PROVED]
                    await until(lambda wanted=wanted: proofs(master) == wanted)


def proofs(master: Broker) -> list[str]:
    return [one.proof for one in ha_status(master).ha_connection_info]


async def told_of(master: Broker, slave: Broker) -> None:
    """Tell a slave where its master is."""
    told = ExchangeHAInfo(
        master_address=master.address, master_ha_address=master.parts.listening.ha_address
    )
    remoting = RemotingClient(connect_timeout=ANSWER_S)
    answer = await remoting.exchange(slave.address, told, timeout=ANSWER_S)
    assert answer.code == ResponseCode.SUCCESS, answer
    await remoting.close()


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({}, True),
        ({"tls_server_mode": TlsMode.ENFORCING}, True),
        ({"tls_server_need_client_auth": ClientAuth.REQUIRE}, True),
        (
            {
                "tls_server_mode": TlsMode.ENFORCING,
                "tls_server_need_client_auth": ClientAuth.OPTIONAL,
            },
            True,
        ),
        (
            {
                "tls_server_mode": TlsMode.ENFORCING,
                "tls_server_need_client_auth": ClientAuth.REQUIRE,
            },
            False,
        ),
        (user("secret"), False),
        ({"ha_allowed_peers": "10.0.0.6"}, False),
        ({"bind_address": "127.0.0.1"}, False),
        ({"broker_role": BrokerRole.SLAVE, "broker_id": 1}, False),
    ],
)
def test_a_port_that_gives_the_log_to_anyone_is_warned_of(
    settings: dict[str, Any], is_open: bool
) -> None:
    said = weak_promises(BrokerConfig(**{"bind_address": "0.0.0.0", **settings}))
    assert ["haListenPort lets anyone who can connect" in one for one in said] == [True] * is_open


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, True),
        ({"broker_role": BrokerRole.ASYNC_MASTER, "broker_id": 0}, False),
        ({"ha_master_address": ""}, False),
        ({"namesrv_addr": "127.0.0.1:9876"}, False),
        (user("secret"), False),
    ],
)
def test_a_slave_that_only_knows_the_ha_port_is_warned_that_nothing_is_compared(
    settings: dict[str, Any], warned: bool
) -> None:
    alone = {
        "broker_role": BrokerRole.SLAVE,
        "broker_id": 1,
        "ha_master_address": "127.0.0.1:10912",
        "namesrv_addr": "",
    }
    said = weak_promises(BrokerConfig(**{**alone, **settings}))
    assert any("without comparing its log" in one for one in said) == warned


@pytest.mark.parametrize("peers", ["", "127.0.0.1"])
@in_loop
async def test_brokers_with_accounts_prove_their_logs_with_a_handshake_or_without(
    tmp_path: Path, peers: str
) -> None:
    rules = {**user("secret"), "ha_allowed_peers": peers}
    async with running(tmp_path / "m", **rules) as master:
        await sent(master)
        async with slave_of(master, tmp_path / "s", **rules) as slave:
            assert slave.parts.copying.slave_tables is not None
            slave.parts.copying.slave_tables.master_is_at(master.address)
            await until(lambda: slave.store.log.end == master.store.log.end)
        async with slave_of(master, tmp_path / "s", **rules) as slave:
            assert slave.parts.copying.slave_tables is not None
            slave.parts.copying.slave_tables.master_is_at(master.address)
            slaves = (
                master.parts.listening.replication.master.slaves
                if master.parts.listening.replication.master
                else []
            )
            await until(lambda: [one.connection.proved for one in slaves] == [True])
            await copies(master, slave)


@in_loop
async def test_a_slave_that_has_not_said_what_it_has_is_not_called_in_sync(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        host, _, port = master.parts.listening.ha_address.rpartition(":")
        async with raw_peer(host, int(port)):
            await until(lambda: ha_status(master).ha_connection_info)
            assert ha_status(master).in_sync_slave_nums == 0
            async with slave_of(master, tmp_path / "s"):
                await until(lambda: ha_status(master).in_sync_slave_nums == 1)


@in_loop
async def test_a_slave_that_never_had_all_of_the_log_is_not_called_in_sync(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        await sent(master)
        host, _, port = master.parts.listening.ha_address.rpartition(":")
        async with raw_peer(host, int(port)) as behind:
            behind.write(REPORT.pack(1))
            its_log = [master.store.log.end - 1]
            await until(
                lambda: [one.diff for one in ha_status(master).ha_connection_info] == its_log
            )
            assert ha_status(master).in_sync_slave_nums == 0


@in_loop
async def test_strangers_that_say_nothing_make_room_for_those_that_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_port, "SLAVES_MAX", 2)
    async with running(tmp_path / "m", **user("secret")) as master, AsyncExitStack() as stack:
        host, _, port = master.parts.listening.ha_address.rpartition(":")
        silent = [await stack.enter_async_context(raw_peer(host, int(port))) for _ in range(4)]
        assert [await one.read() for one in silent[:2]] == [None, None], "closed"
        async with slave_of(master, tmp_path / "s", **user("secret")) as slave:
            await copies(master, slave)


@in_loop
async def test_of_many_strangers_at_once_the_newest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_port, "SLAVES_MAX", 2)
    async with running(tmp_path / "m", **user("secret")) as master:
        host, _, port = master.parts.listening.ha_address.rpartition(":")
        peers = await asyncio.gather(*(RawPeer.connect(host, int(port)) for _ in range(8)))
        ended = [asyncio.create_task(peer.read()) for peer in peers]
        await until(lambda: sum(task.done() for task in ended) == 6)
        assert all(task.result() is None for task in ended if task.done())
        await asyncio.gather(*(peer.close() for peer in peers), *ended)


@in_loop
async def test_a_slave_that_cannot_prove_itself_takes_nothing_from_a_master_that_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = {"authentication_enabled": True}
    async with (
        running(tmp_path / "m") as master,
        slave_of(master, tmp_path / "s", **alone) as slave,
    ):
        await until_logged(caplog, "has no credentials to authenticate its master")
        assert master.parts.listening.replication.figures()["haSlaves"] == "0"
        assert slave.store.log.end == 0


@in_loop
async def test_who_has_not_proved_itself_in_time_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_port, "HANDSHAKE_S", 0.1)
    async with running(tmp_path / "m", **user("secret")) as master:
        host, _, port = master.parts.listening.ha_address.rpartition(":")
        async with raw_peer(host, int(port)) as peer:
            peer.write(HELLO)
            assert await peer.read() is None
