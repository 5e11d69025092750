"""`turbopump broker epochs`: which masters have written the log of a replica."""

from __future__ import annotations

from typing import Final

from turbopump.admin.cluster import Servers
from turbopump.admin.replication import Replication
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_subject
from turbopump.cli.tables import Column, Table

EPOCHS: Final = (Column("epoch"), Column("start", unit="offset"), Column("end", unit="offset"))


@client_command(None, "epochs", short_help="Which masters have written the log.", watch=True)
@broker_subject()
async def command(servers: Servers, broker: str, output: str) -> int:
    """Show the epochs in the log of a replica, which has a controller. Each new master has a higher
    epoch. Two replicas have equal logs up to the end of the last epoch with the same start."""
    found = await Replication(servers).epochs(broker)
    rows = [
        {
            "epoch": one.epoch,
            "start": one.start_offset,
            "end": min(one.end_offset, found.max_offset),
        }
        for one in found.epoch_list
    ]
    answer = {
        "broker": found.broker_name,
        "id": found.broker_id,
        "cluster": found.cluster_name,
        "log_end": found.max_offset,
        "epochs": rows,
    }
    parts: list[str | Table] = [
        Table(EPOCHS, rows),
        f"the log of {found.broker_name}:{found.broker_id} ends at {found.max_offset:,}",
    ]
    if output == "csv":
        parts = [Table(EPOCHS, rows)]
    show(output, answer, parts)
    return 0
