"""The network in memory: asyncio's contract for protocols and transports, and the faults it can
make."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.loops import in_loop
from tests.simulation.world.loop import SimulatedLoop, run_in
from tests.simulation.world.network import SEND_WINDOW, SimulatedNetwork, SimulatedTransport
from tests.simulation.world.pipe import Link
from tests.simulation.world.process import SimulatedProcess

T = TypeVar("T")

A, B = "10.0.0.1", "10.0.0.2"
PORT = 10911


class Recorder(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self, echo: bool = False, keep_open: bool = False) -> None:
        self.events: list[object] = []
        self.received = b""
        self.pieces: list[int] = []
        self.transport: SimulatedTransport
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.arrived = asyncio.Event()
        self._echo = echo
        self._keep_open = keep_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.events.append(data)
        self.received += data
        self.pieces.append(len(data))
        self.arrived.set()
        if self._echo:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self._keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(("lost", type(exc)))
        self.lost.set_result(exc)


class Pair:
    """A server process on B that listens, and a client process on A that is connected to it."""

    def __init__(self, loop: SimulatedLoop, network: SimulatedNetwork) -> None:
        self.loop = loop
        self.network = network
        self.client_process = loop.create_process(A)
        self.server_process = loop.create_process(B)
        self.accepted: list[Recorder] = []
        self.server: asyncio.AbstractServer

    async def listen(self, host: str | None = None, **options: bool) -> None:
        def accept() -> Recorder:
            self.accepted.append(Recorder(**options))
            return self.accepted[-1]

        self.server = await self.server_process.start(self.loop.create_server(accept, host, PORT))

    async def connect(
        self, host: str = B, process: SimulatedProcess | None = None, **options: bool
    ) -> Recorder:
        process = process or self.client_process
        _, protocol = await process.start(
            self.loop.create_connection(partial(Recorder, **options), host, PORT)
        )
        assert isinstance(protocol, Recorder)
        return protocol


async def main(
    loop: SimulatedLoop, network: SimulatedNetwork, scene: Callable[[Pair], Awaitable[T]]
) -> T:
    return await scene(Pair(loop, network))


def play(scene: Callable[[Pair], Awaitable[T]], seed: int = 1, link: Link | None = None) -> T:
    loop = SimulatedLoop(seed)
    network = SimulatedNetwork(loop, random.Random(f"{seed}/network"), link)

    return run_in(loop, main(loop, network, scene))


@in_loop(play, link=Link(latency_min=0.1, latency_max=0.1))
async def test_bytes_go_there_and_back_and_take_their_time(pair: Pair, /) -> None:
    await pair.listen(echo=True)
    client = await pair.connect()
    before = pair.loop.time()
    client.transport.write(b"ping")
    await client.arrived.wait()
    received, seconds = client.received, pair.loop.time() - before
    assert received == b"ping"
    assert seconds == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(5))
@in_loop(play, link=Link(latency_max=5.0, chunk_size_max=7))
async def test_order_is_kept_however_latencies_vary_and_pieces_arrive(
    pair: Pair, /, seed: int
) -> None:
    await pair.listen()
    client = await pair.connect()
    for number in range(200):
        client.transport.write(number.to_bytes(2, "big"))
    client.transport.close()
    await client.lost
    server = pair.accepted[0]
    await server.lost
    assert server.events[-2:] == ["eof", ("lost", type(None))]
    assert server.received == b"".join(number.to_bytes(2, "big") for number in range(200))
    assert len(server.pieces) > 150
    assert any(size % 2 for size in server.pieces), "a write of two bytes was broken in two"


@in_loop(play)
async def test_both_ends_know_their_names(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    await asyncio.sleep(1)
    server = pair.accepted[0].transport
    assert client.transport.get_extra_info("peername") == (B, PORT)
    assert client.transport.get_extra_info("sockname")[0] == A
    assert server.get_extra_info("peername") == client.transport.get_extra_info("sockname")
    assert server.get_extra_info("sockname") == (B, PORT)
    assert server.get_extra_info("cipher", "none") == "none"
    assert server.get_extra_info("socket").getpeername()[0] == A


@in_loop(play)
async def test_nobody_listening_is_a_refusal(pair: Pair, /) -> None:
    with pytest.raises(ConnectionRefusedError):
        await pair.connect()


@in_loop(play)
async def test_a_server_bound_to_loopback_is_reached_from_its_own_host_only(pair: Pair, /) -> None:
    await pair.listen("127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        await pair.connect(B)
    neighbour = pair.loop.create_process(B)
    client = await pair.connect("127.0.0.1", neighbour)
    assert client.transport.get_extra_info("peername") == ("127.0.0.1", PORT)


@in_loop(play)
async def test_a_port_is_taken_once_and_free_again_after_close(pair: Pair, /) -> None:
    await pair.listen()
    with pytest.raises(OSError, match="error while attempting to bind") as taken:
        await pair.listen()
    assert taken.value.errno == errno.EADDRINUSE
    pair.server.close()
    await pair.server.wait_closed()
    await pair.listen()
    assert pair.server.is_serving()


@in_loop(play)
async def test_port_zero_picks_a_free_one_and_a_foreign_address_cannot_be_bound(
    pair: Pair, /
) -> None:
    servers = [
        await pair.server_process.start(pair.loop.create_server(Recorder, B, 0)) for _ in range(3)
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]  # type: ignore[attr-defined]
    assert len(set(ports)) == 3
    with pytest.raises(OSError, match="not an address of this host"):
        await pair.server_process.start(pair.loop.create_server(Recorder, A, 0))


@in_loop(play)
async def test_wait_closed_waits_for_the_last_connection(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    pair.server.close()
    pair.loop.call_later(50, client.transport.close)
    await pair.server.wait_closed()
    assert pair.loop.time() == pytest.approx(50, abs=1)


@in_loop(play)
async def test_a_writer_who_overruns_the_other_is_paused_and_resumed(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    await asyncio.sleep(1)
    server = pair.accepted[0]
    server.transport.pause_reading()
    assert not server.transport.is_reading()
    client.transport.write(b"x" * (SEND_WINDOW + 64 * 1024))
    assert client.events == ["made"]
    client.transport.write(b"y")
    assert client.events == ["made", "pause"]
    assert client.transport.get_write_buffer_size() == 64 * 1024 + 1
    await asyncio.sleep(10)
    assert server.received == b""
    server.transport.resume_reading()
    await asyncio.sleep(10)
    events, size = client.events, len(server.received)
    assert events == ["made", "pause", "resume"]
    assert size == SEND_WINDOW + 64 * 1024 + 1


@in_loop(play)
async def test_close_sends_what_is_buffered_and_abort_does_not(pair: Pair, /) -> None:
    await pair.listen()
    closing, aborting = await pair.connect(), await pair.connect()
    for client in (closing, aborting):
        client.transport.write(b"x" * (2 * SEND_WINDOW))
    closing.transport.close()
    aborting.transport.abort()
    assert closing.transport.is_closing()
    assert aborting.events == ["made", "pause"]  # not from within the call
    assert await closing.lost is None
    assert await aborting.lost is None
    await asyncio.sleep(1)
    closed, aborted = pair.accepted
    assert (len(closed.received), len(aborted.received)) == (2 * SEND_WINDOW, SEND_WINDOW)


@in_loop(play)
async def test_after_eof_the_other_direction_stays_open_if_the_protocol_wants(
    pair: Pair, /
) -> None:
    await pair.listen(keep_open=True)
    client = await pair.connect()
    client.transport.write(b"question")
    client.transport.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        client.transport.write(b"more")
    await asyncio.sleep(1)
    server = pair.accepted[0]
    server.transport.write(b"answer")
    server.transport.close()
    await client.lost
    events, answer = server.events, client.received
    assert events == ["made", b"question", "eof", ("lost", type(None))]
    assert answer == b"answer"


@in_loop(play)
async def test_writing_to_one_who_has_closed_is_answered_by_a_reset(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect(keep_open=True)
    await asyncio.sleep(1)
    pair.accepted[0].transport.close()
    await asyncio.sleep(1)
    client.transport.write(b"too late")
    assert isinstance(await client.lost, ConnectionResetError)


@in_loop(play)
async def test_a_reset_reaches_both_ends(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    await asyncio.sleep(1)
    assert pair.network.reset(A, B) == 1
    assert [type(failure) for failure in [await client.lost, await pair.accepted[0].lost]] == [
        ConnectionResetError
    ] * 2


@in_loop(play)
async def test_a_one_way_cut_holds_one_direction_until_it_heals(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    await asyncio.sleep(1)
    server = pair.accepted[0]
    pair.network.cut(A, B)
    client.transport.write(b"held")
    server.transport.write(b"passes")
    await asyncio.sleep(100)
    assert (client.received, server.received) == (b"passes", b"")
    pair.network.heal(A, B)
    await asyncio.sleep(1)
    assert server.received == b"held"


@in_loop(play)
async def test_a_cut_that_never_heals_ends_in_a_timeout(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    pair.network.cut(A, B)
    client.transport.write(b"held")
    assert isinstance(await client.lost, TimeoutError)
    assert pair.loop.time() == pytest.approx(900, abs=1)


@in_loop(play)
async def test_a_connection_attempt_waits_for_a_cut_to_heal_but_not_for_ever(pair: Pair, /) -> None:
    await pair.listen()
    pair.network.cut(B, A)
    with pytest.raises(TimeoutError, match="Connect call failed"):
        await pair.connect()
    started = pair.loop.time()
    pair.loop.call_later(20, pair.network.heal, B, A)
    await pair.connect()
    assert pair.loop.time() - started == pytest.approx(20, abs=1)


@in_loop(play)
async def test_a_killed_process_resets_its_peers_and_frees_its_port(pair: Pair, /) -> None:
    await pair.listen()
    client = await pair.connect()
    await asyncio.sleep(1)
    pair.server_process.kill()
    failure = await client.lost
    with pytest.raises(ConnectionRefusedError):
        await pair.connect()
    pair.server_process = pair.loop.create_process(B)
    await pair.listen()
    await pair.connect()
    assert pair.accepted[0].events == ["made"]
    assert isinstance(failure, ConnectionResetError)


@in_loop(play)
async def test_a_power_cut_says_nothing_and_the_restarted_host_answers_by_a_reset(
    pair: Pair, /
) -> None:
    await pair.listen()
    client = await pair.connect()
    await asyncio.sleep(1)
    pair.network.silence(B)
    pair.server_process.kill()
    client.transport.write(b"anyone?")
    pair.loop.call_later(60, pair.network.unsilence, B)
    assert isinstance(await client.lost, ConnectionResetError)
    assert pair.loop.time() == pytest.approx(61, abs=1)


@in_loop(play)
async def test_a_paused_process_still_accepts_and_reads_when_it_goes_on(pair: Pair, /) -> None:
    await pair.listen()
    pair.server_process.pause()
    client = await pair.connect()
    client.transport.write(b"hello")
    await asyncio.sleep(30)
    assert pair.accepted == []
    pair.server_process.resume()
    await asyncio.sleep(1)
    assert pair.accepted[0].events == ["made", b"hello"]


@in_loop(play)
async def test_an_exception_in_data_received_ends_that_connection_and_is_reported(
    pair: Pair, /
) -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            raise LookupError("mine")

    reports: list[dict[str, Any]] = []
    pair.loop.set_exception_handler(lambda _, context: reports.append(context))
    broken: list[Broken] = []

    def accept() -> Broken:
        broken.append(Broken())
        return broken[-1]

    await pair.server_process.start(pair.loop.create_server(accept, B, PORT))
    client = await pair.connect()
    client.transport.write(b"x")
    await client.lost
    assert isinstance(await broken[0].lost, LookupError)
    assert [report["message"] for report in reports] == ["Fatal error: protocol callback failed."]


@in_loop(play)
async def test_a_buffered_protocol_gets_its_bytes_through_its_own_buffer(pair: Pair, /) -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(3)
            self.received = b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.received += self.buffer[:nbytes]

    accepted: list[Buffered] = []

    def accept() -> Buffered:
        accepted.append(Buffered())
        return accepted[-1]

    await pair.server_process.start(pair.loop.create_server(accept, B, PORT))
    client = await pair.connect()
    client.transport.writelines([b"abcd", bytearray(b"efg"), memoryview(b"h")])
    await asyncio.sleep(1)
    assert accepted[0].received == b"abcdefgh"


@in_loop(play)
async def test_streams_work_over_it_and_a_program_without_processes_lives_on_loopback(
    pair: Pair, /
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("localhost", port)
    writer.write(b"hello\n")
    line = await reader.readline()
    writer.close()
    assert line == b"HELLO\n"
