"""Requests between clients and brokers about the members of groups.

- 34 HEART_BEAT, 35 UNREGISTER_CLIENT, 46 CHECK_CLIENT_CONFIG
- 38 GET_CONSUMER_LIST_BY_GROUP, 40 NOTIFY_CONSUMER_IDS_CHANGED
"""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import Final

import msgspec

from turbopump.errors import ProtocolError
from turbopump.message.java import Int32, Int64
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class HeartbeatReply(Reply, kw_only=True):
    """Reply of a 5.x broker to a heartbeat.

    The fields are for clients that send the second version of the heartbeat.
    """

    is_support_heart_beat_v2: bool | None = msgspec.field(
        default=None, name="IS_SUPPORT_HEART_BEAT_V2"
    )
    is_sub_change: bool | None = msgspec.field(default=None, name="IS_SUB_CHANGE")


class UnregisterClient(Request[None], kw_only=True):
    """Remove a client from its producer group, its consumer group, or both."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class NotifyConsumerIdsChanged(Request[None], kw_only=True):
    """Tell a consumer that the members of its group have changed.

    The broker sends this one-way. The consumer then allocates the queues again.
    """

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


# Body of a heartbeat (34): the client's id, producer groups and consumer groups. A group that is
# missing in it has been left. Enums arrive as names (Java) or ordinals (C++).
class ConsumeType(StrEnum):
    """Way in which a consumer gets messages.

    ACTIVELY means that the application pulls, PASSIVELY that the client library pulls for it.
    """

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Delivery model of a group: each message goes to all members, or to only one member."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Position in a queue at which a group without offsets starts.

    The three MIN/MAX values are deprecated. They stay for their ordinals.
    """

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Subscription of a group to one topic.

    - `sub_string`: the expression as written (`*`, `A || B`, an SQL text).
    - `tags_set`, `code_set`: tags and their Java hash codes. The client derives both from the
      expression.
    - `sub_version`: time of the last change, in ms.
    """

    class_filter_mode: bool = False
    topic: str | None = None
    sub_string: str | None = None
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()
    sub_version: Int64 = 0
    expression_type: str | None = "TAG"


class ProducerData(msgspec.Struct, kw_only=True, rename="camel"):
    """Producer group in a client's heartbeat."""

    group_name: str | None = None


class ConsumerData(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Consumer group in a client's heartbeat, with all subscriptions of the group.

    Three fields are ours; Apache's brokers ignore them.

    - ``max_reconsume_times``: retries before a message becomes a dead letter. None means the
      group's setting.
    - ``started_at``: start time of this member in ms since 1970. The settings of the latest
      member count.
    - ``ordered``: True if the member consumes in order, None if unknown.
    """

    group_name: str | None = None
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    started_at: Int64 | None = None
    ordered: bool | None = None


class HeartbeatData(msgspec.Struct, kw_only=True, rename="camel"):
    """Heartbeat of a client, with all its producer and consumer groups.

    A `heartbeat_fingerprint` other than 0 marks the second version of the heartbeat. If
    `without_sub` is then true, the subscriptions are those of the last heartbeat with this
    fingerprint.
    """

    client_id: str | None = msgspec.field(default=None, name="clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


class Heartbeat(Request[HeartbeatReply], kw_only=True):
    """Send the groups and subscriptions of a client to a broker."""

    code = RequestCode.HEART_BEAT
    body = HeartbeatData


class HeartbeatInPieces(msgspec.Struct, kw_only=True, rename="camel"):
    """Large heartbeat whose consumer groups are still JSON text.

    `fastjson.decode` reads each of them as a `ConsumerData`. This is for heartbeats of thousands of
    groups in standard JSON.
    """

    client_id: str | None = msgspec.field(default=None, name="clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[msgspec.Raw, ...] = ()
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


LARGE_HEARTBEAT: Final = 256 * 1024
"""Size in bytes from which a heartbeat's groups are decoded one by one. Decoding 1,000 groups
together takes 3 ms."""


def read_heartbeat(body: bytes) -> HeartbeatData | HeartbeatInPieces:
    """Decode the body of a heartbeat, and leave the groups of a large body as JSON text.

    Raise FastjsonError if the body cannot be decoded.
    """
    if len(body) > LARGE_HEARTBEAT:
        with contextlib.suppress(ProtocolError):  # not standard JSON, or not a heartbeat
            return fastjson.decode(body, HeartbeatInPieces)
    return fastjson.decode_request(body or b"{}", HeartbeatData)


MEMBERS_MAX: Final = 65_536
"""Maximum number of group members among whom a client allocates queues. The consistent-hash
strategy needs 10 µs for each member."""


class ConsumerIdList(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_CONSUMER_LIST_BY_GROUP (38) with the client ids of a group's members."""

    consumer_id_list: list[str] = []


class GetConsumerListByGroup(Request[ConsumerIdList], kw_only=True):
    """Ask a broker for the client ids of a group's members."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    consumer_group: str


class CheckClientRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Subscription that a broker checks for a client before the client starts (46)."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class CheckClientConfig(Request[None], kw_only=True):
    """Ask a broker to check that it understands a subscription."""

    code = RequestCode.CHECK_CLIENT_CONFIG
    body = CheckClientRequestBody
