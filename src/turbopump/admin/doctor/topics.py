"""Checks of a topic: its route, and its queues and permissions on each broker."""

from __future__ import annotations

from collections.abc import Mapping

from turbopump.admin.doctor.diagnosis import LOG_OF_BROKER, Examination, Findings
from turbopump.admin.topics import find_topic, topic_names, users_topics
from turbopump.errors import ProtocolError, RemotingError, ResponseError
from turbopump.message.rules import did_you_mean
from turbopump.plural import counted
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import (
    MASTER_ID,
    ClusterInfo,
    GetRouteInfo,
    QueueData,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import PERM_READ, PERM_WRITE, GetTopicStatsInfo, TopicConfig


async def check_topic(
    examination: Examination, found: Findings, topic: str, cluster: ClusterInfo
) -> None:
    route = await _find_route(examination, found, topic, cluster)
    if route is None:
        return
    settings = await find_topic(examination.servers, examination.masters, topic)
    absent = sorted(set(examination.masters) - set(settings))
    if absent:
        found.note(
            f"it is not on {', '.join(absent)}",
            f"turbopump topic create {topic} --if-not-exists {examination.n_option}",
        )
    of_queues = examination.about(f"topic {topic}")
    addresses = {one.broker_name: one.broker_addrs for one in route.broker_datas}
    for queues in sorted(route.queue_datas, key=lambda one: one.broker_name or ""):
        address = addresses.get(queues.broker_name, {}).get(MASTER_ID, "")
        _judge_permissions(examination, of_queues, topic, queues, settings.get(address))
        _judge_queues(examination, of_queues, topic, queues, settings.get(address))
    if of_queues.healthy:
        writable = sum(one.write_queue_nums for one in route.queue_datas)
        messages = await count_messages(examination, topic, settings)
        brokers = ", ".join(sorted(one.broker_name or "" for one in route.queue_datas))
        of_queues.ok(f"{counted(writable, 'queue')} on {brokers}, {messages:,} messages stored")


async def _find_route(
    examination: Examination, found: Findings, topic: str, cluster: ClusterInfo
) -> TopicRouteData | None:
    known: dict[str, TopicRouteData] = {}
    absent: list[str] = []
    for address in examination.servers.name_servers:
        try:
            known[address] = await examination.servers.call(address, GetRouteInfo(topic=topic))
        except ResponseError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                absent.append(address)
        except (RemotingError, ProtocolError):
            continue  # already reported
    if known and absent:
        found.wrong(
            f"the name server {', '.join(known)} knows it, {', '.join(absent)} does not",
            "the broker must register with all of them: namesrvAddr in its broker.conf",
        )
    if known:
        return next(iter(known.values()))
    there = await find_topic(examination.servers, examination.masters, topic)
    if there:
        found.wrong(
            f"{', '.join(there)} has it, and no name server knows it: the broker cannot register",
            f"{LOG_OF_BROKER} (registration failed); check its namesrvAddr",
        )
        return None
    near = did_you_mean(topic, users_topics(await topic_names(examination.servers), cluster))
    found.wrong(
        f"it does not exist{near}", f"turbopump topic create {topic} {examination.n_option}"
    )
    return None


async def count_messages(
    examination: Examination, topic: str, settings: Mapping[str, TopicConfig]
) -> int:
    """Count the messages of a topic on the brokers in ``settings``."""
    count = 0
    for address in settings:
        table = await examination.servers.call(address, GetTopicStatsInfo(topic=topic))
        for queue in table.offset_table.values():
            count += max(queue.max_offset - queue.min_offset, 0)
    return count


# `queues` comes from the name server. `settings` comes from the broker, and is None if the broker
# was not asked.
def _judge_permissions(
    examination: Examination,
    found: Findings,
    topic: str,
    queues: QueueData,
    settings: TopicConfig | None,
) -> None:
    name = queues.broker_name
    for bit, what in ((PERM_READ, "read from"), (PERM_WRITE, "sent to")):
        if queues.perm & bit:
            continue
        if settings is None or not settings.perm & bit:
            found.wrong(
                f"it cannot be {what} on {name} (perm {queues.perm})",
                f"turbopump topic alter {topic} --perm 6 {examination.n_option}",
            )
            continue
        restarted = ""
        if bit == PERM_WRITE:
            restarted = "; or the broker has just restarted and waits for its slave, 3 s at most"
        found.wrong(
            f"it cannot be {what} on {name}: the permission is removed at the name server, or "
            f"by the broker's brokerPermission{restarted}",
            f"turbopump broker drain {name} --undo {examination.n_option}; check "
            "brokerPermission in its broker.conf",
        )


def _judge_queues(
    examination: Examination,
    found: Findings,
    topic: str,
    queues: QueueData,
    settings: TopicConfig | None,
) -> None:
    name = queues.broker_name
    read = queues.read_queue_nums
    write = queues.write_queue_nums
    if write > read:
        found.wrong(
            f"on {name} {counted(write - read, 'queue')} with messages cannot be read "
            f"(readQueueNums={read} writeQueueNums={write})",
            f"turbopump topic alter {topic} --read-queues {write} {examination.n_option}",
        )
    elif read > write:
        found.note(f"on {name} it has {read} queues to read and {write} to write")
    if not read or not write:
        found.wrong(
            f"on {name} it has no queue",
            f"turbopump topic alter {topic} --queues 8 {examination.n_option}",
        )
    if settings is None:
        return
    if (settings.read_queue_nums, settings.write_queue_nums) != (read, write):
        found.wrong(
            f"{name} has {settings.read_queue_nums} queues to read and "
            f"{settings.write_queue_nums} to write; the name server has {read} and {write}",
            "wait 30 s for its next registration; if that fails, "
            f"{LOG_OF_BROKER} (registration failed)",
        )
