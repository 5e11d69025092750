"""Labels that several metrics of a broker share, and their values, in Apache's words."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from turbopump.message.rules import SYSTEM_GROUP_PREFIX, is_system_topic

STORAGE: Final = ("storage_type", "storage_medium")
LOCAL_DISK: Final = ("local", "disk")
"""Values of the labels ``STORAGE``."""


def flag(value: bool) -> str:
    """Return the text of a boolean label."""
    return "true" if value else "false"


class SystemLabel:
    """Label ``is_system``: true if the topic or the group belongs to the system.

    ``topics`` returns the broker's own topics, such as that of its cluster. RocketMQ:
    ``BrokerMetricsManager.isSystem``.
    """

    def __init__(self, topics: Callable[[], Collection[str]] = frozenset) -> None:
        self._topics = topics

    def __call__(self, topic: str, group: str = "") -> str:
        """Return the label of a topic, a group, or both. An empty name does not count."""
        own = is_system_topic(topic) or topic in self._topics()
        return flag(own or group.upper().startswith(SYSTEM_GROUP_PREFIX))
