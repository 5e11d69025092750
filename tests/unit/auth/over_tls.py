"""Servers with access control that speak TLS only."""

from typing import Any

from tests.unit.auth.signed import ON
from tests.unit.remoting.certificates import Pair

from turbopump.config.tls import TlsMode


def over_tls(pair: Pair) -> dict[str, Any]:
    """Settings of servers that take users over TLS alone."""
    return ON | {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": pair.certificate,
        "tls_server_key_path": pair.key,
        "tls_client_trust_cert_path": pair.certificate,
    }
