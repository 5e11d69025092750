"""Detection of brokers that hang or are no longer master, so that their unanswered sends go to
other brokers.

Apache's client waits for its timeout instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turbopump.client.instance import ClientInstance
from turbopump.client.sending import send_result
from turbopump.client.sending.send_result import ONE_BROKER_SEND_ANSWER, SEND_ANSWER
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
RETRIED: Final = (SEND_ANSWER, ONE_BROKER_SEND_ANSWER)
"""Kinds of the sends that may have another attempt."""
CONNECTING: Final = -1


class HangWatch:
    """Timer that moves sends away from a hanging broker, and to the new master of a broker.

    A broker hangs if its process is stopped or its machine is down. But a broker may also be slow
    for good reasons. Under SYNC_FLUSH a send waits for the disk, and with replicas for their
    answers, by default up to 5 s. A retry elsewhere would then store the message twice.

    So a broker that is silent while sends wait gets a request that needs neither disk nor replicas.
    Only if the broker sends no byte of an answer, sends that may use another broker end with
    BrokerHangsError.

    A broker name with several replicas gets another master when its master is silent. The name
    servers are therefore asked for the master while a send has had no answer for one or two checks,
    and while no connection can be opened. If they name another address, sends that may have another
    attempt end with MasterMovedError, and those that wait for a connection with ConnectError.

    Each producer has one timer, which runs only while sends are in flight.
    """

    def __init__(self, instance: ClientInstance, under_way: Permits, send_timeout: float) -> None:
        self._instance = instance
        self._under_way = under_way
        self._patience = min(send_timeout * HANG_SHARE, HANG_PATIENCE_MAX_S)
        self.on = False
        self._loop = asyncio.get_running_loop()
        self._looked_at = 0.0
        self._waiting: dict[str, int] = {}
        """Request id of the oldest unanswered send at the last check, by address. The value is
        CONNECTING while a connection is being opened."""
        self._names: dict[str, str] = {}
        """Broker name by address, while sends to this address wait. Routes may name another address
        before a send to the old one ends."""
        self._asked: set[str] = set()
        self._asked_for_master: set[str] = set()

    def start(self) -> None:
        self.on = True
        self._waiting.clear()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    def _check_silent_brokers(self) -> None:
        if not self._under_way.count:
            self.on = False
            return
        remoting = self._instance.remoting
        waiting = dict.fromkeys(remoting.connecting, CONNECTING)
        for address, connection in remoting.connections.items():
            kinds = connection.calls.typed
            oldest = next((opaque for opaque, kind in kinds.items() if kind in RETRIED), None)
            if oldest is None:
                continue
            waiting[address] = oldest
            silent = address in self._waiting and connection.last_read <= self._looked_at
            if silent and address not in self._asked and SEND_ANSWER in kinds.values():
                self._asked.add(address)
                self._instance.spawn(
                    self._ask_for_life(address, connection), name=f"check {address}"
                )
        for address, oldest in waiting.items():
            stalled = self._waiting.get(address) == oldest
            if stalled and address not in self._asked_for_master:
                self._asked_for_master.add(address)
                self._instance.spawn(self._ask_for_master(address), name=f"master {address}")
        self._waiting = waiting
        if self._names:
            self._names = {
                address: name for address, name in self._names.items() if address in waiting
            }
        self._looked_at = self._loop.time()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    async def _ask_for_master(self, address: str) -> None:
        routes = self._instance.routes
        try:
            name = self._names.get(address) or routes.broker_at(address)
            if name is None:
                return
            self._names[address] = name
            master = await routes.ask_for_master(name)
        finally:
            self._asked_for_master.discard(address)
        if master is None or master == address:
            return
        remoting = self._instance.remoting
        remoting.give_up_connecting(address)
        connection = remoting.connection(address)
        if connection is None:
            return
        text = f"no answer from {address}, and {master} is the master now"
        failed = 0
        for kind in RETRIED:
            failed += connection.calls.fail_typed(kind, lambda: send_result.MasterMovedError(text))
        if failed:
            log.warning(
                "broker has another master, its unanswered messages go there and may be stored "
                "twice broker=%s address=%s master=%s messages=%d",
                name,
                address,
                master,
                failed,
            )

    async def _ask_for_life(self, address: str, connection: Wire) -> None:
        began = self._loop.time()
        question = GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0)
        try:
            await self._instance.remoting.exchange(address, question, timeout=self._patience)
        except CallTimeoutError:
            if connection.last_read <= began and not connection.closed:
                text = f"{address} hangs: it answers nothing"
                failed = connection.calls.fail_typed(
                    SEND_ANSWER, lambda: send_result.BrokerHangsError(text)
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
