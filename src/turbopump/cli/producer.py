"""`turbopump producer list`: connected producers."""

from __future__ import annotations

from typing import Final

import click

from turbopump.admin.clients import Producer, producers_at
from turbopump.admin.cluster import Servers
from turbopump.cli.entry import command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_option
from turbopump.cli.tables import TIME, VERSION, Column, Table

PRODUCERS: Final = (
    Column("group"),
    Column("client_id", "producer"),
    Column("address"),
    Column("language"),
    Column("version", unit=VERSION),
    Column("last_heartbeat_ms", "last heartbeat", TIME),
)

command = command_group("producer", "Connected producers.")


@client_command(command, "list", short_help="Producers, their addresses and groups.", watch=True)
@click.option("-g", "--group", metavar="GROUP", help="Only the producers of this producer group.")
@broker_option("Only those that are connected to this broker.")
@click.option("--cluster", metavar="NAME", help="Only those of this cluster.")
async def list_producers(
    servers: Servers, group: str | None, broker: str | None, cluster: str | None, output: str
) -> int:
    """List the producers that are connected to the masters. A producer that is connected to several
    brokers is listed once."""
    found: dict[tuple[str, str], Producer] = {}
    for address in await servers.brokers_at(broker, cluster):
        for name, producers in (await producers_at(servers, address)).items():
            if group in (None, name):
                found |= {(name, one.client_id): one for one in producers}
    rows = [
        {
            "group": name,
            "client_id": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
            "last_heartbeat_ms": one.last_heartbeat_ms,
        }
        for (name, _), one in sorted(found.items())
    ]
    show(output, {"producers": rows}, [Table(PRODUCERS, rows)])
    if not rows:
        complain("no producer is connected")
    return 0
