"""The threads of handlers without a client: queues that note what is said of their messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from turbopump.client.consumer.delivery import Delivery, Handled
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.ready_messages import ReadyMessages

PATIENCE_S = 20


class Queue:
    """Owns messages. ``drop_after``: it is dropped once it was asked so often whether it is."""

    def __init__(self, drop_after: int | None = None) -> None:
        self.said: dict[int, str] = {}
        self.left: list[int] = []
        self._drop_after = drop_after

    @property
    def dropped(self) -> bool:
        if self._drop_after is None:
            return False
        self._drop_after -= 1
        return self._drop_after < 0

    def drop(self) -> None:
        self._drop_after = 0

    def delivery_done(self, message: Delivery) -> None:
        self.said[message.queue_offset] = "done"

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        self.said[message.queue_offset] = (
            f"failed delay={delay} level={level} cause={message.cause!r}"
        )

    def delivery_abandoned(self, message: Delivery) -> None:
        self.left.append(message.queue_offset)


def messages_of(queue: Queue, count: int) -> list[Delivery]:
    return [message_of(queue, offset) for offset in range(count)]


def message_of(queue: Queue, offset: int) -> Delivery:
    host = ("127.0.0.1", 1)
    message = Delivery(
        topic="t",
        stored_body=b"",
        properties_text="",
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=offset,
        flag=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=host,
        store_timestamp=0,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=1,
    )
    message.deliver(queue, 1)
    return message


@asynccontextmanager
async def threads(
    handle: Callable[[Delivery], object],
    *,
    concurrency: int,
    on_take: Callable[[Handled], None] | None = None,
) -> AsyncIterator[tuple[HandlerPool, ReadyMessages]]:
    ready = ReadyMessages(on_take)
    pool = HandlerPool(handle, ready, concurrency=concurrency)
    pool.start()
    try:
        yield pool, ready
    finally:
        ready.close()
        await pool.stop(PATIENCE_S)
