"""Automatic batching: messages that go the same way within a few milliseconds travel as one request, and each gets its own result.

One rule: only what may stand in one batch goes together, so results and errors are those of a single send. It must not know brokers.
Source: apache/rocketmq ``ProduceAccumulator``. Better than there: nobody waits for company while nothing of its kind is under way, so a
lone sender loses no time, and 64 senders that await their results are not held to 64 messages per 10 ms.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from turbopump.client.outgoing import DELAYING, Piece
from turbopump.client.send_result import SendResult
from turbopump.errors import ConfigError
from turbopump.message.message import Message
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import RETRY_PREFIX

HOLD_S_MAX: Final = 30.0
SIZE_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AutoBatch:
    """While a batch of their kind is under way, hold messages for ``hold`` seconds at most, until ``size`` bytes are together, and
    ``total_size`` bytes in all; what is beyond that goes at once. Raises ConfigError for what Apache's accumulator refuses too."""

    hold: float = 0.01
    size: int = 32 * 1024
    total_size: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 < self.hold <= HOLD_S_MAX:
            raise ConfigError(f"a batch may be held for more than 0 and at most {HOLD_S_MAX} s, not {self.hold}")
        if not 0 < self.size <= SIZE_MAX or self.total_size < 1:
            raise ConfigError(
                f"a batch may have 1 to {SIZE_MAX} bytes and all of them at least 1, not {self.size} and {self.total_size}"
            )


Held = tuple[Message, Piece]
"""A message, and what it is in a batch."""
BatchKey = tuple[str, MessageQueue | None, str | None, str | None]


@dataclass(slots=True, eq=False)
class _Batch:
    messages: list[Held] = field(default_factory=list)
    waiting: list[asyncio.Future[SendResult]] = field(default_factory=list)
    size: int = 0
    deadline: float = math.inf
    timer: asyncio.Handle | None = None


class Accumulator:
    """``send_batch`` sends messages as one request to a queue, or to any, within so many seconds; it gets what has come together."""

    def __init__(
        self, settings: AutoBatch, send_batch: Callable[[Sequence[Held], MessageQueue | None, float], Awaitable[SendResult]]
    ) -> None:
        self._settings = settings
        self._send_batch = send_batch
        self._batches: dict[BatchKey, _Batch] = {}
        self._under_way: dict[BatchKey, int] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._held = 0

    def takes(self, message: Message) -> bool:
        """Whether it may go in a batch, and there is room to hold it."""
        if self._held >= self._settings.total_size or not 0 < len(message.body) <= self._settings.size:
            return False
        properties = message.properties
        return not properties or (
            not message.topic.startswith(RETRY_PREFIX)
            and "TRAN_MSG" not in properties
            and not any(name in properties for name in DELAYING)
        )

    def add(self, message: Message, piece: Piece, queue: MessageQueue | None, timeout: float) -> asyncio.Future[SendResult]:
        """The future gets the message's own result, or the error of the whole batch, after ``timeout`` seconds at most."""
        size = len(piece.entry)
        properties = message.properties
        key = (message.topic, queue, properties.get("WAIT"), properties.get("TAGS"))
        loop = asyncio.get_running_loop()
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch()
            if key in self._under_way:
                batch.timer = loop.call_later(self._settings.hold, self._send, key)
            else:
                batch.timer = loop.call_soon(self._send, key)  # with whatever else this turn brings
        future: asyncio.Future[SendResult] = loop.create_future()
        batch.messages.append((message, piece))
        batch.waiting.append(future)
        batch.size += size
        batch.deadline = min(batch.deadline, loop.time() + timeout)
        self._held += size
        if batch.size >= self._settings.size:
            self._send(key)
        return future

    async def flush(self) -> None:
        """Send what is held, and wait for everything that is under way."""
        for key in list(self._batches):
            self._send(key)
        if self._sending:
            await asyncio.wait(set(self._sending))

    def _send(self, key: BatchKey) -> None:
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        self._under_way[key] = self._under_way.get(key, 0) + 1
        task = asyncio.get_running_loop().create_task(self._deliver(batch, key), name="turbopump batch")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, batch: _Batch, key: BatchKey) -> None:
        try:
            timeout = max(batch.deadline - asyncio.get_running_loop().time(), 0.001)
            results = each_result(await self._send_batch(batch.messages, key[1], timeout), len(batch.messages))
        except Exception as error:
            for future in batch.waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, result in zip(batch.waiting, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._held -= batch.size
            self._came_back(key)

    def _came_back(self, key: BatchKey) -> None:
        """The next batch goes when those who have just got their results have had their turn to send again."""
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
            following = self._batches.get(key)
            if following is not None:
                if following.timer is not None:
                    following.timer.cancel()
                following.timer = asyncio.get_running_loop().call_soon(self._send, key)


def each_result(whole: SendResult, count: int) -> list[SendResult]:
    """A batch's result as those of its messages. A broker that keeps the batch as one entry (an inner batch) gives all the same."""
    ids = whole.msg_id.split(",")
    offset_ids = whole.offset_msg_id.split(",")
    if len(ids) != count:
        return [whole] * count
    if len(offset_ids) != count:
        offset_ids = [whole.offset_msg_id] * count
    status, queue, region, trace_on = whole.status, whole.queue, whole.region_id, whole.trace_on
    return [
        SendResult(status, msg_id, queue, offset, offset_id, None, None, region, trace_on)
        for offset, (msg_id, offset_id) in enumerate(zip(ids, offset_ids, strict=True), whole.queue_offset)
    ]
