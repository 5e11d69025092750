"""Where a message with a delay level goes: into the schedule topic, with its real place in its
properties.

Source: apache/rocketmq ``HookUtils.transformDelayLevelMessage``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.broker.detours import Detour, Parcel
from turbopump.message.delay_levels import SCHEDULE_TOPIC, DelayLevels, delay_level
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    decode_properties,
    encode_properties,
)
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendRequest
from turbopump.remoting.router import Response

_TIMERS: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def scheduled(parcel: Parcel, level: int, levels: DelayLevels) -> Parcel:
    """The parcel on its way through ``level``, 1 or more; the highest there is stands for those
    above. A level goes before a timer."""
    level = min(level, levels.highest)
    properties = decode_properties(parcel.properties)
    for name in _TIMERS:
        properties.pop(name, None)
    properties.update(
        {
            DELAY_TIME_LEVEL: str(level),
            REAL_TOPIC: parcel.topic,
            REAL_QUEUE_ID: str(parcel.queue_id),
        }
    )
    return msgspec.structs.replace(
        parcel,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=encode_properties(properties),
        recall_handle=None,
    )


def by_level(levels: DelayLevels) -> Detour:
    """The rule for DELAY; a message that another rule has sent elsewhere stays there."""

    def rule(request: SendRequest, parcel: Parcel) -> Parcel | Response:
        if parcel.topic != request.topic:
            return parcel
        try:
            level = delay_level(parcel.properties)
        except ValueError as error:
            return Response(
                code=ResponseCode.MESSAGE_ILLEGAL,
                remark=f"{error}: send a number from 1 to {levels.highest} (messageDelayLevel of "
                "the broker), or 0 for no delay",
            )
        return scheduled(parcel, level, levels) if level > 0 else parcel

    return rule
