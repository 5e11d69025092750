"""`turbopump broker cold-reads list|limit|read-ahead`: reads of messages that are not in memory."""

from __future__ import annotations

from typing import Final

import click

from turbopump.admin.brokers import Brokers
from turbopump.admin.cluster import Servers
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import command_group
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_subject, group_option
from turbopump.cli.tables import BYTES, TIME, Column, Table, size_text

READS: Final = (
    Column("group"),
    Column("read", "read in 5 s", BYTES),
    Column("limit", "limit in 5 s", BYTES),
    Column("last_read", "last read", TIME),
)

command = command_group("cold-reads", "Reads of old messages, which a broker may slow down.")


@client_command(command, "list", short_help="Groups that read old messages.", watch=True)
@broker_subject()
async def list_reads(servers: Servers, broker: str, output: str) -> int:
    """List the groups that read messages which are not in memory, and the limits. A broker slows
    groups down only with coldDataFlowControlEnable=true."""
    facet = Brokers(servers)
    found = await facet.cold_reads((await facet.find(broker)).address)
    default = found.cg_cold_read_threshold
    limit_of_all = found.global_cold_read_threshold
    rows = []
    for group in sorted({*found.runtime_table, *found.config_table}):
        reading = found.runtime_table.get(group)
        rows.append(
            {
                "group": group,
                "read": reading.cold_acc if reading is not None else 0,
                "limit": found.config_table.get(group, default),
                "last_read": reading.last_cold_read_time_mills if reading is not None else None,
            }
        )
    answer = {
        "groups": rows,
        "default_limit": default,
        "read": found.global_acc,
        "limit": limit_of_all,
    }
    parts: list[str | Table] = [
        Table(READS, rows),
        f"all groups: {size_text(found.global_acc)} of {size_text(limit_of_all)} in 5 s; a "
        f"group without a limit of its own: {size_text(default)}",
    ]
    if output == "csv":
        parts = [Table(READS, rows)]
    show(output, answer, parts)
    return 0


@client_command(command, "limit", short_help="Limit how much a group reads.")
@broker_subject()
@group_option("The group.", required=True)
@click.option("--bytes", "size", type=click.IntRange(0), help="Bytes that it may read in 5 s.")
@click.option("--default", "is_default", is_flag=True, help="Give it the default limit again.")
@dry_run_option
async def limit(
    servers: Servers,
    broker: str,
    group: str,
    size: int | None,
    is_default: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Limit how much a group may read of messages that are not in memory. The limit lasts until the
    broker stops."""
    if (size is not None) == is_default:
        raise click.UsageError("give --bytes or --default")
    facet = Brokers(servers)
    member = await facet.find(broker)
    old = (await facet.cold_reads(member.address)).config_table.get(group)
    if not dry_run and size is None:
        await facet.remove_cold_read_limit(member.address, group)
    elif not dry_run and size is not None:
        await facet.set_cold_read_limits(member.address, {group: size})
    change = Change(member.label, f"bytes in 5 s of {group}", old, size)
    return show_changes(output, [change], dry_run=dry_run)


@client_command(command, "read-ahead", short_help="Let the system read ahead in the log, or not.")
@broker_subject()
@click.option("--on/--off", "is_on", required=True, help="Read ahead, or not.")
@dry_run_option
async def read_ahead(servers: Servers, broker: str, is_on: bool, dry_run: bool, output: str) -> int:
    """Set if the system of a broker reads ahead in the files of the log. Reading ahead makes reads
    of old messages faster, and takes memory from new messages. The broker does not tell the old
    value, and forgets the new one when it stops."""
    facet = Brokers(servers)
    member = await facet.find(broker)
    if not dry_run:
        await facet.set_read_ahead(member.address, enabled=is_on)
    change = Change(member.label, "read-ahead", "unknown", "on" if is_on else "off")
    return show_changes(output, [change], dry_run=dry_run)
