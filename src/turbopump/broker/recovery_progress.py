"""Telling how far a long recovery is: the broker serves nobody meanwhile, and who waits for it
should see why and for how long.

The lines have a logger of their own (``LOGGER``): the command line shows them on standard error
wherever the rest of the log goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LOGGER: Final = __name__
log = logging.getLogger(LOGGER)

FIRST_LINE_S: Final = 1.0
LINE_EVERY_S: Final = 3.0


class RecoveryProgress:
    """``reached`` is for ``MessageStore.open``. ``now`` in monotonic seconds. Nothing is said of a
    recovery of under a second."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begin: int | None = None
        self._begun = self._next_line = 0.0
        self._said = False

    def reached(self, offset: int, end: int) -> None:
        """Reading of the log begins at ``offset``, the first time, or has come to it, and will end
        at about ``end``."""
        now, begin = self._now(), self._begin
        if begin is None or offset <= begin:  # it may begin anew
            self._begin, self._begun, self._next_line = offset, now, now + FIRST_LINE_S
            return
        size, seconds = offset - begin, now - self._begun
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
            self._said, self._next_line = True, now + LINE_EVERY_S
            log.info(
                "recovering the store percent=%d MiB=%d of=%d MB/s=%.0f seconds_left=%.0f",
                100 * size // (end - begin),
                size >> 20,
                (end - begin) >> 20,
                size / seconds / 1e6,
                (end - offset) * seconds / size,
            )
