"""Limit on the cold data that each consumer group may read in five seconds.

Cold data are messages that may no longer be in memory. A group that reads only new messages never
waits. The module has no I/O and no event loop. Source: apache/rocketmq ``ColdDataCgCtrService``,
which clears its counts at the same interval. Its strategies, which change default thresholds, are
not implemented.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from turbopump.clock import Clock
from turbopump.message.rules import is_system_group
from turbopump.protocol.requests.statistics import ColdFlowInfo, ColdReading

WINDOW_S: Final = 5.0
FORGET_S: Final = 60.0
"""Seconds without a cold read after which a group is forgotten."""
GROUPS_MAX: Final = 10_000
"""Maximum number of groups with a threshold of their own."""


@dataclass(slots=True, eq=False)
class ColdFlow:
    """Counter of the cold bytes that consumer groups read, with a limit for each group.

    - ``group_max``: the default limit for one group, in bytes per five seconds.
    - ``total_max``: the limit for all groups together, in bytes per five seconds.
    """

    clock: Clock
    _: KW_ONLY
    enabled: bool
    group_max: int
    total_max: int
    _thresholds: dict[str, int] = field(default_factory=dict)
    _readings: dict[str, ColdReading] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    _total: int = 0
    _end: float = 0.0

    def note_read(self, group: str, size: int) -> None:
        """Count bytes that a group has read. The bytes are cold: they may not have been in
        memory."""
        if size <= 0 or is_system_group(group):
            return
        self._begin_window()
        now_ms = self.clock.now_ms()
        reading = self._readings.setdefault(group, ColdReading(create_time_mills=now_ms))
        reading.cold_acc += size
        reading.last_cold_read_time_mills = now_ms
        self._last[group] = self.clock.monotonic()
        self._total += size

    def must_wait(self, group: str) -> bool:
        """Return True if the cold reads of this window have reached a limit, so that the group must
        wait."""
        self._begin_window()
        reading = self._readings.get(group)
        if not self.enabled or reading is None:
            return False
        threshold = self._thresholds.get(group, self.group_max)
        return reading.cold_acc >= threshold or self._total >= self.total_max

    def set_threshold(self, group: str, size: int) -> bool:
        """Limit the cold bytes that a group may read per window, until the broker stops.

        Return False if too many groups have a limit of their own already.
        """
        if group not in self._thresholds and len(self._thresholds) >= GROUPS_MAX:
            return False
        self._thresholds[group] = size
        return True

    def remove_threshold(self, group: str) -> None:
        """Restore the default limit of cold bytes for a group."""
        self._thresholds.pop(group, None)

    def info(self) -> ColdFlowInfo:
        """Return the counts and limits for an operator."""
        self._begin_window()
        return ColdFlowInfo(
            runtime_table=dict(self._readings),
            config_table=dict(self._thresholds),
            cg_cold_read_threshold=self.group_max,
            global_cold_read_threshold=self.total_max,
            global_acc=self._total,
        )

    def _begin_window(self) -> None:
        now = self.clock.monotonic()
        if now < self._end:
            return
        self._end = now + WINDOW_S
        self._total = 0
        for group in [group for group, last in self._last.items() if last <= now - FORGET_S]:
            del self._last[group], self._readings[group]
        for reading in self._readings.values():
            reading.cold_acc = 0
