"""Pool of connections to peers. Connections are opened on demand, and shared.

``call`` sends a typed request and returns its typed answer. The caller chooses the address and
decides about retries. Topics and routes are unknown here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from turbopump.config.addresses import name_fault
from turbopump.config.tls import ClientTls
from turbopump.errors import CallTimeoutError, ConnectError, ResponseError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command, encode_command, reply_in, request_command
from turbopump.protocol.frame import JSON
from turbopump.protocol.request import ReplyT, Request
from turbopump.remoting.permits import PERMITS, Permits
from turbopump.remoting.router import Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.tls import ClientContext, failure_words
from turbopump.remoting.wire import Wire

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
FAREWELL_S: Final = 1.0


class RemotingClient:
    """Pool of connections. Each ``host:port`` address has one connection.

    - ``router``: handlers of requests that peers send to us, such as a broker's notices to a
      consumer.
    - ``serialize_type``: form of the headers that we send (``protocol.frame.JSON`` or
      ``ROCKETMQ``). Both are read.
    - ``on_close``: function called with the address of each connection that has ended.
    - ``signer``: function that adds a signature to the header fields of each request. Its arguments
      are the fields and the body.
    - ``tls``: settings of TLS. None means plain text.
    - ``permits``: maximum number of calls that wait for their answers at once.

    Raises ConfigError if a TLS file cannot be used.
    """

    def __init__(
        self,
        router: Router | None = None,
        *,
        serialize_type: int = JSON,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        on_close: Callable[[str], None] | None = None,
        signer: Callable[[Mapping[str, str] | None, bytes], dict[str, str]] | None = None,
        tls: ClientTls | None = None,
        permits: int = PERMITS,
    ) -> None:
        self._calls = Permits(permits)
        self.router = router or Router()
        self._serialize_type = serialize_type
        self._connect_timeout = connect_timeout
        self._on_close = on_close
        self._signer = signer
        self._tls = None if tls is None else ClientContext(tls)
        self._connections: dict[str, Wire] = {}
        self._connecting: dict[str, asyncio.Task[Wire]] = {}
        self._ended = False
        self._leaving: set[Wire] = set()
        self._gone = asyncio.Event()

    @property
    def connections(self) -> Mapping[str, Wire]:
        """Open connections by address."""
        return self._connections

    async def call(
        self, address: str, request: Request[ReplyT], body: Body = b"", *, timeout: float = 3.0
    ) -> ReplyT:
        """Send ``request`` to a peer and return the typed reply, from header fields or a JSON body.

        ``timeout`` is in seconds and includes connecting. Use ``exchange`` for an answer with a
        body that is not JSON.

        Raises ResponseError if the answer has another code than 0, and BodyError or HeaderError if
        it cannot be decoded. Raises ConnectError, ConnectionLostError or CallTimeoutError if no
        answer arrives.
        """
        command = await self.exchange(address, request, body, timeout=timeout)
        if command.code != ResponseCode.SUCCESS:
            raise refused_by(address, request, command)
        return reply_in(command, request)

    async def exchange(
        self, address: str, request: Request[Any], body: Body = b"", *, timeout: float = 3.0
    ) -> Command:
        """Send ``request`` to a peer and return the whole answer, also if it reports an error."""
        calls = self._calls
        calls.count += 1
        try:
            if calls.count > calls.limit:
                timeout = await self._wait_for_permit(address, timeout)
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                loop = asyncio.get_running_loop()
                started = loop.time()
                connection = await self.connect(address, timeout=timeout)
                timeout = max(timeout - (loop.time() - started), 0.001)
            command = request_command(request, body, opaque=connection.calls.next_opaque)
            command.serialize_type = self._serialize_type
            if self._signer is not None:
                command.ext = self._signer(command.ext, command.body)
            answer: Command = await connection.start_call(
                command.opaque, encode_command(command), timeout
            )
            return answer
        finally:
            calls.count -= 1
            if calls.watched:
                calls.wake_waiting()

    async def _wait_for_permit(self, address: str, timeout: float) -> float:
        """Wait for a permit to send a call, and return the seconds left of ``timeout``.

        Raises CallTimeoutError if no permit becomes free in time.
        """
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await self._calls.wait_turn(began + timeout)
        except TimeoutError:
            raise CallTimeoutError(
                f"nothing was sent to {address}: for {timeout:.1f} s {self._calls.limit} calls of "
                "this client waited for answers, the limit (async_permits)"
            ) from None
        return max(timeout - (now() - began), 0.001)

    async def send_oneway(
        self, address: str, request: Request[Any], body: Body = b"", *, timeout: float = 3.0
    ) -> None:
        """Send ``request`` as a one-way request. The peer sends no answer.

        Raises ConnectError if no connection can be opened.
        """
        connection = await self.connect(address, timeout=timeout)
        command = request_command(request, body, opaque=connection.calls.next_opaque, oneway=True)
        command.serialize_type = self._serialize_type
        if self._signer is not None:
            command.ext = self._signer(command.ext, command.body)
        connection.send_frame(encode_command(command))

    async def connect(self, address: str, *, timeout: float | None = None) -> Wire:
        """Return the open connection to ``address``. If there is no open connection, open one
        first.

        ``timeout`` in seconds may shorten the client's connect timeout. Raises ConnectError if the
        connection cannot be opened or the client is closed.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._ended:
            raise _closed(address)
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._keep_connection(address, done))
        limit = self._connect_timeout
        if timeout is not None:
            limit = min(timeout, limit)
        try:
            async with asyncio.timeout(limit):
                return await outcome_of(task, lambda: self._not_opened(address))
        except TimeoutError:
            raise ConnectError(f"no connection to {address} within {limit:.1f} s") from None

    def connection(self, address: str) -> Wire | None:
        """Return the open connection to ``address``, or None if there is none."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            return None
        return connection

    def is_connected(self, address: str) -> bool:
        """Return True if a connection to ``address`` is open now."""
        connection = self._connections.get(address)
        return connection is not None and not connection.closed

    @property
    def connecting(self) -> Collection[str]:
        """Addresses to which a connection is being opened."""
        return self._connecting.keys()

    def give_up_connecting(self, address: str) -> None:
        """Stop opening a connection to ``address``. Pending calls fail with ConnectError."""
        task = self._connecting.get(address)
        if task is not None:
            task.cancel()

    def disconnect(self, address: str) -> None:
        """Close the connection to ``address``, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close every connection, and refuse new calls. Pending calls fail with
        ConnectionLostError."""
        self._ended = True
        for task in self._connecting.values():
            task.cancel()
        leaving = list(self._connections.values())
        for connection in leaving:
            connection.close()
        self._connections.clear()
        if self._tls is not None:
            await self._farewells(leaving)
        await asyncio.sleep(0)

    async def _farewells(self, leaving: list[Wire]) -> None:
        """Give closing TLS connections ``FAREWELL_S`` seconds to end. Then abort the remaining
        ones."""
        self._leaving.update(connection for connection in leaving if connection.transport)
        try:
            async with asyncio.timeout(FAREWELL_S):
                while self._leaving:
                    self._gone.clear()
                    await self._gone.wait()
        except TimeoutError:
            for connection in list(self._leaving):
                connection.abort()
            await asyncio.sleep(0)

    async def _open(self, address: str) -> Wire:
        """Look up the host name in ``address`` and open a connection.

        If the name has several IP addresses, each is tried with a share of the time. The last one
        gets all that is left. Raises ConnectError.
        """
        host, port = split_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout):
                *others, last = await addresses_of(host, port)
                for other in others:
                    with suppress(OSError):  # TimeoutError is one
                        async with asyncio.timeout(self._connect_timeout / (len(others) + 1)):
                            return await self._open_at(other, port, address, host)
                return await self._open_at(last, port, address, host)
        except TimeoutError:
            raise ConnectError(
                f"no connection to {address} within {self._connect_timeout:.1f} s"
            ) from None
        except (ssl.SSLError, ConnectionResetError) as error:
            why = failure_words(error)
            raise ConnectError(f"no TLS connection to {address}: {why}") from None
        except OSError as error:
            raise ConnectError(f"cannot connect to {address}: {_reason(error)}") from None

    async def _open_at(self, peer: str, port: int, address: str, host: str) -> Wire:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: (
                ServedRequests(
                    self.router, on_close=lambda closed: self._closed(address, closed)
                ).wire
            ),
            peer,
            port,
            ssl=None if self._tls is None else self._tls.context_at(loop.time()),
            server_hostname=None if self._tls is None else host,
        )
        return connection

    def _keep_connection(self, address: str, task: asyncio.Task[Wire]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled() and task.exception() is None and not task.result().closed:
            if self._ended:  # the client was closed meanwhile
                task.result().close()
            else:
                self._connections[address] = task.result()

    def _not_opened(self, address: str) -> ConnectError:
        if self._ended:
            return _closed(address)
        return ConnectError(f"no connection to {address}: another broker took its place meanwhile")

    def _closed(self, address: str, connection: Wire) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
        self._leaving.discard(connection)
        self._gone.set()
        if self._on_close is not None:
            self._on_close(address)


def _closed(address: str) -> ConnectError:
    return ConnectError(f"no connection to {address}: the client was closed")


def _reason(error: OSError) -> str:
    """Return the system's text for a connection error. (The text from asyncio only repeats the
    address.)"""
    of_windows = getattr(error, "winerror", None) is not None  # strerror() knows no such number
    if error.errno is None or of_windows or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


async def addresses_of(host: str, port: int) -> list[str]:
    """Look up a host name and return its IP addresses, at least one.

    If ``host`` is an IP address, it is returned alone. Raises OSError if the lookup fails.
    """
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(at[0]) for *_, at in found))


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port`` into the host and the port number.

    Raises ConnectError if the text has another form, or if the host name can never be valid.
    """
    host, colon, port = address.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not digits or int(port) > 65535:
        raise ConnectError(f"{address!r} is not an address; expected HOST:PORT")
    host = host.strip("[]")
    fault = name_fault(host)
    if fault is not None:
        raise ConnectError(f"cannot connect to {address}: {fault}")
    return host, int(port)


# --- Several callers wait for one task: a caller that is cancelled does not cancel the task.

T = TypeVar("T")


def refused_by(address: str, request: Request[Any], answer: Command) -> ResponseError:
    """Return the exception for an answer from ``address`` whose response code reports a failure."""
    return ResponseError(
        answer.code, answer.remark, request=type(request).__name__, address=address
    )


async def outcome_of(task: asyncio.Future[T], ended: Callable[[], Exception]) -> T:
    """Wait for a task shared by several callers, and return its result.

    A caller that is cancelled does not cancel the task. If the task itself was cancelled,
    ``ended()`` is raised.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise ended() from None
        raise
