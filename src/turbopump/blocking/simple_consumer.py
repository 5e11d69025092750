"""``turbopump.client.simple_consumer`` without await."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Unpack

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.client import simple_consumer as asyncio_simple_consumer
from turbopump.client.consuming.offset_store import ConsumeFrom
from turbopump.client.consuming.subscription import ALL, Sql
from turbopump.client.loop_thread import the_loop_thread
from turbopump.client.popping.pop import BATCH_MAX
from turbopump.client.popping.popped import PoppedMessage
from turbopump.client.popping.receipts import TIMEOUT_S as CALL_TIMEOUT_S
from turbopump.client.settings import Surrounding
from turbopump.client.simple_consumer import INVISIBLE_S, TIMEOUT_S


class SimpleConsumerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.simple_consumer.SimpleConsumer``."""

    topic: str | None
    tags: str | Sql
    consume_from: ConsumeFrom
    ordered: bool
    max_reconsume_times: int | None
    namespace: str | None


class SimpleConsumer(OnLoopThread[asyncio_simple_consumer.SimpleConsumer]):
    """``turbopump.client.simple_consumer.SimpleConsumer`` without await. The same settings, methods
    and errors."""

    _survives_fork = False

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        **settings: Unpack[SimpleConsumerSettings],
    ) -> None:
        super().__init__(
            lambda: asyncio_simple_consumer.SimpleConsumer(namesrv, group=group, **settings)
        )

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._call(_client_id, self._ready())

    @property
    def subscriptions(self) -> Mapping[str, str | Sql]:
        """Topics, and what is wanted of each."""
        return self._ready().subscriptions

    def subscribe(self, topic: str, tags: str | Sql = ALL) -> None:
        """Receive messages of ``topic`` too; before ``start`` or after."""
        the_loop_thread().call(self._ready().subscribe, topic, tags)

    def unsubscribe(self, topic: str) -> None:
        """Receive no more of ``topic``."""
        the_loop_thread().call(self._ready().unsubscribe, topic)

    def receive(
        self,
        max_messages: int = BATCH_MAX,
        invisible_seconds: float = INVISIBLE_S,
        timeout: float = TIMEOUT_S,
    ) -> list[PoppedMessage]:
        """Messages, as soon as there is one; none after ``timeout`` seconds. See the asyncio
        ``receive``."""
        return self._call(self._ready().receive, max_messages, invisible_seconds, timeout)

    def ack(
        self, messages: PoppedMessage | Iterable[PoppedMessage], *, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """It is done, or they are, and will not come again."""
        self._call(self._ready().ack, messages, timeout=timeout)

    def change_invisible_time(
        self, message: PoppedMessage, seconds: float, *, timeout: float = CALL_TIMEOUT_S
    ) -> str:
        """Have it again ``seconds`` from now instead; returns its new handle."""
        return self._call(self._ready().change_invisible_time, message, seconds, timeout=timeout)


async def _client_id(client: asyncio_simple_consumer.SimpleConsumer) -> str:
    return client.client_id
