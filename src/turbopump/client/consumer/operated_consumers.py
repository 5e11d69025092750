"""What an operator does with a consumer: one message is given to its handler.

One rule: the message counts for no offset and comes from no queue of ours; what the handler says is
told to whoever asked. Source: apache/rocketmq
``ConsumeMessageConcurrentlyService.consumeMessageDirectly``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from traceback import format_exception_only

from turbopump.client.consumer.delivery import Delivery, is_retry
from turbopump.clock import Clock
from turbopump.protocol.requests.consumers import ConsumeMessageDirectlyResult, ConsumeResult


class _Nobody:
    """The owner of a message that comes from no queue. ``wanted_again``: the handler asked for it
    before it ended."""

    dropped = False
    wanted_again = False

    def delivery_done(self, message: Delivery) -> None:
        pass

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        self.wanted_again = True

    def delivery_left(self, message: Delivery) -> None:
        pass


async def consume_directly(
    message: Delivery, call: Callable[[Delivery], Awaitable[object]], clock: Clock, *, ordered: bool
) -> ConsumeMessageDirectlyResult:
    """Have ``call`` handle it; never raises what that raises."""
    owner = _Nobody()
    message.deliver(owner, message.reconsume_times + 1)
    started = clock.monotonic()
    remark = None
    try:
        returned = await call(message)
    except Exception as error:
        result, remark = (
            ConsumeResult.CR_THROW_EXCEPTION,
            "".join(format_exception_only(error)).strip(),
        )
    else:
        again = owner.wanted_again or is_retry(returned)
        result = ConsumeResult.CR_LATER if again else ConsumeResult.CR_SUCCESS
    spent = int((clock.monotonic() - started) * 1000)
    return ConsumeMessageDirectlyResult(
        order=ordered, consume_result=result, remark=remark, spent_time_mills=spent
    )


def without_handler(kind: str) -> ConsumeMessageDirectlyResult:
    """The answer of a consumer whose user takes messages by himself."""
    return ConsumeMessageDirectlyResult(
        consume_result=ConsumeResult.CR_THROW_EXCEPTION,
        remark=f"this {kind} has no handler that a message could be given to",
    )
