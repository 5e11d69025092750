"""`turbopump controller elect`: another replica becomes the master of a broker name."""

from __future__ import annotations

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import ANY_REPLICA, Controllers
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import NOT_FOUND, complain
from turbopump.cli.frame import client_command
from turbopump.cli.names import broker_subject
from turbopump.cli.values import controller_option
from turbopump.errors import TurbopumpError


@client_command(None, "elect", short_help="Elect a master of a broker name.")
@broker_subject("name")
@click.option(
    "--id",
    "replica",
    type=click.IntRange(1),
    help="The replica that becomes the master, also in place of one that is alive.  [default: the "
    "controller chooses]",
)
@click.option("--cluster", metavar="NAME", help="Cluster of the broker, if no name server has it.")
@controller_option
@dry_run_option
async def command(
    servers: Servers,
    name: str,
    replica: int | None,
    cluster: str | None,
    controller: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Elect the master of a broker name. Only a replica in sync can become the master: `turbopump
    controller replicas` shows them. Exit code 1 if none was elected."""
    facet = Controllers(servers)
    group = (await facet.replicas([name], controller)).get(name)
    if group is None:
        complain(f"the controller does not know the broker name {name}")
        return NOT_FOUND
    new: int | str | None = replica or "the controller chooses"
    fault = None
    if not dry_run:
        wanted = replica or ANY_REPLICA
        try:
            elected = await facet.elect(name, wanted, controller=controller, cluster=cluster)
            new = elected.master_id
        except TurbopumpError as error:
            fault = str(error)
    change = Change(name, "master", group.master_id, new, fault)
    return show_changes(output, [change], dry_run=dry_run)
