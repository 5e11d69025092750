"""``turbopump.client.producer`` without await."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Unpack, overload

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.client import producer as asyncio_producer
from turbopump.client.producer import DEFAULT_GROUP
from turbopump.client.selectors import Selector
from turbopump.client.sending.outgoing import as_message
from turbopump.client.sending.send_result import SendResult, SendStatistics
from turbopump.client.settings import ProducerSettings
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.message_queue import MessageQueue


class Producer(OnLoopThread[asyncio_producer.Producer]):
    """``turbopump.client.producer.Producer`` without await: ``with Producer("127.0.0.1:9876") as
    producer: producer.send("t", b"x")``.

    The same settings, methods and errors. Many threads may use one.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str = DEFAULT_GROUP,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(lambda: asyncio_producer.Producer(namesrv, group=group, **settings))

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def statistics(self) -> SendStatistics:
        """How the sends of this producer went, by broker."""
        return self._client.statistics

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    @overload
    def send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> SendResult: ...

    @overload
    def send(
        self,
        topic: str,
        /,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> SendResult: ...

    def send(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it; errors as the asyncio
        ``send``."""
        built = as_message(message, body, tags, keys, properties)
        if selector is None and sharding_key is None:
            return self._call(self._ready().send, built, queue=queue, timeout=timeout)
        return self._call(
            self._ready().send,
            built,
            queue=queue,
            selector=selector,
            sharding_key=sharding_key,
            timeout=timeout,
        )

    def start_send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Put one message on its way, and return when there is room for it (``back_pressure``); the
        future gets what ``send`` returns or raises, on the client's thread: a callback of it must
        be quick and may not call the blocking client. It is running, and so cannot be cancelled."""
        outcome: Future[SendResult] = Future()
        outcome.set_running_or_notify_cancel()

        def settle(sent: asyncio.Future[SendResult]) -> None:
            error = CancelledError() if sent.cancelled() else sent.exception()
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(sent.result())

        async def start(client: asyncio_producer.Producer) -> None:
            sending = await client.start_send(
                message, queue=queue, selector=selector, sharding_key=sharding_key, timeout=timeout
            )
            sending.add_done_callback(settle)

        self._call(start, self._ready())
        return outcome

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue, all or none."""
        return self._call(self._ready().send_batch, messages, queue=queue, timeout=timeout)

    @overload
    def send_oneway(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
    ) -> None: ...

    @overload
    def send_oneway(
        self,
        topic: str,
        /,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
    ) -> None: ...

    def send_oneway(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
    ) -> None:
        """Send one message without waiting for an answer: whether it was stored is not known."""
        built = as_message(message, body, tags, keys, properties)
        self._call(
            self._ready().send_oneway,
            built,
            queue=queue,
            selector=selector,
            sharding_key=sharding_key,
        )

    def request(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send one message, and wait for the reply of the consumer that gets it; errors as the
        asyncio ``request``."""
        return self._call(
            self._ready().request,
            message,
            queue=queue,
            selector=selector,
            sharding_key=sharding_key,
            timeout=timeout,
        )

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Answer a request that was consumed elsewhere; as ``PushConsumer.reply``."""
        return self._call(
            self._ready().reply, request, body, properties=properties, timeout=timeout
        )

    @property
    def late_replies(self) -> int:
        """Replies that came to this client id when nobody waited for them any more."""
        return self._ready().late_replies

    def recall(self, topic: str, recall_handle: str, *, timeout: float | None = None) -> str:
        """Call back a message that waits for its time; errors as the asyncio ``recall``."""
        return self._call(self._ready().recall, topic, recall_handle, timeout=timeout)

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of ``topic`` go to, for ``queue=``."""
        return self._call(self._ready().publish_queues, topic)
