"""The clock of the store's retention: when room is looked at, when a round of deletion begins, and
the pauses within it.

What is deleted and why sends are refused is the store's (``store/retention.py``,
``store/disk_space.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from turbopump.config.broker_config import BrokerConfig
from turbopump.store.disk_space import Level
from turbopump.store.message_store import MessageStore
from turbopump.store.retention import Next

log = logging.getLogger(__name__)

SPACE_INTERVAL_S: Final = 2.0
"""RocketMQ looks every cleanResourceInterval, 10 s by default; a disk that fills at 1 GB/s has no
such time, nor have its producers."""


class Cleaning:
    """``look`` is to be called every ``SPACE_INTERVAL_S``, ``round`` every cleanResourceInterval;
    ``close`` before the store is closed."""

    def __init__(self, store: MessageStore, config: BrokerConfig) -> None:
        self._space = store.space
        self._retention = store.retention
        self._segment_pause = config.delete_commit_log_files_interval / 1000
        self._queue_pause = config.delete_consume_queue_files_interval / 1000
        self._pause: asyncio.TimerHandle | None = None
        self._under_way = False
        self._closed = False
        store.space.on_room = lambda text: log.warning("store: %s", text)
        store.retention.on_deleted = lambda text: log.info("store: %s", text)

    def look(self) -> None:
        """Ask how much room there is; begin a round at once where that forces one."""
        if not self._closed:
            self._space.look(self._looked)

    def round(self) -> None:
        """Delete what is due, then trim queues and indexes; nothing if the round before is not
        over."""
        if self._under_way or self._closed:
            return
        self._under_way = True
        if self._retention.begin_round():
            self._delete()
        else:
            self._trim()

    def close(self) -> None:
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()

    def _looked(self) -> None:
        if self._space.level >= Level.CRAMPED and self._retention.rules.forcibly:
            self.round()

    def _delete(self) -> None:
        self._retention.delete_next(
            lambda following: self._go_on(following, self._segment_pause, self._delete, self._trim)
        )

    def _trim(self) -> None:
        self._retention.trim_next(
            lambda following: self._go_on(following, self._queue_pause, self._trim, self._end)
        )

    def _end(self) -> None:
        self._under_way = False

    def _go_on(
        self,
        following: Next,
        pause: float,
        again: Callable[[], None],
        otherwise: Callable[[], None],
    ) -> None:
        if self._closed:
            return
        if following is Next.NOTHING:
            otherwise()
        else:
            delay = pause if following is Next.AFTER_A_PAUSE else 0.0
            self._pause = asyncio.get_running_loop().call_later(delay, again)
