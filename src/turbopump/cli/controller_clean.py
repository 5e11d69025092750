"""`turbopump controller clean`: controllers forget replicas that do not come back."""

from __future__ import annotations

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import Controllers
from turbopump.cli.changes import Change, dry_run_option, failure_of, show_changes
from turbopump.cli.entry import NOT_FOUND, complain
from turbopump.cli.frame import client_command
from turbopump.cli.names import broker_subject
from turbopump.cli.values import controller_option


@client_command(None, "clean", short_help="Forget replicas that do not come back.")
@broker_subject("name")
@click.option(
    "--id",
    "replicas",
    multiple=True,
    type=click.IntRange(1),
    help="Replica to forget; may be repeated.  [default: all, and the broker name with them]",
)
@click.option("--living", is_flag=True, help="Also replicas that are alive.")
@click.option("--cluster", metavar="NAME", help="Cluster of the broker, if no name server has it.")
@controller_option
@dry_run_option
async def command(
    servers: Servers,
    name: str,
    replicas: tuple[int, ...],
    living: bool,
    cluster: str | None,
    controller: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Make the controllers forget replicas of a broker name. A replica that comes back gets a new
    id, and copies the whole log."""
    facet = Controllers(servers)
    group = (await facet.replicas([name], controller)).get(name)
    if group is None:
        complain(f"the controller does not know the broker name {name}")
        return NOT_FOUND
    ids = list(replicas) or [one.id for one in group.replicas]
    fault = None
    if not dry_run:
        fault = await failure_of(
            facet.clean(
                name,
                list(replicas) or None,
                also_living=living,
                controller=controller,
                cluster=cluster,
            )
        )
    known = {one.id: one for one in group.replicas}
    changes = []
    for number in ids:
        old = known[number].address if number in known else None
        changes.append(Change(name, f"replica {number}", old, None, fault))
    return show_changes(output, changes, dry_run=dry_run)
