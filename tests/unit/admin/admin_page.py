"""Generator of `docs/reference/admin.md`, from the operations of `Admin`:
`python -m tests.unit.admin.admin_page > docs/reference/admin.md`."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from turbopump.admin.admin import SUBJECTS

_PREFACE: Final = """# Admin

Written by `python -m tests.unit.admin.admin_page > docs/reference/admin.md`; a test checks that it
is up to date.

`turbopump.Admin` has every operation on a cluster, ours or Apache's, by subject:

```python
from turbopump import Admin

async with Admin("127.0.0.1:9876") as admin:
    await admin.topics.create("orders", read_queues=8, write_queues=8)
    lag = await admin.groups.lag("billing")
    print(lag.messages, lag.seconds)
```

- `turbopump.blocking.Admin` has the same operations without asyncio: `with Admin() as admin:`.
- Without an address, the name servers in the variable `NAMESRV_ADDR` are asked. `credentials=` and
  `tls=` are those of the [clients](client-settings.md).
- `broker=` takes a `brokerName` (its master), `brokerName:ID` or `HOST:PORT`. `cluster=` means the
  masters of a cluster. Without both, an operation is for all masters.
- Creating something that exists changes nothing. Change it with `alter` or `change`.
- A server that cannot be asked raises RemotingError, and a server that refuses raises ResponseError
  with its code. A name that does not exist raises ClientError, or RouteNotFoundError for a topic.
  [Errors](errors.md) has the codes.
- Each method's docstring names its requests and what it costs; on the site, the [API
  page](../api/admin.md) shows them.

The third column has the counterpart in Apache's `DefaultMQAdminExt`, the fourth the
[command](cli.md) of ours.
"""

_OPERATIONS: Final = """
    addBrokerToContainer addWritePermOfBroker checkRocksdbCqWriteProgress
    cleanControllerBrokerData cleanExpiredConsumerQueue cleanExpiredConsumerQueueByAddr
    cleanUnusedTopic cleanUnusedTopicByAddr cloneGroupOffset consumeMessageDirectly createAcl
    createAndUpdateKvConfig createAndUpdateSubscriptionGroupConfig
    createAndUpdateSubscriptionGroupConfigList createAndUpdateTopicConfig
    createAndUpdateTopicConfigList createOrUpdateOrderConf createStaticTopic createTopic
    createUser deleteAcl deleteExpiredCommitLog deleteExpiredCommitLogByAddr deleteKvConfig
    deleteSubscriptionGroup deleteTopic deleteTopicInBroker deleteTopicInBrokerConcurrent
    deleteTopicInNameServer deleteUser earliestMsgStoreTime electMaster examineBrokerClusterInfo
    examineConsumeStats examineConsumeStatsConcurrent examineConsumerConnectionInfo
    examineProducerConnectionInfo examineSubscriptionGroupConfig examineTopicConfig
    examineTopicRouteInfo examineTopicStats examineTopicStatsConcurrent exportPopRecords
    exportRocksDBConfigToJson fetchAllTopicList fetchBrokerRuntimeStats
    fetchConsumeStatsInBroker fetchTopicsByCLuster getAcl getAllProducerInfo
    getAllSubscriptionGroup getAllTopicConfig getBrokerConfig getBrokerEpochCache
    getBrokerHAStatus getClusterList getColdDataFlowCtrInfo getConsumeStatus
    getConsumerRunningInfo getControllerConfig getControllerMetaData getInSyncStateData
    getKVConfig getKVListByNamespace getNameServerAddressList getNameServerConfig
    getTopicClusterList getUser getUserSubscriptionGroup getUserTopicConfig listAcl listUser
    maxOffset messageTrackDetail messageTrackDetailConcurrent minOffset putKVConfig
    queryConsumeQueue queryConsumeTimeSpan queryConsumeTimeSpanConcurrent queryMessage
    querySubscription queryTopicConsumeByWho queryTopicsByConsumer
    queryTopicsByConsumerConcurrent removeBrokerFromContainer removeColdDataFlowCtrGroupConfig
    resetMasterFlushOffset resetOffsetByQueueId resetOffsetByTimestamp resetOffsetByTimestampOld
    resetOffsetNew resetOffsetNewConcurrent resumeCheckHalfMessage searchOffset
    setCommitLogReadAheadMode setMessageRequestMode shutdown start updateAcl
    updateAndGetGroupReadForbidden updateBrokerConfig updateColdDataFlowCtrGroupConfig
    updateConsumeOffset updateControllerConfig updateNameServerConfig updateUser
    viewBrokerStatsData viewMessage wipeWritePermOfBroker
"""
MQ_ADMIN_EXT: Final = frozenset(_OPERATIONS.split())
"""Operations of Apache's 5.3.3 ``MQAdminExt``, by name."""

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "topics.names": "topic list",
        "topics.settings": "topic show",
        "topics.queues": "topic show",
        "topics.route": "topic route",
        "topics.create": "topic create",
        "topics.alter": "topic alter",
        "topics.delete": "topic delete",
        "groups.names": "group list",
        "groups.settings": "group show",
        "groups.create": "group create",
        "groups.alter": "group alter",
        "groups.delete": "group delete",
        "groups.members": "group show",
        "groups.lag": "group show",
        "groups.set_mode": "consumer set-mode",
        "offsets.show": "offset show",
        "offsets.reset": "offset reset",
        "offsets.reset_queue": "offset reset",
        "offsets.clone": "offset clone",
        "clients.consumers": "consumer show",
        "clients.producers": "producer list",
        "clients.all_producers": "producer list",
        "clients.running_info": "consumer status",
        "messages.by_id": "message by-id",
        "messages.at": "message by-offset",
        "messages.by_key": "message by-key",
        "messages.by_time": "message by-time",
        "messages.tracks": "message trace",
        "messages.trace": "message trace",
        "dead_letters.groups": "dlq list",
        "dead_letters.letters": "dlq show",
        "dead_letters.reason": "dlq show",
        "dead_letters.would_resend": "dlq resend",
        "dead_letters.resend": "dlq resend",
        "brokers.list": "broker list",
        "brokers.figures": "broker show",
        "brokers.settings": "broker config get",
        "brokers.change_settings": "broker config set",
        "brokers.clean_expired_queues": "broker clean",
        "brokers.clean_unused_topics": "broker clean",
        "brokers.delete_expired_log": "broker clean",
        "brokers.cold_reads": "broker cold-reads list",
        "brokers.set_cold_read_limits": "broker cold-reads limit",
        "brokers.remove_cold_read_limit": "broker cold-reads limit",
        "brokers.set_read_ahead": "broker cold-reads read-ahead",
        "name_servers.addresses": "namesrv list",
        "name_servers.settings": "namesrv config get",
        "name_servers.change_settings": "namesrv config set",
        "name_servers.wipe_write_permission": "namesrv wipe",
        "name_servers.restore_write_permission": "namesrv restore",
        "kv.get": "kv get",
        "kv.list": "kv list",
        "kv.put": "kv put",
        "kv.delete": "kv delete",
        "kv.ordered_queues": "topic order",
        "kv.set_ordered_queues": "topic order",
        "kv.delete_ordered_queues": "topic order",
        "kv.ordered_topics": "topic order",
        "users.list": "auth user list",
        "users.policies": "auth policy list",
        "users.create": "auth user create",
        "users.change": "auth user alter",
        "users.delete": "auth user delete",
        "users.add_policy": "auth policy add",
        "users.delete_policy": "auth policy delete",
        "replication.states": "cluster ha",
        "replication.problems": "doctor",
        "replication.epochs": "broker epochs",
        "controllers.states": "controller show",
        "controllers.replicas": "controller replicas",
        "controllers.logs": "controller replicas",
        "controllers.elect": "controller elect",
        "controllers.clean": "controller clean",
        "controllers.settings": "controller config get",
        "controllers.change_settings": "controller config set",
    }
)
"""Our command for each operation that has one."""

WITHOUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "start": "`async with` starts",
        "shutdown": "`async with` closes",
        "addBrokerToContainer": "broker containers are not served here",
        "removeBrokerFromContainer": "broker containers are not served here",
        "getClusterList": "it finds nothing in Java: see `getTopicClusterList`",
        "putKVConfig": "it does nothing in Java: see `createAndUpdateKvConfig`",
        "createStaticTopic": "static topics are not served here",
        "checkRocksdbCqWriteProgress": "there is no RocksDB here",
        "exportRocksDBConfigToJson": "there is no RocksDB here",
        "exportPopRecords": "there is no RocksDB here",
    }
)
"""Reason for each operation of ``DefaultMQAdminExt`` that has no method."""

SAME_AS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanExpiredConsumerQueueByAddr": "cleanExpiredConsumerQueue",
        "cleanUnusedTopicByAddr": "cleanUnusedTopic",
        "deleteExpiredCommitLogByAddr": "deleteExpiredCommitLog",
    }
)
"""Operations that do the same as another. Those that end in ``Concurrent`` do, too."""


def parts() -> dict[str, type]:
    """Return the classes of the subjects, by attribute of ``Admin``."""
    return {
        subject: getattr(importlib.import_module(f"turbopump.admin.{subject}"), name)
        for subject, name in SUBJECTS.items()
    }


def operations() -> Iterator[tuple[str, str, Any]]:
    """Yield the subject, the name and the function of each operation."""
    for subject, kind in parts().items():
        for name, method in vars(kind).items():
            if not name.startswith("_"):
                yield subject, name, method


def java_of(method: Any) -> list[str]:
    """Return the operations of ``DefaultMQAdminExt`` that a docstring names."""
    _, _, named = (inspect.getdoc(method) or "").partition("Java:")
    return [name for name in re.findall(r"``(\w+)``", named) if name in MQ_ADMIN_EXT]


def page() -> str:
    """Return the text of the page."""
    lines = [_PREFACE]
    for subject, kind in parts().items():
        lines += [f"## `admin.{subject}`", "", _first_paragraph(kind).replace("``", "`"), ""]
        lines += ["| method | does | `DefaultMQAdminExt` | command |", "|---|---|---|---|"]
        for owner, name, method in operations():
            if owner == subject:
                lines.append(_row(subject, name, method))
        lines.append("")
    lines += ["## What has no method", "", "| `DefaultMQAdminExt` | reason |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(WITHOUT.items())]
    lines += [
        "",
        "The methods whose names end in `Concurrent` do the same as those without. So do:",
        "",
        "| `DefaultMQAdminExt` | the same as |",
        "|---|---|",
        *(f"| `{name}` | `{other}` |" for name, other in sorted(SAME_AS.items())),
    ]
    return "\n".join(lines) + "\n"


def _row(subject: str, name: str, method: Any) -> str:
    java = ", ".join(f"`{one}`" for one in java_of(method))
    command = COMMANDS.get(f"{subject}.{name}", "")
    shown = f"`{command}`" if command else ""
    does = _first_paragraph(method).replace("``", "`").replace("|", "\\|")
    return f"| `{name}` | {does} | {java} | {shown} |"


def _first_paragraph(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    print(page(), end="")
