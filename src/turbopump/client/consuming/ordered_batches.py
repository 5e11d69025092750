"""The messages of one queue in line, several at a time: the next ones are handed out when all that
were handed out before are dealt with.

One rule: what failed comes again together, before everything else of the queue, in its order. It
must not know locks, offsets or brokers. Source: apache/rocketmq ``ProcessQueue.takeMessages``,
``makeMessageToConsumeAgain``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import copy

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.ordered_line import InOrder, OrderedLine
from turbopump.client.consuming.ready_messages import AnyReady


class OrderedBatches(OrderedLine):
    """As ``OrderedLine``, up to ``count`` messages at a time."""

    def __init__(self, ready: AnyReady, count: int) -> None:
        super().__init__(ready)
        self._count = count
        self._left: dict[Delivery, None] = {}
        """Handed out, or soon will be, and neither dealt with nor failed."""
        self._failed: list[Delivery] = []
        self._delay = 0.0

    def put(self, messages: Iterable[Delivery]) -> None:
        if not self._stopped:
            self._waiting.extend(messages)
            if not self._left and not self._failed:
                self._next()

    def done(self, message: Delivery) -> None:
        if message in self._left:
            del self._left[message]
            self._look()

    def again(self, message: Delivery, delay: float) -> None:
        """It has failed: when the others that were handed out with it are dealt with, it comes
        again after so many seconds, the longest that was said of any of them."""
        message.taken = False
        if message in self._left:
            del self._left[message]
            self._failed.append(message)
            self._delay = max(self._delay, delay)
            self._look()

    @property
    def _in_hand(self) -> bool:
        return any(message.taken for message in self._left)

    def _look(self) -> None:
        if not self._left and not self._stopped:
            if self._failed:
                self._timer = self._loop.call_later(self._delay, self._go_on)
            else:
                self._next()
        self._tell()

    def _go_on(self) -> None:
        self._timer = None
        failed = sorted(self._failed, key=lambda message: message.queue_offset)
        self._failed, self._delay = [], 0.0
        for message in reversed(failed):
            # a handler that has asked for it again may still say something, of that delivery
            again = copy(message)
            again.deliver_again()
            self._waiting.appendleft(again)
        self._next()

    def _next(self) -> None:
        batch = first_together(self._waiting, self._count)
        for message in batch:
            self._waiting.popleft()
            self._left[message] = None
        if batch:
            self._ready.put(batch)


def first_together(waiting: deque[Delivery], count: int) -> list[Delivery]:
    """Those at the front, ``count`` at most, that may go into one call of a handler."""
    batch: list[Delivery] = []
    for message in waiting:
        if len(batch) == count or (batch and not message.goes_with(batch[0])):
            break
        batch.append(message)
    return batch


def line_of(ready: AnyReady, order: InOrder | None) -> OrderedLine | None:
    """What puts the messages of a queue into ``ready`` in ``order``; None: nothing does."""
    if order is None:
        return None
    return OrderedLine(ready) if order.batch is None else OrderedBatches(ready, order.batch)
