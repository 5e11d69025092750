"""Valid names and sizes, by Apache's rules (``TopicValidator``, ``Validators``). Each check returns
a sentence about the first broken rule and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TOPIC_SIZE_MAX: Final = 127
RETRY_TOPIC_SIZE_MAX: Final = 255
GROUP_SIZE_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_TOPIC_END: Final = "_REPLY_TOPIC"
"""Suffix of the topic for a cluster's replies, after the name of the cluster."""
DEFAULT_TOPIC: Final = "TBW102"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of half messages whose outcome the broker has given up to ask for."""
TABLE_RECORDS_TOPIC: Final = "rmq_sys_turbopump_table_records"
"""Topic of ours for records of changes to a broker's tables (``broker/table_records/``)."""
LMQ_PREFIX: Final = "%LMQ%"
"""Prefix of Apache's light queues, whose units point to messages of other topics."""

_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_RETRY_V2 = re.compile(r"%RETRY%[^+]+\+[^+]+")

_BROKERS_OWN: Final = """
    SCHEDULE_TOPIC_XXXX RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC
    TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT
"""
NOT_SENDABLE_TOPICS: Final = frozenset((*_BROKERS_OWN.split(), TABLE_RECORDS_TOPIC))
"""Topics that only the broker writes to."""
SYSTEM_TOPICS: Final = NOT_SENDABLE_TOPICS | {
    DEFAULT_TOPIC,
    "BenchmarkTest",
    "RMQ_SYS_TRACE_TOPIC",
    "CHECKPOINT_TOPIC",
}
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
MEMBERS_PREFIX: Final = f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_"
"""Prefix of a broker's topic without messages, before the name of the broker. From the route of
this topic Apache's slaves learn which brokers of the name live (``compatibleWithOldNameSrv``)."""


def topic_fault(topic: str) -> str | None:
    """Return the reason why a topic name is invalid, or None.

    ``+`` is valid only between the group and the topic of a retry topic, as written with
    ``enableRetryTopicV2``.
    """
    is_groups = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    if _RETRY_V2.fullmatch(topic):
        topic = topic.replace("+", "_")
    return _name_fault("topic", topic, RETRY_TOPIC_SIZE_MAX if is_groups else TOPIC_SIZE_MAX)


def group_fault(group: str) -> str | None:
    """Return the reason why a group name is invalid, or None."""
    return _name_fault("group", group, GROUP_SIZE_MAX)


def tag_fault(tag: str) -> str | None:
    """Return the reason why no subscription can select a tag, or None.

    ``||`` separates tags, blanks around them are removed, ``*`` means all messages. Source:
    apache/rocketmq ``FilterAPI.buildSubscriptionData``.
    """
    if "||" in tag:
        return "has || in it, which separates tags in a subscription"
    if tag == "*":
        return "means every message in a subscription"
    if tag != tag.strip():
        return "has blanks at its ends, which a subscription cuts off"
    return None if tag else "is empty"


def is_unicode(text: str) -> bool:
    """Return True if a str can be encoded as UTF-8. A str with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_system_topic(topic: str) -> bool:
    """Return True for a system topic of the broker."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
PREDEFINED_GROUPS: Final = frozenset(
    {
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "CID_RMQ_SYS_TRANS",
        "DEFAULT_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SCHEDULE_CONSUMER",
        "SELF_TEST_C_GROUP",
        "TOOLS_CONSUMER",
        "__MONITOR_CONSUMER",
    }
)
"""Groups of RocketMQ's own (apache/rocketmq ``MixAll.PREDEFINE_GROUP_SET``)."""


def is_system_group(group: str) -> bool:
    """Return True for a consumer group of RocketMQ's own."""
    return group in PREDEFINED_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_brokers_own(topic: str) -> bool:
    """Return True for a topic in which the broker keeps internal state.

    Such a topic contains messages on their way to other topics, or records about messages.
    """
    return topic in NOT_SENDABLE_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``" (did you mean orders?)"`` if a known name is similar.

    Upper and lower case do not matter. Return ``""`` if no known name is similar, or if the name
    itself is known, for example because it was created a moment ago.
    """
    from difflib import get_close_matches

    spelled = {one.lower(): one for one in known}
    if name in spelled.values():
        return ""
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[near[0]]}?)" if near else ""


def _name_fault(kind: str, name: str, size_max: int) -> str | None:
    if not name or not name.strip():
        return f"the {kind} name is empty; give it a name"
    if len(name) > size_max:
        return f"the {kind} name has {len(name)} characters; at most {size_max} are allowed"
    if not _LEGAL_NAME.fullmatch(name):
        return (
            f"the {kind} name {name[:80]!r} holds a character outside a-z A-Z 0-9 _ - % |; "
            "choose another name"
        )
    return None
