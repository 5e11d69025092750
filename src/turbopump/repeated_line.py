"""Log lines that can repeat any number of times. Peers or user functions cause them, for example by
a bad frame, a failed request, or a handler that raises.

The first line is logged at once. Further lines within ``PERIOD_S`` seconds are counted, and the
last of them is logged with their number. A line that continues is logged in full again after
``PERIODS_MAX`` periods.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from dataclasses import dataclass
from typing import Final

from turbopump.log_keys import LogKeys

PERIOD_S: Final = 10.0
PERIODS_MAX: Final = 60
KINDS_MAX: Final = 1000
"""Maximum number of kinds of one line that are counted separately at the same time. Further kinds
are counted together."""
KEPT_SIZE: Final = 512
"""Maximum number of characters that are kept of each argument of a counted line."""

_lines: weakref.WeakSet[RepeatedLine] = weakref.WeakSet()


@dataclass(slots=True)
class _Counted:
    """Counter of unlogged lines of one kind. It also keeps the arguments of the newest line.

    - ``periods``: number of periods since the last line that was logged in full.
    """

    count: int = 0
    periods: int = 0
    last: tuple[object, ...] = ()


class RepeatedLine:
    """Log statement for lines that may repeat. If there are many, it counts lines instead of
    logging each.

    It is called like a function::

        _bad_frame = RepeatedLine(log, logging.WARNING, "bad frame peer=%s cause=%s")
        …
        _bad_frame(peer, error)

    Call it inside a running event loop, which later logs the counted lines.
    """

    def __init__(self, log: logging.Logger, level: int, text: str) -> None:
        self._log = log
        self._level = level
        self._text = text
        self._counted: dict[int, _Counted] = {}
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        _lines.add(self)

    def __call__(
        self, *args: object, kind: object = None, exc_info: bool | BaseException = False
    ) -> None:
        """Log the line. If a line of the same kind was logged a moment ago, count the line instead.

        - ``kind``: anything hashable.
        - ``exc_info``: exception whose traceback is added to a logged line. True means the
          exception being handled.
        """
        if not self._log.isEnabledFor(self._level):
            return
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop() is not loop:
            self._loop = weakref.ref(loop)
            self._counted.clear()
        key = hash(kind)  # a peer's names may be long
        if len(self._counted) >= KINDS_MAX and key not in self._counted:
            key = 0
        counted = self._counted.get(key)
        if counted is not None:
            counted.count += 1
            counted.last = tuple(map(_kept, args))
            return
        self._counted[key] = _Counted()
        self._report_later(key)
        self._log.log(self._level, self._text, *args, exc_info=exc_info, stacklevel=2)

    def report(self) -> None:
        """Log the counted lines of this statement now, and start to count from 0."""
        ended, self._counted = self._counted, {}
        for counted in ended.values():
            self._report(counted)

    def _report_later(self, key: int) -> None:
        # The timer runs in an empty context, independent of the caller that logged first.
        asyncio.get_running_loop().call_later(
            PERIOD_S, self._period_over, key, context=contextvars.Context()
        )

    def _period_over(self, key: int) -> None:
        counted = self._counted.get(key)
        if counted is None:
            return
        if not counted.count:
            del self._counted[key]
            return
        self._report(counted)
        counted.count = 0
        counted.periods += 1
        if counted.periods == PERIODS_MAX:
            del self._counted[key]
        else:
            self._report_later(key)

    def _report(self, counted: _Counted) -> None:
        if counted.count:
            self._log.log(
                self._level,
                f"{self._text} more=%d in_seconds=%.0f",
                *counted.last,
                counted.count,
                PERIOD_S,
            )


def _kept(argument: object) -> object:
    """Return an argument in the form that is kept: a number unchanged, other values as text."""
    if isinstance(argument, LogKeys):
        return LogKeys((key, _kept(value)) for key, value in argument.items())
    return argument if isinstance(argument, int | float) else str(argument)[:KEPT_SIZE]


def report_all() -> None:
    """Log the counted lines of all statements now, before the process ends."""
    for line in list(_lines):
        line.report()
