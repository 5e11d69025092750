"""Functions that a server calls repeatedly in its event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_action_failed = RepeatedLine(
    log, logging.ERROR, "repeating action failed and will be retried action=%s cause=%r"
)


class Timetable:
    """Timetable of functions that are called repeatedly in the running event loop."""

    def __init__(self) -> None:
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    def every(self, interval: float, action: Callable[[], None]) -> None:
        """Call ``action`` every ``interval`` seconds. The first call comes after one interval.

        A late call does not delay the next one, and missed calls are not made up for. An exception
        is logged, and the calls continue.
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
        """Call ``action`` soon, then repeatedly. Each call returns the seconds until the next call.

        After an exception, which is logged, ``action`` is not called again.
        """

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
