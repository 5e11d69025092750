"""Clients and brokers knowing of each other: 34 HEART_BEAT, 35 UNREGISTER_CLIENT, 38
GET_CONSUMER_LIST_BY_GROUP, 40 NOTIFY_CONSUMER_IDS_CHANGED, 46 CHECK_CLIENT_CONFIG."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class HeartbeatReply(Reply, kw_only=True):
    """What a 5.x broker says about the second heartbeat form."""

    is_support_heart_beat_v2: bool | None = msgspec.field(
        default=None, name="IS_SUPPORT_HEART_BEAT_V2"
    )
    is_sub_change: bool | None = msgspec.field(default=None, name="IS_SUB_CHANGE")


class Heartbeat(Request[HeartbeatReply], kw_only=True):
    """A client's groups and subscriptions; the body is ``bodies.heartbeat.HeartbeatData``."""

    code: ClassVar[int] = RequestCode.HEART_BEAT
    reply: ClassVar[type[HeartbeatReply]] = HeartbeatReply


class UnregisterClient(Request[None], kw_only=True):
    """A client leaves its producer group, its consumer group, or both."""

    code: ClassVar[int] = RequestCode.UNREGISTER_CLIENT

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(Request[None], kw_only=True):
    """The client ids of a group; the body of the answer is ``bodies.consumers.ConsumerIdList``."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


class NotifyConsumerIdsChanged(Request[None], kw_only=True):
    """From a broker to a consumer, oneway: your group has changed, balance again."""

    code: ClassVar[int] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


class CheckClientConfig(Request[None], kw_only=True):
    """Will this subscription be understood? The body is
    ``bodies.connections.CheckClientRequestBody``."""

    code: ClassVar[int] = RequestCode.CHECK_CLIENT_CONFIG
