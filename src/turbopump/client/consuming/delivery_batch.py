"""Messages of one queue that a handler gets with one call: what the call's end says is said of each
that was not settled by itself.

One rule: each message is settled once, and the first word counts. In order, what lies behind a
message that is wanted again is wanted again with it. It must not know queues or offsets: each
message tells its owner. Source: apache/rocketmq
``ConsumeMessageConcurrentlyService.processConsumeResult``,
``ConsumeMessageOrderlyService.checkReconsumeTimes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turbopump.client.consuming.delivery import Delivery

BatchHandler = Callable[[list[Delivery]], object]
"""A coroutine function or a plain function; what its end means is said in ``docs/consuming.md``."""


class DeliveryBatch:
    """``messages`` in the order of their queue, at least one. ``ordered``: the queue is handled in
    order."""

    __slots__ = ("_ordered", "messages")

    def __init__(self, messages: Sequence[Delivery], *, ordered: bool) -> None:
        self.messages = messages
        self._ordered = ordered

    @property
    def wanted(self) -> bool:
        """Whether it makes sense to handle any of them."""
        return any(message.wanted for message in self.messages)

    @property
    def settled(self) -> bool:
        """Whether all are."""
        return all(message.settled for message in self.messages)

    @property
    def taken(self) -> bool:
        """Whether somebody has one that is not settled."""
        return any(message.taken and not message.settled for message in self.messages)

    @property
    def taken_at(self) -> float:
        """When they were handed to somebody, in the loop's seconds."""
        return self.messages[0].taken_at

    @property
    def handled_s(self) -> float | None:
        """How long the handler took, if it ran in a thread: it counts for those that are settled
        afterwards."""
        return self.messages[0].handled_s

    @handled_s.setter
    def handled_s(self, seconds: float | None) -> None:
        for message in self.messages:
            if not message.settled:
                message.handled_s = seconds

    def left(self) -> None:
        """They are put down; those that are not settled go back to nobody."""
        for message in self.messages:
            if not message.settled:
                message.left()

    def done(self) -> None:
        """Those that are not settled have been dealt with; in order, those behind one that is
        wanted again come again with it."""
        again = False
        for message in self.messages:
            if message.settled:
                again = again or (self._ordered and message.again)
            elif again:
                message.retry(reason="it came behind a message of its batch that is wanted again")
            else:
                message.done()

    def retry(
        self,
        delay: float | None = None,
        *,
        level: int = 0,
        reason: BaseException | str | None = None,
    ) -> None:
        """Those that are not settled are wanted again, as ``Delivery.retry`` says."""
        for message in self.messages:
            message.retry(delay, level=level, reason=reason)


Handled = Delivery | DeliveryBatch
"""What one call of a handler is about."""


def called_with_lists(handler: BatchHandler) -> Callable[[Handled], object]:
    """``handler`` as the pools call it. It gets a list of its own, which it may change."""

    def call(handled: Handled) -> object:
        return handler(list(handled.messages) if isinstance(handled, DeliveryBatch) else [handled])

    return call


def keys_of(handled: Handled) -> str:
    """What a line of the log says of it: for a batch how many are not settled, and which is the
    first of them."""
    if isinstance(handled, Delivery):
        return (
            f"msg_id={handled.msg_id} topic={handled.topic} "
            f"queue={handled.broker_name}:{handled.queue_id} "
            f"offset={handled.queue_offset} attempt={handled.attempt}"
        )
    unsettled = [message for message in handled.messages if not message.settled] or handled.messages
    return f"count={len(unsettled)} first: {keys_of(unsettled[0])}"
