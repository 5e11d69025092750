"""Detection of brokers that hang, so that their unanswered sends go to other brokers.

Apache's client waits for its timeout instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turbopump.client.instance import ClientInstance
from turbopump.client.sending import send_result
from turbopump.errors import CallTimeoutError, RemotingError
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.remoting.permits import Permits
from turbopump.remoting.wire import Wire

log = logging.getLogger(__name__)

HANG_SHARE: Final = 1 / 3
"""Share of ``send_timeout`` after which a silent broker gets a request as a test. The broker has
the same time to answer. The last third is left for another broker."""
HANG_PATIENCE_MAX_S: Final = 3.0


class HangWatch:
    """Timer that moves sends away from a hanging broker.

    A broker hangs if its process is stopped or its machine is down. But a broker may also be slow
    for good reasons. Under SYNC_FLUSH a send waits for the disk, and with replicas for their
    answers, by default up to 5 s. A retry elsewhere would then store the message twice.

    So a broker that is silent while sends wait gets a request that needs neither disk nor replicas.
    Only if the broker sends no byte of an answer, sends that may use another broker end with
    BrokerHangsError. Each producer has one timer, which runs only while sends are in flight.
    """

    def __init__(self, instance: ClientInstance, under_way: Permits, send_timeout: float) -> None:
        self._instance = instance
        self._under_way = under_way
        self._patience = min(send_timeout * HANG_SHARE, HANG_PATIENCE_MAX_S)
        self.on = False
        self._loop = asyncio.get_running_loop()
        self._looked_at = 0.0
        self._waiting: set[str] = set()
        """Brokers that had unanswered sends at the last check."""
        self._asked: set[str] = set()

    def start(self) -> None:
        self.on = True
        self._waiting.clear()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    def _check_silent_brokers(self) -> None:
        if not self._under_way.count:
            self.on = False
            return
        waiting: set[str] = set()
        for address, connection in self._instance.remoting.connections.items():
            if send_result.SEND_ANSWER in connection.calls.typed.values():
                waiting.add(address)
                silent = address in self._waiting and connection.last_read <= self._looked_at
                if silent and address not in self._asked:
                    self._asked.add(address)
                    self._instance.spawn(
                        self._ask_for_life(address, connection), name=f"check {address}"
                    )
        self._waiting = waiting
        self._looked_at = self._loop.time()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    async def _ask_for_life(self, address: str, connection: Wire) -> None:
        began = self._loop.time()
        question = GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0)
        try:
            await self._instance.remoting.exchange(address, question, timeout=self._patience)
        except CallTimeoutError:
            if connection.last_read <= began and not connection.closed:
                text = f"{address} hangs: it answers nothing"
                failed = connection.calls.fail_typed(
                    send_result.SEND_ANSWER, lambda: send_result.BrokerHangsError(text)
                )
                log.warning(
                    "broker hangs, its unanswered messages go to other brokers and may "
                    "be stored twice address=%s messages=%d",
                    address,
                    failed,
                )
        except RemotingError:
            pass  # the connection has ended, and with it the sends
        finally:
            self._asked.discard(address)
