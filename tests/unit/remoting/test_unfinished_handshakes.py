"""TLS handshakes that strangers begin and do not end: what they cost a server, and that others come
in beside them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.remoting.asking import answering, ask, client_of, on_loop
from tests.unit.remoting.certificates import Pair
from tests.unit.remoting.handshakes import Handshake
from tests.unit.remoting.serving import frame, serving
from tests.waits import until, until_count, until_none

from turbopump.protocol.requests.offsets import GetMinOffset
from turbopump.remoting import listening_port
from turbopump.remoting import server as server_module
from turbopump.remoting.listening_port import LOOKED_AT_A_TURN, FirstByte, ListeningPort
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import report_all

FIRST_BYTE, PART, WHOLE = "a byte", "44 bytes", "a whole hello"
ASKED = frame(GetMinOffset(topic="T", queue_id=7), 1)
ENDED_A_TURN = 2 * LOOKED_AT_A_TURN
"""Of connections; a turn may begin between two of the loop."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def bytes_of(kind: str) -> bytes:
    hello = Handshake().hello
    return {FIRST_BYTE: hello[:1], PART: hello[:44], WHOLE: hello}[kind]


@asynccontextmanager
async def strangers(
    count: int, data: bytes, port: int, host: str = "127.0.0.1"
) -> AsyncIterator[list[Streams]]:
    async with AsyncExitStack() as stack:
        peers = []
        for _ in range(count):
            streams = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
            stack.callback(streams[1].close)
            streams[1].write(data)
            peers.append(streams)
        yield peers


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed a connection."""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            await reader.read()


def greeting(server: RemotingServer) -> int:
    """Connections that have begun a ClientHello and not ended it."""
    return sum(one.greets for port in server.ports for one in port.silent.values())


def greets(server: RemotingServer, count: int) -> bool:
    return greeting(server) == count


def handshaking(server: RemotingServer) -> int:
    return sum(port.waiting - len(port.silent) for port in server.ports)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("cut", [1, 4, 5, 44, -1])
@in_loop(on_loop)
async def test_a_client_hello_in_two_pieces_is_no_handshake_until_it_is_whole(
    pair: Pair, cut: int
) -> None:
    handshake = Handshake()
    async with (
        serving(answering(), tls=pair.server()) as (server, _, port),
        strangers(1, handshake.hello[:cut], port) as ((reader, writer),),
    ):
        await until(greets, server, 1)
        assert handshaking(server) == 0
        writer.write(handshake.hello[cut:])
        await handshake.finish(reader, writer)
        assert b'"offset":"7"' in await handshake.ask(ASKED, reader, writer)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_part_of_a_client_hello_is_not_looked_at_again_and_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, options = [0], FirstByte.options

    def counted(self: FirstByte, first: bytes, now: float) -> object:
        looks[0] += 1
        return options(self, first, now)

    monkeypatch.setattr(FirstByte, "options", counted)
    async with (
        serving(answering(), tls=pair.server()) as (server, host, port),
        strangers(20, bytes_of(PART), port),
        client_of(None) as client,
    ):
        await until(greets, server, 20)
        for _ in range(100):
            assert await ask(client, f"{host}:{port}") == 5
        assert looks[0] <= 3 * 20 + 1


async def most_in_a_turn(calls: list[None], count: int) -> int:
    """Let the loop turn until there were so many calls; most of them in one turn."""
    most, done = 0, len(calls)
    async with asyncio.timeout(60):
        while done < count:
            await asyncio.sleep(0)
            before, done = done, len(calls)
            most = max(most, done - before)
    return most


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("ending", ["they close", "they go on", "they are late"])
@in_loop(on_loop)
async def test_many_strangers_who_do_one_thing_at_once_are_served_or_dropped_in_turns(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    count, hello, calls = 200, bytes_of(WHOLE), list[None]()
    ended_by = "_start_serving" if ending == "they go on" else "_drop_silent"
    action = getattr(ListeningPort, ended_by)

    def counted(self: ListeningPort, *arguments: object) -> None:
        calls.append(None)
        action(self, *arguments)

    async with (
        serving(answering(), tls=pair.server()) as (server, _, port),
        strangers(count, hello[:44], port) as peers,
    ):
        await until(greets, server, count)
        monkeypatch.setattr(ListeningPort, ended_by, counted)
        if ending == "they are late":
            monkeypatch.setattr(listening_port, "HANDSHAKE_S", -1.0)
            server.ports[0].close_silent(0.0)
            server.ports[0].close_silent(0.0)
        for _, writer in peers:
            if ending == "they close":
                writer.close()
            elif ending == "they go on":
                writer.write(hello[44:])
        assert len(calls) <= ENDED_A_TURN
        assert await most_in_a_turn(calls, count) <= ENDED_A_TURN
        assert greeting(server) == 0
        assert len(calls) == count


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_connections_that_fall_silent_together_are_closed_in_turns(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, closed = 200, list[None]()
    close = Wire.close
    monkeypatch.setattr(server_module, "SWEEP_S", 0.01)

    def counted(self: Wire) -> None:
        closed.append(None)
        close(self)

    async with (
        serving(answering(), idle_timeout=3600.0) as (server, _, port),
        strangers(count, b"", port),
    ):
        await until_count(server.connections, count)
        monkeypatch.setattr(Wire, "close", counted)
        for connection in server.connections:
            connection.last_read -= 7200.0
        assert await most_in_a_turn(closed, count) <= ENDED_A_TURN
        await until_none(server.connections)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_few_handshakes_are_under_way_and_the_address_with_most_makes_room(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening_port, "HANDSHAKES_MAX", 4)
    slow = Handshake()
    async with (
        serving(answering(), tls=pair.server()) as (server, host, port),
        strangers(1, slow.hello, port, "127.0.0.2") as ((reader, writer),),
        strangers(10, bytes_of(WHOLE), port) as peers,
        client_of(pair.trusted()) as client,
    ):
        for begun, _ in peers[:7]:  # all but the last three
            await ended(begun)
        assert handshaking(server) == 4
        await slow.finish(reader, writer)
        assert b'"offset":"7"' in await slow.ask(ASKED, reader, writer)
        assert await ask(client, f"{host}:{port}") == 5, "from the address of the others"
    report_all()
    assert "it has not ended its handshake, and others came" in caplog.text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", [FIRST_BYTE, PART, WHOLE])
@in_loop(on_loop)
async def test_who_has_not_ended_a_handshake_makes_room_where_a_server_is_full(
    pair: Pair, kind: str
) -> None:
    async with (
        serving(answering(), tls=pair.server(), connections_max=4) as (server, host, port),
        strangers(20, bytes_of(kind), port),
    ):
        await until(lambda: greeting(server) + handshaking(server) == 4)
        for tls in (pair.trusted(), None):
            async with client_of(tls) as client:
                assert await ask(client, f"{host}:{port}") == 5


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@in_loop(on_loop)
async def test_a_client_hello_that_is_not_ended_in_time_is_closed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening_port, "HANDSHAKE_S", 0.0)
    monkeypatch.setattr(server_module, "SWEEP_S", 0.01)
    async with (
        serving(answering(), tls=pair.server()) as (server, _, port),
        strangers(1, b"", port) as ((_, silent),),
        strangers(1, bytes_of(PART), port) as ((reader, _),),
    ):
        await ended(reader)
        assert sum(each.waiting for each in server.ports) == 1, "who has said nothing may wait"
        silent.write_eof()
        await until(lambda: not any(each.waiting for each in server.ports))
    assert "no whole ClientHello within 0 s" in caplog.text


@in_loop
async def test_the_heap_is_trimmed_when_many_tls_connections_have_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims = list[None]()
    monkeypatch.setattr(server_module, "TRIM_AFTER", 2)
    monkeypatch.setattr(server_module, "trim_heap", partial(trims.append, None))
    async with serving(answering(), tls=pair.server()) as (server, host, port):
        for tls in [pair.trusted(), None] * 4:
            async with client_of(tls) as client:
                assert await ask(client, f"{host}:{port}") == 5
            await until_none(server.connections)
        assert len(trims) == 2
