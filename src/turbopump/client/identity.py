"""Who a client says it is: its instance's name, its credentials, its namespace. What every request
carries because of that: ``auth/signatures.py``."""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.setting_rules import INSTANCE_RULES, check_fields
from turbopump.config.tls import ClientTls, meant
from turbopump.errors import ConfigError
from turbopump.remoting.client import PERMITS


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """What clients share with an instance. ``instance_name`` None: whatever name there is."""

    name_servers: tuple[str, ...]
    instance_name: str | None = None
    unit_name: str | None = None
    unit_mode: bool = False
    vip_channel_enabled: bool = False
    async_permits: int = PERMITS
    oneway_permits: int = PERMITS
    credentials: Credentials | None = None
    namespace_v2: str | None = None
    tls: ClientTls | bool = False
    """True: ``ClientTls()``."""
    route_interval: float = 30.0
    heartbeat_interval: float = 30.0
    commit_interval: float = 5.0
    call_timeout: float = 3.0
    header_form: str = "JSON"

    def __post_init__(self) -> None:
        check_fields(INSTANCE_RULES, self)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # their value is not shown
            raise ConfigError("credentials must be made as Credentials(access_key, secret_key)")

    @property
    def client_name(self) -> tuple[str | None, str | None]:
        """Two instances with the same are one client to the brokers of a cluster."""
        return self.instance_name, self.unit_name

    @property
    def client_tls(self) -> ClientTls | None:
        """None: plain text."""
        return meant(self.tls)

    def signer(self) -> RequestSigner | None:
        """What every request carries; None: nothing."""
        if self.credentials is None and self.namespace_v2 is None:
            return None
        return RequestSigner(self.credentials, self.namespace_v2)
