"""`turbopump controller elect|clean`: changes of the replicas of a broker name.

Controllers elect another replica as the master, or forget replicas that do not come back.
"""

from __future__ import annotations

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import ANY_REPLICA, Controllers, GroupState
from turbopump.cli.changes import Change, dry_run_option, failure_of, show_changes
from turbopump.cli.entry import NOT_FOUND, complain
from turbopump.cli.frame import client_command
from turbopump.cli.names import broker_subject
from turbopump.cli.values import controller_option
from turbopump.errors import NotFoundError, TurbopumpError

cluster_option = click.option(
    "--cluster", metavar="NAME", help="Cluster of the broker, if no name server has it."
)


@client_command(None, "elect", short_help="Elect a master of a broker name.")
@broker_subject("name")
@click.option(
    "--id",
    "replica",
    type=click.IntRange(1),
    help="The replica that becomes the master, also in place of one that is alive.  [default: the "
    "controller chooses]",
)
@cluster_option
@controller_option
@dry_run_option
async def elect(
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
    group = await _group(facet, name, controller)
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
@cluster_option
@controller_option
@dry_run_option
async def clean(
    servers: Servers,
    name: str,
    replicas: tuple[int, ...],
    living: bool,
    cluster: str | None,
    controller: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Make the controllers forget replicas of a broker name, which have been removed for good.

    The controllers refuse a forgotten replica. To bring it back, remove brokerIdentity from its
    store, and start it: it gets a new id. Exit code 3 if a replica is not known."""
    facet = Controllers(servers)
    group = await _group(facet, name, controller)
    known = {one.id: one for one in group.replicas}
    ids = list(replicas) or list(known)
    for number in ids:
        if number not in known:
            complain(f"{name} has no replica {number}; there are: {', '.join(map(str, known))}")
            return NOT_FOUND
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
    changes = [Change(name, f"replica {one}", known[one].address, None, fault) for one in ids]
    return show_changes(output, changes, dry_run=dry_run)


async def _group(facet: Controllers, name: str, controller: str | None) -> GroupState:
    group = (await facet.replicas([name], controller)).get(name)
    if group is None:
        raise NotFoundError(f"the controller does not know the broker name {name}")
    return group
