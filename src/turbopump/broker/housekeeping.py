"""Recurring work of a broker, such as the deletion of old files and checks of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from turbopump.broker.log_repair import LogRepair, Range
from turbopump.broker.store_opening import log_error, log_info
from turbopump.broker.stored import Stored
from turbopump.store.disk_space import SpaceLevel
from turbopump.store.repair.scrub import Scrub, ScrubNumbers
from turbopump.store.retention import NextStep

log = logging.getLogger(__name__)

SPACE_INTERVAL_S: Final = 2.0
"""Seconds between two checks of disk space. RocketMQ checks every cleanResourceInterval, 10 s by
default, in which a disk can receive 10 GB."""


class Cleaning:
    """Schedule that checks the disk space and deletes expired messages.

    Call ``check_space`` every ``SPACE_INTERVAL_S``, ``start_round`` every cleanResourceInterval,
    and ``close`` before the store is closed. The deletion pauses between two files.
    """

    def __init__(self, stored: Stored) -> None:
        store = stored.store
        self._turns = stored.turns
        self._space = store.space
        self._reserve = store.start_reserve
        self._retention = store.retention
        self._segment_pause = stored.config.delete_commit_log_files_interval / 1000
        self._queue_pause = stored.config.delete_consume_queue_files_interval / 1000
        self._round: asyncio.Task[None] | None = None
        self._closed = False

    def check_space(self) -> None:
        """Check the disk space, and start to delete expired files if the disk is too full."""
        if not self._closed:
            self._space.check_space(self._space_checked)
            self._reserve.make_missing()

    def start_round(self) -> None:
        """Start to delete expired files, and then to trim queues and indexes.

        The call has no effect while an earlier deletion is running.
        """
        if not self._closed and (self._round is None or self._round.done()):
            self._round = asyncio.get_running_loop().create_task(self._run_round(), name="cleaning")

    async def finish_round(self, seconds: float) -> None:
        """Delete expired files, and wait at most ``seconds`` for the deletion to end.

        If a deletion is already running, the call waits for that one.
        """
        self.start_round()
        if self._round is not None:
            await asyncio.wait([self._round], timeout=seconds)

    def close(self) -> None:
        self._closed = True
        if self._round is not None:
            self._round.cancel()

    def _space_checked(self) -> None:
        if self._space.level >= SpaceLevel.CLEAN_FORCIBLY and self._retention.rules.forcibly:
            self.start_round()

    async def _run_round(self) -> None:
        if self._retention.begin_round():
            await self._repeat_step(self._retention.delete_next, self._segment_pause)
        await self._repeat_step(self._retention.trim_next, self._queue_pause)

    async def _repeat_step(
        self, step: Callable[[Callable[[NextStep], None]], None], pause: float
    ) -> None:
        """Call ``step`` with pauses, until a call reports that no work is left."""
        loop = asyncio.get_running_loop()
        while True:
            done: asyncio.Future[NextStep] = loop.create_future()
            step(partial(_settle, done))
            following = await done
            if following is NextStep.NOTHING:
                return
            if following is NextStep.AFTER_A_PAUSE:
                await asyncio.sleep(pause)
            else:
                await self._turns.pause()


def _settle(done: asyncio.Future[NextStep], following: NextStep) -> None:
    if not done.done():  # else the round was cancelled
        done.set_result(following)


class Scrubbing:
    """Continuous check of the stored log for damage, with repair from another broker.

    Call ``step`` again and again, each time after the number of seconds that it returned. Each
    finding and each complete pass through the log is logged. ``repair`` fetches damaged ranges from
    another broker.
    """

    def __init__(self, stored: Stored, repair: LogRepair) -> None:
        store = stored.store
        self._scrub = Scrub(
            stored.disk,
            store.log,
            store.queues,
            lambda: store.durable.value,
            stored.config.scrub_bytes_per_second,
            log_error,
            store.rebuild,
            store.index,
            log_info,
            self._fetch_damaged,
        )
        self._repair = repair
        self._now = asyncio.get_running_loop().time
        self._passes = 0

    def _fetch_damaged(self, start: int, end: int) -> None:
        self._repair.fetch([Range(start, end)])

    @property
    def numbers(self) -> ScrubNumbers:
        return self._scrub.numbers

    def step(self) -> float:
        pause = self._scrub.step(self._now())
        numbers = self._scrub.numbers
        if numbers.passes > self._passes:
            self._passes = numbers.passes
            log.info(
                "scrub passed through the commit log passes=%d bytes=%d entries=%d "
                "damaged_ranges=%d damaged_bytes=%d wrong_units=%d",
                numbers.passes,
                numbers.bytes_checked,
                numbers.entries_checked,
                numbers.damaged_ranges,
                numbers.damaged_bytes,
                numbers.wrong_units,
            )
        return pause


FILES_CHECK_S: Final = 0.5
"""Seconds between two checks of the log's files. Under ASYNC_FLUSH a deleted or cut file is noticed
within a second."""
STALL_CHECK_S: Final = 0.25
STALL_S: Final = 1.0


class StallWatch:
    """Watch on the event loop. It reports each time when the loop was blocked.

    Causes are, for example, a disk that blocks a system call, or a machine without a free core.
    Clients then see time-outs that no other log line explains: a Java client closes its connection
    when one request takes over 3 s.

    Call ``check_delay`` every ``STALL_CHECK_S``. If a call comes over ``STALL_S`` late, the watch
    logs the delay and calls ``on_stall`` with the seconds. ``now`` returns the time in monotonic
    seconds.
    """

    def __init__(
        self, now: Callable[[], float], on_stall: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        self._now = now
        self._on_stall = on_stall
        self._last = now()

    def check_delay(self) -> None:
        now = self._now()
        late = now - self._last - STALL_CHECK_S
        self._last = now
        if late > STALL_S:
            log.warning(
                "the event loop was blocked: check the latency of the disk and the load of this "
                "machine seconds=%.1f",
                late,
            )
            self._on_stall(late)
