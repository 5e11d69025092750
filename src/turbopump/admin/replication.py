"""Where replication stands on the brokers of a cluster: what `turbopump cluster ha` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from turbopump.admin.cluster import Servers, refuse_unknown_cluster
from turbopump.errors import BodyError, RemotingError
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.replication import GetBrokerHaStatus, HARuntimeInfo

ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class BrokerReplication:
    """A broker, and what it answers; ``fault``: why it does not."""

    name: str
    id: int
    address: str
    status: HARuntimeInfo | None
    fault: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """As JSON. Offsets are those of the log, in bytes."""
        found: dict[str, Any] = {"broker": self.name, "id": self.id, "address": self.address}
        status = self.status
        if status is None:
            return {**found, "fault": self.fault}
        if not status.master:
            master = status.ha_client_runtime_info
            return {
                **found,
                "role": "slave",
                "log_end": master.max_offset if master is not None else None,
                "copies_from": master.master_addr if master is not None else None,
            }
        slaves = [
            {
                "address": one.addr,
                "log_end": one.slave_ack_offset,
                "behind": one.diff,
                "in_sync": one.in_sync,
                "bytes_per_second": one.transferred_byte_in_second,
                "seconds_left": seconds_left(one.diff, one.transferred_byte_in_second),
            }
            for one in status.ha_connection_info
        ]
        end = status.master_commit_log_max_offset
        return {**found, "role": "master", "log_end": end, "slaves": slaves}


def seconds_left(behind: int, rate: int) -> int | None:
    """About how long a slave takes to catch up; None: it cannot be told."""
    if behind <= 0:
        return 0
    return -(-behind // rate) if rate > 0 else None


async def ha_status(servers: Servers, cluster: str | None = None) -> list[BrokerReplication]:
    """Every broker's, by name and id. Raises RemotingError if no name server answers, ClientError
    for a cluster that is not there."""
    info = await servers.brokers()
    if cluster is not None:
        refuse_unknown_cluster(info, cluster)
    found = []
    for name, broker in sorted(info.broker_addr_table.items()):
        if cluster not in (None, broker.cluster):
            continue
        for broker_id, address in sorted(broker.broker_addrs.items()):
            status, fault = None, None
            try:
                status = await servers.call(address, GetBrokerHaStatus(), timeout=ANSWER_S)
            except (RemotingError, BodyError) as error:
                fault = str(error)
            found.append(BrokerReplication(name, broker_id, address, status, fault))
    return found


def findings(brokers: list[BrokerReplication]) -> list[str]:
    """What is amiss, a sentence each."""
    masters = {one.name for one in brokers if one.id == MASTER_ID}
    said = [
        f"broker {name} has no master: its slaves are read, and it takes no messages"
        for name in sorted({one.name for one in brokers} - masters)
    ]
    slaves = {one.name for one in brokers if one.id != MASTER_ID}
    for one in brokers:
        if one.status is not None and one.status.master:
            served = len(one.status.ha_connection_info)
            if one.name in slaves and not served:
                said.append(f"no slave copies from {one.name} ({one.address}): their logs say why")
            said += [
                f"slave {slave.addr} of {one.name} is {slave.diff} bytes behind"
                for slave in one.status.ha_connection_info
                if not slave.in_sync
            ]
    return said
