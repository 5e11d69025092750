"""Recurring work of a broker: the timetable, cleaning, the scrub, and the watch that reports a
blocked loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from turbopump.broker.log_repair import LogRepair, Range
from turbopump.broker.store_opening import log_error, log_info
from turbopump.broker.stored import Stored
from turbopump.repeated_line import RepeatedLine
from turbopump.store.disk_space import SpaceLevel
from turbopump.store.repair.scrub import Scrub, ScrubNumbers
from turbopump.store.retention import NextStep

log = logging.getLogger(__name__)
_action_failed = RepeatedLine(
    log, logging.ERROR, "repeating action failed and will be retried action=%s cause=%r"
)


class Timetable:
    """Repeating actions on the running loop."""

    def __init__(self) -> None:
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    def every(self, interval: float, action: Callable[[], None]) -> None:
        """Call ``action`` every ``interval`` seconds, first after one interval.

        A late call does not delay the next one, and missed calls are not made up for. An exception
        is logged and ends nothing.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + interval

        def run() -> float:
            nonlocal due
            now = loop.time()
            due = due + interval if due + interval > now else now + interval
            try:
                action()
            except Exception as error:
                name = _name(action)
                _action_failed(name, error, kind=name, exc_info=True)
            return due - loop.time()

        self._repeat(interval, run)

    def at_its_pace(self, action: Callable[[], float]) -> None:
        """Call ``action`` soon, and again after the seconds that it returns. An action that raises
        is logged and not called again."""

        def run() -> float | None:
            try:
                return action()
            except Exception:
                log.exception("repeating action failed and ends action=%s", _name(action))
                return None

        self._repeat(0, run)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def _repeat(self, seconds: float, action: Callable[[], float | None]) -> None:
        loop = asyncio.get_running_loop()
        number = len(self._timers)

        def run() -> None:
            pause = None if self._closed else action()
            if pause is not None and not self._closed:
                self._timers[number] = loop.call_later(pause, run)

        self._timers[number] = loop.call_later(seconds, run)


def _name(action: Callable[[], object]) -> str:
    return getattr(action, "__qualname__", str(action))


SPACE_INTERVAL_S: Final = 2.0
"""Seconds between two checks of disk space. RocketMQ checks every cleanResourceInterval, 10 s by
default, in which a disk can receive 10 GB."""


class Cleaning:
    """Schedule of the store's retention: checks of disk space, rounds of deletion, and pauses
    within a round. Call ``check_space`` every ``SPACE_INTERVAL_S``, ``start_round`` every
    cleanResourceInterval, and ``close`` before the store is closed."""

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
        """Check the disk space. Begin a round at once if the disk is too full."""
        if not self._closed:
            self._space.check_space(self._space_checked)
            self._reserve.make_missing()

    def start_round(self) -> None:
        """Delete expired files, then trim queues and indexes. Do nothing while the previous round
        is running."""
        if not self._closed and (self._round is None or self._round.done()):
            self._round = asyncio.get_running_loop().create_task(self._run_round(), name="cleaning")

    async def finish_round(self, seconds: float) -> None:
        """Begin a round, or join the running one, and wait for its end for at most ``seconds``."""
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
        """Repeat the step, with pauses, until there is nothing left to do."""
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
    """Schedule of the store's scrub, and its log lines: one for each finding, and one for each
    pass. Call ``step`` repeatedly, each time after the seconds that it returned. ``repair`` fetches
    damaged ranges from a copy."""

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
                f"scrub passed through the commit log passes={numbers.passes} "
                f"bytes={numbers.bytes_checked} entries={numbers.entries_checked} "
                f"damaged_ranges={numbers.damaged_ranges} damaged_bytes={numbers.damaged_bytes} "
                f"wrong_units={numbers.wrong_units}"
            )
        return pause


FILES_CHECK_S: Final = 0.5
"""Seconds between two checks of the log's files. Under ASYNC_FLUSH a deleted or cut file is noticed
within a second."""
STALL_CHECK_S: Final = 0.25
STALL_S: Final = 1.0


class StallWatch:
    """Watch that reports a blocked event loop, for example by a disk that blocks a system call, or
    a machine without a free core. Clients then see time-outs that no other log line explains: a
    Java client closes its connection when one request takes over 3 s. Call ``check_delay`` every
    ``STALL_CHECK_S``; when it comes over ``STALL_S`` late it logs and calls ``on_stall`` with the
    seconds. ``now`` in monotonic seconds."""

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
                f"the event loop was blocked seconds={late:.1f}: check the latency of the "
                "disk and the load of this machine"
            )
            self._on_stall(late)
