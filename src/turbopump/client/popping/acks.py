"""Acknowledgements that nobody waits for: what became done while one request was on its way goes
with the next, to each broker in turn.

One rule: an acknowledgement is told at least once, and again until its broker has it or the message
has become visible anyway. It must not know who handled a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from turbopump.client.instance import ClientInstance
from turbopump.client.popping.popped_batch import Popped
from turbopump.client.popping.receipts import Receipts
from turbopump.errors import MessageError, RemotingError, ResponseError
from turbopump.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 512
"""Acknowledgements in one request."""
PAUSE_S: Final = 1.0
"""Until what a broker did not take is told again."""

_FINAL: Final = (
    ResponseCode.NO_MESSAGE,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_PERMISSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)


class _Waiting(NamedTuple):
    message: Popped
    deadline: float


class PopAcks:
    """Tells by way of ``receipts``."""

    def __init__(self, instance: ClientInstance, receipts: Receipts) -> None:
        self._instance = instance
        self._receipts = receipts
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._sending: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = False

    def begin(self, message: Popped, broker_name: str, deadline: float) -> None:
        """It is done. ``deadline``, in the loop's seconds: when it comes again if its broker does
        not hear of it."""
        self._waiting.setdefault(broker_name, []).append(_Waiting(message, deadline))
        if broker_name not in self._sending:
            self._sending.add(broker_name)
            self.spawn(self._send(broker_name), name=f"acknowledge to {broker_name}")

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Do this too, and let ``finish`` wait for it."""
        task = self._instance.spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, patience: float) -> None:
        """Wait until everything is told, ``patience`` seconds at most."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=patience)

    async def _send(self, broker_name: str) -> None:
        waiting = self._waiting[broker_name]
        try:
            while waiting:
                await asyncio.sleep(0)  # what else becomes done in this turn goes along
                now, later = waiting[:AT_ONCE_MAX], waiting[AT_ONCE_MAX:]
                waiting[:] = later
                try:
                    await self._receipts.acknowledge(one.message for one in now)
                    self._refused = False
                except (RemotingError, MessageError) as error:
                    code = error.code if isinstance(error, ResponseError) else None
                    # it comes too late: the message comes again, or has come
                    if code != ResponseCode.NO_MESSAGE:
                        self._tell_refused(broker_name, len(now), error)
                    if isinstance(error, RemotingError) and code not in _FINAL:
                        waiting[:0] = [
                            one for one in now if one.deadline > self._loop.time() + PAUSE_S
                        ]
                        if waiting:
                            await asyncio.sleep(PAUSE_S)
        finally:
            self._sending.discard(broker_name)

    def _tell_refused(self, broker_name: str, count: int, error: Exception) -> None:
        if not self._refused:  # one line when it begins
            log.warning(
                "messages cannot be acknowledged, tried again until they come again broker=%s "
                "count=%d cause=%s",
                *(broker_name, count, error),
            )
        self._refused = True
