"""`turbopump consumer set-mode`: groups pull a topic, or pop it."""

from __future__ import annotations

from typing import Final

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.groups import Groups
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.frame import client_command
from turbopump.cli.names import broker_names, broker_option, group_option, topic_option
from turbopump.errors import TurbopumpError
from turbopump.protocol.requests.assignment import MessageRequestMode

SHARES_ALL: Final = 0


@client_command(None, "set-mode", short_help="Let a group pop a topic, or pull it.")
@click.argument("mode", type=click.Choice(["pop", "pull"]))
@group_option("The group.", required=True)
@topic_option("The topic.", required=True)
@click.option(
    "--share",
    type=click.IntRange(0),
    default=SHARES_ALL,
    help="With pop: number of other consumers that share the queues of one; 0 is all.",
)
@broker_option("Only on this broker.")
@click.option("--cluster", metavar="NAME", help="Only on the brokers of this cluster.")
@dry_run_option
async def command(
    servers: Servers,
    mode: str,
    group: str,
    topic: str,
    share: int,
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Set if the consumers of a group pull a topic or pop it. MODE is pop or pull. Running
    consumers that let the broker assign queues change with their next request for queues, after 20
    s at most."""
    facet = Groups(servers)
    names = await broker_names(servers)
    wanted = MessageRequestMode(mode.upper())
    changes = []
    for address in await servers.brokers_at(broker, cluster):
        old: str | None = None
        fault = None
        try:
            known = await facet.mode(group, topic, address)
            old = None if known is None else _words(known.mode, known.pop_share_queue_num)
            if not dry_run:
                await facet.set_mode(group, topic, wanted, pop_share=share, broker=address)
        except TurbopumpError as error:
            fault = str(error)
        what = f"{group} reads {topic} by"
        changes.append(Change(names.get(address, address), what, old, _words(wanted, share), fault))
    return show_changes(output, changes, dry_run=dry_run)


def _words(mode: MessageRequestMode, share: int) -> str:
    if mode is MessageRequestMode.PULL:
        return "pull"
    if share <= SHARES_ALL:
        return "pop, all share all queues"
    return f"pop, {share} others share the queues of one"
