"""Subscription of a consumer to a topic, by tags or a SQL92 filter over properties; and the exact
test of a message against it.

One rule: a broker compares hashes of tags and may let a stranger through; what is decided here is
exact. A filter is the broker's alone. This module must not know where messages come from. Source:
apache/rocketmq ``FilterAPI.buildSubscriptionData``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from turbopump.client.namespace import wrap
from turbopump.client.setting_rules import TOPIC, SettingRule, is_name
from turbopump.errors import ConfigError
from turbopump.filtering.sql92 import SqlError, compile_sql
from turbopump.filtering.tag import list_fault
from turbopump.message.java import tags_code
from turbopump.message.message import ReceivedMessage
from turbopump.message.rules import is_unicode, tag_fault, topic_fault
from turbopump.protocol.requests.clients import SubscriptionData

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
_TAGS: Final = SettingRule(
    lambda value: isinstance(value, str) and is_unicode(value),
    "must be * for all messages, 'A || B', Tags([…]) or Sql(…)",
)


@dataclass(frozen=True, slots=True)
class Sql:
    """A filter over message properties, judged by the broker: ``Sql("price > 100 AND region IN
    ('eu', 'us')")``; docs/guide/filters.md has the language. Raises ConfigError if it is no such
    filter. Apache's brokers need ``enablePropertyFilter=true``."""

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
    """Tags, each taken literally: ``Tags(["A,B", "new book"])``. Raises ConfigError for what no
    subscription can name: nothing, ``*``, ``||``, blanks at the ends."""

    tags: tuple[str, ...]

    def __init__(self, tags: Iterable[str]) -> None:
        given = (tags,) if isinstance(tags, str) else tuple(tags)
        if not given:
            raise ConfigError("Tags([]) names no tag; write tags='*' for all messages")
        for tag in given:
            fault = tag_fault(tag) if isinstance(tag, str) and is_unicode(tag) else "is no text"
            if fault is not None:
                raise ConfigError(f"the tag {tag!r:.80} {fault}")
        object.__setattr__(self, "tags", tuple(dict.fromkeys(given)))


Wanted = str | Sql | Tags
"""Messages to take of a topic: ``*`` for all, ``A || B`` for these tags, ``Tags`` or ``Sql``."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """``tags`` empty means every message. ``version`` in ms grows with each change, so that a
    broker keeps the newest."""

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int
    kind: str = TAG

    def wants(self, message: ReceivedMessage) -> bool:
        """Return True if the message's tag is one of ours."""
        return not self.tags or message.tags in self.tags

    @property
    def wanted(self) -> Wanted:
        """Argument of which ``subscription_to`` makes this subscription."""
        if self.kind == SQL92:
            return Sql(self.expression)
        return self.expression if list_fault(self.expression) is None else Tags(self.tags)

    def data(self) -> SubscriptionData:
        """Return the subscription as a heartbeat carries it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=self.tags,
            code_set=tuple(sorted({tags_code(tag) for tag in self.tags})),
            sub_version=self.version,
            expression_type=self.kind,
        )


def subscription_to(topic: str, wanted: Wanted, version: int) -> Subscription:
    """To messages with certain tags, or to what a filter takes. Raises ConfigError."""
    if isinstance(wanted, Sql):
        return Subscription(topic, wanted.expression, (), version, SQL92)
    if isinstance(wanted, Tags):
        return Subscription(topic, " || ".join(wanted.tags), wanted.tags, version)
    return tag_subscription(topic, wanted, version)


def topic_subscription(
    namespace: str | None, topic: str, wanted: Wanted, version: int
) -> Subscription:
    """To a topic as the user names it. Raises ConfigError if there can be no such topic."""
    TOPIC.check("topic", topic)
    topic = wrap(namespace, topic)
    fault = topic_fault(topic)
    if fault is not None:
        raise ConfigError(fault)
    return subscription_to(topic, wanted, version)


def first_subscriptions(
    namespace: str | None, topic: str | None, wanted: Wanted, version: int
) -> dict[str, Subscription]:
    """By topic, what a consumer is to begin with; none without a topic. Raises ConfigError, also
    for tags that are of no topic."""
    if topic is None:
        if wanted not in ("", ALL):
            raise ConfigError(
                f"tags={wanted!r:.80} without topic=… choose among no messages: give the topic, "
                "too, or subscribe(topic, tags)"
            )
        return {}
    subscription = topic_subscription(namespace, topic, wanted, version)
    return {subscription.topic: subscription}


def tag_subscription(topic: str, expression: str, version: int) -> Subscription:
    """``*`` (or nothing) for all, ``A || B || C`` for some. Raises ConfigError if no tag is in
    it, or something that looks like a filter or another list: it would match nothing."""
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
