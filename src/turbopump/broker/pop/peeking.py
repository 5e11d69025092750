"""Looking at what a pop would find. Nothing is written down, and no place moves. RocketMQ:
``PeekMessageProcessor``."""

from __future__ import annotations

from turbopump.broker.pop.places import GroupQueue, PopPlaces
from turbopump.broker.pop.reading import read_queue
from turbopump.store.message_store import MessageStore


async def peek(
    store: MessageStore, places: PopPlaces, queues: list[GroupQueue], count_max: int
) -> tuple[bytes, int]:
    """Entries of the queues in turn, at most so many, and how many are left. Raises StoreError."""
    parts: list[bytes] = []
    count = left = 0
    for place in queues:
        start = places.find(place)
        if start is None:
            start = store.min_offset(place.topic, place.queue_id)
        if count >= count_max:
            left += max(store.max_offset(place.topic, place.queue_id) - start, 0)
            continue
        result = await read_queue(store, place, start, count_max - count)
        parts.append(result.data)
        count += result.count
        left += max(result.max_offset - result.next_offset, 0)
    return b"".join(parts), left
