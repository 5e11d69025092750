"""Peers that do not read what they asked for: what is made for them, what waits, and that nobody
else waits with them."""

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest
from tests.loops import in_loop
from tests.unit.remoting.hand_clock import HandClock, play, turns
from tests.unit.remoting.serving import frame, raw_peer, serving
from tests.unit.remoting.transports import SlowTransport

from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset, OffsetReply
from turbopump.remoting.backlog import FULL_READ, READ_A_TURN, TURN_S, Backlog
from turbopump.remoting.connection_memory import ConnectionMemory
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.turns import SLICE_MIN_S, Turns
from turbopump.remoting.wire import WAITING_MAX, WRITE_SIZE, Wire

KIB, MIB = 1 << 10, 1 << 20


class Stage:
    """A server whose answers have ``size`` bytes and take ``cost`` seconds. Requests for the
    maximum are answered by a coroutine."""

    def __init__(self, loop: HandClock, *, memory_max: int = 1000 * MIB) -> None:
        self.loop = loop
        self.size = MIB
        self.cost = 0.0
        self.handled: list[int] = []
        self.memory = ConnectionMemory(memory_max)
        self.backlog = Backlog.never_busy()
        self.turns = Turns()
        self.router = Router()
        self.router.add(GetMinOffset, self._answer)
        self.router.add(GetMaxOffset, self._answer_later)

    def connect(self, *, room: int = 0, reading: bool = False) -> tuple[Wire, SlowTransport]:
        self.served = ServedRequests(
            self.router, memory=self.memory, backlog=self.backlog, turns=self.turns
        )
        connection = self.served.wire
        transport = SlowTransport(connection, room=room)
        transport.reading = reading
        return connection, transport

    def _answer(self, _request: GetMinOffset, context: RequestContext) -> Response[OffsetReply]:
        self.loop.now += self.cost
        self.handled.append(context.opaque)
        return Response(OffsetReply(offset=0), body=bytes(self.size))

    async def _answer_later(
        self, _request: GetMaxOffset, context: RequestContext
    ) -> Response[OffsetReply]:
        self.handled.append(context.opaque)
        return Response(OffsetReply(offset=0), body=bytes(self.size))


def requests(first: int, count: int) -> bytes:
    numbers = range(first, first + count)
    return b"".join(frame(GetMinOffset(topic="t", queue_id=0), number) for number in numbers)


def later_requests(first: int, count: int) -> bytes:
    numbers = range(first, first + count)
    return b"".join(frame(GetMaxOffset(topic="t", queue_id=0), number) for number in numbers)


def opaques(transport: SlowTransport) -> list[int]:
    return [answer.opaque for answer in transport.answers]


@in_loop(play)
async def test_for_a_peer_that_does_not_read_no_more_is_made_than_waits_for_it(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect(room=2 * MIB)
    connection.data_received(requests(1, 1000))
    assert WAITING_MAX <= len(transport.waiting) <= WAITING_MAX + WRITE_SIZE + stage.size
    assert len(stage.handled) <= 7
    assert transport.is_paused
    await turns()
    handled = len(stage.handled)
    connection.data_received(requests(1001, 10))  # what the system had read before
    await turns()
    assert len(stage.handled) == handled


@in_loop(play)
async def test_bytes_that_the_loop_of_windows_reads_into_an_array_are_read(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, _ = stage.connect(room=4 * MIB)
    for number in (1, 2):
        array = bytearray(requests(number, 1))
        connection.data_received(array)
        array[:] = bytes(len(array))  # it reads the next bytes into the same one
    assert stage.handled == [1, 2]


@in_loop(play)
async def test_one_answer_may_be_larger_than_what_may_wait(loop: HandClock, /) -> None:
    stage = Stage(loop)
    stage.size = 3 * WAITING_MAX
    connection, transport = stage.connect()
    connection.data_received(requests(1, 3))
    assert stage.handled == [1]
    transport.read()
    await turns()
    assert stage.handled == [1, 2]
    assert opaques(transport) == [1]


@in_loop(play)
async def test_when_the_peer_reads_again_all_is_handled_in_order(loop: HandClock, /) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(requests(1, 100))
    connection.data_received(requests(101, 5)[:-3])
    while len(transport.answers) < 104:
        assert transport.waiting
        transport.read()
        assert len(transport.waiting) <= WAITING_MAX + WRITE_SIZE + stage.size
        await turns()
    assert not transport.is_paused
    connection.data_received(requests(101, 5)[-3:])
    transport.read()
    await turns()
    assert stage.handled == list(range(1, 106)) == opaques(transport)
    assert (stage.memory.total, stage.memory.tight) == (0, False)


@in_loop(play)
async def test_a_peer_that_has_read_a_part_waits_until_it_has_read_all(loop: HandClock, /) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(requests(1, 100))
    handled = len(stage.handled)
    transport.read(MIB)
    await turns()
    connection.data_received(requests(101, 1))
    assert len(stage.handled) == handled
    transport.read()
    await turns()
    assert len(stage.handled) > handled


@in_loop(play)
async def test_a_little_that_waits_holds_nothing_up(loop: HandClock, /) -> None:
    stage = Stage(loop)
    stage.size = 100 * KIB
    connection, transport = stage.connect()
    for number in range(1, 30):
        connection.data_received(requests(number, 1))
        assert stage.handled[-1] == number
        assert not transport.is_paused


@in_loop(play)
async def test_small_answers_leave_in_one_write_and_large_ones_as_they_fill_it(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect(reading=True)
    stage.size = 10 * KIB
    connection.data_received(requests(1, 50))
    assert len(transport.writes) == 1
    stage.size = 200 * KIB
    connection.data_received(requests(51, 12))
    assert len(transport.writes) == 3
    assert opaques(transport) == list(range(1, 63))


@in_loop(play)
async def test_a_fast_reader_of_large_answers_leaves_the_loop_to_others(loop: HandClock, /) -> None:
    stage = Stage(loop)
    stage.cost = 0.001
    (greedy, transport), (other, others_wire) = (stage.connect(reading=True) for _ in range(2))
    before = loop.now
    greedy.data_received(requests(1, 500))
    assert loop.now - before <= TURN_S + stage.cost
    while len(transport.answers) < 500:
        before = loop.now
        other.data_received(requests(1000 + len(stage.handled), 1))
        await asyncio.sleep(0)
        assert loop.now - before <= SLICE_MIN_S + 3 * stage.cost
    assert [number for number in stage.handled if number <= 500] == list(range(1, 501))
    assert len(others_wire.answers) > 100
    assert not transport.is_paused


@in_loop(play)
async def test_connections_that_go_on_take_turns(loop: HandClock, /) -> None:
    stage = Stage(loop)
    pairs = [stage.connect() for _ in range(3)]
    for number, (connection, _) in enumerate(pairs):
        connection.data_received(requests(100 * number, 20))
    stage.size, stage.cost = 10, SLICE_MIN_S
    stage.handled.clear()
    for _, transport in pairs:
        transport.read()
    await turns(10)
    first, *rest = [number // 100 for number in stage.handled[:7]]
    assert (first, rest) == (0, [0, 1, 2] * 2), "the first goes on before the others are there"


def read_until_paused(connection: Wire, transport: SlowTransport) -> int:
    """Full reads, one after the other as uvloop makes them; how many until there is a pause."""
    reads = 0
    while not transport.is_paused:
        connection.data_received(bytes(FULL_READ))
        reads += 1
    return reads


@in_loop(play)
async def test_peers_that_send_faster_than_they_are_read_take_turns(loop: HandClock, /) -> None:
    stage = Stage(loop)
    peers = [stage.connect() for _ in range(3)]
    for connection, _ in peers:
        connection.data_received((16 * MIB - 4).to_bytes(4) + bytes(4))  # a frame begins
    assert [read_until_paused(*peer) for peer in peers] == [READ_A_TURN // FULL_READ + 1, 1, 1]
    await turns(1)
    assert [transport.is_paused for _, transport in peers] == [False, False, True]
    assert read_until_paused(*peers[0]) == READ_A_TURN // FULL_READ + 1
    await turns(1)
    assert [transport.is_paused for _, transport in peers] == [False, False, False], (
        "first come, first read"
    )
    read_until_paused(*peers[0])
    connection, transport = peers[1]
    read_until_paused(connection, transport)
    transport.lose()
    await turns()
    assert not peers[0][1].is_paused
    assert transport.is_paused, "nothing is asked of one that has ended"


@in_loop(play)
async def test_what_is_answered_later_is_not_begun_while_the_peer_does_not_read(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(later_requests(1, 50))
    await turns()
    begun = len(stage.handled)
    assert begun <= 6
    while len(transport.answers) < 50:
        transport.read()
        await turns()
        assert len(transport.waiting) <= WAITING_MAX + WRITE_SIZE + stage.size
    assert stage.handled == list(range(1, 51))


@in_loop(play)
async def test_what_waits_for_room_is_dropped_with_its_connection(loop: HandClock, /) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(later_requests(1, 20) + requests(21, 20))
    await turns()
    handled, called = len(stage.handled), []
    stage.served.when_room(lambda: called.append(connection.closed))
    assert called == []
    transport.lose()
    await turns()
    assert called == [True], "who waits is told, and sees that the peer has gone"
    assert len(stage.handled) == handled
    assert stage.memory.total == 0


@in_loop(play)
async def test_what_handlers_have_to_do_comes_before_the_frames_that_wait(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(requests(1, 10))
    handled = len(stage.handled)
    stage.served.when_room(lambda: stage.handled.append(99))
    transport.read()
    await turns()
    assert stage.handled[handled : handled + 2] == [99, handled + 1]
    stage.handled.clear()
    transport.reading = True
    transport.read()
    await turns(10)
    stage.served.when_room(lambda: stage.handled.append(100))
    await turns()
    assert stage.handled[-1] == 100, "there is room"


@in_loop(play)
async def test_bad_bytes_close_after_the_answers_before_them_though_those_waited(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(requests(1, 8) + b"\xff" * 8)
    assert not connection.closed
    while not connection.closed:
        transport.read()
        await turns()
    assert stage.handled == list(range(1, 9))


@in_loop(play)
async def test_when_all_hold_much_a_peer_must_read_all_before_its_next_request(
    loop: HandClock, /
) -> None:
    stage = Stage(loop, memory_max=16 * MIB)
    silent = [stage.connect() for _ in range(2)]
    for connection, _ in silent:
        connection.data_received(requests(1, 100))
    assert stage.memory.tight
    stage.handled.clear()
    (lagging, lagging_wire), (good, good_wire) = stage.connect(), stage.connect(reading=True)
    stage.size = 10
    lagging.data_received(requests(1, 3))
    await turns()
    lagging.data_received(requests(4, 3))
    good.data_received(requests(7, 3))
    await turns()
    assert stage.handled == [1, 2, 3, 7, 8, 9]
    assert opaques(good_wire) == [7, 8, 9]
    lagging_wire.read()
    await turns()
    assert stage.handled[6:] == [4, 5, 6]


@in_loop(play)
async def test_the_connection_that_holds_most_for_longest_is_closed(
    loop: HandClock, /, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(loop, memory_max=20 * MIB)
    (silent, silent_wire), (slow, slow_wire) = stage.connect(), stage.connect()
    for connection in (silent, slow):
        connection.data_received(requests(1, 100))
    held = stage.memory.total
    loop.now += 1.0
    slow_wire.read(MIB)
    others = [stage.connect() for _ in range(10)]
    for connection, _ in others:
        connection.data_received(requests(1, 100))
        await turns()
        if silent.closed:
            break
    assert held < stage.memory.total <= 20 * MIB
    assert (silent_wire.aborted, slow_wire.aborted) == (True, False)
    assert not any(transport.aborted for _, transport in others)
    (line,) = caplog.messages
    assert line.startswith(
        "closing the connection with the most memory, the limit for all is reached"
    )
    silent_wire.lose()
    handled = len(stage.handled)
    slow_wire.read()
    await turns()
    assert len(stage.handled) > handled


@in_loop(play)
async def test_unfinished_frames_count_and_who_has_sent_nothing_for_longest_is_closed(
    loop: HandClock, /
) -> None:
    stage = Stage(loop, memory_max=11 * MIB)
    transports = []
    whole = frame(GetMinOffset(topic="t", queue_id=0), 1, bytes(12 * MIB))
    senders = [stage.connect(reading=True) for _ in range(4)]
    for connection, transport in senders:
        transports.append(transport)
        connection.data_received(whole[: 3 * MIB])
        loop.now += 0.1
        if transport is transports[0]:
            loop.now += 0.1
        else:  # the first has sent nothing more since
            senders[1][0].data_received(whole[3 * MIB : 3 * MIB + KIB])
    assert [transport.aborted for transport in transports] == [True, False, False, False]
    assert stage.memory.total <= 10 * MIB


@in_loop(play)
async def test_a_frame_that_ends_is_not_counted_any_more(loop: HandClock, /) -> None:
    stage = Stage(loop)
    stage.size = 10
    connection, _ = stage.connect(reading=True)
    whole = frame(GetMinOffset(topic="t", queue_id=0), 1, bytes(MIB))
    connection.data_received(whole[:700_000])
    assert 700_000 <= stage.memory.total < 701_000
    connection.data_received(whole[700_000:])
    assert (stage.memory.total, stage.handled) == (0, [1])


class Sender:
    """Sends frames of three MiB, 256 KiB at a time, as long as it is read from; ``hangs``: only
    half of the first."""

    def __init__(self, stage: Stage, number: int, *, hangs: bool = False) -> None:
        self.connection, self.transport = stage.connect(reading=True)
        whole = frame(GetMinOffset(topic="t", queue_id=0), number, bytes(3 * MIB))
        self.rest = whole[: len(whole) // 2] if hangs else whole

    def send(self) -> None:
        if not self.transport.is_paused and not self.transport.aborted and self.rest:
            piece, self.rest = self.rest[: 256 * KIB], self.rest[256 * KIB :]
            self.connection.data_received(piece)


@pytest.mark.parametrize("hanging", [0, 8])
@in_loop(play)
async def test_more_large_frames_than_fit_are_slowed_down_and_none_is_refused(
    loop: HandClock, /, hanging: int
) -> None:
    """Thirty senders of 3 MiB share 24 MiB, of which eight may have hung with 1.5 each."""
    stage = Stage(loop, memory_max=24 * MIB)
    stage.size = 10
    for number in range(hanging):
        hung = Sender(stage, 100 + number, hangs=True)
        while hung.rest:
            hung.send()
            await turns()
    loop.now += 1.0
    good = [Sender(stage, number) for number in range(30)]
    peak = 0
    for _ in range(1000):
        for sender in good:
            sender.send()
            peak = max(peak, stage.memory.total)
        loop.now += 0.01
        await turns()
        if len(stage.handled) == len(good):
            break
    assert sorted(stage.handled) == list(range(30))
    assert not any(sender.transport.aborted for sender in good)
    assert peak <= 24 * MIB


def large(_request: GetMinOffset, _context: RequestContext) -> Response[OffsetReply]:
    return Response(OffsetReply(offset=0), body=bytes(MIB))


async def later(request: GetMaxOffset, _context: RequestContext) -> Response[OffsetReply]:
    return Response(OffsetReply(offset=0), body=bytes(MIB))


@pytest.mark.parametrize("ask", [requests, later_requests])
@in_loop
async def test_silent_readers_of_a_real_server_take_no_more_memory_than_they_may(
    ask: Callable[[int, int], bytes],
) -> None:
    router = Router()

    router.add(GetMinOffset, large)
    router.add(GetMaxOffset, later)
    async with serving(router, memory_max=24 * MIB) as (server, host, port):
        peers = [await asyncio.open_connection(host, port) for _ in range(20)]
        async with raw_peer(host, port) as good:
            tracemalloc.start()
            try:
                for _, writer in peers:
                    writer.write(ask(1, 50))
                for number in range(50):
                    good.write(ask(number, 1))
                    answer = await good.read()
                    assert answer is not None, "who reads is served"
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert peak < 40 * MIB, "1,000 MiB were asked for"
        assert len(server.connections) > 1
        for _, writer in peers:
            writer.transport.abort()
