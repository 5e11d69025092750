"""`turbopump controller show|replicas`: who leads, and the replicas of each broker name."""

from __future__ import annotations

from typing import Any, Final

from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import Controllers, ReplicaLog
from turbopump.cli.entry import INCOMPLETE, NOT_FOUND, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_option
from turbopump.cli.tables import BYTES, Column, Table
from turbopump.cli.values import controller_option

CONTROLLERS: Final = (
    Column("controller"),
    Column("group"),
    Column("leads"),
    Column("leader"),
    Column("fault", "not asked because"),
)
REPLICAS: Final = (
    Column("broker"),
    Column("id"),
    Column("address"),
    Column("role"),
    Column("alive"),
    Column("in_sync"),
    Column("epoch"),
    Column("log_end", unit="offset"),
    Column("behind", unit=BYTES),
)


@client_command(None, "show", short_help="The controllers, and which one leads.", watch=True)
@controller_option
async def show_controllers(servers: Servers, controller: str | None, output: str) -> int:
    """Ask each controller who leads. Exit code 1 if one could not be asked, or if none or several
    lead."""
    rows: list[dict[str, Any]] = []
    for one in await Controllers(servers).states(controller):
        row: dict[str, Any] = {"controller": one.address}
        if one.metadata is None:
            row["fault"] = one.fault
        else:
            row |= {
                "group": one.metadata.group,
                "leads": one.metadata.is_leader,
                "leader": one.leader,
                "peers": one.metadata.peers,
            }
        rows.append(row)
    failed = any("fault" in row for row in rows)
    columns = CONTROLLERS if failed else CONTROLLERS[:-1]
    show(output, {"controllers": rows}, [Table(columns, rows)])
    leaders = {row["leader"] for row in rows if row.get("leader")}
    if not leaders:
        complain(
            "no controller leads: no master can be elected, and the present masters continue; read "
            "the logs of the controllers"
        )
    elif len(leaders) > 1:
        complain(f"controllers know different leaders: {', '.join(sorted(leaders))}")
    return INCOMPLETE if failed or len(leaders) != 1 else 0


@client_command(
    None, "replicas", short_help="Replicas of broker names: alive, in sync, behind.", watch=True
)
@broker_option("Only this brokerName.")
@controller_option
async def show_replicas(
    servers: Servers, broker: str | None, controller: str | None, output: str
) -> int:
    """Show the replicas of each broker name that the name server knows. A replica in sync has every
    acknowledged message. Epoch, log end and bytes behind come from the replicas themselves.

    Exit code 1 if a broker name has no master, 3 if the controller does not know -b."""
    facet = Controllers(servers)
    groups = await facet.replicas(None if broker is None else [broker], controller)
    rows = []
    values = []
    for name, group in groups.items():
        its = [_row(one) for one in await facet.logs(group)]
        rows += its
        values.append(
            {
                "broker": name,
                "master_id": group.master_id,
                "master_address": group.master_address,
                "master_epoch": group.master_epoch,
                "sync_state_set": group.in_sync,
                "sync_state_set_epoch": group.sync_state_set_epoch,
                "replicas": its,
            }
        )
    show(output, {"brokers": values}, [Table(REPLICAS, rows)])
    if broker is not None and broker not in groups:
        complain(f"the controller does not know the broker name {broker}")
        return NOT_FOUND
    without = [name for name, group in groups.items() if group.master_id is None]
    for name in without:
        complain(f"{name} has no master now")
    return INCOMPLETE if without else 0


def _row(one: ReplicaLog) -> dict[str, Any]:
    return {
        "broker": one.replica.broker,
        "id": one.replica.id,
        "address": one.replica.address,
        "role": "master" if one.replica.is_master else "slave",
        "alive": one.replica.alive,
        "in_sync": one.replica.in_sync,
        "epoch": one.last_epoch,
        "log_end": None if one.epochs is None else one.epochs.max_offset,
        "behind": one.behind_bytes,
        "fault": one.fault,
    }
