"""`turbopump cluster ha|list`: the state of replication, and the clusters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import click

from turbopump.admin.brokers import Brokers
from turbopump.admin.cluster import Servers
from turbopump.admin.replication import BrokerReplication, Replication, replication_problems
from turbopump.admin.topics import Topics
from turbopump.cli.entry import INCOMPLETE, command_group
from turbopump.cli.frame import client_command, show
from turbopump.cli.tables import BYTES, Column, Table
from turbopump.errors import TurbopumpError

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

command = command_group("cluster", "Show whole clusters.")


@client_command(
    command, "ha", short_help="Masters, their slaves, and how far these are behind.", watch=True
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
async def ha(servers: Servers, output: str, cluster: str | None) -> int:
    """Show each master with its slaves: bytes behind, bytes a second, seconds left. The exit code
    is 1 if there is a problem, or a broker could not be asked."""
    brokers = await Replication(servers).states(cluster)
    n = servers.n_option
    problems = [
        {"broker": name, "message": message, "fix": fix}
        for name, replicas in itertools.groupby(brokers, lambda one: one.name)
        for message, fix in replication_problems(list(replicas), n)
    ]
    parts = ha_tables(brokers)
    for one in problems:
        parts += [f"WRONG  broker {one['broker']}: {one['message']}", f"       -> {one['fix']}"]
    show(output, {"brokers": [one.row for one in brokers], "problems": problems}, parts)
    return INCOMPLETE if problems or any(one.status is None for one in brokers) else 0


def ha_tables(brokers: Sequence[BrokerReplication]) -> list[str | Table]:
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
