"""Who is connected to a broker, as it tells an administrator (203, 204, 328, 345).

One rule: a picture of one moment. It must not know how clients are kept.
"""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from turbopump.protocol.codes import LanguageCode


class Connection(msgspec.Struct, kw_only=True, rename="camel"):
    """One client: its id, its address as the broker sees it, its language and version ordinal."""

    client_id: str | None = None
    client_addr: str | None = None
    language: LanguageCode | None = None
    version: Int32 = 0


class ConsumerConnection(msgspec.Struct, kw_only=True, rename="camel"):
    """A consumer group's members and subscriptions, by topic (203). ``conflicts``: what is wrong
    among them, a sentence each; our brokers' own, absent if nothing is."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    conflicts: tuple[str, ...] | None = None


class ProducerConnection(msgspec.Struct, kw_only=True, rename="camel"):
    """A producer group's members (204)."""

    connection_set: tuple[Connection, ...] = ()


class ProducerInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """One producer; `last_update_timestamp` (ms) is its last heartbeat."""

    client_id: str | None = None
    remote_ip: str | None = msgspec.field(default=None, name="remoteIP")
    language: LanguageCode | None = None
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTableInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """All producers by group (328)."""

    data: dict[str, list[ProducerInfo]] | None = None


class QuerySubscriptionResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """What one group wants of one topic (345)."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class CheckClientRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """A subscription that a client wants checked before it starts (46)."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None
