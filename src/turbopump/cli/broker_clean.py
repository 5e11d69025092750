"""`turbopump broker clean`: files that a broker deletes now instead of later."""

from __future__ import annotations

from typing import Final

import click

from turbopump.admin.brokers import Brokers
from turbopump.admin.cluster import Servers
from turbopump.cli.changes import Change, dry_run_option, failure_of, show_changes
from turbopump.cli.frame import client_command
from turbopump.cli.names import broker_option

CLEANINGS: Final = {
    "expired_queues": "queue files without messages",
    "unused_topics": "remains of deleted topics",
    "expired_log": "expired files of the log",
}


@client_command(None, "clean", short_help="Delete files that nothing needs, now.")
@broker_option("Only on this broker.")
@click.option("--cluster", metavar="NAME", help="Only on the brokers of this cluster.")
@click.option("--expired-queues", is_flag=True, help="Queue files whose messages are deleted.")
@click.option("--unused-topics", is_flag=True, help="Remains of topics that no longer exist.")
@click.option(
    "--expired-log", is_flag=True, help="Expired messages, before the hour of deleteWhen."
)
@dry_run_option
async def command(
    servers: Servers,
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
    **wanted: bool,
) -> int:
    """Clean the disk of each broker, masters and slaves. A broker does this by itself too, once a
    minute to once a day."""
    if not any(wanted.values()):
        raise click.UsageError("give --expired-queues, --unused-topics or --expired-log")
    facet = Brokers(servers)
    members = await facet.list(cluster)
    if broker is not None:
        members = (await facet.find(broker),)
    clean_of = {
        "expired_queues": facet.clean_expired_queues,
        "unused_topics": facet.clean_unused_topics,
        "expired_log": facet.delete_expired_log,
    }
    changes = []
    for member in members:
        for kind in (kind for kind, is_wanted in wanted.items() if is_wanted):
            fault = None
            if not dry_run:
                fault = await failure_of(clean_of[kind](member.address))
            changes.append(Change(member.label, CLEANINGS[kind], "there", "deleted", fault))
    return show_changes(output, changes, dry_run=dry_run)
