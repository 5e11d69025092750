"""A router of large answers, clients that ask it, and the loop on which they do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from turbopump.config.tls import ClientTls
from turbopump.protocol.requests.offsets import GetMinOffset, OffsetReply
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import Router

BODY_SIZE = 300_000


def on_loop(story: Callable[[], Coroutine[None, None, None]], loop: str) -> None:
    """Run a story on asyncio's own loop or on uvloop's."""
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(story())


def answering() -> Router:
    router = Router()
    router.add(
        GetMinOffset,
        lambda request, _context: Response(
            OffsetReply(offset=request.queue_id), body=bytes(BODY_SIZE)
        ),
    )
    return router


@asynccontextmanager
async def client_of(tls: ClientTls | None) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(tls=tls)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: RemotingClient, address: str, number: int = 5) -> int:
    answer = await client.exchange(address, GetMinOffset(topic="T", queue_id=number))
    assert len(answer.body) == BODY_SIZE
    return int((answer.ext or {})["offset"])
