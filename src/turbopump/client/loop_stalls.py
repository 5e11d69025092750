"""Detector of event loop stalls. Errors about timeouts mention a recent stall.

Code that blocks the event loop (a plain call in a coroutine, a long computation) makes answers seem
late that arrived in time. Values in, values out: the loop's time is passed in. This module must not
know who waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_stood_still = RepeatedLine(
    log,
    logging.WARNING,
    "the event loop of this program stood still, something in it blocks seconds=%.1f",
)

LOOK_INTERVAL_S: Final = 1.0
STALL_S: Final = 1.0
"""Delay of a check in seconds from which the delay counts as a stall of the event loop."""


class LoopStalls:
    """Detector of stalls: times during which the event loop could not run.

    Call ``measure_delay`` every ``LOOK_INTERVAL_S``. ``now`` returns the loop's time in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._looked = now()
        self._ended = float("-inf")
        self._seconds = 0.0

    def measure_delay(self) -> None:
        """Record and log a stall of the event loop that has just ended."""
        late = self._lateness()
        self._looked = self._now()
        if late > STALL_S:
            self._ended = self._looked
            self._seconds = late
            _stood_still(late)

    def explanation(self, began: float) -> str:
        """Return a sentence about a recent stall. The error of a timed-out call includes this
        sentence.

        The text is empty if the loop did not stall since ``began``, the loop time at which the call
        began.
        """
        late = self._lateness()
        if late <= STALL_S and self._ended >= began:
            late = self._seconds
        if late <= STALL_S:
            return ""
        return (
            f"This program's event loop stood still for {late:.1f} s meanwhile, so answers may "
            "have come in time: look for a call that blocks it (a plain function in a coroutine, "
            "a long computation), and run that in a thread"
        )

    def _lateness(self) -> float:
        return self._now() - self._looked - LOOK_INTERVAL_S
