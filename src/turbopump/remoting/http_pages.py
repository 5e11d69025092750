"""Small HTTP server for pages that probes and monitors fetch: GET and HEAD, one request on a
connection.

A page is a function of the request. The event loop runs the function, which must be short, or must
return the page in pieces. The size of a request, the time of a connection and the number of
connections are bounded. At the maximum number, a new connection takes the place of the oldest. The
content of pages is unknown here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

from turbopump.config.tls import ServerTls
from turbopump.remoting.listening_port import FirstByte, ListeningPort, bound_sockets
from turbopump.remoting.turns import Steps, Turns
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_page_failed = RepeatedLine(log, logging.ERROR, "page failed path=%s cause=%r")

REQUEST_SIZE_MAX: Final = 8 * 1024
CONNECTION_S: Final = 5.0
"""Seconds after which a connection ends, answered or not."""
PIECES_S: Final = 30.0
"""Seconds after which a page in pieces ends, complete or not."""
CONNECTIONS_MAX: Final = 64
WRITE_SIZE: Final = 64 * 1024
"""Bytes of a page in pieces that are written at a time."""
PAGES_SHARE: Final = 0.25
SLICE_MIN_S: Final = 0.00025
"""All pages in pieces together get a quarter as much time of the event loop as everything else had,
and at least these seconds of each of its turns. So other clients do not notice a monitor, and a
page comes in time beside a loop that is always busy."""
END: Final = b"\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class PageRequest(NamedTuple):
    """Request of a page. The names of ``headers`` are in lower case. ``host`` is the peer's."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    host: str = ""


class Page(NamedTuple):
    """Answer to the request of a page.

    - ``body``: the text, or its pieces. A piece takes at most a millisecond to make.
    - ``headers``: more headers of the answer.
    """

    status: HTTPStatus
    body: str | Iterator[str]
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Pages = Mapping[str, Callable[[PageRequest], Page]]
"""Function that makes each page, by its path."""


class HttpPages:
    """Server of pages on one port. ``listen`` opens the port, and ``close`` closes it."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._sockets: list[socket.socket] = []
        self._answering: Answering | None = None

    async def listen(self, host: str, port: int, tls: ServerTls | None = None) -> tuple[str, int]:
        """Listen on ``host`` and ``port``, and return the bound address. Port 0 picks a free port.

        - ``tls``: the TLS settings, or None for plain text.

        Raises ConfigError if the system refuses the address.
        """
        first_byte = None if tls is None else FirstByte(tls)
        self._sockets = await bound_sockets(host, port)
        self._answering = Answering(self.pages, self._sockets, first_byte)
        address = self._sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def close(self) -> None:
        """Close the port and its connections. The method may be called twice."""
        if self._answering is not None:
            self._answering.close()
            self._answering = None

    @contextlib.contextmanager
    def answered_by_thread(self) -> Iterator[None]:
        """Answer in a thread inside the block, which may stop the event loop for long.

        The pages must then be safe to make in another thread.
        """
        if self._answering is None:
            yield
            return
        over: Future[None] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._answer_until(over)), name="turbopump-pages"
        )
        thread.start()
        try:
            yield
        finally:
            over.set_result(None)
            thread.join()

    async def _answer_until(self, over: Future[None]) -> None:
        answering = Answering(self.pages, [one.dup() for one in self._sockets])
        await asyncio.wrap_future(over)
        answering.close()


class Answering:
    """Answers requests of pages in the running event loop. Closes the listening sockets at its
    end."""

    def __init__(
        self, pages: Pages, sockets: Sequence[socket.socket], tls: FirstByte | None = None
    ) -> None:
        self._pages = pages
        self._turns = Turns(share=PAGES_SHARE, slice_min_s=SLICE_MIN_S, now=time.perf_counter)
        self._connections: dict[_Connection, None] = {}
        """Open connections, oldest first."""
        self._ports: list[ListeningPort] = []
        for one in sockets:
            self._ports.append(
                ListeningPort(one, self._connection, tls, _never, _always, self._ports)
            )

    def close(self) -> None:
        for port in self._ports:
            port.close()
        for connection in list(self._connections):
            connection.close()

    def _connection(self) -> _Connection:
        return _Connection(self._pages, self._connections, self._turns)


def _never() -> bool:
    return False


def _always(_host: str) -> bool:
    return True


class _Connection(asyncio.Protocol):
    """Connection that gets one answer, and lasts until the peer closes it or its time is over."""

    def __init__(self, pages: Pages, connections: dict[_Connection, None], turns: Turns) -> None:
        self._pages = pages
        self._connections = connections
        self._turns = turns
        self._received = b""
        self._answered = False
        self._writing: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connections) >= CONNECTIONS_MAX:
            next(iter(self._connections)).abort()
        self._connections[self] = None
        self._end_after(CONNECTION_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        if self._writing is not None:
            self._writing.cancel()
        self._connections.pop(self, None)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._connections.pop(self, None)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # closing with unread data would make the system drop the answer
        self._received += data
        head, end, _ = self._received.partition(END)
        if not end and len(self._received) <= REQUEST_SIZE_MAX:
            return
        self._answered = True
        self._received = b""
        peer = self._transport.get_extra_info("peername")
        answer = answer_to(head + end, self._pages, peer[0] if peer else "")
        self._transport.write(answer.head)
        if answer.pieces is None:
            self._end_writing()
            return
        self._end.cancel()
        self._end_after(PIECES_S)
        self._writing = asyncio.get_running_loop().create_task(
            self._write(answer.path, answer.pieces)
        )

    async def _write(self, path: str, pieces: Iterator[bytes]) -> None:
        """Write the pieces of a page. A peer that does not read stops it."""
        try:
            while data := await self._turns.outcome(self, _next_data(pieces)):
                self._transport.write(data)
                await self._may_write.wait()
        except Exception as error:
            # Without the last piece the peer knows that the page is not complete.
            _page_failed(path, error, kind=path, exc_info=True)
            self._transport.abort()
            return
        self._end_writing()

    def _end_after(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _end_writing(self) -> None:
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()


class Answer(NamedTuple):
    """Answer as the bytes of HTTP/1.1: all of it, or its head and the pieces of its body."""

    head: bytes
    pieces: Iterator[bytes] | None = None
    path: str = ""


def answer_to(head: bytes, pages: Pages, host: str = "") -> Answer:
    """Return the answer to the head of a request.

    - ``host``: that of the peer.
    """
    if len(head) > REQUEST_SIZE_MAX:
        return _encode(
            Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long\n")
        )
    line, *fields = head.removesuffix(END).decode("latin-1").split("\r\n")
    parts = line.split(" ")
    try:
        method, target, version = parts
        address = urlsplit(target)
        headers = {name.strip().lower(): value.strip() for name, _, value in map(_field, fields)}
    except ValueError:
        version = ""
    if not version.startswith("HTTP/1."):
        return _encode(Page(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1\n"))
    if method not in ("GET", "HEAD"):
        return _encode(
            Page(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "pages are read with GET or HEAD\n",
                headers=(("Allow", "GET, HEAD"),),
            )
        )
    page = pages.get(address.path)
    if page is None:
        there = "".join(f"{path}\n" for path in pages)
        made = Page(HTTPStatus.NOT_FOUND, f"there is no such page; there are:\n{there}")
    else:
        request = PageRequest(address.path, dict(parse_qsl(address.query)), headers, host)
        made = _made(page, request)
    answer = _encode(made, with_body=method == "GET", chunked=version != "HTTP/1.0")
    return answer._replace(path=address.path)


def _field(line: str) -> tuple[str, str, str]:
    """Divide a header line. Raises ValueError if it is none."""
    name, colon, value = line.partition(":")
    if not name or not colon:
        raise ValueError(line)
    return name, colon, value


def _made(page: Callable[[PageRequest], Page], request: PageRequest) -> Page:
    try:
        return page(request)
    except Exception as error:
        _page_failed(request.path, error, kind=request.path, exc_info=True)
        said = f"the page failed: {type(error).__name__}; see the log of this server\n"
        return Page(HTTPStatus.INTERNAL_SERVER_ERROR, said)


def _encode(page: Page, *, with_body: bool = True, chunked: bool = True) -> Answer:
    """Encode a page. HTTP/1.0 has no chunks: a page in pieces ends with the connection there."""
    fields = [
        ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
        ("Content-Type", page.content_type),
        ("Cache-Control", "no-store"),
        *page.headers,
        ("Connection", "close"),
    ]
    body = b""
    pieces = None
    if isinstance(page.body, str):
        body = page.body.encode()
        fields.append(("Content-Length", str(len(body))))
    elif with_body:
        pieces = _chunks(page.body) if chunked else (piece.encode() for piece in page.body)
        if chunked:
            fields.append(("Transfer-Encoding", "chunked"))
    head = f"HTTP/1.1 {page.status} {page.status.phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields)
    return Answer(head.encode() + b"\r\n" + (body if with_body else b""), pieces)


def _next_data(pieces: Iterator[bytes]) -> Steps[bytes]:
    """Join the next pieces of a page, one for each step. Nothing is left if there are no bytes."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) >= WRITE_SIZE:
            break
        yield
    return bytes(data)


def _chunks(pieces: Iterator[str]) -> Iterator[bytes]:
    """Encode pieces as chunks (RFC 9112, section 7.1)."""
    for piece in pieces:
        data = piece.encode()
        yield b"%x\r\n%s\r\n" % (len(data), data) if data else b""
    yield b"0\r\n\r\n"
