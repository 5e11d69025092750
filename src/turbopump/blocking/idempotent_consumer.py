"""``turbopump.client.idempotence.IdempotentConsumer`` without await."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.handling import Handler
from turbopump.client.idempotence import IdempotenceStore
from turbopump.client.idempotence import IdempotentConsumer as AsyncioIdempotentConsumer
from turbopump.client.idempotence.consumer import DAY_S, THREADS, Key
from turbopump.client.loop_thread import the_loop_thread
from turbopump.message.message import ReceivedMessage


class IdempotentConsumer:
    """``turbopump.client.idempotence.IdempotentConsumer`` without await. The same settings,
    guarantees and errors."""

    def __init__(
        self,
        *,
        key: Key,
        store: IdempotenceStore,
        name: str = "",
        keep: float = DAY_S,
        lease: float = 30.0,
        wait: float = 30.0,
        threads: int = THREADS,
    ) -> None:
        self._store = store
        self._inner = AsyncioIdempotentConsumer(
            key=key, store=store, name=name, keep=keep, lease=lease, wait=wait, threads=threads
        )

    def __call__(self, handler: Handler) -> Callable[[Delivery], Awaitable[object]]:
        """The handler to give to a PushConsumer."""
        return self._inner(handler)

    def close(self) -> None:
        """Close the store: what it has open of files and connections."""
        the_loop_thread().call(self._store.close)

    @contextmanager
    def handling(self, message: ReceivedMessage) -> Iterator[bool]:
        """For ``for message in consumer``: ``with idempotent.handling(message) as first: if first:
        …``. An exception in the block means not done. Raises TwinWaitError if another has the key
        in hand for longer than ``wait``."""
        if self._inner.key_of(message) is None:
            yield True
            return
        loop = the_loop_thread()
        visit = loop.call(self._inner.begin, message)
        if visit is None:
            yield False
            return
        done = False
        try:
            yield True
            done = True
        finally:
            loop.call(self._inner.end, visit, done=done)
