"""The push and the lite pull consumer in the hands of an operator: ``Operated``, by what they are
made of. It must not know requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from traceback import format_exception_only

from turbopump.client.consumer.assignment import Assignment, PopAssignment
from turbopump.client.consumer.delivery import Delivery, is_retry
from turbopump.client.consumer.handling import HandlerPool, HandlerThreads
from turbopump.client.consumer.prefetching import Prefetching
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.namespace import unwrap
from turbopump.client.operator_requests import running_info
from turbopump.clock import Clock
from turbopump.message.message import MessageQueue
from turbopump.message.properties import RETRY_TOPIC
from turbopump.protocol.requests.clients import ConsumerData
from turbopump.protocol.requests.consumers import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)


class OperatedPush:
    """``handlers`` None: its user takes messages himself, and none can be given to it."""

    def __init__(
        self,
        assignment: Assignment,
        pops: PopAssignment,
        data: Callable[[], ConsumerData],
        handlers: HandlerPool | HandlerThreads | None,
        consumption: Consumption,
        name_servers: Sequence[str],
        clock: Clock,
        *,
        concurrency: int,
        ordered: bool,
        namespace: str | None,
    ) -> None:
        self._assignment = assignment
        self._pops = pops
        self._data = data
        self._handlers = handlers
        self._consumption = consumption
        self._name_servers = name_servers
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._concurrency = concurrency
        self._ordered = ordered
        self._namespace = namespace

    def places(self) -> Mapping[MessageQueue, int]:
        return self._assignment.done_offsets()

    def reset(self, places: Mapping[MessageQueue, int]) -> None:
        self._assignment.reset(places)

    def running_info(self) -> ConsumerRunningInfo:
        return running_info(
            *(self._name_servers, self._data(), self._assignment.infos()),
            concurrency=self._handlers.concurrency
            if self._handlers is not None
            else self._concurrency,
            ordered=self._ordered,
            started_ms=self._started_ms,
            statuses=self._consumption.statuses(),
            popped=self._pops.infos(),
        )

    async def consume_directly(self, message: Delivery) -> ConsumeMessageDirectlyResult:
        if self._handlers is None:
            return without_handler("PushConsumer")
        message.topic = unwrap(self._namespace, message.properties.get(RETRY_TOPIC, message.topic))
        return await consume_directly(
            message, self._handlers.call, self._clock, ordered=self._ordered
        )


class OperatedLitePull:
    """Its user polls: no message can be given to it."""

    def __init__(
        self,
        prefetching: Prefetching,
        data: Callable[[], ConsumerData],
        name_servers: Sequence[str],
        clock: Clock,
    ) -> None:
        self._prefetching = prefetching
        self._data = data
        self._name_servers = name_servers
        self._started_ms = clock.now_ms()

    def places(self) -> Mapping[MessageQueue, int]:
        return self._prefetching.done_offsets()

    def reset(self, places: Mapping[MessageQueue, int]) -> None:
        self._prefetching.reset(places)

    def running_info(self) -> ConsumerRunningInfo:
        return running_info(
            *(self._name_servers, self._data(), self._prefetching.infos()),
            concurrency=0,
            ordered=False,
            started_ms=self._started_ms,
            statuses={},  # RocketMQ: a lite pull consumer keeps none
        )

    async def consume_directly(self, message: Delivery) -> ConsumeMessageDirectlyResult:
        return without_handler("LitePullConsumer")


# --- One message, given to a consumer's handler by an operator: what the handler makes of it, and
# nothing else.
#
# One rule: it counts for no offset and comes from no queue of ours; what the handler says is told to
# whoever asked. Source: apache/rocketmq ``ConsumeMessageConcurrentlyService.consumeMessageDirectly``.


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
