"""Connections that come to nothing are closed in time, and nobody has too many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.remoting.serving import frame, raw_peer, serving
from tests.waits import until_count, until_none

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.clients import UnregisterClient
from turbopump.protocol.requests.offsets import GetMinOffset, OffsetReply
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.server import RemotingServer

MIN = GetMinOffset(topic="T", queue_id=5)


def accept_known(request: Any, context: RequestContext) -> Refusal | None:
    """Accepts who asks for a queue."""
    if isinstance(request, GetMinOffset):
        context.peer.user = "ann"
        return None
    return refusal(ResponseCode.NO_PERMISSION, "access denied")


def answering(*, asks_for_users: bool = False) -> Router:
    router = Router(accept_known if asks_for_users else None)
    router.add(GetMinOffset, lambda *_: Response(OffsetReply(offset=0)))
    router.add(UnregisterClient, lambda *_: Response())
    return router


class Peers:
    """A server on a host of a simulation, and peers on others; who was closed, and when."""

    def __init__(self, simulation: Simulation, router: Router) -> None:
        self._simulation = simulation
        self.closed: dict[str, float] = {}
        self._host = simulation.boot("10.0.0.1")
        self.server = self._host.call(
            lambda: RemotingServer(router, on_close=lambda peer: self._gone(peer.peer_ip))
        )

    def _gone(self, host: str) -> None:
        self.closed[host] = round(self._simulation.loop.time(), 1)

    async def listen(self) -> None:
        await self._host.start(self.server.listen("10.0.0.1", 10911))

    async def connect(self, host: str) -> asyncio.Transport:
        transport, _ = await self._simulation.boot(host).start(
            self._simulation.loop.create_connection(asyncio.Protocol, "10.0.0.1", 10911)
        )
        assert isinstance(transport, asyncio.Transport)
        return transport

    async def close(self) -> None:
        await self._host.start(self.server.close())


@in_loop(simulated)
async def test_who_is_not_accepted_within_ten_seconds_is_closed(simulation: Simulation, /) -> None:
    peers = Peers(simulation, answering(asks_for_users=True))
    await peers.listen()
    begun = simulation.loop.time()
    silent = await peers.connect("10.0.0.2")
    refused = await peers.connect("10.0.0.3")
    known = await peers.connect("10.0.0.4")
    known.write(frame(MIN, 1))
    for _ in range(20):
        refused.write(frame(UnregisterClient(client_id="c"), 1))
        await asyncio.sleep(1)
    assert silent is not None
    assert peers.closed.keys() == {"10.0.0.2", "10.0.0.3"}
    assert all(10 <= when - begun <= 11.5 for when in peers.closed.values())
    assert [peer.peer_ip for peer in peers.server.connections] == ["10.0.0.4"]
    await peers.close()


@pytest.mark.parametrize("asks_for_users", [False, True])
@in_loop(simulated)
async def test_who_is_silent_for_120_seconds_is_closed_whether_users_are_asked_for_or_not(
    simulation: Simulation, /, asks_for_users: bool
) -> None:
    peers = Peers(simulation, answering(asks_for_users=asks_for_users))
    await peers.listen()
    silent, speaking = await peers.connect("10.0.0.2"), await peers.connect("10.0.0.3")
    for transport in (silent, speaking):
        transport.write(frame(MIN, 1))
    last = simulation.loop.time()
    for _ in range(5):
        await asyncio.sleep(29.9)
        speaking.write(frame(MIN, 2))
    assert peers.closed.keys() == {"10.0.0.2"}
    assert 120 <= peers.closed["10.0.0.2"] - last <= 121.5
    assert [peer.peer_ip for peer in peers.server.connections] == ["10.0.0.3"]
    await peers.close()


@in_loop(simulated)
async def test_without_users_one_that_has_sent_nothing_is_closed_after_120_seconds(
    simulation: Simulation, /
) -> None:
    peers = Peers(simulation, answering())
    await peers.listen()
    begun = simulation.loop.time()
    await peers.connect("10.0.0.2")
    await asyncio.sleep(130)
    assert 120 <= peers.closed["10.0.0.2"] - begun <= 121.5
    await peers.close()


@in_loop(simulated)
async def test_half_a_frame_is_waited_for_as_long_as_a_slow_line_needs(
    simulation: Simulation, /
) -> None:
    peers = Peers(simulation, answering())
    await peers.listen()
    trickling, slow = await peers.connect("10.0.0.2"), await peers.connect("10.0.0.3")
    begun = simulation.loop.time()
    whole = frame(GetMinOffset(topic="T" * 6_000_000, queue_id=5), 1)
    for number in range(50):  # 100 kB a second, and a byte a second
        slow.write(whole[number * 100_000 : (number + 1) * 100_000])
        if not trickling.is_closing():
            trickling.write(whole[number : number + 1])
        await asyncio.sleep(1)
    assert peers.closed.keys() == {"10.0.0.2"}
    assert 30 <= peers.closed["10.0.0.2"] - begun <= 32
    await peers.close()


@in_loop
async def test_an_address_may_have_so_many_connections() -> None:
    router = answering()
    async with serving(router, per_address=2) as (server, host, port):
        async with raw_peer(host, port) as one, raw_peer(host, port) as two:
            await until_count(server.connections, 2)
            async with raw_peer(host, port) as three:
                assert await three.read() is None
            for peer in (one, two):
                peer.write(frame(MIN, 1))
                assert await peer.read() is not None
        await until_none(server.connections)
        async with raw_peer(host, port) as again:
            again.write(frame(MIN, 1))
            assert await again.read() is not None


@in_loop
async def test_more_connections_than_there_may_be_wait_to_be_accepted() -> None:
    async with (
        serving(answering(), connections_max=1) as (server, host, port),
        raw_peer(host, port) as one,
    ):
        one.write(frame(MIN, 1))
        assert await one.read() is not None
        async with raw_peer(host, port) as two:
            two.write(frame(MIN, 2))
            one.write(frame(MIN, 3))
            assert await one.read() is not None
            assert len(server.connections) == 1
            one.writer.close()
            answer = await two.read()
            assert answer is not None
            assert answer.opaque == 2
