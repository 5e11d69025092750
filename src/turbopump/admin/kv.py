"""Key-value configuration of the name servers, and globally ordered topics."""

from __future__ import annotations

from turbopump.admin.cluster import Servers


class Kv:
    """Key-value configuration of the name servers, and globally ordered topics."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
