"""Connections that come and go many at a time, and no descriptor for another."""

import asyncio
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing
from tests.unit.remoting.hand_clock import HandClock, play
from tests.unit.remoting.serving import frame, raw_peer
from tests.unit.remoting.transports import SlowTransport
from tests.waits import until_logged

from turbopump.protocol.requests.offsets import GetMinOffset, OffsetReply
from turbopump.remoting.backlog import Backlog
from turbopump.remoting.connection_memory import ConnectionMemory
from turbopump.remoting.listening_port import ACCEPTED_A_TURN, LEFT_FOR_FILES_MIN, KeptSockets
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.turns import SLICE_MIN_S, Turns

HOST, PORT = "10.0.0.1", 10911


def ask_and_answer(
    asked: Callable[[], object], _request: GetMinOffset, _context: RequestContext
) -> Response[OffsetReply]:
    asked()
    return Response(OffsetReply(offset=5))


def answering(asked: Callable[[], object] = does_nothing) -> Router:
    router = Router()

    router.add(GetMinOffset, partial(ask_and_answer, asked))
    return router


async def serving(
    simulation: Simulation, asked: Callable[[], object] = does_nothing, **options: Any
) -> RemotingServer:
    process = simulation.boot(HOST)
    server: RemotingServer = process.call(lambda: RemotingServer(answering(asked), **options))
    await process.start(server.listen(HOST, PORT))
    return server


class Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(frame(GetMinOffset(topic="T", queue_id=0), 1))

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


async def connect(simulation: Simulation, count: int) -> list[Peer]:
    loop = simulation.loop
    pairs = await asyncio.gather(*(loop.create_connection(Peer, HOST, PORT) for _ in range(count)))
    return [peer for _, peer in pairs]


@in_loop(on_a_client_s_host)
async def test_a_burst_of_connections_is_accepted_a_few_in_a_turn(
    simulation: Simulation, /
) -> None:
    first_handled: list[int] = []
    await serving(simulation, lambda: first_handled.append(simulation.loop.turns))
    simulation.network.without_descriptors.add(HOST)
    await connect(simulation, 200)
    simulation.network.without_descriptors.discard(HOST)
    await asyncio.sleep(1)
    assert len(first_handled) == 200
    assert max(Counter(first_handled).values()) <= ACCEPTED_A_TURN


@in_loop(on_a_client_s_host)
async def test_without_a_descriptor_new_connections_wait_and_the_others_go_on(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turbopump.remoting")
    server = await serving(simulation)
    (first,) = await connect(simulation, 1)
    await asyncio.sleep(1)
    simulation.network.without_descriptors.add(HOST)
    turns = simulation.loop.turns
    peers = await connect(simulation, 5)
    await asyncio.sleep(60)
    assert simulation.loop.turns - turns < 5000, "it does not spin"
    assert len(server.connections) == 1
    assert not any(peer.lost for peer in peers)
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "Too many open files" in line.getMessage()
    simulation.network.without_descriptors.discard(HOST)
    await asyncio.sleep(1)
    assert len(server.connections) == 6
    assert all(peer.received for peer in [first, *peers])
    assert caplog.messages[-1] == "connections are accepted again"


@in_loop(on_a_client_s_host)
async def test_that_a_server_is_full_is_said_once_while_clients_come_and_go(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turbopump.remoting")
    await serving(simulation, connections_max=10)
    peers = await connect(simulation, 10)
    for _ in range(20):  # one goes, another has its place, and a third waits
        peers += await connect(simulation, 2)
        peers.pop(0).transport.close()
        await asyncio.sleep(0.25)
    lines = [message for message in caplog.messages if "accept" in message]
    assert len(lines) == 2
    assert "cannot accept connections" in lines[0]
    await asyncio.sleep(10)
    assert "in_seconds=10" in caplog.text


@in_loop(on_a_client_s_host)
async def test_a_server_that_closes_has_closed_also_those_that_it_had_not_accepted(
    simulation: Simulation, /
) -> None:
    server = await serving(simulation)
    simulation.network.without_descriptors.add(HOST)
    peers = await connect(simulation, 3)
    await server.close()
    await asyncio.sleep(1)
    assert all(peer.lost for peer in peers)
    with pytest.raises(ConnectionRefusedError):
        await connect(simulation, 1)


class CostlyTransport(SlowTransport):
    """Closing it takes a millisecond."""

    def close(self) -> None:
        super().close()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HandClock)
        loop.now += 0.001


@in_loop(play)
async def test_peers_that_end_at_the_same_time_are_closed_a_few_in_a_turn(
    loop: HandClock, /
) -> None:
    shared = {"memory": ConnectionMemory(), "backlog": Backlog.never_busy(), "turns": Turns()}
    connections = [ServedRequests(answering(), **shared).wire for _ in range(20)]
    transports = [CostlyTransport(connection) for connection in connections]
    assert all(connection.eof_received() for connection in connections)
    closed = 0
    while closed < 20:
        await asyncio.sleep(0)
        before, closed = closed, sum(transport.aborted for transport in transports)
        assert closed - before <= SLICE_MIN_S / 0.001 + 1


@in_loop
async def test_connections_leave_the_last_descriptors_to_the_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = RemotingServer(answering())
    host, port = await server.listen("127.0.0.1", 0)
    limit = len(os.listdir("/proc/self/fd")) + LEFT_FOR_FILES_MIN + 20
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (limit, limit))
    peers = [socket.create_connection((host, port)) for _ in range(40)]
    await until_logged(caplog, "left for the store")
    assert len(server.connections) <= 20
    for peer in peers:
        peer.close()
    async with raw_peer(host, port) as peer:
        peer.write(frame(GetMinOffset(topic="T", queue_id=0), 9))
        assert await peer.read() is not None
    await server.close()


@pytest.mark.parametrize("port_first", [True, False])
@in_loop
async def test_real_connections_are_accepted_on_each_port(port_first: bool) -> None:
    server = RemotingServer(answering())
    ports = [(await server.listen("127.0.0.1", 0))[1] for _ in range(2)]
    async with raw_peer("127.0.0.1", ports[port_first]) as peer:
        peer.write(frame(GetMinOffset(topic="T", queue_id=0), 9))
        answer = await peer.read()
        assert answer is not None
        assert answer.opaque == 9
    await server.close()
    assert not server.connections


@in_loop(on_a_client_s_host)
async def test_between_two_servers_connections_wait_instead_of_being_refused(
    simulation: Simulation, /
) -> None:
    process = simulation.boot(HOST)
    kept = KeptSockets()
    first: RemotingServer = process.call(lambda: RemotingServer(answering(), kept=kept))
    await process.start(first.listen(HOST, PORT))
    await process.start(first.close())

    async with raw_peer(HOST, PORT) as peer:
        peer.write(frame(GetMinOffset(topic="T", queue_id=0), 1))
        second: RemotingServer = process.call(lambda: RemotingServer(answering(), kept=kept))
        await process.start(second.listen(HOST, PORT))
        answer = await peer.read()
        assert answer is not None
        assert answer.opaque == 1
    process.call(kept.end)
    await process.start(second.close())
