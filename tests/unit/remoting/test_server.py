"""The serving side: answers, refusals, bad bytes, slow readers, silent peers."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import raises, returns
from tests.unit.remoting.serving import frame, raw_peer, serving
from tests.waits import until_count, until_none

from turbopump.errors import ConfigError, MessageError
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.command import EXT_FIELDS_MAX, Command, encode_command, request_command
from turbopump.protocol.frame import JSON, ROCKETMQ, frame_head
from turbopump.protocol.requests.clients import UnregisterClient
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset, OffsetReply
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Ready, RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import report_all

MIN = GetMinOffset(topic="T", queue_id=5)


def answering() -> Router:
    """A router that answers 31 with the queue id, and fails on 30."""
    router = Router()
    router.add(
        GetMinOffset, lambda request, _context: Response(OffsetReply(offset=request.queue_id))
    )

    router.add(GetMaxOffset, raises(KeyError("secret")))
    return router


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
@in_loop
async def test_a_request_in_either_form_is_answered_under_its_number(form: int) -> None:
    async with serving(answering()) as (_, host, port), raw_peer(host, port) as peer:
        peer.write(frame(MIN, 77, serialize_type=form))
        answer = await peer.read()
        assert answer is not None
        assert (answer.code, answer.opaque, answer.flag, answer.ext) == (0, 77, 1, {"offset": "5"})
        assert (answer.language, answer.serialize_type) == (LanguageCode.PYTHON, JSON)


@in_loop
async def test_all_requests_of_one_read_are_answered_with_one_write() -> None:
    writes: list[bytes] = []
    loop = asyncio.get_running_loop()
    connection = ServedRequests(answering()).wire

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            writes.append(bytes(data))

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

    connection.connection_made(Transport({"peername": ("10.0.0.9", 5)}))
    connection.data_received(b"".join(frame(MIN, number) for number in range(100)))
    assert len(writes) == 1
    assert writes[0].count(b'"offset":"5"') == 100
    connection.send_frame(b"one ")
    connection.send_frame(b"two")
    assert len(writes) == 1
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done
    assert writes[1:] == [b"one two"], "what one loop turn sends goes out together"
    assert connection.peer == "10.0.0.9:5"


@in_loop
async def test_a_oneway_request_gets_no_answer_even_if_it_fails() -> None:
    async with serving(answering()) as (_, host, port), raw_peer(host, port) as peer:
        peer.write(
            frame(MIN, 1, oneway=True),
            frame(GetMaxOffset(topic="T", queue_id=0), 2, oneway=True),
            encode_command(Command(9999, opaque=3, flag=2)),
            frame(MIN, 4),
        )
        answer = await peer.read()
        assert answer is not None
        assert answer.opaque == 4


@in_loop
async def test_a_failing_handler_answers_one_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        async with serving(answering()) as (_, host, port), raw_peer(host, port) as peer:
            peer.write(frame(GetMaxOffset(topic="T", queue_id=0), 1), frame(MIN, 2))
            failed, following = await peer.read(), await peer.read()
            assert failed is not None
            assert following is not None
            assert failed.code == ResponseCode.SYSTEM_ERROR
            assert failed.remark == (
                "internal error KeyError while handling request 30; the "
                "server's log has the details"
            )
            assert following.code == 0
    assert "secret" in caplog.text, "the log has it"


async def later(
    gates: list[asyncio.Future[None]], request: GetMinOffset, _context: RequestContext
) -> Ready:
    gate = asyncio.get_running_loop().create_future()
    gates.append(gate)
    await gate
    if request.queue_id == 1:
        raise MessageError("told as it is")
    return Response(OffsetReply(offset=request.queue_id)) if request.queue_id != 2 else HELD


@in_loop
async def test_later_answers_and_their_failures_reach_the_peer_in_their_own_time() -> None:
    router = Router()
    gates: list[asyncio.Future[None]] = []

    router.add(GetMinOffset, partial(later, gates))
    async with serving(router) as (_, host, port), raw_peer(host, port) as peer:
        peer.write(
            *(frame(GetMinOffset(topic="T", queue_id=number), number) for number in range(4))
        )
        await until_count(gates, 4)
        for gate in reversed(gates):
            gate.set_result(None)
            await asyncio.sleep(0)
        answers = [await peer.read() for _ in range(3)]
        assert [(a.opaque, a.code, a.remark) for a in answers if a] == [
            (3, 0, None),
            (1, 1, "told as it is"),
            (0, 0, None),
        ]


@pytest.mark.parametrize(
    ("command", "code", "remark"),
    [
        (Command(9999), 3, " request type 9999 not supported"),
        (Command(-5), 3, " request type -5 not supported"),
        (Command(31), 1, "GetMinOffset (31) cannot be read: field topic is missing"),
        (
            Command(31, ext={"topic": "T", "queueId": "x"}),
            1,
            "field queue_id (queueId) has the unusable value 'x'",
        ),
        (
            Command(31, ext={"topic": "T", "queueId": str(2**31)}),
            1,
            "has the unusable value '2147483648'",
        ),
    ],
)
@in_loop
async def test_what_cannot_be_served_is_answered_with_a_code_and_a_reason(
    command: Command, code: int, remark: str
) -> None:
    async with serving(answering()) as (_, host, port), raw_peer(host, port) as peer:
        for form in (JSON, ROCKETMQ):
            command.serialize_type = form
            peer.write(encode_command(command))
            answer = await peer.read()
            assert answer is not None
            assert answer.code == code
            assert remark in (answer.remark or "")


@in_loop
async def test_an_answer_to_nothing_is_passed_over() -> None:
    async with serving(answering()) as (_, host, port), raw_peer(host, port) as peer:
        peer.write(
            encode_command(Command(31, opaque=1, flag=1, ext={"topic": "T", "queueId": "0"})),
            frame(MIN, 2),
        )
        answer = await peer.read()
        assert answer is not None
        assert answer.opaque == 2


def many_fields(count: int) -> bytes:
    """A request with so many header fields, in the form that most clients write."""
    command = request_command(MIN, opaque=4)
    command.ext = {**(command.ext or {}), **{f"f{number}": "" for number in range(count)}}
    return encode_command(command)


BAD = {
    "a length that cannot be": b"\xff" * 8,
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a header longer than its frame": b"\x00\x00\x00\x08\x00\x00\x00\x05abcde",
    "a header that is no JSON": frame_head(5, 0) + b"{nope",
    "a header that lies about its code": frame_head(19, 0) + b'{"code":31,"flag":}',
    "a header a hundred thousand levels deep": frame_head(200_017, 0)
    + b'{"code":31,"x":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}}",
    "a ROCKETMQ header that is too short": frame_head(3, 0, ROCKETMQ) + b"abc",
    "too many header fields": many_fields(EXT_FIELDS_MAX + 1),
    "an unknown serialize type": frame_head(2, 0, 7) + b"{}",
}


def on_loop(story: Callable[[], Coroutine[Any, Any, None]], loop: str) -> None:
    """Run a story on asyncio's own loop or on uvloop's."""
    if loop == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(story())
    else:
        asyncio.run(story())


@in_loop
async def test_a_header_with_thousands_of_fields_is_read() -> None:
    async with serving(answering()) as (_, host, port), raw_peer(host, port) as peer:
        peer.write(many_fields(EXT_FIELDS_MAX - 2))
        answer = await peer.read()
        assert answer is not None
        assert (answer.code, answer.ext) == (0, {"offset": "5"})


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@in_loop(on_loop)
async def test_bad_bytes_close_their_own_connection_after_the_answers_before_them(
    bad: bytes,
) -> None:
    async with (
        serving(answering()) as (server, host, port),
        raw_peer(host, port) as good,
        raw_peer(host, port) as peer,
    ):
        good.write(frame(MIN, 1))
        assert await good.read() is not None
        peer.write(frame(MIN, 7), frame(MIN, 8), bad, frame(MIN, 9))
        answers = [await peer.read() for _ in range(3)]
        assert [answer.opaque for answer in answers if answer] == [7, 8]
        assert answers[2] is None, "closed"
        good.write(frame(MIN, 2))
        assert await good.read() is not None
        assert len(server.connections) == 1


def large(asked: list[int], request: GetMinOffset, _context: RequestContext) -> Response:
    asked.append(request.queue_id)
    return Response(OffsetReply(offset=0), body=bytes(1 << 20))


@in_loop
async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    router = Router()
    asked: list[int] = []

    router.add(GetMinOffset, partial(large, asked))
    async with serving(router) as (_, host, port), raw_peer(host, port) as peer:
        for number in range(200):
            peer.write(frame(GetMinOffset(topic="T" * 10_000, queue_id=number), number))
        first = await peer.read()
        assert first is not None
        assert len(asked) < 150, "200 MB of answers are not held in memory"
        for _ in range(199):
            assert await peer.read() is not None
        assert asked == list(range(200)), "it goes on when the peer reads again"


async def ask(port: Any, simulation: Simulation) -> asyncio.Transport:
    transport, _ = await simulation.loop.create_connection(asyncio.Protocol, "10.0.0.1", port)
    transport.pause_reading()
    transport.write(frame(MIN, 1))
    return transport


@in_loop(simulated)
async def test_a_server_closes_in_time_though_a_peer_does_not_read(
    simulation: Simulation, /
) -> None:
    router = Router()
    router.add(
        GetMinOffset,
        lambda _request, _context: Response(OffsetReply(offset=0), body=bytes(8 << 20)),
    )
    server_host, client_host = simulation.boot("10.0.0.1"), simulation.boot("10.0.0.2")
    server = server_host.call(RemotingServer, router)
    _, port = await server_host.start(server.listen("10.0.0.1", 10911))

    await client_host.start(ask(port, simulation))
    await asyncio.sleep(1)
    assert len(server.connections) == 1
    begun = simulation.loop.time()
    await server_host.start(server.close())
    await asyncio.sleep(10)
    assert simulation.loop.time() - begun < 20
    assert not server.connections


@in_loop(simulated)
async def test_a_silent_peer_is_closed_and_one_that_speaks_is_not(
    simulation: Simulation, /
) -> None:
    closed: list[str] = []
    server_host = simulation.boot("10.0.0.1")
    server = server_host.call(
        lambda: RemotingServer(answering(), on_close=lambda peer: closed.append(peer.peer_ip))
    )
    await server_host.start(server.listen("10.0.0.1", 10911))
    transports = []
    for host in ("10.0.0.2", "10.0.0.3"):
        process = simulation.boot(host)
        transport, _ = await process.start(
            simulation.loop.create_connection(asyncio.Protocol, "10.0.0.1", 10911)
        )
        transports.append(transport)
    for _ in range(5):
        await asyncio.sleep(30)
        transports[0].write(frame(UnregisterClient(client_id="c"), 1))
    assert closed == ["10.0.0.3"]
    assert [peer.peer_ip for peer in server.connections] == ["10.0.0.2"]
    await server_host.start(server.close())


@in_loop
async def test_a_port_that_is_taken_is_named() -> None:
    async with serving(answering()) as (_, host, port):
        with pytest.raises(
            ConfigError, match=f"port {port} on {host} is in use by another process"
        ):
            await RemotingServer(answering()).listen(host, port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
@in_loop
async def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:0"):
        await RemotingServer(answering()).listen(host, 0)


def note_peer(peers: list[str], _request: GetMinOffset, context: RequestContext) -> Response:
    peers.append(context.peer.peer)
    return Response(OffsetReply(offset=0))


@in_loop
async def test_ipv6_peers_are_shown_in_brackets() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    peers: list[str] = []
    router = Router()

    router.add(GetMinOffset, partial(note_peer, peers))
    server = RemotingServer(router)
    host, port = await server.listen("::1", 0)
    async with raw_peer(host, port) as peer:
        peer.write(frame(MIN, 1))
        await peer.read()
    await server.close()
    assert peers[0].startswith("[::1]:")


def note(seen: list[Command], _request: GetMinOffset, context: RequestContext) -> Response:
    seen.append(context.command)
    assert context.command is seen[-1], "decoded once"
    return Response(OffsetReply(offset=0), ext={"extra": "yes"}, body=context.body)


@in_loop
async def test_every_header_field_as_it_came_is_there_for_whom_it_concerns() -> None:
    seen: list[Command] = []
    router = Router()

    router.add(GetMinOffset, partial(note, seen))
    assert router.codes == {31}
    async with serving(router) as (_, host, port), raw_peer(host, port) as peer:
        ext = {"topic": "T", "queueId": "0", "AccessKey": "", "OnsChannel": "ALIYUN"}
        peer.write(encode_command(Command(31, opaque=1, ext=ext, body=b"echo")))
        answer = await peer.read()
        assert answer is not None
        assert (answer.ext, answer.body) == ({"offset": "0", "extra": "yes"}, b"echo")
        assert seen[0].ext == ext


def test_a_code_has_one_handler() -> None:
    router = answering()
    with pytest.raises(AssertionError, match="code 31 has two handlers"):
        router.add(GetMinOffset, returns(HELD))


@in_loop
async def test_thousands_of_bad_connections_leave_one_line_and_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report_all()
    caplog.clear()
    async with serving(answering()) as (server, host, port):
        for _ in range(50):
            async with raw_peer(host, port) as peer:
                peer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await peer.read() is None
        await until_none(server.connections)
    report_all()
    first, counted = caplog.messages
    assert first.startswith("closing connection peer=127.0.0.1:")
    assert counted.endswith("more=49 in_seconds=10")


class ClosedAtOnce(RemotingServer):
    """Begins to close when a connection has just been made."""

    closing: asyncio.Task[None] | None = None

    def _opened(self, connection: Wire) -> None:
        super()._opened(connection)
        if self.closing is None:
            self.closing = asyncio.ensure_future(self.close())


async def connect_to_a_closing_server() -> None:
    server = ClosedAtOnce(Router())
    bound = await server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*bound)
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert await reader.read() == b""
        assert server.closing is not None
        await server.closing
    writer.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_that_is_made_while_the_server_closes_does_not_keep_it_from_closing(
    loop: str,
) -> None:
    on_loop(connect_to_a_closing_server, loop)
