"""The push and the lite pull consumer in the hands of an operator: ``Operated``, by what they are
made of. It must not know requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from turbopump.client.consuming.assignment import Assignment
from turbopump.client.consuming.consumption import Consumption
from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.direct_consumption import consume_directly, without_handler
from turbopump.client.consuming.handler_threads import HandlerThreads
from turbopump.client.consuming.handling import HandlerPool
from turbopump.client.consuming.prefetching import Prefetching
from turbopump.client.namespace import unwrap
from turbopump.client.operating.operator_requests import running_info
from turbopump.client.popping.assignment import PopAssignment
from turbopump.clock import Clock
from turbopump.message.message_queue import MessageQueue
from turbopump.message.properties import RETRY_TOPIC
from turbopump.protocol.bodies.heartbeat import ConsumerData
from turbopump.protocol.bodies.running import ConsumeMessageDirectlyResult, ConsumerRunningInfo


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
        return self._assignment.places()

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
        return self._prefetching.places()

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
