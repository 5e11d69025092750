"""`turbopump cluster ha|list`: the state of replication, and the clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import click

from turbopump.admin.brokers import Brokers
from turbopump.admin.cluster import Servers
from turbopump.admin.replication import ha_status, replication_problems
from turbopump.admin.topics import Topics
from turbopump.cli.entry import command_group
from turbopump.cli.frame import INCOMPLETE, client_command, show
from turbopump.cli.tables import Column, Table
from turbopump.errors import TurbopumpError
from turbopump.protocol.requests.replication import PROVED

command = command_group("cluster", "Show whole clusters.")


@client_command(command, "ha", short_help="Masters, their slaves, and how far these are behind.")
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
    lines = [line for one in brokers for line in _ha_lines(one.row)]
    for one in problems:
        lines += [f"WRONG  broker {one['broker']}: {one['message']}", f"       -> {one['fix']}"]
    show(output, {"brokers": [one.row for one in brokers], "problems": problems}, lines)
    return INCOMPLETE if problems or any(one.status is None for one in brokers) else 0


def _ha_lines(row: dict[str, Any]) -> Iterator[str]:
    name = f"{row['broker']} {row['id']}  {row['address']}"
    if "fault" in row:
        yield f"{name}  not asked: {row['fault']}"
    elif row["role"] == "slave":
        copies = "does not copy"
        if row["does_not_copy"]:
            copies = f"does not copy: {row['does_not_copy']}"
        elif row["copies_from"]:
            copies = f"copies from {row['copies_from']}"
        yield f"{name}  slave  log {row['log_end']}  {copies}"
    else:
        yield f"{name}  master  log {row['log_end']}"
    for slave in row.get("slaves", ()):
        state = "in sync" if slave["in_sync"] else "not in sync"
        if slave["proof"] not in (None, PROVED):
            state += f"  {slave['proof']}"
        left = slave["seconds_left"]
        if left is None:
            left = "?"
        yield (
            f"  slave {slave['address']}  log {slave['log_end']}  behind {slave['behind']}  "
            f"{state}  {slave['bytes_per_second']} bytes/s  {left} s left"
        )


CLUSTERS: Final = (
    Column("cluster"),
    Column("brokers"),
    Column("masters"),
    Column("slaves"),
    Column("topics"),
    Column("put_per_second", "in", "msg/s"),
    Column("get_per_second", "out", "msg/s"),
    Column("fault", "not asked"),
)


@client_command(command, "list", short_help="Clusters: brokers, topics, rates.", watch=True)
async def list_clusters(servers: Servers, output: str) -> int:
    """List the clusters that the name server knows: brokerNames, masters, slaves, topics, and
    messages a second in the last minute. Exit code 1 if a master could not be asked."""
    brokers = await Brokers(servers).list()
    rows = []
    for cluster in sorted({one.cluster for one in brokers}):
        members = [one for one in brokers if one.cluster == cluster]
        masters = [one for one in members if one.is_master]
        put, get = 0.0, 0.0
        faults = []
        for one in masters:
            try:
                figures = await Brokers(servers).figures(one.address)
            except TurbopumpError as error:
                faults.append(str(error))
                continue
            put += figures.put_rate.over_60_s if figures.put_rate is not None else 0.0
            get += figures.get_rate.over_60_s if figures.get_rate is not None else 0.0
        row: dict[str, Any] = {
            "cluster": cluster,
            "brokers": len({one.name for one in members}),
            "masters": len(masters),
            "slaves": len(members) - len(masters),
            "topics": len(await Topics(servers).names(cluster)),
            "put_per_second": put,
            "get_per_second": get,
        }
        if faults:
            row["fault"] = "; ".join(faults)
        rows.append(row)
    failed = any("fault" in row for row in rows)
    columns = CLUSTERS if failed else CLUSTERS[:-1]
    show(output, {"clusters": rows}, [Table(columns, rows)])
    return INCOMPLETE if failed else 0
