"""When a message is to be delivered, as properties: TIMER_DELIVER_MS, TIMER_DELAY_SEC or
TIMER_DELAY_MS.

Source: apache/rocketmq ``Message.setDeliverTimeMs``, ``setDelayTimeSec``, ``setDelayTimeMs``.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final

from turbopump.errors import MessageError
from turbopump.message.properties import TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS

_EARLIEST_MS: Final = 10**11
"""March 1973: a smaller number is a time in seconds, or a delay."""
_LATEST_MS: Final = 2**62


def time_properties(
    deliver_at: int | datetime | None, delay: float | timedelta | None
) -> dict[str, str]:
    """The property for the one of the two that is given: ms since 1970 UTC or a datetime; seconds
    or a timedelta. Raises MessageError."""
    if deliver_at is not None:
        at = (
            math.ceil(deliver_at.timestamp() * 1000)
            if isinstance(deliver_at, datetime)
            else deliver_at
        )
        if at.__class__ is not int or not _EARLIEST_MS <= at < _LATEST_MS:
            raise MessageError(
                f"deliver_at={deliver_at!r} is no time: ms since 1970 UTC, or a "
                "datetime, is expected"
            )
        return {TIMER_DELIVER_MS: str(at)}
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if (
        not isinstance(seconds, int | float)
        or isinstance(seconds, bool)
        or not 0 <= seconds < _LATEST_MS / 1000
    ):
        raise MessageError(
            f"delay={delay!r} is no delay: seconds from 0 on, or a timedelta, are expected"
        )
    milliseconds = math.ceil(round(seconds * 1_000_000) / 1000)
    if milliseconds % 1000 == 0:
        return {TIMER_DELAY_SEC: str(milliseconds // 1000)}
    return {TIMER_DELAY_MS: str(milliseconds)}
