"""TLS and plain text on one port, with certificates that fit, that do not, and that change."""

import asyncio
import ssl
import tracemalloc
import warnings
from asyncio import sslproto
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing
from tests.unit.remoting.asking import BODY_SIZE, answering, ask, client_of, on_loop
from tests.unit.remoting.certificates import Pair
from tests.unit.remoting.serving import RawPeer, frame, raw_peer, serving
from tests.waits import until, until_none

from turbopump.config.tls import ClientAuth, ClientTls, ServerTls, TlsMode
from turbopump.errors import ConfigError, ConnectError, RemotingError
from turbopump.protocol.requests.offsets import GetMinOffset
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.tls import LOOK_AGAIN_S, ClientContext, ServerContext, keep_buffers_small
from turbopump.remoting.wire import PIECE_SIZE, WAITING_MAX
from turbopump.repeated_line import report_all

TLS = "TLS"
PLAIN = "plain text"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("mode", "served"),
    [(TlsMode.PERMISSIVE, {TLS, PLAIN}), (TlsMode.ENFORCING, {TLS}), (TlsMode.DISABLED, {PLAIN})],
)
@in_loop(on_loop)
async def test_each_mode_serves_what_it_says_on_one_port(
    pair: Pair, mode: TlsMode, served: set[str]
) -> None:
    async with serving(answering(), tls=pair.server(mode)) as (server, host, port):
        found, refused = set(), dict[str, bool]()
        for name, tls in {TLS: pair.trusted(), PLAIN: None}.items():
            async with client_of(tls) as client:
                try:
                    answers = await asyncio.gather(
                        *(ask(client, f"{host}:{port}", number) for number in range(30))
                    )
                except RemotingError as error:
                    hints = "a server that takes TLS only ends plain connections so" in str(error)
                    refused[name] = hints
                    continue
                assert answers == [*range(30)]
                found.add(name)
        assert found == served
        assert refused == {name: name == PLAIN for name in {TLS, PLAIN} - served}, "with a hint"
        await until_none(server.connections)


@in_loop
async def test_with_small_buffers_a_connection_takes_less_and_carries_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", 256 * 1024)  # as asyncio has it
    taken = []
    for make_small in (does_nothing, keep_buffers_small):
        make_small()
        async with (
            serving(answering(), tls=pair.server(TlsMode.ENFORCING)) as (_, host, port),
            client_of(pair.trusted()) as client,
        ):
            tracemalloc.start()
            assert await ask(client, f"{host}:{port}") == 5
            taken.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
    assert taken[0] - taken[1] > 2 * 180 * 1024  # both ends


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_what_a_peer_has_not_read_waits_before_tls_where_it_is_counted(pair: Pair) -> None:
    context = ClientContext(pair.trusted()).context_at(0.0)
    numbers = list(range(1, 101))
    async with serving(answering(), tls=pair.server()) as (server, host, port):
        peer = RawPeer(*await asyncio.open_connection(host, port, ssl=context))
        peer.write(*(frame(GetMinOffset(topic="T", queue_id=0), number) for number in numbers))
        await until(lambda: server.memory.total >= WAITING_MAX)
        (connection,) = server.connections
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() <= 2 * PIECE_SIZE
        answers = [await peer.read() for _ in numbers]
        assert [answer and answer.opaque for answer in answers] == numbers
        assert all(answer and len(answer.body) == BODY_SIZE for answer in answers)
        assert server.memory.total == 0
        await peer.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_peer_that_reads_is_served_over_tls_though_others_do_not_read(pair: Pair) -> None:
    context = ClientContext(pair.trusted()).context_at(0.0)
    asked = [frame(GetMinOffset(topic="T", queue_id=0), number) for number in range(50)]
    async with (
        serving(answering(), tls=pair.server(), memory_max=6 << 20) as (server, host, port),
        raw_peer(host, port) as silent,
    ):
        silent.write(*asked)
        await until(lambda: server.memory.tight)
        peer = RawPeer(*await asyncio.open_connection(host, port, ssl=context))
        for number, each in enumerate(asked):
            peer.write(each)
            answer = await peer.read()
            assert answer is not None
            assert answer.opaque == number
        assert server.memory.tight
        await peer.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_server_that_closes_sends_what_waits_before_tls(pair: Pair) -> None:
    context = ClientContext(pair.trusted()).context_at(0.0)
    async with serving(answering(), tls=pair.server()) as (server, host, port):
        peer = RawPeer(*await asyncio.open_connection(host, port, ssl=context))
        peer.write(*(frame(GetMinOffset(topic="T", queue_id=0), number) for number in range(100)))
        await until(lambda: server.memory.total >= WAITING_MAX)
        (connection,) = server.connections
        connection.close()
        answers = 0
        while await peer.read() is not None:
            answers += 1
        assert answers * BODY_SIZE > WAITING_MAX
        await peer.close()


@in_loop
async def test_without_a_certificate_tls_is_refused_in_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(answering(), tls=ServerTls()) as (_, host, port):
        async with client_of(ClientTls(verify=False)) as client:
            with pytest.raises(ConnectError, match=r"no TLS connection to .*: the peer closed"):
                await ask(client, f"{host}:{port}")
        async with client_of(None) as client:
            assert await ask(client, f"{host}:{port}") == 5
    report_all()
    assert "no certificate in tls.server.certPath" in caplog.text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_first_byte_that_comes_late_is_waited_for_and_others_are_served_meanwhile(
    pair: Pair,
) -> None:
    async with (
        serving(answering(), tls=pair.server()) as (_, host, port),
        client_of(None) as client,
        raw_peer(host, port) as late,
    ):
        assert await ask(client, f"{host}:{port}") == 5
        late.write(frame(GetMinOffset(topic="T", queue_id=7), 1))
        answer = await late.read()
        assert answer is not None
        assert answer.ext == {"offset": "7"}
    async with (
        serving(answering(), tls=pair.server(), idle_timeout=0.1) as (_, host, port),
        raw_peer(host, port) as silent,
    ):
        assert await silent.read() is None, "closed, as any that is silent for so long"


@in_loop
async def test_a_handshake_under_way_counts_as_a_connection_of_its_address(pair: Pair) -> None:
    async with (
        serving(answering(), tls=pair.server(), per_address=2) as (_, host, port),
        raw_peer(host, port) as one,
        raw_peer(host, port) as two,
    ):
        for peer in (one, two):
            peer.write(b"\x16")
        async with raw_peer(host, port) as three:
            assert await three.read() is None, "closed at once"


@in_loop
async def test_a_server_that_closes_closes_those_that_have_sent_nothing(pair: Pair) -> None:
    async with (
        serving(answering(), tls=pair.server()) as (server, host, port),
        raw_peer(host, port) as peer,
        client_of(None) as client,
    ):
        assert await ask(client, f"{host}:{port}") == 5, "so the other was accepted, too"
        await server.close()
        assert await peer.read() is None


@in_loop
async def test_a_handshake_that_fails_is_logged_and_harms_nobody(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(answering(), tls=pair.server()) as (_, host, port):
        for bad in (b"\x16", b"\x16\x03\x01\x00\x02\x00\x00", b"\x16" * 4000):
            async with raw_peer(host, port) as peer:
                peer.write(bad)
                peer.writer.write_eof()
                assert await peer.read() is None
        async with client_of(pair.trusted()) as client:
            assert await ask(client, f"{host}:{port}") == 5
    report_all()
    assert "TLS failed peer=127.0.0.1:" in caplog.text


@in_loop
async def test_tls_1_2_is_the_least(pair: Pair) -> None:
    async with serving(answering(), tls=pair.server()) as (_, host, port):
        for version, taken in (
            (ssl.TLSVersion.TLSv1_1, False),
            (ssl.TLSVersion.TLSv1_2, True),
            (ssl.TLSVersion.TLSv1_3, True),
        ):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = version
            try:
                _, writer = await asyncio.open_connection(host, port, ssl=context)
            except (ssl.SSLError, ConnectionError):
                assert not taken
            else:
                assert taken
                writer.close()


# --- who is trusted


@pytest.mark.parametrize(
    ("host", "tls", "cause"),
    [
        ("127.0.0.1", {}, "its certificate is not trusted: self-signed certificate"),
        ("10.9.9.9", {"trusts": True}, "IP address mismatch, certificate is not valid for"),
        ("10.9.9.9", {"trusts": True, "check_host_name": False}, None),
        ("10.9.9.9", {"verify": False}, None),
    ],
)
@in_loop
async def test_a_client_checks_the_server_and_the_host_it_asked_for(
    pair: Pair, host: str, tls: dict[str, bool], cause: str | None
) -> None:
    pair.make(host)
    trust = pair.certificate if tls.pop("trusts", False) else None
    async with (
        serving(answering(), tls=pair.server()) as (_, host, port),
        client_of(ClientTls(trust=trust, **tls)) as client,
    ):
        if cause is None:
            assert await ask(client, f"{host}:{port}") == 5
        else:
            with pytest.raises(ConnectError, match=cause):
                await ask(client, f"{host}:{port}")


@in_loop
async def test_an_expired_certificate_is_refused_by_clients_and_the_server_says_so(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.make(days=-1)
    async with serving(answering(), tls=pair.server()) as (_, host, port):
        assert "certificate expired on" in caplog.text
        async with client_of(pair.trusted()) as client:
            with pytest.raises(ConnectError, match="certificate has expired"):
                await ask(client, f"{host}:{port}")


@pytest.mark.parametrize(("days", "warned"), [(29, True), (31, False)])
def test_a_certificate_that_expires_soon_is_warned_of(
    pair: Pair, caplog: pytest.LogCaptureFixture, days: int, warned: bool
) -> None:
    pair.make(days=days)
    ServerContext(pair.server())
    assert ("replace it in time" in caplog.text) == warned


@pytest.mark.parametrize(
    ("ask_for", "shown", "served"),
    [
        (ClientAuth.NONE, None, True),
        (ClientAuth.OPTIONAL, None, True),
        (ClientAuth.OPTIONAL, "stranger", False),
        (ClientAuth.OPTIONAL, "friend", True),
        (ClientAuth.REQUIRE, None, False),
        (ClientAuth.REQUIRE, "stranger", False),
        (ClientAuth.REQUIRE, "friend", True),
    ],
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_server_checks_the_certificates_that_it_asks_for(
    pair: Pair, tmp_path: Path, ask_for: ClientAuth, shown: str | None, served: bool
) -> None:
    known = {name: Pair(tmp_path, name) for name in ("friend", "stranger")}
    tls = pair.server(ask=ask_for, trust=known["friend"].certificate)
    async with (
        serving(answering(), tls=tls) as (_, host, port),
        client_of(pair.trusted(known[shown] if shown else None)) as client,
    ):
        try:
            assert await ask(client, f"{host}:{port}") == 5
        except RemotingError:
            assert not served
        else:
            assert served


# --- files


def shown_certificate(host: str, port: int) -> bytes:
    return ssl.get_server_certificate((host, port)).encode()


async def ask_on(
    asked: Any, over: asyncio.Event, number: int, client: RemotingClient, address: str
) -> None:
    while not over.is_set():
        assert await asyncio.gather(*(ask(client, address) for _ in range(8))) == [5] * 8
        asked[number] += 1


@in_loop
async def test_a_certificate_replaced_under_load_is_in_force_and_no_request_of_others_fails(
    pair: Pair,
) -> None:
    over, asked = asyncio.Event(), [0] * 4
    askers: list[asyncio.Task[None]] = []

    async with AsyncExitStack() as stack:
        _, host, port = await stack.enter_async_context(serving(answering(), tls=pair.server()))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for number in range(len(asked)):
            old = await stack.enter_async_context(client_of(pair.trusted()))
            assert await ask(old, f"{host}:{port}") == 5
            asking = group.create_task(ask_on(asked, over, number, old, f"{host}:{port}"))
            askers.append(asking)
        before = Path(pair.certificate).read_bytes()
        pair.make()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(shown_certificate, host, port) == before:
                await asyncio.sleep(0)
        new = await stack.enter_async_context(client_of(pair.trusted()))
        assert await ask(new, f"{host}:{port}") == 5
        since = list(asked)
        async with asyncio.timeout(60):
            while not all(now > then for now, then in zip(asked, since, strict=True)):
                await asyncio.sleep(0)
        over.set()
        await asyncio.gather(*askers)


def test_files_that_cannot_be_used_leave_the_last_context_in_force(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    context = ServerContext(pair.server())
    first = context.context_at(10)
    assert context.context_at(10 + LOOK_AGAIN_S) is first
    Path(pair.certificate).write_text("half a cert")
    assert context.context_at(20) is first
    assert "the old ones stay in force" in caplog.text
    pair.make()
    assert context.context_at(20 + LOOK_AGAIN_S / 2) is first, "it was looked at a moment ago"
    assert context.context_at(30) is not first


def test_what_is_wrong_with_files_is_said(pair: Pair, tmp_path: Path) -> None:
    other = Pair(tmp_path, "other")
    locked = Pair(tmp_path, "locked", password="s3same")
    ServerContext(locked.server())
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for certificate, key, password, words in (
        (str(tmp_path / "none.pem"), "", "", "none.pem cannot be read: No such file"),
        (pair.certificate, other.key, "", "does not belong to the certificate in"),
        (locked.certificate, locked.key, "", "is encrypted, and no password is given"),
        (locked.certificate, locked.key, "wr0ng", "cannot be decrypted with the password"),
        (str(empty), "", "", "do not hold a certificate and its key in PEM"),
    ):
        with pytest.raises(ConfigError, match=words) as raised:
            ServerContext(ServerTls(certificate=certificate, key=key, key_password=password))
        assert "wr0ng" not in str(raised.value)
    with pytest.raises(ConfigError, match="holds no certificates in PEM"):
        ServerContext(pair.server(ask=ClientAuth.REQUIRE, trust=str(empty)))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match="turbopump tls self-signed"):
        ServerTls(mode=TlsMode.ENFORCING)
    with pytest.raises(ConfigError, match=r"needs tls.server.trustCertPath"):
        ServerTls(certificate="c.pem", client_auth=ClientAuth.REQUIRE)
    with pytest.raises(ConfigError, match=r"key=k\.pem needs certificate"):
        ClientTls(key="k.pem")
    assert "s3same" not in repr(ClientTls(key_password="s3same"))
    assert "s3same" not in repr(ServerTls(key_password="s3same"))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_client_that_was_closed_has_left(pair: Pair) -> None:
    async with serving(answering(), tls=pair.server()) as (_, host, port):
        client = RemotingClient(tls=pair.trusted())
        assert await ask(client, f"{host}:{port}") == 5
        connection = client.connection(f"{host}:{port}")
        await client.close()
        assert connection is not None
        assert connection.closed
