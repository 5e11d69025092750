"""Standard input in an event loop: what has arrived, as it arrives, from a pipe, a terminal or a
file.

Its one rule: a Ctrl-C while it waits ends the command at once. So a daemon thread reads (the loop's
own executor would be waited for at the end, and epoll takes no files). It must not know what the
lines mean.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import Final

from turbopump.errors import MessageError

LINE_SIZE_MAX: Final = 32 * 1024 * 1024
"""Bytes: a JSON body of 4 MiB in which every byte is escaped fits."""
CHUNK_SIZE: Final = 1 << 16
CHUNKS_AHEAD: Final = 4
STANDARD_INPUT: Final = 0


async def lines_as_they_arrive() -> AsyncIterator[list[bytes]]:
    """The lines that have arrived since the last turn, without their ends; the last one may have
    none.

    Raises MessageError for a line that is longer than `LINE_SIZE_MAX`.
    """
    rest = b""
    async for chunk in _chunks(sys.stdin.fileno() if sys.stdin is not None else STANDARD_INPUT):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_SIZE_MAX:
            raise MessageError(f"a line of the input is longer than {LINE_SIZE_MAX} bytes")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"more"
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(fd, CHUNK_SIZE)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except RuntimeError:  # the loop has closed: nobody wants it any more
                return

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    while chunk := await arrived.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk
