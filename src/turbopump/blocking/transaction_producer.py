"""``turbopump.client.transaction_producer`` without await."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, cast

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.blocking.producer import Producer
from turbopump.client import transaction_producer as asyncio_producer
from turbopump.client.settings import ProducerSettings
from turbopump.client.transaction_producer import Checker, Executor, TransactionResult
from turbopump.message.message import Message


class TransactionProducer(Producer):
    """``turbopump.client.transaction_producer.TransactionProducer`` without await; the same
    settings, methods and errors.

    Executor and checker that are plain functions run in threads of their own, where they may call
    this producer; coroutine functions run on the client's thread, where they may not.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        checker: Checker,
        executor: Executor | None = None,
        threads: int = 8,
        topics: Sequence[str] = (),
        **settings: Unpack[ProducerSettings],
    ) -> None:
        OnLoopThread.__init__(
            self,
            lambda: asyncio_producer.TransactionProducer(
                namesrv,
                group=group,
                checker=checker,
                executor=executor,
                threads=threads,
                topics=topics,
                **settings,
            ),
        )

    def send_in_transaction(
        self,
        message: Message,
        arg: object = None,
        *,
        executor: Executor | None = None,
        timeout: float | None = None,
    ) -> TransactionResult:
        """Send ``message`` as a half message, run the executor with it and ``arg``, and tell the
        broker how it went."""
        client = cast(asyncio_producer.TransactionProducer, self._ready())
        return self._call(
            client.send_in_transaction, message, arg, executor=executor, timeout=timeout
        )
