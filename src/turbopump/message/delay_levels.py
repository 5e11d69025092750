"""Delay levels: which one a message asks for, and when it is due.

A delayed message waits in the schedule topic, in the queue of its level (level 3 in queue 2), with
the property DELAY; the tagsCode of its unit is the time of its delivery. Source: apache/rocketmq
``ScheduleMessageService``, ``CommitLog.checkMessageAndReturnSize``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from turbopump.config.delay_levels import DEFAULT_LEVELS, parse_delay_levels
from turbopump.message.properties import DELAY_TIME_LEVEL, property_value

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


def delay_level(properties: str) -> int:
    """The level that a property text asks for, 0 if none. Raises ValueError where DELAY is no
    number of up to nine digits."""
    text = property_value(properties, DELAY_TIME_LEVEL)
    if text is None:
        return 0
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"DELAY={text[:40]!r} is no delay level")
    return int(text)


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """``delays_ms[0]`` is the delay of level 1."""

    delays_ms: tuple[int, ...] = parse_delay_levels(DEFAULT_LEVELS)

    @property
    def highest(self) -> int:
        return len(self.delays_ms)

    def due_ms(self, properties: str, stored_ms: int) -> int | None:
        """When a message that waits since ``stored_ms`` is to be delivered; None if it asks for no
        level."""
        try:
            level = delay_level(properties)
        except ValueError:
            return None
        return stored_ms + self.delays_ms[min(level, self.highest) - 1] if level > 0 else None
