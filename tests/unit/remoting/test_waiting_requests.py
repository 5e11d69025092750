"""Requests that wait for a message, another peer, or the disk: they are counted in the memory of
their connection, and end with it."""

import asyncio
from collections.abc import Hashable

import pytest
from tests.loops import in_loop
from tests.unit.remoting.hand_clock import HandClock, play, turns
from tests.unit.remoting.serving import frame
from tests.unit.remoting.transports import SlowTransport

from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset, OffsetReply
from turbopump.remoting.connection_memory import ConnectionMemory
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.remoting.served_requests import DUE_SIZE, Keeper, ServedRequests
from turbopump.remoting.turns import SLICE_MIN_S

MIB = 1 << 20


class Keeping:
    """A server that keeps requests for the minimum, 1,000 bytes each, and answers those for the
    maximum by a coroutine, once ``there``."""

    def __init__(self, loop: HandClock, memory_max: int = 1000 * MIB) -> None:
        self.loop = loop
        self.memory = ConnectionMemory(memory_max)
        self.there = asyncio.Event()
        self.kept: list[tuple[ServedRequests, int]] = []
        self.dropped: list[Hashable] = []
        self.drop_s = 0.0
        self._keeper = Keeper(1000, self._drop)
        self._router = Router()
        self._router.add(GetMinOffset, self._keep)
        self._router.add(GetMaxOffset, self._wait)

    def connect(self) -> tuple[ServedRequests, SlowTransport]:
        served = ServedRequests(self._router, memory=self.memory)
        return served, SlowTransport(served.wire)

    def _drop(self, request: Hashable) -> None:
        self.loop.now += self.drop_s
        self.dropped.append(request)

    def _keep(self, _request: GetMinOffset, context: RequestContext) -> Outcome:
        self.kept.append((context.served, context.opaque))
        context.served.keep(context.opaque, self._keeper)
        return HELD

    async def _wait(
        self, _request: GetMaxOffset, _context: RequestContext
    ) -> Response[OffsetReply]:
        await self.there.wait()
        return Response(OffsetReply(offset=0))


def requests(count: int) -> bytes:
    return b"".join(frame(GetMinOffset(topic="t", queue_id=0), number) for number in range(count))


@in_loop(play)
async def test_waiting_requests_count_until_they_are_given_back_or_their_connection_ends(
    loop: HandClock, /
) -> None:
    server = Keeping(loop)
    (first, _), (second, transport) = server.connect(), server.connect()
    first.wire.data_received(requests(3))
    second.wire.data_received(requests(5))
    assert server.memory.total == 8000
    for _ in range(2):  # the second time it is kept no more
        first.give_back(1)
    assert server.memory.total == 7000
    second.wire.data_received(requests(5)[:50])
    assert 7050 <= server.memory.total < 7200, "beside a part of a frame"
    transport.lose()
    assert (server.memory.total, server.dropped) == (2000, [0, 1, 2, 3, 4])
    second.give_back(1)
    second.keep(7, Keeper(1000, server.dropped.append))
    assert (server.memory.total, server.dropped[5:]) == (2000, [7])


@in_loop(play)
async def test_of_those_whose_requests_wait_the_connection_with_most_is_closed(
    loop: HandClock, /, caplog: pytest.LogCaptureFixture
) -> None:
    server = Keeping(loop, memory_max=MIB)
    modest = [server.connect() for _ in range(50)]
    for served, _ in modest:
        served.wire.data_received(requests(4))
    greedy = [server.connect() for _ in range(4)]
    loop.now += 60
    for served, transport in greedy:
        served.wire.data_received(requests(500))
        if transport.aborted:
            transport.lose()
    assert server.memory.total < MIB
    assert sum(transport.aborted for _, transport in greedy) == 3
    assert not any(transport.aborted for _, transport in modest)
    assert "waiting_requests_bytes=" in caplog.text


@in_loop(play)
async def test_many_waiting_requests_of_an_ended_connection_are_dropped_in_turns(
    loop: HandClock, /
) -> None:
    server = Keeping(loop)
    served, transport = server.connect()
    served.wire.data_received(requests(3000))
    server.drop_s = 0.0001
    transport.lose()
    assert server.memory.total == 0
    done = len(server.dropped)
    while done < 3000:
        await asyncio.sleep(0)
        before, done = done, len(server.dropped)
        assert done - before <= SLICE_MIN_S / server.drop_s + 1
    assert server.dropped == [*range(3000)]


@in_loop(play)
async def test_a_request_whose_handler_waits_counts_with_its_body(loop: HandClock, /) -> None:
    server = Keeping(loop)
    served, transport = server.connect()
    transport.reading = True
    for number in range(4):
        asked = frame(GetMaxOffset(topic="t", queue_id=0), number, bytes(MIB))
        served.wire.data_received(asked)
    assert 4 * MIB < server.memory.total < 4 * MIB + 4096
    server.there.set()
    await turns()
    assert [answer.opaque for answer in transport.answers] == [0, 1, 2, 3]
    assert server.memory.total == 0


@in_loop(play)
async def test_a_request_that_is_due_and_waits_for_its_peer_to_read_counts(
    loop: HandClock, /
) -> None:
    server = Keeping(loop)
    served, transport = server.connect()
    served.wire.data_received(requests(1))
    served.wire.send_frame(frame(GetMinOffset(topic="t", queue_id=0), 1, bytes(5 * MIB)))
    await turns()
    done: list[int] = []
    before = server.memory.total
    for number in range(10):
        served.when_room(lambda number=number: done.append(number))  # type: ignore[misc]
    assert server.memory.total == before + 10 * DUE_SIZE
    transport.read()
    await turns(20)
    assert (done, server.memory.total) == ([*range(10)], 1000)
