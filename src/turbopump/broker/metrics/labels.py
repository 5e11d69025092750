"""Values of labels that several metrics of a broker share, in Apache's words."""

from __future__ import annotations

from typing import Final

from turbopump.message.rules import is_system_topic

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def flag(value: bool) -> str:
    """Return the text of a boolean label."""
    return "true" if value else "false"


def is_system(topic: str, group: str = "") -> str:
    """Return the label ``is_system``: true if the topic or the group belongs to the system.

    RocketMQ: ``BrokerMetricsManager.isSystem``.
    """
    return flag(is_system_topic(topic) or group.upper().startswith(SYSTEM_GROUP_PREFIX))
