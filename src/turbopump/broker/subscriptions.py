"""Reader of consumers' subscriptions. It checks each subscription and compiles a message filter
from it.

Source: apache/rocketmq ``SubscriptionData``, ``ConsumerFilterData``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from turbopump.filtering.sql92 import SqlError, compile_sql
from turbopump.filtering.tag import code_filter, parse_tags, tag_codes
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.clients import ConsumerData, SubscriptionData
from turbopump.remoting.response import Refusal, refusal
from turbopump.store.queues.matching import PropertyFilter

TAG: Final = "TAG"
SQL92: Final = "SQL92"
"""Kinds of subscription expressions."""

Wants = tuple[tuple[str, str, str], ...]
"""Subscriptions of one member, as sorted tuples of topic, kind and expression. Equivalent
subscriptions are equal tuples."""

SUBSCRIPTIONS_MAX: Final = 10_000
"""Maximum number of topics to which one consumer may subscribe."""

ALL_CODES: Final = frozenset[int]()


class SubscriptionFilter(msgspec.Struct, gc=False):
    """Filter of the messages of one topic for a consumer group.

    - ``codes``: the tag codes, one of which a message must have. Without codes every tag passes.
    - ``matches``: a filter by properties, or None. A message must also match this filter.
    - ``fault``: the reason why no message can be returned, or None.
    """

    data: SubscriptionData
    codes: frozenset[int]
    matches: PropertyFilter | None = None
    fault: str | None = None

    @property
    def accept(self) -> object:
        return code_filter(self.codes)


def subscription_keys(subscriptions: Iterable[SubscriptionData]) -> Wants:
    """Return a consumer's subscriptions in a comparable form.

    The retry topic is left out, because members send it to some brokers only.
    """
    found = {
        (one.topic, one.expression_type or TAG, _expression(one))
        for one in subscriptions
        if one.topic and not one.topic.startswith(RETRY_PREFIX)
    }
    return tuple(sorted(found))


def _expression(data: SubscriptionData) -> str:
    if data.expression_type not in (None, "", TAG):
        return (data.sub_string or "").strip()
    return " || ".join(sorted(frozenset(data.tags_set) or parse_tags(data.sub_string))) or "*"


def read_subscriptions(data: ConsumerData) -> Generator[None, None, dict[str, SubscriptionFilter]]:
    """Return the filters for all subscriptions of a consumer, by topic.

    The generator yields after each subscription, so that the caller can pause. Raises ValueError
    for an invalid tag expression, or for more than SUBSCRIPTIONS_MAX topics.
    """
    if len(data.subscription_data_set) > SUBSCRIPTIONS_MAX:
        raise ValueError(
            f"{len(data.subscription_data_set)} subscriptions of one consumer are too many; at "
            f"most {SUBSCRIPTIONS_MAX} topics can be subscribed"
        )
    found: dict[str, SubscriptionFilter] = {}
    for subscription in data.subscription_data_set:
        if subscription.topic:
            found[subscription.topic] = read_subscription(subscription)
        yield
    return found


def read_subscription(data: SubscriptionData) -> SubscriptionFilter:
    """Return the filter for one subscription of a consumer.

    C++ clients send no tag codes, so the codes are computed from the tags or the expression. Raises
    ValueError for an invalid tag expression. An invalid property filter becomes the ``fault`` of
    the result.
    """
    if data.expression_type in (None, "", TAG):
        tags = frozenset(data.tags_set) or parse_tags(data.sub_string)
        codes = tag_codes(tags) | frozenset(data.code_set)
        return SubscriptionFilter(data, codes or ALL_CODES)
    if data.expression_type == SQL92:
        try:
            return SubscriptionFilter(data, frozenset(), matches=compile_sql(data.sub_string or ""))
        except SqlError as error:
            return SubscriptionFilter(data, frozenset(), fault=str(error))
    fault = f"expression type {data.expression_type!r} is unknown; there are TAG and SQL92"
    return SubscriptionFilter(data, frozenset(), fault=fault)


def no_property_filter(kind: str | None) -> Refusal:
    """Return the refusal of a filter by properties, for a broker with
    ``enablePropertyFilter=false``."""
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind} "
        "(enablePropertyFilter=false)",
    )
