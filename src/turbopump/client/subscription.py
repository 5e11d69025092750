"""What a consumer wants of a topic: an expression of tags, and the exact test of a message against it.

One rule: a broker compares hashes of tags and may let a stranger through; what is decided here is exact. It must not know where
messages come from. Source: apache/rocketmq ``FilterAPI.buildSubscriptionData``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turbopump.errors import ConfigError
from turbopump.message.java_hash import tags_code
from turbopump.message.message import ReceivedMessage
from turbopump.protocol.bodies.heartbeat import SubscriptionData

ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """``tags`` empty means every message. ``version`` in ms grows with each change, so that a broker keeps the newest."""

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int

    def wants(self, message: ReceivedMessage) -> bool:
        """Whether the message's tag is one of ours."""
        return not self.tags or message.tags in self.tags

    def data(self) -> SubscriptionData:
        """As a heartbeat carries it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=self.tags,
            code_set=tuple(sorted({tags_code(tag) for tag in self.tags})),
            sub_version=self.version,
        )


def tag_subscription(topic: str, expression: str, version: int) -> Subscription:
    """``*`` (or nothing) for all, ``A || B || C`` for some. Raises ConfigError if no tag is in it."""
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL, (), version)
    tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if not tags:
        raise ConfigError(f"the tag expression {expression!r} names no tag; write * for all, or TagA || TagB")
    return Subscription(topic, expression, tags, version)
