"""Which groups have read so much of what may not be in memory that they must wait: counts of bytes, by group, of five seconds.

One rule: a group that reads what is new is never made to wait. Pure: time comes in, monotonic seconds and ms since 1970. It must not know
pulls. Source: apache/rocketmq ``ColdDataCgCtrService``, which empties its counts on the same beat; thresholds do not adapt to the load here
(``coldCtrStrategyEnable``).
"""

from __future__ import annotations

from typing import Final

from turbopump.broker.groups import SYSTEM_GROUPS
from turbopump.clock import Clock
from turbopump.protocol.bodies.cold_flow import ColdFlowInfo, ColdReading

WINDOW_S: Final = 5.0
FORGET_S: Final = 60.0
"""A group that has read nothing cold for so long is forgotten."""
GROUPS_MAX: Final = 10_000
"""More thresholds are not taken."""
_FREE: Final = frozenset({*SYSTEM_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"})


class ColdFlow:
    """``group_max`` and ``total_max``: bytes in five seconds."""

    def __init__(self, clock: Clock, *, enabled: bool, group_max: int, total_max: int) -> None:
        self.enabled = enabled
        self._clock = clock
        self._group_max = group_max
        self._total_max = total_max
        self._thresholds: dict[str, int] = {}
        self._readings: dict[str, ColdReading] = {}
        self._last: dict[str, float] = {}
        self._total = 0
        self._end = 0.0

    def read(self, group: str, size: int) -> None:
        """A group was given so many bytes of what may not be in memory."""
        if size <= 0 or _is_free(group):
            return
        self._roll()
        now_ms = self._clock.now_ms()
        reading = self._readings.setdefault(group, ColdReading(create_time_mills=now_ms))
        reading.cold_acc += size
        reading.last_cold_read_time_mills = now_ms
        self._last[group] = self._clock.monotonic()
        self._total += size

    def must_wait(self, group: str) -> bool:
        """Whether the group has read enough for now."""
        self._roll()
        reading = self._readings.get(group)
        if not self.enabled or reading is None:
            return False
        return reading.cold_acc >= self._thresholds.get(group, self._group_max) or self._total >= self._total_max

    def set_threshold(self, group: str, size: int) -> bool:
        """Until the next start, so much for this group; False: there are too many."""
        if group not in self._thresholds and len(self._thresholds) >= GROUPS_MAX:
            return False
        self._thresholds[group] = size
        return True

    def remove_threshold(self, group: str) -> None:
        """The usual one again."""
        self._thresholds.pop(group, None)

    def info(self) -> ColdFlowInfo:
        """What an operator is shown."""
        self._roll()
        return ColdFlowInfo(
            runtime_table=dict(self._readings),
            config_table=dict(self._thresholds),
            cg_cold_read_threshold=self._group_max,
            global_cold_read_threshold=self._total_max,
            global_acc=self._total,
        )

    def _roll(self) -> None:
        now = self._clock.monotonic()
        if now < self._end:
            return
        self._end = now + WINDOW_S
        self._total = 0
        for group in [group for group, last in self._last.items() if last <= now - FORGET_S]:
            del self._last[group], self._readings[group]
        for reading in self._readings.values():
            reading.cold_acc = 0


def _is_free(group: str) -> bool:
    return group in _FREE or group.startswith("CID_RMQ_SYS_")
