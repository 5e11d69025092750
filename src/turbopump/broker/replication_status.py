"""State of the replication of a broker, for operators: the answer to request 907, and figures.

Brokers with and without a controller report it in the same words. RocketMQ has no such figures.
"""

from __future__ import annotations

from turbopump.protocol.requests.replication import (
    COMPARES,
    SLAVES,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from turbopump.replication.copying_link import CopyingLink
from turbopump.replication.master import SlaveFeed


def status_of_connection(
    address: str, connection: SlaveFeed, log_end: int, now: float, *, is_in_sync: bool, proof: str
) -> HAConnectionRuntimeInfo:
    """Return the state of one slave's connection.

    - ``log_end``: the end of the master's log.
    - ``now``: the time of the event loop, in seconds.
    """
    return HAConnectionRuntimeInfo(
        addr=address,
        slave_ack_offset=connection.acked,
        diff=log_end - max(connection.acked, 0),
        in_sync=is_in_sync,
        transferred_byte_in_second=connection.sent.per_second(now),
        transfer_from_where=-1 if connection.next is None else connection.next,
        proof=proof,
    )


def status_of_master(log_end: int, slaves: list[HAConnectionRuntimeInfo]) -> HARuntimeInfo:
    """Return the state of the replication of a master whose log ends at ``log_end``."""
    return HARuntimeInfo(
        master=True,
        master_commit_log_max_offset=log_end,
        in_sync_slave_nums=sum(one.in_sync for one in slaves),
        ha_connection_info=slaves,
    )


def status_of_slave(slave: CopyingLink, log_end: int, now: float, now_ms: int) -> HARuntimeInfo:
    """Return the state of the replication of a slave whose log ends at ``log_end``.

    - ``now``: the time of the event loop, in seconds.
    - ``now_ms``: the same time, in ms since 1970.
    """
    info = HAClientRuntimeInfo(
        master_addr=slave.address,
        max_offset=log_end,
        fault=None if slave.accepted else slave.fault,
        refusal=None if slave.accepted else slave.refusal,
    )
    if slave.copied_until is not None:
        info.copied_until = now_ms - int((now - slave.copied_until) * 1000)
    if slave.peer is not None:
        connection = slave.peer.connection
        info.last_read_timestamp = now_ms - int((now - connection.last_read) * 1000)
        info.last_write_timestamp = now_ms - int((now - connection.last_write) * 1000)
        info.transferred_byte_in_second = connection.came.per_second(now)
        if slave.accepted:
            info.copied_until = info.last_read_timestamp
    return HARuntimeInfo(master=False, ha_client_runtime_info=info)


def figures_of_master(status: HARuntimeInfo) -> dict[str, str]:
    """Return figures for the runtime information of a master.

    They are the number of connected and of in-sync slaves, the lag of the last slave in bytes, and
    the bytes sent per second.
    """
    slaves = status.ha_connection_info
    return {
        SLAVES: str(len(slaves)),
        COMPARES: "true",
        "haSlavesInSync": str(status.in_sync_slave_nums),
        "haBehindBytesMax": str(max((one.diff for one in slaves), default=0)),
        "haBytesPerSecond": str(sum(one.transferred_byte_in_second for one in slaves)),
    }


def figures_of_slave(slave: CopyingLink) -> dict[str, str]:
    """Return figures for the runtime information of a slave."""
    return {"haCopies": "true" if slave.accepted else "false"}
