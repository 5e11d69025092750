"""Checks of a consumer group: its settings, its members, its lag and its dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from turbopump.admin.doctor.diagnosis import Examination, Findings
from turbopump.admin.doctor.topics import count_messages
from turbopump.admin.group_lag import GroupLag, group_lag
from turbopump.admin.groups import group_members, group_names, running_info
from turbopump.admin.topics import find_topic
from turbopump.errors import ProtocolError, RemotingError
from turbopump.message.rules import DLQ_PREFIX, did_you_mean
from turbopump.plural import counted
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.consumers import ConsumerConnection
from turbopump.protocol.requests.groups import GetGroup

Members = Mapping[str, ConsumerConnection]
"""Consumers of a group, by the address of the broker that knows them."""


async def check_group(
    examination: Examination, found: Findings, group: str, topic: str | None
) -> None:
    names = await group_names(examination.servers, examination.masters)
    if group not in names:
        found.wrong(
            f"no broker knows it{did_you_mean(group, names)}",
            "start a consumer of it: brokers create a group when its first consumer starts",
        )
        return
    await _check_settings(examination, found, group)
    members = await group_members(examination.servers, examination.masters, group)
    lag = await group_lag(examination.servers, examination.masters, group, topic)
    of_members = examination.about(f"group {group}")
    _judge_members(examination, of_members, group, topic, members)
    await _ask_members(examination, of_members, group, members)
    await _check_dead_letters(examination, of_members, group)
    clients = {one.client_id for body in members.values() for one in body.connection_set}
    behind = lag.messages
    if behind and not clients:
        of_members.wrong(
            f"lag {behind:,}, and no consumer of the group is running",
            f"start one with group={group!r}",
        )
    elif of_members.healthy:
        consumers = counted(len(clients), "consumer")
        if behind:
            of_members.note(f"{consumers}, lag {behind:,}{_last_read(examination, lag)}")
        elif lag.queues:
            of_members.ok(f"{consumers}, no lag")
        else:
            of_members.ok(f"{consumers}, no committed offset yet")


def _last_read(examination: Examination, lag: GroupLag) -> str:
    """Return a phrase that says how long ago the last read message was stored. The queue with the
    oldest such message counts, among queues with unread messages.

    The phrase is empty if nothing was read, or if the group has read everything.
    """
    read = [one.last_consumed_ms for one in lag.queues if one.behind and one.last_consumed_ms]
    if not read:
        return ""
    seconds = max(examination.clock.now_ms() - min(read), 0) // 1000
    age = f"{seconds} s"
    for size, unit in ((60, "min"), (3_600, "h"), (86_400, "d")):
        if seconds >= 2 * size:
            age = f"{seconds // size} {unit}"
    return f"; its last read message was stored {age} ago"


async def _check_settings(examination: Examination, found: Findings, group: str) -> None:
    for address in examination.masters:
        try:
            settings = await examination.servers.call(address, GetGroup(group=group))
        except (RemotingError, ProtocolError):
            continue  # a broker of 4.x refuses this request; others create an unknown group
        if not settings.consume_enable:
            found.wrong(
                f"{address} forbids it to consume (consumeEnable=false)",
                f"turbopump group alter {group} --enabled -b {address} {examination.n_option}",
            )


def _judge_members(
    examination: Examination, found: Findings, group: str, topic: str | None, members: Members
) -> None:
    """Report problems of a group's consumers, such as conflicts, or a consumer unknown to a
    broker."""
    conflicts = dict.fromkeys(one for body in members.values() for one in body.conflicts or ())
    for conflict in conflicts:
        found.wrong(
            conflict, f"turbopump consumer status {group} shows each; give all the same settings"
        )
    everybody = {one.client_id or "" for body in members.values() for one in body.connection_set}
    for address in examination.masters:
        body = members.get(address, ConsumerConnection())
        for client_id in sorted(everybody - {one.client_id or "" for one in body.connection_set}):
            found.wrong(
                f"the broker {address} does not know the consumer {client_id}, which therefore "
                "reads nothing from it",
                f"check that its machine reaches {address}",
            )
    subscribed = {name for body in members.values() for name in body.subscription_table}
    if topic is not None and everybody and topic not in subscribed:
        theirs = ", ".join(sorted(one for one in subscribed if not one.startswith("%"))) or "none"
        found.wrong(
            f"its consumers do not subscribe to {topic}{did_you_mean(topic, subscribed)}; "
            f"they subscribe to: {theirs}",
            f"subscribe all of them to {topic}",
        )
    if any(body.message_model is MessageModel.BROADCASTING for body in members.values()):
        found.note("it is broadcasting: each consumer keeps its own offsets")


async def _ask_members(
    examination: Examination, found: Findings, group: str, members: Members
) -> None:
    """Ask each consumer of a group for its recent failures. A broker forwards the request."""
    known_at: dict[str, str] = {}
    for address, body in members.items():
        for one in body.connection_set:
            known_at.setdefault(one.client_id or "", address)
    for client_id, address in known_at.items():
        info = await running_info(examination.servers, address, group, client_id)
        if isinstance(info, str):
            found.wrong(
                f"the consumer {client_id} does not answer: {info}",
                "check that process: it may be stopped, or its event loop blocked",
            )
            continue
        failed = sum(one.consume_failed_msgs for one in info.status_table.values())
        if failed:
            found.note(
                f"{client_id} failed to handle {failed:,} messages in the last hour",
                f"read the reason in its log; turbopump consumer status {group} "
                f"{examination.n_option}",
            )


async def _check_dead_letters(examination: Examination, found: Findings, group: str) -> None:
    name = DLQ_PREFIX + group
    try:
        settings = await find_topic(examination.servers, examination.masters, name)
        count = await count_messages(examination, name, settings)
    except (RemotingError, ProtocolError):
        return
    if count:
        found.note(
            f"it has {counted(count, 'dead letter')}",
            f"turbopump dlq show {group} {examination.n_option}",
        )
