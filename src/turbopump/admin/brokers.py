"""Brokers of a cluster: list, settings, figures, cleaning."""

from __future__ import annotations

from turbopump.admin.cluster import Servers


class Brokers:
    """Brokers of a cluster: list, settings, figures, cleaning."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
