"""Name servers of a cluster: settings, and the write permission of brokers."""

from __future__ import annotations

from turbopump.admin.cluster import Servers


class NameServers:
    """Name servers of a cluster: settings, and the write permission of brokers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
