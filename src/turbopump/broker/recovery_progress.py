"""Log lines about the progress of a long recovery at a broker's start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LOGGER: Final = "turbopump.broker.recovery_progress"
"""Name of the logger for the progress of a recovery. The command line shows its lines on standard
error, even if other lines go elsewhere."""
log = logging.getLogger(LOGGER)

FIRST_LINE_S: Final = 1.0
LINE_EVERY_S: Final = 3.0


class RecoveryProgress:
    """Logger of the progress of a long recovery, during which the broker serves no client.

    A recovery of under a second logs nothing. ``reached`` is passed to ``MessageStore.open``.
    ``now`` returns the time in monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begin: int | None = None
        self._begun = self._next_line = 0.0
        self._said = False
        self.percent: int | None = None
        """Part of the recovery that is done, in per cent, or None while there is no recovery."""
        self.on_progress: Callable[[], None] = lambda: None
        """Function that is called whenever ``percent`` has changed."""

    def reached(self, offset: int, end: int) -> None:
        """Record the progress of the recovery: it has read the log up to ``offset`` of about
        ``end``.

        The first call gives the offset at which the recovery starts.
        """
        now = self._now()
        begin = self._begin
        if begin is None or offset <= begin:  # it may begin anew
            self._begin = offset
            self._begun = now
            self._next_line = now + FIRST_LINE_S
            self._note_percent(0)
            return
        size = offset - begin
        self._note_percent(100 * size // (end - begin))
        seconds = now - self._begun
        if offset == end:
            if self._said:
                log.info(
                    "store recovered MiB=%d seconds=%.1f MB/s=%.0f",
                    size >> 20,
                    seconds,
                    size / seconds / 1e6,
                )
            self._said = False
        elif now >= self._next_line:
            self._said = True
            self._next_line = now + LINE_EVERY_S
            log.info(
                "recovering the store percent=%d MiB=%d of=%d MB/s=%.0f seconds_left=%.0f",
                self.percent,
                size >> 20,
                (end - begin) >> 20,
                size / seconds / 1e6,
                (end - offset) * seconds / size,
            )

    def _note_percent(self, percent: int) -> None:
        if percent != self.percent:
            self.percent = percent
            self.on_progress()
