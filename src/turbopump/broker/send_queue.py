"""Queue of received sends that wait to be stored.

Sends wait while a new file of the log is made, or while the event loop serves other work
(``remoting/backlog.py``). Only waiting sends are ever refused as busy. Remarks begin like those of
apache/rocketmq ``BrokerFastFailure`` and ``SendMessageProcessor``, which clients and alarms search
for, and end with the cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.codes import ResponseCode
from turbopump.remoting.backlog import Backlog, BacklogLimits, BacklogRefusal
from turbopump.remoting.response import Refusal, refusal

log = logging.getLogger(__name__)

LINE_EVERY_S: Final = 10.0
"""Minimum seconds between two log lines about refused sends."""

_BUSY: Final = "broker busy, start flow control for a while"
_MAKING: Final = "a new file of the commit log is being made"


class SendQueue:
    """Queue of received sends that wait to be stored. Their number and waiting time are limited.

    ``backlog`` contains the waiting sends. The broker's server fills it.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.backlog = Backlog(self._limits(), self._refuse)
        self._cause = ""
        self._loop = asyncio.get_running_loop()
        self._logged = 0
        self._next_line = 0.0

    @property
    def refused(self) -> Counter[BacklogRefusal]:
        """Number of refused sends by reason."""
        return self.backlog.refused

    def read_settings(self) -> None:
        """Read the limits from the settings again."""
        self.backlog.limits = self._limits()

    def _limits(self) -> BacklogLimits:
        config = self._config
        self._busy_ms = config.os_page_cache_busy_time_out_mills
        self._wait_ms = config.wait_time_mills_in_send_queue
        self._size = config.send_thread_pool_queue_capacity
        wait_s = self._wait_ms / 1000 if config.broker_fast_failure_enable else None
        return BacklogLimits(self._size, wait_s, self._busy_ms / 1000)

    def append_took(self, seconds: float) -> None:
        """Record the duration of an append. After a long append, refuse the waiting sends.

        An append is long if it takes over ``osPageCacheBusyTimeOutMills``.
        """
        if seconds * 1000 > self._busy_ms:
            self.stood_still(seconds, "an append")

    def stood_still(self, seconds: float, what: str = "a turn of the event loop") -> None:
        """Record that the event loop was blocked. Refuse the sends that waited meanwhile."""
        self._cause = (
            f"{what} took {seconds * 1000:.0f} ms: check the latency of the disk and the "
            "load of this machine"
        )
        self.backlog.stood_still(seconds)

    def _refuse(self, why: BacklogRefusal, waited_s: float, left: int) -> Refusal:
        if why is BacklogRefusal.ENDING:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        else:
            code = ResponseCode.SYSTEM_BUSY
        response = refusal(
            code,
            self._remark_for(
                why, f"period in queue: {waited_s * 1000:.0f}ms, size of queue: {left}"
            ),
        )
        self._log_refusal(response)
        return response

    def _remark_for(self, why: BacklogRefusal, state: str) -> str:
        held = self.backlog.is_held
        if why is BacklogRefusal.WAITED:
            cause = _MAKING if held else "more is sent than this broker can store"
            return (
                f"[TIMEOUT_CLEAN_QUEUE]{_BUSY}, {state}; {cause} "
                f"(waitTimeMillsInSendQueue={self._wait_ms})"
            )
        if why is BacklogRefusal.STOOD_STILL:
            if held:
                cause = f"{_MAKING}, for over {self._busy_ms} ms (osPageCacheBusyTimeOutMills)"
            else:
                cause = self._cause
            return f"[PCBUSY_CLEAN_QUEUE]{_BUSY}, {state}; {cause}"
        if why is BacklogRefusal.NO_ROOM:
            return (
                f"[PC_SYNCHRONIZED]{_BUSY}; {_MAKING}, for over {self._busy_ms} ms "
                "(osPageCacheBusyTimeOutMills)"
            )
        if why is BacklogRefusal.FULL:
            return (
                f"[OVERLOAD]system busy, start flow control for a while; {state} "
                f"(sendThreadPoolQueueCapacity={self._size})"
            )
        return "the broker is stopping; nothing was stored"

    def _log_refusal(self, response: Refusal) -> None:
        now = self._loop.time()
        if now >= self._next_line:
            count = self.refused.total() - self._logged
            log.warning("sends refused count=%d last=%s", count, response.remark)
            self._logged = self._logged + count
            self._next_line = now + LINE_EVERY_S
