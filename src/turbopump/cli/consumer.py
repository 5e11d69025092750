"""`turbopump consumer list|show|status`: the running consumers of groups, and their status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from turbopump.admin.cluster import Servers
from turbopump.admin.groups import group_members, group_names, member_of, members_of, running_info
from turbopump.broker.client_table import Member, MemberInfo, member_info
from turbopump.broker.conflicts import find_conflicts
from turbopump.cli.consumer_set_mode import command as set_mode
from turbopump.cli.entry import NOT_FOUND, command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.group import (
    MEMBERS,
    SUBSCRIPTIONS,
    complain_of_no_group,
    member_row,
    subscription_rows,
)
from turbopump.cli.names import group_subject
from turbopump.cli.tables import Column, Table
from turbopump.message.rules import RETRY_PREFIX, did_you_mean
from turbopump.protocol.requests import consumers as requests
from turbopump.protocol.requests.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)
from turbopump.remoting.client import RemotingClient

TOPICS: Final = (
    Column("client_id", "consumer"),
    Column("topic"),
    Column("expression"),
    Column("queues"),
    Column("ok_tps", "ok", "messages/s"),
    Column("failed_tps", "failed", "messages/s"),
    Column("consume_ms", "handler", "ms"),
    Column("pull_tps", "pulled", "messages/s"),
)

command = command_group(
    "consumer", "Running consumers: show and ask them. `turbopump group` has settings and lag."
)
command.add_command(set_mode)


@client_command(command, "list", short_help="Running consumers of all groups.", watch=True)
async def list_consumers(servers: Servers, output: str) -> None:
    """List the running consumers of all groups. `turbopump group list` shows the groups, also those
    without consumers, and their lag."""
    addresses = await servers.masters()
    rows = [
        {"group": group, **row}
        for group in await group_names(servers, addresses)
        for row in (await _group(servers, addresses, group))["clients"]
    ]
    show(output, {"consumers": rows}, [Table((Column("group"), *MEMBERS), rows)])
    if not rows:
        complain("no consumer is running")


@client_command(
    command, "show", short_help="Running consumers of a group, and their subscriptions.", watch=True
)
@group_subject()
async def show_group(servers: Servers, group: str, output: str) -> int:
    """Show the running consumers of a group and their subscriptions. `turbopump group show` has the
    settings and the lag too. Exit code 3 if the group does not exist."""
    addresses = await servers.masters()
    found = await _group(servers, addresses, group)
    groups = [group] if found["clients"] else await group_names(servers, addresses)
    parts: list[str | Table] = [Table(MEMBERS, found["clients"])]
    if found["subscriptions"]:
        parts += ["", Table(SUBSCRIPTIONS, found["subscriptions"])]
    if not found["clients"] and group in groups:
        parts.append(f"the group {group} has no consumers now")
    show(output, {"group": group, **found}, parts)
    if group in groups:
        return 0
    return complain_of_no_group(group, groups)


@client_command(
    command, "status", short_help="Ask every consumer of a group how it does.", watch=True
)
@group_subject()
async def show_status(servers: Servers, group: str, output: str) -> int:
    """Ask each consumer of a group for its status, and check that their subscriptions agree. Exit
    code 1 if they disagree, or a consumer does not answer; 3 if no broker knows the group."""
    addresses = await servers.masters()
    status = await consumer_status(servers, addresses, group)
    groups = [group] if status["clients"] else await group_names(servers, addresses)
    show(output, status, status_parts(status) if group in groups or output == "csv" else [])
    if group not in groups:
        complain(
            f"no broker knows the group {group}{did_you_mean(group, groups)}; check the "
            "name (turbopump group list) and -n; a new group exists after its first "
            "consumer has started"
        )
        return NOT_FOUND
    return int(bool(status["conflicts"]) or any(row["fault"] for row in status["clients"]))


async def _group(client: RemotingClient, addresses: list[str], group: str) -> dict[str, Any]:
    """Return the clients and the subscriptions of a group, as in JSON output."""
    found = await members_of(client, addresses, group)
    return {
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "clients": [member_row(one) for one in found.members],
        "subscriptions": subscription_rows(found),
    }


# Status of a group: the report of each consumer (307), and conflicts among the consumers, as
# reported by brokers and found here. Apache's brokers report no conflicts, so the consumers'
# reports are compared here, by the rules of our broker.
async def consumer_status(
    client: RemotingClient, addresses: list[str], group: str
) -> dict[str, Any]:
    """Ask each consumer of a group for its status, and compare the answers.

    In the result, ``clients`` has one entry for each consumer. ``conflicts`` has a sentence for
    each contradiction between consumers. Raises RemotingError if a broker cannot be asked.
    """
    found: dict[str, dict[str, Any]] = {}
    members: list[Member] = []
    conflicts: dict[str, None] = {}
    for address, body in (await group_members(client, addresses, group)).items():
        conflicts |= dict.fromkeys(body.conflicts or ())
        connections = Counter(one.client_id or "" for one in body.connection_set)
        for one in body.connection_set:
            client_id = one.client_id or ""
            if client_id in found:
                continue
            info = await running_info(client, address, group, client_id)
            found[client_id] = {**member_row(member_of(one)), **_row(info)}
            if not isinstance(info, str):
                said = _member_info(info, body.message_model)
                members.append(Member(client_id, one.version, 0.0, info=said))
        if not body.conflicts and body.message_model is not MessageModel.BROADCASTING:
            for client_id, count in connections.items():
                if count > 1:
                    conflicts[
                        f"client id {client_id} is used by {count} connections to {address}"
                    ] = None
    conflicts |= dict.fromkeys(find_conflicts(group, members))
    clients = [found[client_id] for client_id in sorted(found)]
    return {"group": group, "clients": clients, "conflicts": list(conflicts)}


def status_parts(status: Mapping[str, Any]) -> list[str | Table]:
    """Return the status of a group as tables and lines of text."""
    clients = status["clients"]
    topics = [
        {"client_id": row["client_id"], **topic} for row in clients for topic in row["topics"]
    ]
    parts: list[str | Table] = [Table(MEMBERS, clients)]
    if topics:
        parts += ["", Table(TOPICS, topics)]
    if not clients:
        parts.append(f"group {status['group']} has no consumers now")
    for row in clients:
        if row["fault"]:
            parts.append(f"{row['client_id']} does not answer: {row['fault']}")
    parts += [f"conflict: {sentence}" for sentence in status["conflicts"]]
    return parts


def _row(info: requests.ConsumerRunningInfo | str) -> dict[str, Any]:
    if isinstance(info, str):
        return {"fault": info, "properties": {}, "topics": []}
    topics = []
    for data in sorted(info.subscription_set, key=lambda data: data.topic or ""):
        topic = data.topic or ""
        status = info.status_table.get(topic) or requests.ConsumeStatus()
        queues = (*info.mq_table, *info.mq_pop_table)
        topics.append(
            {
                "topic": topic,
                "kind": data.expression_type or "TAG",
                "expression": data.sub_string or "*",
                "queues": sum(queue.topic == topic for queue in queues),
                "ok_tps": status.consume_ok_tps,
                "failed_tps": status.consume_failed_tps,
                "failed_last_hour": status.consume_failed_msgs,
                "consume_ms": status.consume_rt,
                "pull_tps": status.pull_tps,
                "pull_ms": status.pull_rt,
            }
        )
    return {"fault": None, "properties": info.properties, "topics": topics}


def _member_info(info: requests.ConsumerRunningInfo, of_group: MessageModel | None) -> MemberInfo:
    """Convert a consumer's report into a ``MemberInfo``, in order to find conflicts.

    Reports of Java's clients and of ours are complete. Go's and C++'s clients do not report their
    start and their message model; the message model of the group's last heartbeat is used instead.
    A push consumer may pop if its broker requires this; the queues in the report show if the
    consumer pulls.
    """
    said = info.properties
    kind = ConsumeType.__members__.get(said.get("PROP_CONSUME_TYPE", ""))
    pulls = any(not queue.topic.startswith(RETRY_PREFIX) for queue in info.mq_table)
    data = ConsumerData(
        subscription_data_set=tuple(info.subscription_set),
        consume_type=None if kind is ConsumeType.CONSUME_PASSIVELY and not pulls else kind,
        message_model=MessageModel.__members__.get(said.get("messageModel", ""), of_group),
        consume_from_where=ConsumeFromWhere.__members__.get(said.get("consumeFromWhere", "")),
        ordered={"true": True, "false": False}.get(said.get("PROP_CONSUMEORDERLY", "")),
    )
    return member_info(data)
