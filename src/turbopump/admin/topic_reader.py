"""Reading of a topic without a group. No offset is kept, and no consumer loses a message.

Data that could not be read is always reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from turbopump.client.consumer.offsets import ConsumeFrom, OffsetStore
from turbopump.client.consumer.pull import (
    PULL_BATCH,
    PullStatus,
    log_damaged,
    pull,
    pull_request,
    wanted_messages,
)
from turbopump.client.consumer.subscription import ALL, Subscription, Wanted, subscription_to
from turbopump.client.instance import ROUTE_INTERVAL_S
from turbopump.client.message_finder import TIMEOUT_S, TOOLS_GROUP, MessageFinder
from turbopump.errors import ConfigError, ConnectError, RemotingError, RouteNotFoundError
from turbopump.message.message import MessageQueue, ReceivedMessage

log = logging.getLogger(__name__)

HOLD_S: Final = 15.0
"""Maximum seconds for which a broker waits for messages before it answers a pull with none."""
AGAIN_S: Final = 1.0
"""Seconds to wait before a queue is read again after a failure."""
BATCHES_AHEAD: Final = 16

Batch = Sequence[ReceivedMessage]


class TopicReader(MessageFinder):
    """Reader of a topic outside any consumer group.

    Use it as ``async with TopicReader("127.0.0.1:9876") as reader:``. Settings and errors are those
    of ``MessageFinder``.
    """

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a group has committed in a queue, or None. Raises
        RemotingError."""
        offsets = OffsetStore(self._ready(), group)
        return await offsets.committed(queue, zero_if_young=False)

    async def starts(
        self, queues: Sequence[MessageQueue], where: ConsumeFrom | datetime | int
    ) -> dict[MessageQueue, int]:
        """For each queue, return the offset of the first message to read.

        - ``where``: an offset, a time, or a member of ``ConsumeFrom``.

        Raises ConfigError if a queue does not have the given offset, and RemotingError.
        """
        offsets = OffsetStore(self._ready(), TOOLS_GROUP)
        found = {}
        for queue in queues:
            first = await offsets.min_offset(queue)
            if isinstance(where, int):
                end = await offsets.max_offset(queue)
                if not first <= where <= end:
                    raise ConfigError(
                        f"offset {where} is outside of {queue}, which has {first} to {end} (its "
                        "end)"
                    )
                found[queue] = where
            else:
                found[queue] = max(first, await offsets.first_offset(queue, where))
        return found

    async def read(
        self,
        topic: str,
        starts: Mapping[MessageQueue, int],
        tags: Wanted = ALL,
        *,
        more: bool = False,
    ) -> AsyncGenerator[Batch]:
        """Yield batches of messages from a topic as they arrive, without end.

        Messages of one queue stay in order. Close the generator (``contextlib.aclosing``). Raises
        ProtocolError for an answer that cannot be decoded.

        - ``starts``: the queues to read, with the first offset of each.
        - ``tags``: the messages to return.
        - ``more``: True to also read queues that the topic gets later, from their first message.
        """
        reading = _Reading(self, subscription_to(topic, tags, self._environment.clock.now_ms()))
        try:
            for queue, offset in starts.items():
                reading.begin_queue(queue, offset)
            if more:
                reading.watch_new_queues(starts)
            while True:
                found = await reading.arrived.get()
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            await reading.cancel_tasks()

    async def pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription
    ) -> tuple[Batch, int, bool]:
        """Pull messages from a queue. If the queue has none, wait up to ``HOLD_S`` seconds.

        Return the messages, the next offset, and True if the queue no longer has ``offset``. Raises
        RemotingError, RouteNotFoundError or ProtocolError.
        """
        instance = self._ready()
        address = (await instance.routes.get(queue.topic)).readable_address(queue.broker_name)
        if address is None:
            raise ConnectError(f"no address is known for broker {queue.broker_name}")
        request = pull_request(TOOLS_GROUP, subscription, queue, offset, PULL_BATCH, HOLD_S)
        timeout = HOLD_S + TIMEOUT_S
        answer = await pull(instance, address, request, queue, ReceivedMessage, timeout)
        log_damaged(answer.damaged)
        messages = wanted_messages(answer, subscription, queue.broker_name, None)
        gone = answer.status is PullStatus.OFFSET_ILLEGAL
        return messages, answer.reply.next_begin_offset, gone


class _Reading:
    """One call of ``TopicReader.read``, with a task for each queue.

    - ``arrived``: the batches that the tasks have read, or the error that has ended a task.
    """

    def __init__(self, reader: TopicReader, subscription: Subscription) -> None:
        self.arrived: asyncio.Queue[Batch | Exception] = asyncio.Queue(BATCHES_AHEAD)
        self._reader = reader
        self._subscription = subscription
        self._tasks: list[asyncio.Task[None]] = []

    def begin_queue(self, queue: MessageQueue, offset: int) -> None:
        self._start_task(self._read_queue(queue, offset))

    def watch_new_queues(self, known: Iterable[MessageQueue]) -> None:
        self._start_task(self._begin_new_queues(set(known)))

    async def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        async def reported() -> None:
            try:
                await work
            except Exception as error:
                await self.arrived.put(error)

        self._tasks.append(asyncio.create_task(reported()))

    async def _begin_new_queues(self, known: set[MessageQueue]) -> None:
        while True:
            await asyncio.sleep(ROUTE_INTERVAL_S)
            with suppress(RouteNotFoundError):  # the route is asked for again
                for queue in set(await self._reader.queues(self._subscription.topic)) - known:
                    known.add(queue)
                    self.begin_queue(queue, 0)

    async def _read_queue(self, queue: MessageQueue, offset: int) -> None:
        failing = False
        while True:
            try:
                messages, following, gone = await self._reader.pull(
                    queue, offset, self._subscription
                )
            except (RemotingError, RouteNotFoundError) as error:
                if not failing:
                    log.warning(
                        "queue cannot be read, trying again queue=%s cause=%s", queue, error
                    )
                failing = True
                await asyncio.sleep(AGAIN_S)
                continue
            if failing:
                log.warning("queue can be read again queue=%s", queue)
                failing = False
            if gone and offset:
                log.warning("messages are gone queue=%s from=%d to=%d", queue, offset, following)
            offset = following
            if messages:
                await self.arrived.put(messages)
