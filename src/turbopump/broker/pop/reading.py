"""Reading a queue from a coroutine: what is not in memory is waited for."""

from __future__ import annotations

import asyncio

from turbopump.broker.pop.places import GroupQueue
from turbopump.errors import StoreError
from turbopump.filtering.tag import code_filter
from turbopump.store.log.cold_reads import Later
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import GetResult
from turbopump.store.queues.queue_reader import Wanted


async def read_queue(
    store: MessageStore,
    place: GroupQueue,
    start: int,
    count: int,
    codes: frozenset[int] = frozenset(),
    matches: Wanted | None = None,
) -> GetResult:
    """At most ``count`` messages from queue offset ``start`` on, of all or with one of these tag
    ``codes``, that ``matches``. Raises StoreError if too many reads wait for the disk, or it does
    not give what is there."""
    found: asyncio.Future[GetResult] = asyncio.get_running_loop().create_future()
    result = store.reader.start(
        place.topic,
        place.queue_id,
        start,
        count,
        code_filter(codes),
        lambda outcome: None if found.done() else found.set_result(outcome),
        wanted=lambda: True,
        matches=matches,
    )
    if result is Later.REFUSED:
        raise StoreError("too many reads wait for the broker's disk; ask again in a moment")
    result = await found if result is Later.PENDING else result
    if result.unreadable is not None:
        raise StoreError(result.unreadable)
    return result
