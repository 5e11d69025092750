"""``turbopump.client.pull_consumer`` without await."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.client import pull_consumer as asyncio_pull_consumer
from turbopump.client.consuming.subscription import ALL, Sql
from turbopump.client.pull_consumer import PULL_BATCH, PullResult
from turbopump.client.settings import Surrounding
from turbopump.message.message_queue import MessageQueue


class PullConsumerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.pull_consumer.PullConsumer``."""

    namespace: str | None


class PullConsumer(OnLoopThread[asyncio_pull_consumer.PullConsumer]):
    """``turbopump.client.pull_consumer.PullConsumer`` without await. The same settings, methods and
    errors."""

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        **settings: Unpack[PullConsumerSettings],
    ) -> None:
        super().__init__(
            lambda: asyncio_pull_consumer.PullConsumer(namesrv, group=group, **settings)
        )

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted."""
        return self._call(self._ready().queues, topic)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = PULL_BATCH,
        *,
        tags: str | Sql = ALL,
        wait: float = 0.0,
        timeout: float = 10.0,
    ) -> PullResult:
        """Messages of ``queue`` from ``offset`` on; see the asyncio ``pull``."""
        return self._call(
            self._ready().pull, queue, offset, max_messages, tags=tags, wait=wait, timeout=timeout
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message the queue has."""
        return self._call(self._ready().min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message of the queue."""
        return self._call(self._ready().max_offset, queue)

    def offset_at(self, queue: MessageQueue, when: int | datetime) -> int:
        """The first message stored at or after ``when``: ms since 1970 UTC, or a datetime."""
        return self._call(self._ready().offset_at, queue, when)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's place in the queue; None if it has none yet."""
        return self._call(self._ready().committed, queue)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's place: the offset of the next message it wants."""
        self._call(self._ready().commit, queue, offset)
