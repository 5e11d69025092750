"""Delivery time of a delayed message, as properties: TIMER_DELIVER_MS, TIMER_DELAY_SEC or
TIMER_DELAY_MS.

Source: apache/rocketmq ``Message.setDeliverTimeMs``, ``setDelayTimeSec``, ``setDelayTimeMs``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from turbopump.config.delay_levels import DEFAULT_LEVELS, parse_delay_levels
from turbopump.errors import MessageError
from turbopump.message import properties as names

_EARLIEST_MS: Final = 10**11
"""March 1973 in ms. A smaller number is a time in seconds, or a delay."""
_LATEST_MS: Final = 2**62


def time_properties(
    deliver_at: int | datetime | None, delay: float | timedelta | None
) -> dict[str, str]:
    """Return the property with which a message asks for a delivery time or a delay.

    - ``deliver_at``: ms since 1970 UTC, or a datetime.
    - ``delay``: seconds, or a timedelta.

    Raise MessageError if the value is invalid.
    """
    if deliver_at is not None:
        at = deliver_at
        if isinstance(at, datetime):
            at = math.ceil(at.timestamp() * 1000)
        if at.__class__ is not int or not _EARLIEST_MS <= at < _LATEST_MS:
            raise MessageError(
                f"deliver_at={deliver_at!r} is not a time: expected ms since 1970 UTC, or "
                "a datetime"
            )
        return {names.TIMER_DELIVER_MS: str(at)}
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if (
        not isinstance(seconds, int | float)
        or isinstance(seconds, bool)
        or not 0 <= seconds < _LATEST_MS / 1000
    ):
        raise MessageError(
            f"delay={delay!r} is not a delay: expected seconds from 0 on, or a timedelta"
        )
    milliseconds = math.ceil(round(seconds * 1_000_000) / 1000)
    if milliseconds % 1000 == 0:
        return {names.TIMER_DELAY_SEC: str(milliseconds // 1000)}
    return {names.TIMER_DELAY_MS: str(milliseconds)}


# Delay levels: the level of a message, and its delivery time. A delayed message waits in the
# schedule topic, in the queue of its level (level 3 in queue 2), with the property DELAY. The
# tagsCode of its unit is its delivery time. Source: apache/rocketmq ``ScheduleMessageService``,
# ``CommitLog.checkMessageAndReturnSize``.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


def delay_level(properties: str) -> int:
    """Return the delay level in a message's property text, or 0 if there is none.

    Raise ValueError if the property DELAY is not a number of up to nine digits.
    """
    text = names.property_value(properties, names.DELAY_TIME_LEVEL)
    if text is None:
        return 0
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"DELAY={text[:40]!r} is not a delay level")
    return int(text)


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """Table of delay levels. ``delays_ms[0]`` is the delay of level 1."""

    delays_ms: tuple[int, ...] = parse_delay_levels(DEFAULT_LEVELS)

    @property
    def highest(self) -> int:
        return len(self.delays_ms)

    def lasting(self, wait_ms: int) -> int:
        """Return the first level whose delay is at least ``wait_ms``, or the highest level."""
        found = (level for level, delay in enumerate(self.delays_ms, 1) if delay >= wait_ms)
        return next(found, self.highest)

    def due_ms(self, properties: str, stored_ms: int) -> int | None:
        """Return the delivery time of a message stored at ``stored_ms``, or None if the message has
        no delay level."""
        try:
            level = delay_level(properties)
        except ValueError:
            return None
        return stored_ms + self.delays_ms[min(level, self.highest) - 1] if level > 0 else None
