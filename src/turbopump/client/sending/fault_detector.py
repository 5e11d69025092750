"""Asks brokers that could not be reached whether they answer again, so that they are used as soon
as they do.

One rule: any answer at all means reachable. It must not know who sends.
Source: apache/rocketmq ``LatencyFaultToleranceImpl.detectByOneRound``.
"""

from __future__ import annotations

import asyncio

from turbopump.client.instance import ClientInstance
from turbopump.client.sending.fault_strategy import FaultStrategy
from turbopump.errors import RemotingError
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.requests.offsets import GetMaxOffset


class FaultDetector:
    """Runs for as long as its task does."""

    def __init__(self, instance: ClientInstance, faults: FaultStrategy) -> None:
        self._instance = instance
        self._faults = faults

    async def run(self) -> None:
        """Ask every ``detect_interval`` seconds."""
        settings = self._faults.settings
        assert settings is not None
        while True:
            await asyncio.sleep(settings.detect_interval)
            await asyncio.gather(
                *(self._ask(name, settings.detect_timeout) for name in self._faults.unreachable)
            )

    async def _ask(self, broker_name: str, timeout: float) -> None:
        address = self._instance.routes.address_of(broker_name)
        if address is None:
            self._faults.forget(broker_name)
            return
        try:
            await self._instance.remoting.exchange(
                address, GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0), timeout=timeout
            )
        except RemotingError:
            return
        self._faults.reached(broker_name)
