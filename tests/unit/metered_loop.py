"""A server on a loop of its own thread that measures its turns, and a client that blocks.

A turn is what the loop does between two waits for the network: as long as it lasts nobody else is
served. It is measured in CPU time of the loop's thread, which what else the machine does changes
little, and scaled by how slow the machine is now (``TURN_MAX_S``).
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from tests.stand_ins import does_nothing

from turbopump.protocol.command import Command, decode_command, encode_command, request_command
from turbopump.protocol.frame import FrameReader
from turbopump.protocol.request import Request

TURN_MAX_S = 0.050
"""The longest turn that any request may cause, on a machine as fast as ``USUAL_PACE_S`` says."""
USUAL_PACE_S = 0.020
"""CPU seconds of a fixed piece of Python (``_one_pace``) on the machine where the bound was set."""
TRIES = 8
"""What is wrong is too long each time; what neighbours on the processor cause is not."""
PATIENCE_S = 60.0

ServerT = TypeVar("ServerT")


class MeteredLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; ``longest`` is its longest turn since ``longest`` was set to 0."""

    longest = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - began)


def metered_uvloop() -> asyncio.AbstractEventLoop:
    """uvloop's, measured likewise. It never waits, so that each of its turns is seen."""
    import uvloop

    class MeteredUvloop(uvloop.Loop):
        longest = 0.0

        def tick(self, began: float) -> None:
            now = time.thread_time()
            self.longest = max(self.longest, now - began)
            self.call_soon(self.tick, now)

    loop = MeteredUvloop()
    loop.call_soon(lambda: loop.tick(time.thread_time()))
    return loop


class Metered(Generic[ServerT]):
    """A server that runs in another thread, on a metered loop."""

    def __init__(self, loop: Any, server: ServerT) -> None:
        self.loop = loop
        self.server = server

    def do(self, action: Callable[[ServerT], Any]) -> Any:
        """What an action gives that runs in the loop's thread."""

        async def run() -> Any:
            return action(self.server)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def longest_turn(self, action: Callable[[], object]) -> float:
        """CPU seconds of the longest turn while a client does something, as if the machine had its
        usual pace; the best of up to TRIES times (``cpu_seconds_of``)."""

        def measure() -> float:
            self.do(lambda _server: setattr(self.loop, "longest", 0.0))
            action()
            self.do(does_nothing)
            return at_usual_pace(self.loop.longest)

        return best_of(measure)


async def serve(
    ready: threading.Event,
    running: Callable[[], AbstractAsyncContextManager[ServerT]],
    started: list[Metered[ServerT]],
) -> None:
    async with running() as server:
        loop: Any = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.ended = over
        started.append(Metered(loop, server))
        ready.set()
        await over.wait()


@contextmanager
def metered(
    running: Callable[[], AbstractAsyncContextManager[ServerT]],
    new_loop: Callable[[], Any] = MeteredLoop,
) -> Iterator[Metered[ServerT]]:
    """``running()`` is entered and left in the loop's thread."""
    started: list[Metered[ServerT]] = []
    ready = threading.Event()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(serve(ready, running, started))
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    if not started:
        thread.join()
        raise RuntimeError("the server did not start")
    # what pytest and other tests have made is not collected in the server's turns
    gc.collect()
    gc.freeze()
    try:
        yield started[0]
    finally:
        gc.unfreeze()
        server = started[0]
        server.loop.call_soon_threadsafe(server.loop.ended.set)
        thread.join()


def measure_action(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return at_usual_pace(time.thread_time() - began)


def cpu_seconds_of(action: Callable[[], object]) -> float:
    """What an action takes of this thread, as if the machine had its usual pace. It is done again,
    up to TRIES times, if that is more than a turn may take: the machine may have been at fault."""

    return best_of(partial(measure_action, action))


def best_of(measure: Callable[[], float]) -> float:
    """The first that is no longer than a turn may be, or the least of TRIES."""
    found = measure()
    for _ in range(TRIES - 1):
        if found > TURN_MAX_S:
            found = min(found, measure())
    return found


def at_usual_pace(seconds: float) -> float:
    """CPU seconds that were measured just now, less where the machine is slow at the moment."""
    if seconds <= TURN_MAX_S:
        return seconds
    return seconds / max(1.0, min(_one_pace() for _ in range(3)) / USUAL_PACE_S)


def _one_pace() -> float:
    began = time.thread_time()
    table = {number: str(number) for number in range(60_000)}
    assert sum(map(len, table.values())) == 288_890
    return time.thread_time() - began


class BlockingClient:
    """One connection of a client; requests are frames made beforehand."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._reader = FrameReader()
        self._opaque = 0

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def frame(self, request: Request[Any], body: bytes = b"") -> bytes:
        self._opaque += 1
        return encode_command(request_command(request, body, opaque=self._opaque))

    def write(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def read(self, count: int = 1) -> list[Command]:
        """So many answers, fewer at the end of the stream; requests of the server are left out."""
        found: list[Command] = []
        while len(found) < count:
            data = self._socket.recv(1 << 20)
            if not data:
                break
            commands = [decode_command(frame) for frame in self._reader.feed(data)]
            found += [command for command in commands if command.is_response]
        return found

    def ask(self, request: Request[Any], body: bytes = b"") -> Command:
        """The answer to one request."""
        self.write(self.frame(request, body))
        (answer,) = self.read()
        return answer
