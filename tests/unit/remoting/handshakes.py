"""The client's side of a TLS handshake, made by hand: the test says when its bytes travel."""

from __future__ import annotations

import asyncio
import ssl


class Handshake:
    """``hello`` is the whole ClientHello."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send)
        self._is_done()
        self.hello = self._to_send.read()

    def _is_done(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def finish(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send what follows the hello. Raises ConnectionError if the server has given it up."""
        while not self._is_done():
            data = await reader.read(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._received.write(data)
        writer.write(self._to_send.read())

    async def ask(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        """Some bytes of the answer to a request."""
        self._tls.write(request)
        writer.write(self._to_send.read())
        while True:
            try:
                return self._tls.read()
            except ssl.SSLWantReadError:
                data = await reader.read(65536)
                assert data, "the server closed the connection"
                self._received.write(data)
