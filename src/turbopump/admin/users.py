"""Users and policies on all servers of a cluster."""

from __future__ import annotations

from turbopump.admin.cluster import Servers


class Users:
    """Users and policies on all servers of a cluster."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
