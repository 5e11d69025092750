"""Metrics of the replication between a master and its slaves. All names are ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from turbopump.broker.replica.group_replication import GroupReplication
from turbopump.broker.replication import Replication
from turbopump.metrics.family import Family, Kind, Metrics, Sample

SLAVES: Final = Family(
    "turbopump_replication_slaves", Kind.GAUGE, "Slaves that are connected to this master."
)
IN_SYNC: Final = Family(
    "turbopump_replication_slaves_in_sync",
    Kind.GAUGE,
    "Connected slaves that had the whole log within the last haMaxTimeSlaveNotCatchup.",
)
BEHIND: Final = Family(
    "turbopump_replication_behind_bytes",
    Kind.GAUGE,
    "Bytes of the log that a connected slave has not acknowledged, by the slave's address.",
    ("slave",),
)
SLAVE_IN_SYNC: Final = Family(
    "turbopump_replication_in_sync",
    Kind.GAUGE,
    "1 if a connected slave is in sync, else 0, by the slave's address.",
    ("slave",),
)
REFUSED: Final = Family(
    "turbopump_replication_refused_total",
    Kind.COUNTER,
    "Connections of slaves that this master closed: not allowed, or with another log.",
)
COPIES: Final = Family(
    "turbopump_replication_copies", Kind.GAUGE, "1 if this slave copies from its master, else 0."
)


def add_replication(metrics: Metrics, replication: Replication | GroupReplication) -> None:
    """Add the metrics of a master or a slave."""
    slave = replication.slave
    if slave is not None:
        metrics.add_value(COPIES, lambda: slave.accepted)
    master = replication.master
    if master is None:
        return

    def status() -> Iterator[tuple[str, int, bool]]:
        found = replication.status(asyncio.get_running_loop().time())
        for one in found.ha_connection_info:
            yield one.addr or "", one.diff, one.in_sync

    def read_behind() -> Iterator[Sample]:
        for address, behind, _ in status():
            yield (address,), behind

    def read_in_sync() -> Iterator[Sample]:
        for address, _, in_sync in status():
            yield (address,), in_sync

    metrics.add_value(SLAVES, lambda: len(master.slaves))
    metrics.add_value(IN_SYNC, lambda: sum(in_sync for _, _, in_sync in status()))
    metrics.add(BEHIND, read_behind)
    metrics.add(SLAVE_IN_SYNC, read_in_sync)
    metrics.add_value(REFUSED, lambda: master.refused)
