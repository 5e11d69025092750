"""Parser of ``messageDelayLevel``: ``1s 5s 10s``, one level for each word, counted from 1.

Source: apache/rocketmq ``ScheduleMessageService.parseDelayLevel``. Delayed messages are unknown
here.
"""

from __future__ import annotations

import re
from typing import Final

from turbopump.errors import ConfigError

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX: Final = 1000
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"([0-9]{1,6})([smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delay of each level in ms, from a text such as ``1s 5s 10s``.

    Raise ConfigError if the text is invalid.
    """
    words = text.split()
    if not 1 <= len(words) <= LEVELS_MAX:
        raise ConfigError(
            f"messageDelayLevel={text[:100]!r} has {len(words)} levels: 1 to {LEVELS_MAX} are "
            "expected, such as 1s 5s 10s"
        )
    delays = []
    for word in words:
        found = _LEVEL.fullmatch(word)
        if found is None:
            raise ConfigError(
                f"messageDelayLevel: {word[:40]!r} is not a delay; write a number and s, "
                "m, h or d, such as 30s or 2h"
            )
        delays.append(int(found[1]) * _UNITS_MS[found[2]])
    return tuple(delays)
