"""The calling side: answers matched to calls, time-outs, lost connections, addresses that lead
nowhere."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import async_raises
from tests.unit.remoting.serving import serving
from tests.waits import until, until_count, until_none, until_some

from turbopump.errors import (
    CallTimeoutError,
    ConnectError,
    ConnectionLostError,
    HeaderError,
    ResponseError,
)
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.frame import JSON, ROCKETMQ
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from turbopump.protocol.requests.clients import NotifyConsumerIdsChanged, UnregisterClient
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset, OffsetReply
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.client import RemotingClient, split_address
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire

MAX = GetMaxOffset(topic="T", queue_id=0)


def minimum(number: int) -> GetMinOffset:
    return GetMinOffset(topic="T", queue_id=number)


class Patient:
    """Answers 31 only when told to; 30 never."""

    def __init__(self) -> None:
        self.asked: list[tuple[GetMinOffset, RequestContext]] = []
        self.peers: list[Wire] = []
        self.router = Router()
        self.router.add(GetMinOffset, self._keep)
        self.router.add(GetMaxOffset, self._never)

    def _keep(self, request: GetMinOffset, context: RequestContext) -> Outcome:
        self.asked.append((request, context))
        return HELD

    def _never(self, _request: GetMaxOffset, context: RequestContext) -> Outcome:
        self.peers.append(context.peer)
        return HELD

    def answer(self) -> None:
        """Answer everyone, the last one first."""
        for request, context in reversed(self.asked):
            context.answer(Response(OffsetReply(offset=request.queue_id * 10)))
        self.asked.clear()


async def main(
    options: Any,
    scene: Callable[[RemotingClient, Patient, str, RemotingServer], Coroutine[Any, Any, None]],
    serialize_type: int,
) -> None:
    patient = Patient()
    async with serving(patient.router) as (server, host, port):
        client = RemotingClient(serialize_type=serialize_type, **options)
        try:
            await scene(client, patient, f"{host}:{port}", server)
        finally:
            await client.close()


def with_client(
    scene: Callable[[RemotingClient, Patient, str, RemotingServer], Coroutine[Any, Any, None]],
    serialize_type: int = JSON,
    **options: Any,
) -> None:
    asyncio.run(main(options, scene, serialize_type))


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
@in_loop(with_client)
async def test_answers_in_any_order_reach_the_calls_they_belong_to(
    client: RemotingClient,
    patient: Patient,
    address: str,
    server: RemotingServer,
    /,
    serialize_type: int,
) -> None:
    calls = [asyncio.ensure_future(client.call(address, minimum(number))) for number in range(20)]
    await until_count(patient.asked, 20)
    patient.answer()
    assert [reply.offset for reply in await asyncio.gather(*calls)] == [
        number * 10 for number in range(20)
    ]
    assert len(server.connections) == 1, "one connection is shared"


@in_loop(with_client)
async def test_an_error_code_is_raised_with_its_remark_and_given_raw_to_who_wants_it(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    request = UnregisterClient(client_id="c")
    with pytest.raises(
        ResponseError,
        match=r"code 3 to UnregisterClient from .*request type "
        r"35 not supported",
    ) as caught:
        await client.call(address, request)
    assert (caught.value.code, caught.value.remark) == (3, " request type 35 not supported")
    command = await client.exchange(address, request)
    assert command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def lock(
    _request: LockBatchMq, body: LockBatchRequestBody, _context: RequestContext
) -> Response[LockBatchResponseBody]:
    return Response(LockBatchResponseBody(locked=body.mq_set))


@in_loop
async def test_a_json_body_reaches_the_handler_typed_and_so_does_its_answer_the_caller() -> None:
    router = Router()
    router.add_with_body(LockBatchMq, lock)
    queues = (MessageQueue("T", "a", 3), MessageQueue("T", "a", 4))
    client = RemotingClient()
    async with serving(router) as (_, host, port):
        ask = partial(client.call, f"{host}:{port}", LockBatchMq())
        assert (await ask(LockBatchRequestBody(mq_set=queues))).locked == queues
        assert (await ask()).locked == (), "no body is an empty one"
        with pytest.raises(
            ResponseError,
            match=r"code 1 .* the body cannot be read as LockBatchRequestBody: neither JSON",
        ):
            await ask(b"{")
        await client.close()


@in_loop(on_a_client_s_host)
async def test_a_call_without_an_answer_times_out_and_a_late_answer_harms_nobody(
    simulation: Simulation, /
) -> None:
    patient = Patient()
    server_host = simulation.boot("10.0.0.1")
    server = server_host.call(RemotingServer, patient.router)
    await server_host.start(server.listen("10.0.0.1", 10911))
    client = RemotingClient()
    begun = simulation.loop.time()
    outcomes = await asyncio.gather(
        client.call("10.0.0.1:10911", minimum(1), timeout=5),
        client.call("10.0.0.1:10911", minimum(2), timeout=1),
        client.call("10.0.0.1:10911", minimum(3), timeout=3),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, CallTimeoutError) for outcome in outcomes)
    assert 5 <= simulation.loop.time() - begun < 5.5
    connection = await client.connect("10.0.0.1:10911")
    assert not connection.calls.waiting
    server_host.call(patient.answer)
    await asyncio.sleep(1)
    call = asyncio.ensure_future(client.call("10.0.0.1:10911", minimum(4), timeout=5))
    await asyncio.sleep(1)
    server_host.call(patient.answer)
    assert (await call).offset == 40
    await client.close()


async def call_and_note_end(
    client: RemotingClient, ended: dict[float, float], simulation: Simulation, timeout: float
) -> None:
    with pytest.raises(CallTimeoutError, match=r"no answer from 10\.0\.0\.1:10911"):
        await client.call("10.0.0.1:10911", MAX, timeout=timeout)
    ended[timeout] = simulation.loop.time()


@in_loop(on_a_client_s_host)
async def test_each_call_times_out_at_its_own_deadline(simulation: Simulation, /) -> None:
    server_host = simulation.boot("10.0.0.1")
    server = server_host.call(RemotingServer, Patient().router)
    await server_host.start(server.listen("10.0.0.1", 10911))
    client = RemotingClient()
    ended: dict[float, float] = {}

    await client.connect("10.0.0.1:10911")
    begun = simulation.loop.time()
    await asyncio.gather(
        *(call_and_note_end(client, ended, simulation, timeout) for timeout in (4, 1, 3, 2))
    )
    assert [round(ended[timeout] - begun, 1) for timeout in (1, 2, 3, 4)] == [1, 2, 3, 4]


@in_loop
async def test_calls_fail_at_once_when_their_connection_is_lost_and_the_next_reconnects() -> None:
    patient = Patient()
    async with serving(patient.router) as (server, host, port):
        address = f"{host}:{port}"
        closed: list[str] = []
        client = RemotingClient(on_close=closed.append)
        calls = [asyncio.ensure_future(client.call(address, MAX, timeout=60)) for _ in range(3)]
        await until_count(patient.peers, 3)
        patient.peers[0].abort()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ConnectionLostError)
        assert closed == [address]
        assert not client.is_connected(address)
        call = asyncio.ensure_future(client.call(address, minimum(7)))
        await until_some(patient.asked)
        patient.answer()
        assert (await call).offset == 70
        assert len(server.connections) == 1
        await client.close()


@in_loop(with_client)
async def test_a_cancelled_call_leaves_nothing_waiting_for_ever(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    call = asyncio.ensure_future(client.call(address, minimum(1), timeout=60))
    await until_some(patient.asked)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    patient.answer()
    connection = await client.connect(address)
    await until_none(connection.calls.waiting)


@in_loop(on_a_client_s_host)
async def test_closing_the_client_ends_calls_with_an_error_not_a_cancellation(
    simulation: Simulation, /
) -> None:
    server_host = simulation.boot("10.0.0.1")
    server = server_host.call(RemotingServer, Patient().router)
    await server_host.start(server.listen("10.0.0.1", 10911))
    simulation.boot("10.0.0.3")
    simulation.network.silence("10.0.0.3")
    client = RemotingClient()
    calls = [
        asyncio.ensure_future(client.call(f"{host}:10911", MAX, timeout=60))
        for host in ("10.0.0.1", "10.0.0.3")
    ]
    await asyncio.sleep(1)
    await client.close()
    open_, opening = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(open_, ConnectionLostError)
    assert isinstance(opening, ConnectError)


@in_loop(with_client)
async def test_an_address_where_nobody_listens_is_named(
    client: RemotingClient, patient: Patient, to: str, server: RemotingServer, /
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        for attempt in (
            client.call(address, MAX),
            client.send_oneway(address, MAX),
            client.connect(address),
        ):
            with pytest.raises(ConnectError, match=f"cannot connect to {address}"):
                await attempt


@in_loop(on_a_client_s_host)
async def test_a_host_that_does_not_answer_takes_no_longer_than_asked(
    simulation: Simulation, /
) -> None:
    simulation.boot("10.0.0.1")
    simulation.network.silence("10.0.0.1")
    client = RemotingClient()
    begun = simulation.loop.time()
    with pytest.raises(ConnectError, match=r"no connection to 10\.0\.0\.1:1 within 1\.0 s"):
        await client.call("10.0.0.1:1", MAX, timeout=1)
    assert simulation.loop.time() - begun == pytest.approx(1, abs=0.1)
    with pytest.raises(ConnectError, match=r"within 3\.0 s|within 2\.\d s|no connection"):
        await client.call("10.0.0.1:1", MAX, timeout=60)
    assert simulation.loop.time() - begun < 5
    await client.close()


@in_loop(on_a_client_s_host)
async def test_a_name_leads_to_the_first_of_its_addresses_that_answers(
    simulation: Simulation, /
) -> None:
    silent, refuses, serves, client = "10.0.0.5", "10.0.0.6", "10.0.0.7", RemotingClient()
    simulation.boot(silent)
    simulation.network.silence(silent)
    simulation.boot(refuses)
    simulation.network.names["servers.example"] = (silent, refuses, serves)
    with pytest.raises(ConnectError, match=r"cannot connect to servers\.example:1: Connection ref"):
        await client.connect("servers.example:1")
    patient, process = Patient(), simulation.boot(serves)
    await process.start(RemotingServer(patient.router).listen(serves, 1))
    begun = simulation.loop.time()
    await client.connect("servers.example:1")
    assert simulation.loop.time() - begun < 1.5
    assert client.is_connected("servers.example:1")
    await client.close()


@in_loop(on_a_client_s_host)
async def test_a_name_is_looked_up_again_when_its_connection_has_ended(
    simulation: Simulation, /
) -> None:
    client = RemotingClient()
    for host in ("10.0.0.5", "10.0.0.6"):
        simulation.network.names["server.example"] = (host,)
        process = simulation.boot(host)
        await process.start(RemotingServer(Router()).listen(host, 1))
        with pytest.raises(ResponseError, match="not supported"):
            await client.call("server.example:1", MAX)
        simulation.end(host, power_cut=False)
        await asyncio.sleep(1)
        assert not client.is_connected("server.example:1")
    await client.close()


@in_loop
async def test_a_name_that_nobody_knows_is_told_in_the_system_s_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "getaddrinfo",
        async_raises(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
    )
    client = RemotingClient()
    with pytest.raises(ConnectError, match=r"to server\.invalid:1: Name or service not known"):
        await client.connect("server.invalid:1")
    await client.close()


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1", "host:²", "host:1:"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConnectError, match="is not an address; expected HOST:PORT"):
        split_address(address)


@given(
    host=st.text(max_size=80)
    | st.lists(st.text("aB-_é。.", max_size=12), max_size=6).map(".".join)
    | st.integers(60, 70).map(lambda size: "a" * size),
    port=st.integers(0, 9_999_999).map(str),
)
@example(host="mq..example", port="10911")
@example(host="a" * 64, port="10911")
@example(host=".example", port="10911")
@example(host="a\0b", port="10911")
@example(host="a", port="9" * 5000)
def test_an_address_is_refused_or_can_be_looked_up(host: str, port: str) -> None:
    """Whatever a broker advertises: what is raised here is what every caller expects."""
    try:
        usable, _ = split_address(f"{host}:{port}")
    except ConnectError:
        return
    usable.encode("idna")
    assert "\0" not in usable


def test_addresses_may_be_names_or_v4_or_v6() -> None:
    assert split_address("localhost:1") == ("localhost", 1)
    assert split_address("10.0.0.1:65535") == ("10.0.0.1", 65535)
    assert split_address("[::1]:9876") == ("::1", 9876)


@in_loop(with_client)
async def test_a_oneway_request_arrives_and_wants_nothing(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    await client.send_oneway(address, minimum(3))
    await until_some(patient.asked)
    assert patient.asked[0][1].is_oneway
    patient.answer()
    connection = await client.connect(address)
    assert not connection.calls.waiting


def notice(
    heard: list[str], request: NotifyConsumerIdsChanged, _context: RequestContext
) -> Outcome:
    heard.append(request.consumer_group)
    return HELD


@in_loop
async def test_the_server_may_ask_the_client_on_the_same_connection() -> None:
    patient = Patient()
    async with serving(patient.router) as (server, host, port):
        address = f"{host}:{port}"
        heard: list[str] = []
        router = Router()

        router.add(NotifyConsumerIdsChanged, partial(notice, heard))
        client = RemotingClient(router)

        await client.connect(address)
        await until_some(server.connections)
        (peer,) = server.connections
        request = request_command(
            NotifyConsumerIdsChanged(consumer_group="g"), opaque=peer.calls.next_opaque, oneway=True
        )
        peer.send_frame(encode_command(request))
        await until_some(heard)
        assert heard == ["g"]
        await client.close()


@in_loop(with_client)
async def test_an_answer_without_its_fields_is_an_error_of_the_header(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    call = asyncio.ensure_future(client.call(address, minimum(1)))
    await until_some(patient.asked)
    patient.asked[0][1].answer(Response())
    with pytest.raises(HeaderError, match="field offset is missing"):
        await call


@in_loop(with_client)
async def test_a_disconnected_address_is_connected_anew(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    first = await client.connect(address)
    assert await client.connect(address) is first
    client.disconnect(address)
    client.disconnect(address)
    second = await client.connect(address)
    assert second is not first
    await until(lambda: first.closed)
    assert client.is_connected(address), (
        "the end of the old one is not taken for the end of the new one"
    )


@in_loop(with_client)
async def test_a_closed_connection_refuses_calls_and_drops_frames(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    connection = await client.connect(address)
    connection.close()
    await until(lambda: connection.closed)
    with pytest.raises(ConnectionLostError, match="is closed"):
        await connection.start_call(1, b"", 1.0)
    connection.send_frame(b"dropped")
    connection.close()
    connection.abort()
    await connection.drain()


@in_loop(with_client)
async def test_opaque_numbers_stay_positive_and_are_not_used_twice_in_a_row(
    client: RemotingClient, patient: Patient, address: str, server: RemotingServer, /
) -> None:
    connection = await client.connect(address)
    connection.calls._opaque = 0x7FFFFFFE
    assert [connection.calls.next_opaque for _ in range(3)] == [0x7FFFFFFF, 0, 1]


@in_loop
async def test_both_sides_may_send_more_than_their_buffers_hold() -> None:
    """If a client too stopped reading while it cannot write, neither side would ever go on."""
    router = Router()
    router.add(
        SendMessageV2, lambda _request, context: Response(OffsetReply(offset=0), body=context.body)
    )
    async with serving(router) as (_, host, port):
        client = RemotingClient()
        body = bytes(3 << 20)
        request = SendMessageV2(topic="T", queue_id=0)
        answers = await asyncio.gather(
            *(client.exchange(f"{host}:{port}", request, body, timeout=30) for _ in range(24))
        )
        assert [len(answer.body) for answer in answers] == [len(body)] * 24
        await client.close()


async def slow(
    ending: str,
    go_on: asyncio.Event,
    over: asyncio.Event,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    await go_on.wait()
    if ending == "the peer reads":
        while await reader.read(1 << 20):
            pass
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    over.set()


@pytest.mark.parametrize("ending", ["the peer reads", "the connection is lost"])
@in_loop
async def test_a_sender_can_wait_until_a_slow_peer_has_read(ending: str) -> None:
    go_on, over = asyncio.Event(), asyncio.Event()

    server = await asyncio.start_server(partial(slow, ending, go_on, over), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = RemotingClient()
    connection = await client.connect(f"127.0.0.1:{port}")
    await connection.drain()  # nothing is waiting
    connection.send_frame(bytes(32 << 20))
    await until(lambda: connection.writing_paused)
    waiting = asyncio.ensure_future(connection.drain())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    async with asyncio.timeout(60):
        await waiting
    await client.close()
    async with asyncio.timeout(60):
        await over.wait()
    server.close()
    await server.wait_closed()
