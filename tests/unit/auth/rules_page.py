"""Generator of `docs/reference/access-rules.md`, from the rules:
`python -m tests.unit.auth.rules_page > docs/reference/access-rules.md`."""

from __future__ import annotations

from typing import Final

from turbopump.auth.rules import RULES
from turbopump.protocol.codes import RequestCode

_PREFACE = """# Who may send which request

Written by `python -m tests.unit.auth.rules_page > docs/reference/access-rules.md`; a test
checks that it is up to date, and that every request code of a server has a rule.

With `authorizationEnabled` a user who is not a Super user may send a request if policies allow what
this table says: one of the actions on each of the resources. Without an account no request is
allowed. The last column has the rule of Apache's 5.3.3 if it is different; an empty cell means the
same rule. Apache's name server has no rules.

- The retry topic of a group belongs to the group: `Sub` on the group also allows `Pub` on it. The
  topic from which a group pops its own messages again counts as the original topic.
- *Cluster* is the cluster of the broker; for a name server or a controller, each cluster that has a
  broker.
- A request that names a message only by its position (33, 36, 37, 309, 323) also needs permission
  for the topic of the message found there.
- A broker's own topics (`SCHEDULE_TOPIC_XXXX`, `RMQ_SYS_TRANS_HALF_TOPIC`, `rmq_sys_…` and so on)
  contain messages for other topics. A policy allows them only by their full name, not as `Topic:*`.
  Apache's 5.3.3 makes no difference.
- Every user gets the routes of `TBW102` and of the `…_REPLY_TOPIC` of a cluster, because creating a
  topic and answering a request need them.
- A code that is not in the table gets the answer 3, and only for users.

| code | request | needs | Apache's 5.3.3 |
|---|---|---|---|
"""


_UNCHECKED: Final = """
    UPDATE_AND_CREATE_TOPIC_LIST GET_ALL_TOPIC_CONFIG UPDATE_BROKER_CONFIG GET_BROKER_CONFIG
    GET_BROKER_RUNTIME_INFO GET_ALL_CONSUMER_OFFSET GET_ALL_DELAY_OFFSET CHECK_CLIENT_CONFIG
    GET_TIMER_CHECK_POINT GET_TIMER_METRICS GET_BROKER_CLUSTER_INFO
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER GET_TOPICS_BY_CLUSTER
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST GET_SYSTEM_TOPIC_LIST_FROM_NS
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER CLEAN_EXPIRED_CONSUMEQUEUE GET_UNIT_TOPIC_LIST
    GET_HAS_UNIT_SUB_TOPIC_LIST GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST CLEAN_UNUSED_TOPIC
    UPDATE_NAMESRV_CONFIG GET_NAMESRV_CONFIG SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2
    DELETE_EXPIRED_COMMITLOG LITE_PULL_MESSAGE QUERY_ASSIGNMENT SET_MESSAGE_REQUEST_MODE
    GET_ALL_MESSAGE_REQUEST_MODE GET_BROKER_HA_STATUS UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG GET_COLD_DATA_FLOW_CTR_INFO SET_COMMITLOG_READ_MODE
    BATCH_ACK_MESSAGE CONTROLLER_GET_METADATA_INFO CONTROLLER_GET_SYNC_STATE_DATA
    GET_BROKER_EPOCH_CACHE NOTIFY_BROKER_ROLE_CHANGED UPDATE_CONTROLLER_CONFIG
    GET_CONTROLLER_CONFIG
"""
"""Requests for which Apache requires no permission."""
_CLUSTER_UPDATE: Final = """
    REGISTER_BROKER UNREGISTER_BROKER BROKER_HEARTBEAT NOTIFY_MIN_BROKER_ID_CHANGE
    EXCHANGE_BROKER_HA_INFO RESET_MASTER_FLUSH_OFFSET
"""
"""Requests for which Apache requires Update on the cluster."""
_ADMINISTERED: Final = """
    AUTH_CREATE_USER AUTH_UPDATE_USER AUTH_DELETE_USER AUTH_CREATE_ACL AUTH_UPDATE_ACL
    AUTH_DELETE_ACL
"""
"""The same, although a user could then permit themselves everything by a policy."""
_APACHE: Final[dict[int, str]] = {
    **{RequestCode[name]: "no permission" for name in _UNCHECKED.split()},
    **{RequestCode[name]: "Cluster: Update" for name in _CLUSTER_UPDATE.split()},
    **{
        RequestCode[name]: "Cluster: Update, which lets a user permit themselves everything"
        for name in _ADMINISTERED.split()
    },
    RequestCode.SEND_MESSAGE: (
        "to a retry topic of any group: Sub on the producer group in the request"
    ),
    RequestCode.PULL_MESSAGE: "of a retry topic of any group: Sub on the consumer group",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "only Get; a consumer with Sub cannot start at a time",
    RequestCode.GET_MAX_OFFSET: "like 29",
    RequestCode.GET_MIN_OFFSET: "like 29",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "like 29",
    RequestCode.VIEW_MESSAGE_BY_ID: (
        "Get on the topic in the request, if there is one, not on the topic of the message"
    ),
    RequestCode.HEART_BEAT: "every user may join every producer group",
    RequestCode.CONSUMER_SEND_MSG_BACK: (
        "only the group: a user can send back, and then read, any message of the broker"
    ),
    RequestCode.END_TRANSACTION: (
        "the topic in the request, if there is one, not that of the half message. A broker's "
        "check names the topic of half messages"
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (
        "the topic in the request, if there is one, not that of the message"
    ),
    RequestCode.SEND_MESSAGE_V2: "like 10",
    RequestCode.CLONE_GROUP_OFFSET: "no permission for the group whose offsets are copied",
    RequestCode.SEND_BATCH_MESSAGE: "like 10",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (
        "the topic in the request, if there is one, not that of the half message"
    ),
    RequestCode.ACK_MESSAGE: "of a message that is popped again: Sub on a group named GROUP_TOPIC",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "like 200051",
    RequestCode.POLLING_INFO: "only Get",
}
"""Rules of Apache's 5.3.3 that are different, by request code."""


def page() -> str:
    """Return the text of the page."""
    rows = []
    for code, rule in sorted(RULES.items()):
        name = RequestCode(code).name
        rows.append(f"| {code} | {name} | {_cell(rule.text)} | {_cell(_APACHE.get(code, ''))} |\n")
    return _PREFACE + "".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
