"""Which groups have read so much of what may not be in memory that they must wait: bytes by group,
in windows of five seconds.

A group that reads only new messages never waits. ``adapts`` changes the thresholds that nobody has
set (``coldCtrStrategyEnable``): half as much again for a group that used up its own, a fifth less
for three groups at a time when all together read too much. No I/O or loop; time comes in.
Source: apache/rocketmq ``ColdDataCgCtrService``, which empties its counts at the same interval, and
``SimpleColdCtrStrategy``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from turbopump.broker.groups import SYSTEM_GROUPS
from turbopump.clock import Clock
from turbopump.config.setting import LONG_MAX
from turbopump.protocol.requests.statistics import ColdFlowInfo, ColdReading

WINDOW_S: Final = 5.0
FORGET_S: Final = 60.0
"""A group that has read nothing cold for so long is forgotten."""
GROUPS_MAX: Final = 10_000
"""More thresholds are not taken."""
RAISED, LOWERED = 1.5, 0.8
LOWERED_AT_ONCE: Final = 3
ADAPTIVE: Final = "||adaptive"
"""Behind the name of a group whose threshold nobody has set, where an operator is shown it. Groups
have no such names."""
_FREE: Final = frozenset(
    {*SYSTEM_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"}
)


@dataclass(slots=True, eq=False)
class ColdFlow:
    """``group_max`` and ``total_max``: bytes in five seconds."""

    clock: Clock
    _: KW_ONLY
    enabled: bool
    group_max: int
    total_max: int
    adapts: bool = False
    _thresholds: dict[str, int] = field(default_factory=dict)
    _adapted: dict[str, int] = field(default_factory=dict)
    _readings: dict[str, ColdReading] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    _total: int = 0
    _end: float = 0.0

    def read(self, group: str, size: int) -> None:
        """A group was given so many bytes of what may not be in memory."""
        if size <= 0 or _is_free(group):
            return
        self._roll()
        now_ms = self.clock.now_ms()
        reading = self._readings.setdefault(group, ColdReading(create_time_mills=now_ms))
        reading.cold_acc += size
        reading.last_cold_read_time_mills = now_ms
        self._last[group] = self.clock.monotonic()
        self._total += size

    def must_wait(self, group: str) -> bool:
        """Whether the group has read enough for now."""
        self._roll()
        reading = self._readings.get(group)
        if not self.enabled or reading is None:
            return False
        return reading.cold_acc >= self._threshold(group) or self._total >= self.total_max

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
            config_table={
                **self._thresholds,
                **{f"{group}{ADAPTIVE}": size for group, size in self._adapted.items()},
            },
            cg_cold_read_threshold=self.group_max,
            global_cold_read_threshold=self.total_max,
            global_acc=self._total,
        )

    def _roll(self) -> None:
        now = self.clock.monotonic()
        if now < self._end:
            return
        if self.adapts and self._end:
            self._adapt()
        self._end = now + WINDOW_S
        self._total = 0
        for group in [group for group, last in self._last.items() if last <= now - FORGET_S]:
            del self._last[group], self._readings[group]
            self._adapted.pop(group, None)
        for reading in self._readings.values():
            reading.cold_acc = 0

    def _adapt(self) -> None:
        if self._total <= self.total_max:
            for group, reading in self._readings.items():
                if group not in self._thresholds and reading.cold_acc >= self._threshold(group):
                    self._adapted[group] = min(int(self._threshold(group) * RAISED), LONG_MAX)
            return
        adapted = [group for group in self._adapted if group not in self._thresholds]
        for group in sorted(adapted, key=self._threshold, reverse=True)[:LOWERED_AT_ONCE]:
            self._adapted[group] = max(int(self._adapted[group] * LOWERED), self.group_max)

    def _threshold(self, group: str) -> int:
        return self._thresholds.get(group, self._adapted.get(group, self.group_max))


def _is_free(group: str) -> bool:
    return group in _FREE or group.startswith("CID_RMQ_SYS_")
