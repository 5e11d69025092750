"""A router on a real port of the loop in which the test runs, and a peer that speaks raw bytes to
it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from turbopump.protocol.command import Command, decode_command, encode_command, request_command
from turbopump.protocol.frame import FrameReader
from turbopump.protocol.request import Request
from turbopump.remoting.router import Router
from turbopump.remoting.server import RemotingServer


@asynccontextmanager
async def serving(router: Router, **options: Any) -> AsyncIterator[tuple[RemotingServer, str, int]]:
    """A server, and the host and port it listens on, for as long as the block lasts."""
    server = RemotingServer(router, **options)
    host, port = await server.listen("127.0.0.1", 0)
    try:
        yield server, host, port
    finally:
        await server.close()


class RawPeer:
    """Writes bytes, reads commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._commands: list[Command] = []

    @classmethod
    async def connect(cls, host: str, port: int) -> "RawPeer":
        return cls(*await asyncio.open_connection(host, port))

    def write(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def read(self) -> Command | None:
        """The next command, or None at the end of the stream."""
        async with asyncio.timeout(60):
            while not self._commands:
                try:
                    data = await self._reader.read(65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return None
                self._commands += [decode_command(frame) for frame in self._frames.feed(data)]
        return self._commands.pop(0)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def raw_peer(host: str, port: int) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.connect(host, port)
    try:
        yield peer
    finally:
        await peer.close()


def frame(
    request: Request[Any],
    opaque: int,
    body: bytes = b"",
    *,
    oneway: bool = False,
    serialize_type: int = 0,
) -> bytes:
    """One request as it travels."""
    command = request_command(request, body, opaque=opaque, oneway=oneway)
    command.serialize_type = serialize_type
    return encode_command(command)
