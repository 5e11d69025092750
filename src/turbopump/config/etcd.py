"""Settings of the connection to etcd, which several controllers use to agree.

All keys are Turbopump's own. Apache's controllers agree among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turbopump.config.addresses import parse_address
from turbopump.config.setting import setting
from turbopump.config.tls import ClientTls
from turbopump.errors import ConfigError

LEASE_MIN_S: Final = 2
"""Shortest lease that etcd grants with its default election timeout of 1 s."""


@dataclass(frozen=True, slots=True)
class Etcd:
    """Addresses and credentials of the members of one etcd cluster.

    - ``members``: host and port of each member.
    - ``tls``: the TLS settings, or None for plain text.
    - ``user``: empty if etcd has no access control.
    - ``lease_s``: seconds without a renewal after which another controller may lead.
    """

    members: tuple[tuple[str, int], ...]
    tls: ClientTls | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    lease_s: int = 3


@dataclass(frozen=True, kw_only=True)  # without slots: a configuration has other bases beside it
class EtcdConfig:
    """Settings of the connection to etcd."""

    etcd_endpoints: str = setting(
        "",
        "members of the etcd cluster where several controllers keep their decisions, "
        "`http://HOST:PORT` or `https://HOST:PORT`, separated by `;`; empty: this controller is "
        "the only one, and has a file",
        own=True,
        group="etcd",
    )
    etcd_user: str = setting("", "user of etcd, if etcd has access control", own=True)
    etcd_password: str = setting("", "password of that user", own=True, secret=True)
    etcd_trust_cert_path: str = setting(
        "",
        "PEM file of the certificates that sign those of etcd; empty: those of the system",
        own=True,
    )
    etcd_cert_path: str = setting(
        "", "PEM file of the certificate for an etcd that asks for one", own=True
    )
    etcd_key_path: str = setting(
        "", "PEM file of the key; empty: the certificate's file contains it", own=True
    )
    etcd_lease_seconds: int = setting(
        3,
        "time after which another controller leads if the leader no longer reaches etcd",
        "s",
        low=LEASE_MIN_S,
        high=600,
        own=True,
    )

    @property
    def etcd(self) -> Etcd | None:
        """Members and credentials of etcd, or None if no endpoint is set.

        Raises ConfigError if the settings are invalid or contradict each other.
        """
        endpoints = [part.strip() for part in self.etcd_endpoints.split(";") if part.strip()]
        if not endpoints:
            return None
        members = tuple(_member(endpoint) for endpoint in endpoints)
        with_tls = {endpoint.startswith("https://") for endpoint in endpoints}
        if len(with_tls) > 1:
            raise ConfigError(
                f"etcdEndpoints={self.etcd_endpoints}: expected either http:// or https:// for all"
            )
        tls = None
        if with_tls == {True}:
            tls = ClientTls(
                trust=self.etcd_trust_cert_path or None,
                certificate=self.etcd_cert_path or None,
                key=self.etcd_key_path or None,
            )
        elif self.etcd_trust_cert_path or self.etcd_cert_path or self.etcd_key_path:
            raise ConfigError(
                f"etcdEndpoints={self.etcd_endpoints}: certificates are set, which needs https://"
            )
        if self.etcd_password and not self.etcd_user:
            raise ConfigError("etcdPassword is set, which needs etcdUser")
        return Etcd(members, tls, self.etcd_user, self.etcd_password, self.etcd_lease_seconds)


def _member(endpoint: str) -> tuple[str, int]:
    scheme, separator, address = endpoint.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ConfigError(
            f"etcdEndpoints: {endpoint!r}: expected http://HOST:PORT or https://HOST:PORT, such "
            "as http://127.0.0.1:2379"
        )
    return parse_address(address.rstrip("/"), what="etcdEndpoints")
