"""Pages over HTTP: what each request gets, and what a client can cost at most."""

import asyncio
import http.client
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import cast

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import raises
from tests.waits import until

from turbopump.remoting import http_pages
from turbopump.remoting.http_pages import (
    CONNECTION_S,
    CONNECTIONS_MAX,
    REQUEST_SIZE_MAX,
    HttpPages,
    Page,
    PageRequest,
    answer_to,
)

HOST, PORT = "10.0.0.1", 8080


def echo(request: PageRequest) -> Page:
    text = f"{request.path} {dict(request.query)} {request.headers.get('accept')}\n"
    return Page(HTTPStatus.OK, text)


PAGES = {"/echo": echo, "/broken": raises(ValueError("secret"))}


def answer(request: str) -> tuple[str, str]:
    """Status line and body of the answer to a request without its last empty line."""
    head, _, body = answer_to(f"{request}\r\n\r\n".encode("latin-1"), PAGES).head.partition(
        b"\r\n\r\n"
    )
    return head.decode().split("\r\n")[0].removeprefix("HTTP/1.1 "), body.decode()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        ("GET /echo HTTP/1.1\r\nHost: x", "200 OK", "/echo {} None\n"),
        ("GET /echo HTTP/1.0", "200 OK", "/echo {} None\n"),
        ("HEAD /echo HTTP/1.1", "200 OK", ""),
        (
            "GET /echo?a=1&b=%20x HTTP/1.1\r\nACCEPT:  text/html ",
            "200 OK",
            "/echo {'a': '1', 'b': ' x'} text/html\n",
        ),
        ("GET http://x/echo HTTP/1.1", "200 OK", "/echo {} None\n"),
        ("GET /other HTTP/1.1", "404 Not Found", "there is no such page; there are:\n/echo\n"),
        ("POST /echo HTTP/1.1", "405 Method Not Allowed", "pages are read with GET or HEAD\n"),
        ("GET /echo HTTP/2", "400 Bad Request", "this is not a request of HTTP/1.1\n"),
        ("GET  /echo HTTP/1.1", "400 Bad Request", "this is not a request of HTTP/1.1\n"),
        ("GET http://[ HTTP/1.1", "400 Bad Request", "this is not a request of HTTP/1.1\n"),
        ("GET /echo HTTP/1.1\r\nno colon", "400 Bad Request", "this is not a request of HTTP/1.1"),
        ("\x00\xff", "400 Bad Request", "this is not a request of HTTP/1.1\n"),
    ],
)
def test_each_request_gets_its_status_and_page(request_: str, status: str, body: str) -> None:
    found, text = answer(request_)
    assert found == status
    assert text.startswith(body)
    assert bool(text) == bool(body)


@in_loop
async def test_a_page_that_fails_is_logged_and_says_where_to_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    status, body = answer("GET /broken HTTP/1.1")
    assert status == "500 Internal Server Error"
    assert body == "the page failed: ValueError; see the log of this server\n"
    assert caplog.messages == ["page failed path=/broken cause=ValueError('secret')"]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[HttpPages, int]]:
    pages = HttpPages({"/thread": in_thread})
    _, port = await pages.listen("127.0.0.1", 0)
    try:
        yield pages, port
    finally:
        pages.close()


def in_thread(_request: PageRequest) -> Page:
    return Page(HTTPStatus.OK, threading.current_thread().name)


def fetch(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/thread")
    return connection.getresponse().read().decode()


@in_loop
async def test_a_client_of_http_gets_the_page_and_the_end() -> None:
    async with serving() as (_, port):
        assert await asyncio.to_thread(fetch, port) == threading.current_thread().name
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /thread HTTP/1.1\r\nHost: x\r\n\r\nand more" + b"x" * 100_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


@in_loop
async def test_a_thread_answers_while_the_event_loop_is_blocked() -> None:
    async with serving() as (pages, port):
        with pages.answered_by_thread():
            assert fetch(port) == "turbopump-pages", "blocks the loop"
            assert fetch(port) == "turbopump-pages"
        assert await asyncio.to_thread(fetch, port) == threading.current_thread().name
        assert not [one for one in threading.enumerate() if one.name == "turbopump-pages"]


@in_loop
async def test_pages_without_a_port_need_no_thread() -> None:
    pages = HttpPages({})
    before = threading.active_count()
    with pages.answered_by_thread():
        assert threading.active_count() == before
    pages.close()


class Client(asyncio.Protocol):
    def __init__(self, sends: bytes) -> None:
        self._sends = sends
        self.received = b""
        self.ended = self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._sends)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.ended = True
        return True  # it does not close its side

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self.lost = True


async def clients(simulation: Simulation, count: int, sends: bytes) -> list[Client]:
    make = partial(Client, sends)
    loop = simulation.loop
    return [(await loop.create_connection(make, HOST, PORT))[1] for _ in range(count)]


async def simulated_pages(simulation: Simulation) -> HttpPages:
    process = simulation.boot(HOST)
    pages: HttpPages = process.call(lambda: HttpPages(PAGES))
    await process.start(pages.listen(HOST, PORT))
    return pages


@in_loop(on_a_client_s_host)
async def test_a_client_that_does_not_end_its_request_is_cut_off(simulation: Simulation, /) -> None:
    await simulated_pages(simulation)
    (silent,) = await clients(simulation, 1, b"")
    (slow,) = await clients(simulation, 1, b"GET /echo HTTP/1.1\r\n")
    began = simulation.loop.time()
    await until(lambda: silent.ended and slow.ended)
    assert CONNECTION_S - 1 < simulation.loop.time() - began < CONNECTION_S + 1
    assert (silent.received, slow.received) == (b"", b"")


def linger(port: int) -> bytes:
    """Ask for a page, and send more until the server has closed the connection. Returns the
    answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /thread HTTP/1.1\r\n\r\n")
        answered = b"".join(iter(partial(connection.recv, 4096), b""))
        with suppress(ConnectionError):
            while True:
                connection.sendall(b"more")
    return answered


@in_loop
async def test_a_client_that_does_not_end_its_connection_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_pages, "CONNECTION_S", 0.1)
    async with serving() as (_, port):
        assert (await asyncio.to_thread(linger, port)).startswith(b"HTTP/1.1 200 OK\r\n")


@in_loop(on_a_client_s_host)
async def test_a_request_without_an_end_is_refused_at_its_maximum_size(
    simulation: Simulation, /
) -> None:
    await simulated_pages(simulation)
    (client,) = await clients(simulation, 1, b"x" * REQUEST_SIZE_MAX)
    await asyncio.sleep(1)
    assert client.received == b""
    client.transport.write(b"x")
    await until(lambda: client.received)
    assert client.received.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


@in_loop(on_a_client_s_host)
async def test_silent_connections_cannot_keep_a_probe_out(simulation: Simulation, /) -> None:
    await simulated_pages(simulation)
    silent = await clients(simulation, CONNECTIONS_MAX + 10, b"")
    (probe,) = await clients(simulation, 1, b"GET /echo HTTP/1.1\r\n\r\n")
    await until(lambda: probe.received)
    assert [client.ended for client in silent] == [True] * 11 + [False] * (CONNECTIONS_MAX - 1)


@in_loop(on_a_client_s_host)
async def test_the_end_of_the_server_closes_its_connections(simulation: Simulation, /) -> None:
    pages = await simulated_pages(simulation)
    open_ = await clients(simulation, 3, b"GET")
    await asyncio.sleep(1)
    pages.close()
    pages.close()
    await asyncio.sleep(1)
    assert all(client.ended for client in open_), "before their time is over"
    with pytest.raises(ConnectionRefusedError):
        await clients(simulation, 1, b"")
