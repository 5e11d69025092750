"""Settings of the port with the health of a server, which name servers and brokers share."""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.config.access import AccessConfig
from turbopump.config.addresses import LOOPBACK
from turbopump.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig(AccessConfig):
    """Settings of health pages, access control and TLS of a server."""

    health_port: int = setting(
        0,
        "port that answers `/livez` and `/readyz` over HTTP; 0: none",
        high=65535,
        own=True,
        group="health",
    )
    health_host: str = setting(
        LOOPBACK, "interface of healthPort; its pages need no access control", own=True
    )
