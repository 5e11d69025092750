"""`turbopump offset show|reset|clone`: offsets of consumer groups."""

from typing import Any

import click

from turbopump.admin.cluster import Servers, ask_each
from turbopump.admin.group_lag import group_offsets
from turbopump.admin.groups import group_names
from turbopump.cli.entry import command_group, complain
from turbopump.cli.frame import NOT_FOUND, client_command, show
from turbopump.cli.names import group_subject, topic_option
from turbopump.cli.tables import TIME, Column, Table
from turbopump.cli.values import TimeOption, checked_address
from turbopump.errors import RemotingError
from turbopump.message.rules import did_you_mean
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import CloneGroupOffset, ResetOffset, ResetOffsetBody

END = -1
OFFSETS = (
    Column("topic"),
    Column("broker"),
    Column("queue"),
    Column("offset"),
    Column("end"),
    Column("behind", unit="messages"),
    Column("last_timestamp", "last consumed", TIME),
)


command = command_group("offset", "Show, reset and clone the offsets of consumer groups.")


@client_command(command, "show", short_help="Offsets of a group in each queue.", watch=True)
@group_subject()
@topic_option("Only in this topic.")
async def show_offsets(servers: Servers, group: str, topic: str | None, output: str) -> int:
    """Show the offset and the lag of a group in each queue. Exit code 3 if the group has no
    offset."""
    addresses = await servers.masters()
    rows = await group_offsets(servers, addresses, group, topic)
    behind = sum(row["behind"] for row in rows)
    parts: list[str | Table] = [Table(OFFSETS, rows)]
    if rows:
        parts.append(f"behind by {behind} in all")
    show(output, {"group": group, "behind": behind, "queues": rows}, parts)
    return 0 if rows else await _complain_of_no_offset(servers, addresses, group, topic)


@client_command(command, "reset", short_help="Put a group elsewhere in a topic.")
@click.argument("group")
@click.argument("topic")
@click.option("--begin", is_flag=True, help="Go to the first message that is kept.")
@click.option("--end", is_flag=True, help="Go behind the last message.")
@click.option(
    "--time",
    "time_ms",
    metavar="TIME",
    type=TimeOption(),
    help="Go to the first message from this time on.",
)
@click.option("--offset", type=click.IntRange(0), help="Go there; with --queue and --broker.")
@click.option("--queue", type=click.IntRange(0), help="Only the queue with this id.")
@click.option("--broker", metavar="ADDR", callback=checked_address, help="Only on this broker.")
@click.option("--only-back", is_flag=True, help="Only move offsets back, never forward.")
async def reset_offsets(
    servers: Servers,
    group: str,
    topic: str,
    begin: bool,
    end: bool,
    time_ms: int | None,
    offset: int | None,
    queue: int | None,
    broker: str | None,
    only_back: bool,
    output: str,
) -> int:
    """Set the offsets of a group in a topic; running consumers continue there at once. Exit code 3
    if no broker has both the group and the topic."""
    if [begin, end, time_ms is not None, offset is not None].count(True) != 1:
        raise click.UsageError("give one of --begin, --end, --time, --offset")
    if offset is not None and (queue is None or broker is None):
        raise click.UsageError("--offset is of one queue: give --queue and --broker too")
    if begin:
        time_ms = 0
    elif time_ms is None:
        time_ms = END
    wanted = ResetOffset(
        group=group, topic=topic, timestamp=time_ms, force=not only_back, offset=offset
    )
    if queue is not None:
        wanted.queue_id = queue
    if broker is not None:
        answers = await ask_each(servers, [broker], wanted, ResetOffsetBody)
    else:
        # A broker without the topic or the group is no error while another one has both.
        absent = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        answers = await ask_each(servers, await servers.masters(), wanted, ResetOffsetBody, *absent)
    if not answers:
        complain(
            f"no broker has both the group {group} and the topic {topic}; see turbopump group "
            "list and turbopump topic list, and start a consumer of a new group once"
        )
        return NOT_FOUND
    rows = [
        {"topic": topic, "broker": at.broker_name, "queue": at.queue_id, "offset": offset}
        for body in answers.values()
        for at, offset in sorted(body.offset_table.items())
    ]
    show(output, {"group": group, "queues": rows}, map(_line, rows))
    return 0


@client_command(command, "clone", short_help="Copy the offsets of another group.")
@click.argument("source")
@click.argument("target")
@click.option("--topic", metavar="NAME", help="Only in this topic.")
async def clone_offsets(
    servers: Servers, source: str, target: str, topic: str | None, output: str
) -> int:
    """Set the offsets of the group TARGET, which must exist, to those of the group SOURCE."""
    if source == target:
        raise click.UsageError(f"SOURCE and TARGET are both {source}")
    wanted = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=True)
    addresses = await servers.masters()
    if not await group_offsets(servers, addresses, source, topic):
        return await _complain_of_no_offset(servers, addresses, source, topic)
    for address in addresses:
        answer = await servers.exchange(address, wanted)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(
                f"broker {address}: {(answer.remark or f'code {answer.code}').strip()}"
            )
    rows = await group_offsets(servers, addresses, target, topic)
    show(output, {"group": target, "queues": rows}, map(_line, rows))
    return 0


def _line(row: dict[str, Any]) -> str:
    return f"{row['topic']}  {row['broker']}:{row['queue']}  at {row['offset']}"


async def _complain_of_no_offset(
    servers: Servers, addresses: list[str], group: str, topic: str | None = None
) -> int:
    """Warn that a group has no offset in ``topic``. Return the exit code.

    If ``topic`` is None, the group has no offset in any topic. The warning suggests a similar name,
    because the name of the group may be mistyped.
    """
    group += did_you_mean(group, set(await group_names(servers, addresses)) - {group})
    where = "in any topic" if topic is None else f"in the topic {topic}"
    complain(f"the group {group} has no offset {where}; turbopump group list shows the groups")
    return NOT_FOUND
