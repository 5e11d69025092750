"""``turbopump.client.lite_pull_consumer`` without await."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Unpack

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.client import lite_pull_consumer as asyncio_lite_pull_consumer
from turbopump.client.allocation import Strategy
from turbopump.client.consuming.found_messages import Time
from turbopump.client.consuming.offset_store import ConsumeFrom
from turbopump.client.consuming.queue_listeners import QueueListener
from turbopump.client.consuming.subscription import ALL, Sql
from turbopump.client.lite_pull_consumer import POLL_BATCH, POLL_TIMEOUT_S
from turbopump.client.loop_thread import the_loop_thread
from turbopump.client.settings import Surrounding
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue


class LitePullConsumerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.lite_pull_consumer.LitePullConsumer``."""

    topic: str | None
    tags: str | Sql
    consume_from: ConsumeFrom | datetime
    auto_commit: bool
    pull_batch: int
    queue_messages_max: int
    queue_bytes_max: int
    messages_max: int
    allocation: str | Strategy
    namespace: str | None
    trace: bool | str


class LitePullConsumer(OnLoopThread[asyncio_lite_pull_consumer.LitePullConsumer]):
    """``turbopump.client.lite_pull_consumer.LitePullConsumer`` without await. The same settings,
    methods and errors."""

    _survives_fork = False

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        **settings: Unpack[LitePullConsumerSettings],
    ) -> None:
        super().__init__(
            lambda: asyncio_lite_pull_consumer.LitePullConsumer(namesrv, group=group, **settings)
        )

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are ours at the moment, sorted."""
        return self._ready().assigned

    def subscribe(self, topic: str, tags: str | Sql = ALL) -> None:
        """Read this consumer's share of ``topic`` too; before ``start`` or after."""
        the_loop_thread().call(self._ready().subscribe, topic, tags)

    def unsubscribe(self, topic: str) -> None:
        """Read ``topic`` no longer."""
        the_loop_thread().call(self._ready().unsubscribe, topic)

    def assign(self, queues: Collection[MessageQueue], tags: str | Sql = ALL) -> None:
        """Read these queues and no others; before ``start`` or after."""
        the_loop_thread().call(self._ready().assign, queues, tags)

    def on_queue_change(self, topic: str, listener: QueueListener) -> None:
        """Call ``listener(topic, queues)`` whenever the readable queues of ``topic`` have
        changed."""
        the_loop_thread().call(self._ready().on_queue_change, topic, listener)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted."""
        return self._call(self._ready().queues, topic)

    def poll(
        self, timeout: float = POLL_TIMEOUT_S, *, max_messages: int = POLL_BATCH
    ) -> list[ReceivedMessage]:
        """The next messages, as soon as there is one; none after ``timeout`` seconds. See the
        asyncio ``poll``."""
        return self._call(self._ready().poll, timeout, max_messages=max_messages)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next message of ``queue`` is the one at ``offset``."""
        self._call(self._ready().seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go to the oldest message that is kept."""
        self._call(self._ready().seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go behind the newest message."""
        self._call(self._ready().seek_to_end, queue)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Give nothing of these queues until ``resume``."""
        self._call(_now, self._ready().pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Go on with these queues."""
        self._call(_now, self._ready().resume, queues)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message that ``poll`` gives of ``queue``; None while the group's
        place is not known yet."""
        position: int | None = self._call(_now, self._ready().position, queue)
        return position

    def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, acknowledged: bool = True
    ) -> None:
        """Set the group's place: behind everything polled, or to these offsets."""
        self._call(self._ready().commit, offsets, acknowledged=acknowledged)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's place in the queue as its broker knows it; None if it has none yet."""
        return self._call(self._ready().committed, queue)

    def offset_for_time(self, queue: MessageQueue, when: Time) -> int:
        """The first message stored at or after ``when``: ms since 1970 UTC, or a datetime."""
        return self._call(self._ready().offset_for_time, queue, when)


async def _now(function: Callable[..., Any], *args: object) -> Any:
    """For what does not wait, but must be called on the loop."""
    return function(*args)
