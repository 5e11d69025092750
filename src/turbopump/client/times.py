"""Times that callers give: ms since 1970, or datetimes."""

from __future__ import annotations

from datetime import datetime

Time = int | datetime
"""Time in ms since 1970 UTC, or a datetime."""


def as_ms(time: Time | None, default: int = 0) -> int:
    """Convert a time to ms since 1970. Return ``default`` for None."""
    if time is None:
        return default
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time
