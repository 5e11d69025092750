"""`turbopump cluster ha`: the state of replication."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.replication import BrokerReplication, ha_status, replication_problems
from turbopump.cli.entry import command_group
from turbopump.cli.frame import INCOMPLETE, client_command, show
from turbopump.cli.tables import BYTES, Column, Table

BROKERS: Final = (
    Column("broker"),
    Column("id"),
    Column("address"),
    Column("role"),
    Column("log_end", unit="offset"),
    Column("copies_from"),
    Column("state"),
)
SLAVES: Final = (
    Column("master"),
    Column("address", "slave"),
    Column("log_end", unit="offset"),
    Column("behind", unit=BYTES),
    Column("in_sync"),
    Column("proof"),
    Column("bytes_per_second", "copies", "bytes/s"),
    Column("seconds_left", "time left", "s"),
)

command = command_group("cluster", "Show a whole cluster.")


@client_command(
    command, "ha", short_help="Masters, their slaves, and how far these are behind.", watch=True
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
async def ha(servers: Servers, output: str, cluster: str | None) -> int:
    """Show each master with its slaves: bytes behind, bytes a second, seconds left. The exit code
    is 1 if there is a problem, or a broker could not be asked."""
    brokers = await ha_status(servers, cluster)
    n = f"-n '{';'.join(servers.name_servers)}'"
    problems = [
        {"broker": name, "message": message, "fix": fix}
        for name, replicas in itertools.groupby(brokers, lambda one: one.name)
        for message, fix in replication_problems(list(replicas), n)
    ]
    parts = _tables(brokers)
    for one in problems:
        parts += [f"WRONG  broker {one['broker']}: {one['message']}", f"       -> {one['fix']}"]
    show(output, {"brokers": [one.row for one in brokers], "problems": problems}, parts)
    return INCOMPLETE if problems or any(one.status is None for one in brokers) else 0


def _tables(brokers: Sequence[BrokerReplication]) -> list[str | Table]:
    """Return a table of the brokers and, if there are slaves, the masters' table of them."""
    slaves: list[dict[str, Any]] = []
    for one in brokers:
        slaves += [{"master": one.name, **slave} for slave in one.row.get("slaves", ())]
    found: list[str | Table] = [
        Table(BROKERS, [{**one.row, "state": _state(one)} for one in brokers])
    ]
    if slaves:
        found += ["", Table(SLAVES, slaves)]
    return found


def _state(broker: BrokerReplication) -> str:
    row = broker.row
    if broker.status is None:
        return f"not asked: {row['fault']}"
    if row["role"] == "master":
        return "ok"
    if row["does_not_copy"]:
        return f"does not copy: {row['does_not_copy']}"
    return "copies" if row["copies_from"] else "does not copy"
