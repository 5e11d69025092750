"""Noticing that the loop stood still: a disk that blocks a system call, a machine without a free
core. Clients then see time-outs that no other line in the log explains (a Java client closes its
connection when one request takes over 3 s)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.25
STALL_S: Final = 1.0


class StallWatch:
    """``look`` is to be called every ``LOOK_INTERVAL_S``; when it comes over ``STALL_S`` late it
    logs and tells ``on_stall`` the seconds. ``now`` in monotonic seconds."""

    def __init__(
        self, now: Callable[[], float], on_stall: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        self._now = now
        self._on_stall = on_stall
        self._last = now()
        self.stalls = 0
        self.longest = 0.0

    def look(self) -> None:
        now = self._now()
        late = now - self._last - LOOK_INTERVAL_S
        self._last = now
        if late > STALL_S:
            self.stalls += 1
            self.longest = max(self.longest, late)
            log.warning(
                "the broker stood still seconds=%.1f: check the disk's latency and the "
                "load of this machine",
                late,
            )
            self._on_stall(late)
