"""What a consumer can be asked and told by an operator. It must not know requests
(``operator_requests.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from turbopump.client.consuming.delivery import Delivery
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.running import ConsumeMessageDirectlyResult, ConsumerRunningInfo


class Operated(Protocol):
    """A consumer as an operator meets it; queues by the names that brokers know."""

    def places(self) -> Mapping[MessageQueue, int]:
        """Up to where each of its queues is done."""

    def reset(self, places: Mapping[MessageQueue, int]) -> None:
        """Go on there, those that are ours, and tell the broker."""

    def running_info(self) -> ConsumerRunningInfo:
        """Settings and queues."""

    async def consume_directly(self, message: Delivery) -> ConsumeMessageDirectlyResult:
        """Handle this message now."""
