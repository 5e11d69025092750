"""The client for code without an event loop: the same Producer, PushConsumer and PullConsumer, each method a plain call that waits.

One rule: there is one implementation, the asyncio one; a call here runs there, on one background thread with one loop per process,
and brings back its result. It must not know brokers. Handing over and back costs some tens of µs (``make bench`` has the figure).

After a ``fork`` the thread is gone: a Producer or PullConsumer starts afresh in the child by itself at its next call; a PushConsumer
refuses, for the messages in its hands belong to the parent.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, Unpack, overload

from turbopump.client import producer as asyncio_producer
from turbopump.client import pull_consumer as asyncio_pull_consumer
from turbopump.client import push_consumer as asyncio_push_consumer
from turbopump.client.delivery import Delivery, Retry
from turbopump.client.handling import Handler
from turbopump.client.loop_thread import LoopThread, leave_behind, the_loop_thread
from turbopump.client.offset_store import ConsumeFrom
from turbopump.client.producer import DEFAULT_GROUP, as_message
from turbopump.client.pull_consumer import PULL_BATCH, PullResult, PullStatus
from turbopump.client.ready_messages import NoMoreMessages
from turbopump.client.send_result import SendResult, SendStatus
from turbopump.client.subscription import ALL
from turbopump.clock import Clock
from turbopump.errors import NotStartedError
from turbopump.message.message import Message
from turbopump.message.message_queue import MessageQueue

__all__ = [
    "ConsumeFrom",
    "Delivery",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "Retry",
    "SendResult",
    "SendStatus",
]

T = TypeVar("T")

PREFETCH: Final = 16
"""Messages a blocking reader takes over at once: handing over one by one would cost a thread switch each."""
SETTLE_INTERVAL_S: Final = 0.05
"""What a reader has finished is reported at least this often, between two messages."""


class _Client(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Client)


class _Blocking(Generic[ClientT]):
    """An asyncio client and the thread it lives on; made anew in a forked child if it may be."""

    _survives_fork = True

    def __init__(self, make: Callable[[], ClientT]) -> None:
        self._make = make
        self._client = make()  # complains about settings now
        self._state = "new"
        self._pid = os.getpid()
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Make ready. Nothing happens if it is started already. Raises as the asyncio client's ``start``."""
        self._heal_after_fork()
        with self._lock:
            if self._state == "new":
                self._thread = the_loop_thread()
                self._state = "started"
        self._call(self._client.start)

    def close(self) -> None:
        """Close as the asyncio client does. May be called twice; does nothing in a forked child."""
        if self._state == "started" and self._pid == os.getpid():
            self._call(self._client.close)
        self._state = "closed"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        thread = self._thread
        if thread is None:
            name = type(self).__name__
            raise NotStartedError(f"this {name} is not started; use `with {name}(...)` or call start()")
        return thread.call(function, *args, **kwargs)

    def _ready(self) -> ClientT:
        if self._pid != os.getpid():
            self._heal_after_fork()
        return self._client

    def _heal_after_fork(self) -> None:
        if self._pid == os.getpid():
            return
        if not self._survives_fork and self._state != "new":
            raise NotStartedError(
                f"this {type(self).__name__} was started in process {self._pid} and is used in its fork {os.getpid()}; "
                "start a new one after the fork"
            )
        leave_behind(self._client)
        self._client = self._make()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        if self._state == "started":
            self._thread = the_loop_thread()
            self._call(self._client.start)


class Surrounding(TypedDict, total=False):
    """Settings that all three have."""

    instance_name: str | None
    clock: Clock | None
    random: random.Random | None
    local_ip: str | None


class ProducerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.producer.Producer``."""

    send_timeout: float
    retries: int
    compress_from: int | None
    body_size_max: int


class Producer(_Blocking[asyncio_producer.Producer]):
    """``turbopump.client.producer.Producer`` without await: ``with Producer("127.0.0.1:9876") as producer: producer.send("t", b"x")``.

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

    def __enter__(self) -> Producer:
        self.start()
        return self

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    @overload
    def send(self, message: Message, /, *, queue: MessageQueue | None = None, timeout: float | None = None) -> SendResult: ...

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
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it; errors as the asyncio ``send``."""
        built = as_message(message, body, tags, keys, properties)
        return self._call(self._ready().send, built, queue=queue, timeout=timeout)

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue, all or none."""
        return self._call(self._ready().send_batch, messages, queue=queue, timeout=timeout)

    @overload
    def send_oneway(self, message: Message, /, *, queue: MessageQueue | None = None) -> None: ...

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
    ) -> None:
        """Send one message without waiting for an answer: whether it was stored is not known."""
        built = as_message(message, body, tags, keys, properties)
        self._call(self._ready().send_oneway, built, queue=queue)

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of ``topic`` go to, for ``queue=``."""
        return self._call(self._ready().publish_queues, topic)


class PullConsumer(_Blocking[asyncio_pull_consumer.PullConsumer]):
    """``turbopump.client.pull_consumer.PullConsumer`` without await. The same settings, methods and errors."""

    def __init__(self, namesrv: str | list[str] | tuple[str, ...], *, group: str, **settings: Unpack[Surrounding]) -> None:
        super().__init__(lambda: asyncio_pull_consumer.PullConsumer(namesrv, group=group, **settings))

    def __enter__(self) -> PullConsumer:
        self.start()
        return self

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
        tags: str = ALL,
        wait: float = 0.0,
        timeout: float = 10.0,
    ) -> PullResult:
        """Messages of ``queue`` from ``offset`` on; see the asyncio ``pull``."""
        return self._call(self._ready().pull, queue, offset, max_messages, tags=tags, wait=wait, timeout=timeout)

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


class PushConsumerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.push_consumer.PushConsumer``."""

    handler: Handler | None
    consume_from: ConsumeFrom | datetime
    concurrency: int
    allocation: str
    close_timeout: float


class PushConsumer(_Blocking[asyncio_push_consumer.PushConsumer]):
    """``turbopump.client.push_consumer.PushConsumer`` without await: ``for message in consumer:``, or a ``handler`` and ``wait_closed``.

    The same settings, methods and errors. Several threads may iterate; each message goes to one of them. A plain handler runs in a
    thread of its own pool, a coroutine function on the client's loop.
    """

    _survives_fork = False

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        topic: str | None = None,
        tags: str = ALL,
        **settings: Unpack[PushConsumerSettings],
    ) -> None:
        super().__init__(lambda: asyncio_push_consumer.PushConsumer(namesrv, group=group, topic=topic, tags=tags, **settings))

    def __enter__(self) -> PushConsumer:
        self.start()
        return self

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._ready().client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours at the moment, sorted."""
        return self._ready().queues

    def subscribe(self, topic: str, tags: str = ALL) -> None:
        """Consume ``topic`` too; before ``start`` or after."""
        client = self._ready()
        if self._thread is None:
            the_loop_thread().call(client.subscribe, topic, tags)
        else:
            self._call(client.subscribe, topic, tags)

    def commit(self, *, acknowledged: bool = False) -> None:
        """Tell the brokers what is done, now."""
        self._call(self._ready().commit, acknowledged=acknowledged)

    def wait_closed(self) -> None:
        """Wait until another thread closes this consumer, or Ctrl-C: for programs with a handler."""
        self._call(self._ready().wait_closed)

    def __iter__(self) -> Iterator[Delivery]:
        return _Messages(self)

    def take(self, count: int) -> list[Delivery]:
        """At least one message and at most ``count``; each must be settled with ``done()`` or ``retry()``. Raises NoMoreMessages."""
        return self._call(self._ready().take, count)

    def _settle(self, finished: list[Delivery], left: list[Delivery]) -> None:
        """From any thread, without waiting: these are done, those go back."""
        thread = self._thread
        if thread is None or self._pid != os.getpid() or not (finished or left):
            return

        def settle() -> None:
            for message in finished:
                message.done()
            self._client.give_back(left)

        thread.loop.call_soon_threadsafe(settle)


class _Messages(Iterator[Delivery]):
    """One blocking reader: takes over a few messages at a time; what it has finished is reported
    with the next hand-over, or every 50 ms."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._batch: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._finished: list[Delivery] = []
        self._reported = time.monotonic()

    def __iter__(self) -> _Messages:
        return self

    def __next__(self) -> Delivery:
        current, self._current = self._current, None
        if current is not None:
            self._finished.append(current)
        while True:
            if not self._batch:
                self._report()
                try:
                    self._batch.extend(self._consumer.take(PREFETCH))
                except NoMoreMessages:
                    raise StopIteration from None
            elif time.monotonic() - self._reported > SETTLE_INTERVAL_S:
                self._report()
            message = self._batch.popleft()
            if message.wanted:
                self._current = message
                return message

    def __del__(self) -> None:
        left = [] if self._current is None else [self._current]
        self._consumer._settle(self._finished, [*left, *self._batch])

    def _report(self) -> None:
        finished, self._finished = self._finished, []
        self._consumer._settle(finished, [])
        self._reported = time.monotonic()
