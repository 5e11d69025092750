"""Things a broker does again and again: one place that starts them and, at the end, stops them
all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Timetable:
    """Repeating actions on the running loop. An action that raises is logged and comes again."""

    def __init__(self) -> None:
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    def every(self, interval: float, action: Callable[[], None]) -> None:
        """Call ``action`` every ``interval`` seconds, first after one interval. One that comes late
        does not make the next late; those that were missed meanwhile are not made up for."""
        loop = asyncio.get_running_loop()
        number = len(self._timers)
        due = loop.time() + interval

        def run() -> None:
            nonlocal due
            if self._closed:
                return
            now = loop.time()
            due = due + interval if due + interval > now else now + interval
            self._timers[number] = loop.call_at(due, run)
            try:
                action()
            except Exception:
                log.exception(
                    "repeating action failed action=%s", getattr(action, "__qualname__", action)
                )

        self._timers[number] = loop.call_at(due, run)

    def at_its_pace(self, action: Callable[[], float]) -> None:
        """Call ``action`` soon, and again after the seconds that it returns; one that raises is
        logged and not called again."""
        loop = asyncio.get_running_loop()
        number = len(self._timers)

        def run() -> None:
            if self._closed:
                return
            try:
                self._timers[number] = loop.call_later(action(), run)
            except Exception:
                log.exception(
                    "repeating action failed and ends action=%s",
                    getattr(action, "__qualname__", action),
                )

        self._timers[number] = loop.call_later(0, run)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
