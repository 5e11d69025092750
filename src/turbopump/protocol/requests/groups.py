"""Requests about the consumer groups of a broker.

- 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP for one group, 225 for a list
- 207 DELETE_SUBSCRIPTIONGROUP
- 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 352 GET_SUBSCRIPTIONGROUP_CONFIG
- 353 UPDATE_AND_GET_GROUP_FORBIDDEN
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request
from turbopump.protocol.requests.topics import DataVersion


class DeleteGroup(Request[None], kw_only=True):
    """Delete the settings of a group on one broker.

    With ``clean_offset``, the offsets of the group are deleted too.
    """

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    clean_offset: bool = False


class GetAllGroupsReply(Reply, kw_only=True):
    """Reply to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201). The groups are in the body.

    Brokers before 5.3.4 do not send the header field.
    """

    total_group_num: Int32 | None = None


class GetAllGroups(Request[GetAllGroupsReply], kw_only=True):
    """Ask a broker for the settings of all consumer groups."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None
    known_version: str | None = None
    held: bool | None = None
    """``known_version`` and ``held`` are ours: see ``replication.py``."""


# Consumer groups as brokers store them: the settings of one group and the versioned table. The
# defaults are Apache's.
_RETRY_SECONDS: Final = "1 5 10 30 60 120 180 240 300 360 420 480 540 600 1200 1800 3600 7200"


class GroupRetryPolicyType(StrEnum):
    """Kind of rule for the wait before each retry of a message."""

    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


class ExponentialRetryPolicy(msgspec.Struct, kw_only=True, rename="camel"):
    """Retry policy whose waits grow exponentially up to a maximum.

    ``initial`` is the first wait in ms, ``max`` the longest. Each wait is the one before times
    ``multiplier``.
    """

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicy(msgspec.Struct, kw_only=True, rename="camel"):
    """Retry policy that lists the wait before each retry in ms. The last wait repeats."""

    next: tuple[Int64, ...] = tuple(int(seconds) * 1000 for seconds in _RETRY_SECONDS.split())


class GroupRetryPolicy(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Retry policy of a group, of the kind that ``type`` names.

    An exponential policy that is None has the default waits. A customized policy that is None has
    no waits.
    """

    type: GroupRetryPolicyType = GroupRetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None

    def wait_ms(self, attempts: int) -> int | None:
        """Return the wait in ms before the next retry of a message.

        ``attempts`` is the number of deliveries so far. Returns None if the group lists no waits.
        Source: apache/rocketmq ``CustomizedRetryPolicy`` (which begins with its third wait),
        ``ExponentialRetryPolicy``.
        """
        attempts = max(attempts, 0)
        if self.type is GroupRetryPolicyType.EXPONENTIAL:
            policy = self.exponential_retry_policy or ExponentialRetryPolicy()
            wait: int = policy.initial * policy.multiplier ** min(attempts, 32)
            return max(min(wait, policy.max), 0)
        waits = self.customized_retry_policy.next if self.customized_retry_policy else ()
        return waits[min(attempts + 2, len(waits) - 1)] if waits else None


class SimpleSubscriptionData(msgspec.Struct, kw_only=True, rename="camel"):
    """Subscription that is stored on the broker with the settings of a group."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: Int64 = 0


class SubscriptionGroupConfig(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Settings of one consumer group on one broker.

    `which_broker_when_consume_slowly` is the id of the broker that slow readers are sent to.
    `consume_timeout_minute` is in minutes.
    """

    group_name: str | None = None
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: GroupRetryPolicy | None = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: tuple[SimpleSubscriptionData, ...] | None = None
    attributes: dict[str, str] | None = {}


class GetGroup(Request[SubscriptionGroupConfig], kw_only=True):
    """Ask a broker for the settings of one consumer group."""

    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str


class CreateGroup(Request[None], kw_only=True):
    """Create a consumer group on one broker, or change its settings."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body = SubscriptionGroupConfig


class SubscriptionGroupWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """All groups of a broker, as in the file `subscriptionGroup.json` and the reply to 201.

    `forbidden_table` is group -> topic -> denied permission bits.
    """

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class SubscriptionGroupList(msgspec.Struct, kw_only=True, rename="camel"):
    """Groups to create or change in one request (225)."""

    group_config_list: list[SubscriptionGroupConfig] = []


class CreateGroupList(Request[None], kw_only=True):
    """Create several consumer groups on one broker, or change their settings."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    body = SubscriptionGroupList


class GroupForbidden(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to UPDATE_AND_GET_GROUP_FORBIDDEN (353).

    ``readable`` is True if the group may read the topic.
    """

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


class UpdateGroupForbidden(Request[GroupForbidden], kw_only=True):
    """Forbid a consumer group to read a topic, or allow it again.

    If ``readable`` is None, the request only asks if the group may read the topic.
    """

    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    group: str
    topic: str
    readable: bool | None = None


class GroupList(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_TOPIC_CONSUME_BY_WHO (300) with names of groups."""

    group_list: tuple[str, ...] = ()
