"""Subscription of a consumer to a topic. It selects messages by tags or by a SQL92 filter.

One rule: a broker compares hashes of tags and may return other messages; the check here is exact.
Only the broker evaluates SQL filters. This module must not know where messages come from. Source:
apache/rocketmq ``FilterAPI.buildSubscriptionData``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from turbopump.client.namespace import wrap
from turbopump.client.setting_rules import TOPIC, SettingRule, is_name, is_text
from turbopump.errors import ConfigError
from turbopump.filtering.sql92 import SqlError, compile_sql
from turbopump.filtering.tag import list_fault
from turbopump.message.java import tags_code
from turbopump.message.message import ReceivedMessage
from turbopump.message.rules import tag_fault, topic_fault
from turbopump.protocol.requests.clients import SubscriptionData

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
_TAGS: Final = SettingRule(is_text, "must be * for all messages, 'A || B', Tags([…]) or Sql(…)")


@dataclass(frozen=True, slots=True)
class Sql:
    """Filter over message properties, which the broker evaluates.

    An example is ``Sql("price > 100 AND region IN ('eu', 'us')")``. docs/guide/filters.md describes
    the language. Apache's brokers need ``enablePropertyFilter=true``.

    Raises ConfigError for an invalid filter.
    """

    expression: str

    def __post_init__(self) -> None:
        if not is_name(self.expression):
            raise ConfigError(
                f'{self.expression!r:.80} is not a SQL92 filter: expected text, as in "price > 100"'
            )
        try:
            compile_sql(self.expression)
        except SqlError as error:
            raise ConfigError(f"{self.expression!r} is not a SQL92 filter: {error}") from None


@dataclass(frozen=True, slots=True, init=False)
class Tags:
    """Set of literal tags, such as ``Tags(["A,B", "new book"])``.

    Raises ConfigError for an empty set, ``*``, a tag with ``||``, and a tag with blanks at its
    ends.
    """

    tags: tuple[str, ...]

    def __init__(self, tags: Iterable[str]) -> None:
        given = (tags,) if isinstance(tags, str) else tuple(tags)
        if not given:
            raise ConfigError("Tags([]) names no tag; write tags='*' for all messages")
        for tag in given:
            fault: str | None = "is no text"
            if is_text(tag):
                fault = tag_fault(tag)
            if fault is not None:
                raise ConfigError(f"the tag {tag!r:.80} {fault}")
        object.__setattr__(self, "tags", tuple(dict.fromkeys(given)))


Wanted = str | Sql | Tags
"""Filter of a topic's messages: ``*`` for all, ``A || B`` for these tags, ``Tags`` or ``Sql``."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of a consumer to a topic.

    - ``tags``: wanted tags. Empty for every message, and for a SQL filter.
    - ``version``: ms since 1970. It grows with each change, and a broker keeps the newest version.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int
    kind: str = TAG

    def wants(self, message: ReceivedMessage) -> bool:
        """Return True if the subscription includes the tag of the message."""
        return not self.tags or message.tags in self.tags

    @property
    def wanted(self) -> Wanted:
        """Filter that ``subscription_to`` turns into this subscription again."""
        if self.kind == SQL92:
            return Sql(self.expression)
        return self.expression if list_fault(self.expression) is None else Tags(self.tags)

    def data(self) -> SubscriptionData:
        """Return the subscription's entry in heartbeats."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=self.tags,
            code_set=tuple(sorted({tags_code(tag) for tag in self.tags})),
            sub_version=self.version,
            expression_type=self.kind,
        )


def subscription_to(topic: str, wanted: Wanted, version: int) -> Subscription:
    """Return a subscription to ``topic`` by tags or by a filter.

    Raises ConfigError for an unusable tag expression.
    """
    if isinstance(wanted, Sql):
        return Subscription(topic, wanted.expression, (), version, SQL92)
    if isinstance(wanted, Tags):
        return Subscription(topic, " || ".join(wanted.tags), wanted.tags, version)
    return tag_subscription(topic, wanted, version)


def topic_subscription(
    namespace: str | None, topic: str, wanted: Wanted, version: int
) -> Subscription:
    """Return a subscription to a topic whose name is given without the namespace.

    Raises ConfigError for an illegal topic name or an unusable tag expression.
    """
    TOPIC.check("topic", topic)
    topic = wrap(namespace, topic)
    fault = topic_fault(topic)
    if fault is not None:
        raise ConfigError(fault)
    return subscription_to(topic, wanted, version)


def first_subscriptions(
    namespace: str | None, topic: str | None, wanted: Wanted, version: int
) -> dict[str, Subscription]:
    """Return the subscriptions with which a consumer starts, by topic.

    There is none without a topic. Raises ConfigError for an illegal topic name, an unusable tag
    expression, and tags without a topic.
    """
    if topic is None:
        if wanted not in ("", ALL):
            raise ConfigError(
                f"tags={wanted!r:.80} without topic=… select no messages: pass the topic "
                "too, or call subscribe(topic, tags)"
            )
        return {}
    subscription = topic_subscription(namespace, topic, wanted, version)
    return {subscription.topic: subscription}


def tag_subscription(topic: str, expression: str, version: int) -> Subscription:
    """Return a subscription by tags, such as ``A || B || C``.

    ``*`` or an empty text means all messages. Raises ConfigError if there is no tag, or if the text
    looks like a filter or another kind of list, which would match nothing.
    """
    _TAGS.check("tags", expression)
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL, (), version)
    tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if not tags:
        raise ConfigError(
            f"the tag expression {expression!r} names no tag; write * for all, or TagA || TagB"
        )
    if (fault := list_fault(expression)) is not None:
        raise ConfigError(f"tags={fault}; Tags([{expression!r:.200}]) takes it literally")
    return Subscription(topic, expression, tags, version)
