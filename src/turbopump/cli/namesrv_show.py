"""`turbopump namesrv list|show`: running name servers, and what they know."""

from __future__ import annotations

from typing import Any, Final

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.name_servers import NameServers
from turbopump.cli.entry import INCOMPLETE, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import checked_address
from turbopump.errors import ResponseError, TurbopumpError
from turbopump.protocol.requests.namesrv import (
    MASTER_ID,
    ClusterInfo,
    GetAllTopicList,
    GetBrokerClusterInfo,
)

NAME_SERVERS: Final = (
    Column("name_server"),
    Column("clusters"),
    Column("masters"),
    Column("slaves"),
    Column("topics"),
    Column("fault", "not asked because"),
)
BROKERS: Final = (
    Column("cluster"),
    Column("broker"),
    Column("id"),
    Column("address"),
    Column("writable"),
)


@client_command(
    None, "list", short_help="The name servers, and how many brokers each knows.", watch=True
)
async def list_name_servers(servers: Servers, output: str) -> int:
    """Ask each name server in -n how many brokers and topics it knows. Exit code 1 if one could not
    be asked, or if they know other brokers."""
    rows: list[dict[str, Any]] = []
    known = []
    for address in servers.name_servers:
        row: dict[str, Any] = {"name_server": address}
        try:
            info = await servers.call(address, GetBrokerClusterInfo())
            topics = (await servers.call(address, GetAllTopicList())).topic_list
        except TurbopumpError as error:
            rows.append({**row, "fault": str(error)})
            continue
        brokers = _broker_rows(info)
        known.append(brokers)
        masters = sum(one["id"] == MASTER_ID for one in brokers)
        row |= {
            "clusters": sorted(info.cluster_addr_table),
            "masters": masters,
            "slaves": len(brokers) - masters,
            "topics": len(topics),
        }
        rows.append(row)
    failed = any("fault" in row for row in rows)
    columns = NAME_SERVERS if failed else NAME_SERVERS[:-1]
    differ = any(one != known[0] for one in known)
    show(output, {"name_servers": rows, "differ": differ}, [Table(columns, rows)])
    if differ:
        complain(
            "the name servers know other brokers: check namesrvAddr of each broker; turbopump "
            "namesrv show ADDR lists them"
        )
    return INCOMPLETE if failed or differ else 0


def _broker_rows(info: ClusterInfo) -> list[dict[str, Any]]:
    return [
        {"cluster": broker.cluster, "broker": name, "id": number, "address": address}
        for name, broker in sorted(info.broker_addr_table.items())
        for number, address in sorted(broker.broker_addrs.items())
    ]


@client_command(None, "show", short_help="The brokers that one name server knows.", watch=True)
@click.argument("server", metavar="[ADDR]", required=False, callback=checked_address)
async def show_name_server(servers: Servers, server: str | None, output: str) -> int:
    """Show the brokers that one name server knows, if clients may send to them, and how many topics
    it knows. ADDR is its HOST:PORT, by default the first one of -n."""
    address = server or servers.name_servers[0]
    info = await servers.call(address, GetBrokerClusterInfo())
    topics = (await servers.call(address, GetAllTopicList())).topic_list
    rows = _broker_rows(info)
    facet = NameServers(servers)
    for row in rows:
        try:
            row["writable"] = await facet.is_writable(row["broker"], address)
        except ResponseError:  # the name server has no topics of this broker yet
            row["writable"] = None
    answer = {"name_server": address, "topics": len(topics), "brokers": rows}
    parts: list[str | Table] = [Table(BROKERS, rows), f"{address} knows {len(topics)} topics"]
    show(output, answer, parts)
    return 0
