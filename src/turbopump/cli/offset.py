"""`turbopump offset show|reset|clone`: offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.group_lag import GroupLag, QueueLag, group_lag
from turbopump.admin.groups import Groups, group_names
from turbopump.admin.offsets import Offsets, no_group_or_topic
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import NOT_FOUND, command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_option, group_subject, topic_option, topic_subject
from turbopump.cli.tables import TIME, Column, Table
from turbopump.cli.values import TimeOption
from turbopump.errors import NotFoundError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import did_you_mean

OFFSETS: Final = (
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
    lag = await group_lag(servers, addresses, group, topic)
    rows = _rows(lag)
    parts: list[str | Table] = [Table(OFFSETS, rows)]
    if rows:
        parts.append(f"behind by {lag.messages} in all")
    show(output, {"group": group, "behind": lag.messages, "queues": rows}, parts)
    return 0 if rows else await _complain_of_no_offset(servers, addresses, group, topic)


def _rows(lag: GroupLag) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.topic,
            "broker": one.broker,
            "queue": one.queue_id,
            "offset": one.offset,
            "end": one.end,
            "behind": one.behind,
            "last_timestamp": one.last_consumed_ms or None,
        }
        for one in lag.queues
    ]


@client_command(command, "reset", short_help="Put a group elsewhere in a topic.")
@group_subject()
@topic_subject()
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
@broker_option("Only on this broker: its name or address.")
@click.option("--only-back", is_flag=True, help="Only move offsets back, never forward.")
@dry_run_option
async def reset(
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
    dry_run: bool,
    output: str,
) -> int:
    """Set the offsets of a group in a topic; running consumers continue there at once. Exit code 3
    if no broker has both the group and the topic."""
    if [begin, end, time_ms is not None, offset is not None].count(True) != 1:
        raise click.UsageError("give one of --begin, --end, --time, --offset")
    if offset is not None and (queue is None or broker is None):
        raise click.UsageError("--offset is of one queue: give --queue and --broker too")
    to: Literal["begin", "end"] | int = "end"
    if begin:
        to = "begin"
    elif time_ms is not None:
        to = time_ms
    lag = await Offsets(servers).show(group, topic, broker=broker)
    before = {one.queue: one for one in lag.queues}
    if not before or not await Groups(servers).settings(group, broker=broker):
        raise no_group_or_topic(group, topic)
    if not dry_run and queue is None:
        after = await Offsets(servers).reset(group, topic, to, only_back=only_back, broker=broker)
    else:
        after = {}
        for at, stands in before.items():
            if queue not in (None, at.queue_id):
                continue
            target = offset
            if target is None:
                target = await _target(servers, stands, to)
            if only_back:
                target = min(target, stands.offset)
            after[at] = target
    if queue is not None and not after:
        raise NotFoundError(
            f"{topic} has no queue {queue}; turbopump topic show {topic} lists them"
        )
    if not dry_run and queue is not None:
        for at, target in after.items():
            await Offsets(servers).reset_queue(group, at, target)
    old = {at: one.offset for at, one in before.items()}
    return _show_moves(output, group, old, after, dry_run=dry_run)


async def _target(servers: Servers, stands: QueueLag, to: Literal["begin", "end"] | int) -> int:
    """Return the offset in a queue for a reset."""
    if to == "end":
        return stands.end
    if to == "begin":
        return (await Offsets(servers).bounds(stands.queue))[0]
    return await Offsets(servers).at_time(stands.queue, to)


@client_command(command, "clone", short_help="Copy the offsets of another group.")
@click.argument("source")
@click.argument("target")
@topic_option("Only in this topic.")
@dry_run_option
async def clone_offsets(
    servers: Servers, source: str, target: str, topic: str | None, dry_run: bool, output: str
) -> int:
    """Set the offsets of the group TARGET, which must exist, to those of the group SOURCE."""
    if source == target:
        raise click.UsageError(f"SOURCE and TARGET are both {source}")
    addresses = await servers.masters()
    lag = await group_lag(servers, addresses, source, topic)
    if not lag.queues:
        return await _complain_of_no_offset(servers, addresses, source, topic)
    groups = await group_names(servers, addresses)
    if target not in groups:
        near = did_you_mean(target, groups)
        raise NotFoundError(
            f"the group {target} does not exist{near}; start a consumer of a new group once"
        )
    before = await group_lag(servers, addresses, target, topic)
    if not dry_run:
        await Offsets(servers).clone(source, target, topic)
        lag = await group_lag(servers, addresses, target, topic)
    old = {one.queue: one.offset for one in before.queues}
    after = {one.queue: one.offset for one in lag.queues}
    return _show_moves(output, target, old, after, dry_run=dry_run)


def _show_moves(
    output: str,
    group: str,
    old: Mapping[MessageQueue, int],
    after: Mapping[MessageQueue, int],
    *,
    dry_run: bool,
) -> int:
    """Print the old and the new offsets of a group. Return the exit code."""
    changes = [
        Change(queue.broker_name, f"{queue.topic} queue {queue.queue_id}", old.get(queue), offset)
        for queue, offset in after.items()
    ]
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "old_offset": old.get(queue),
            "offset": offset,
        }
        for queue, offset in after.items()
    ]
    more = {"group": group, "queues": queues}
    return show_changes(output, changes, dry_run=dry_run, more=more)


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
