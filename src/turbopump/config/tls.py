"""TLS settings of servers and clients, under the names of Apache's system properties.

Apache's servers and Java clients read these names as properties of the JVM, and from the file that
`tls.config.file` names, which takes precedence. Here a server's own file may contain them too.
Three defaults are safer than Apache's:

- A client checks the server's certificate.
- A client checks the host name in the certificate.
- A server that asks for client certificates checks them.

Sockets are unknown here. Source: apache/rocketmq `TlsSystemConfig`, `TlsHelper`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turbopump.config.keys import KeyTable, key_table
from turbopump.config.properties import read_properties
from turbopump.config.setting import build, setting
from turbopump.errors import ConfigError

CONFIG_FILE: Final = "/etc/rocketmq/tls.properties"


class TlsMode(enum.StrEnum):
    """Kinds of connections that a server accepts.

    The server recognises the kind of a connection by the first byte.
    """

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.StrEnum):
    """Policy of a server for the certificates of clients."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS settings of a server.

    - ``key``: empty if `certificate` also contains the key.
    - ``trust``: the certificates that sign those of clients.

    All paths name PEM files.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    trust: str = ""

    def __post_init__(self) -> None:
        if not self.certificate and (self.mode is TlsMode.ENFORCING or self.key):
            raise ConfigError(
                "TLS needs a certificate: tls.server.certPath and tls.server.keyPath name the PEM "
                "files of a certificate and its key; `turbopump tls self-signed` makes a pair"
            )
        if self.client_auth is not ClientAuth.NONE and not self.trust:
            raise ConfigError(
                f"tls.server.need.client.auth={self.client_auth} needs tls.server.trustCertPath: "
                "the PEM file of the certificates that sign those of clients"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS settings of a client. By default it trusts the certificates of the operating system.

    - ``trust``: PEM file of the certificates that sign those of servers, or of the servers' own
      certificates. None means those of the operating system.
    - ``certificate``, ``key``: PEM files that the client shows to servers that ask for a
      certificate.
    - ``key_password``: password if the key is encrypted.
    - ``verify=False`` accepts any server.
    - ``check_host_name=False`` accepts any server with a trusted certificate.

    Raise ConfigError for settings that contradict each other.
    """

    trust: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_host_name: bool = True

    def __post_init__(self) -> None:
        for name in ("trust", "certificate", "key"):
            if not isinstance(value := getattr(self, name), str | Path | None) or value == "":
                raise ConfigError(f"{name}={value!r:.80} must be the path of a PEM file, or None")
        for name in ("verify", "check_host_name"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name}={value!r:.80} must be True or False")
        if not isinstance(self.key_password, str | None):
            raise ConfigError("key_password must be text, or None")
        if self.key and not self.certificate:
            raise ConfigError(f"key={self.key} needs certificate: the PEM file that it belongs to")


def meant(tls: ClientTls | bool) -> ClientTls | None:
    """Convert a ``tls`` parameter to TLS settings, or to None for plain text.

    True means TLS with all defaults, and False means plain text.
    """
    if isinstance(tls, ClientTls):
        return tls
    if tls:
        return ClientTls()
    return None


@dataclass(frozen=True, kw_only=True)  # without slots: a configuration has other bases beside it
class TlsConfig:
    """TLS settings of a server. They cover connections from clients, and connections to other
    servers."""

    tls_server_mode: TlsMode = setting(
        TlsMode.PERMISSIVE,
        "`permissive`: TLS and plain text on the same port; `enforcing`: TLS only; `disabled`: "
        "plain text only. `permissive` without a certificate refuses TLS",
        key="tls.server.mode",
        group="tls",
    )
    tls_enable: bool = setting(
        False, "connect to others with TLS; an `enforcing` server does so anyway", key="tls.enable"
    )
    tls_config_file: str = setting(
        CONFIG_FILE,
        "file with the other `tls.` keys, which has precedence over this one; the "
        "default file is read if it exists",
        key="tls.config.file",
    )
    tls_server_cert_path: str = setting(
        "",
        "PEM file of the server's certificate, and those between it and the root; read again when "
        "it changes",
        key="tls.server.certPath",
    )
    tls_server_key_path: str = setting(
        "",
        "PEM file of the key; empty: the certificate's file contains it",
        key="tls.server.keyPath",
    )
    tls_server_key_password: str = setting(
        "", "password of the key", key="tls.server.keyPassword", secret=True
    )
    tls_server_need_client_auth: ClientAuth = setting(
        ClientAuth.NONE,
        "`none`, `optional` or `require`: clients are asked for a certificate, which is always "
        "checked",
        key="tls.server.need.client.auth",
    )
    tls_server_trust_cert_path: str = setting(
        "",
        "PEM file of the certificates that sign those of clients",
        key="tls.server.trustCertPath",
    )
    tls_client_auth_server: bool = setting(
        True,
        "check the certificates of servers that this one connects to; with Apache's the default is "
        "false",
        key="tls.client.authServer",
    )
    tls_client_trust_cert_path: str = setting(
        "",
        "PEM file of the certificates that sign the servers'; empty: those of the system",
        key="tls.client.trustCertPath",
    )
    tls_client_check_host_name: bool = setting(
        True,
        "a server's certificate must be for the host or address that was asked for; Apache's "
        "clients never look",
        key="tls.client.checkHostName",
        own=True,
    )
    tls_client_cert_path: str = setting(
        "", "PEM file of the certificate for servers that ask for one", key="tls.client.certPath"
    )
    tls_client_key_path: str = setting(
        "",
        "PEM file of the key; empty: the certificate's file contains it",
        key="tls.client.keyPath",
    )
    tls_client_key_password: str = setting(
        "", "password of the key", key="tls.client.keyPassword", secret=True
    )

    @property
    def server_tls(self) -> ServerTls:
        """TLS settings for connections from clients.

        Raise ConfigError if the settings are invalid.
        """
        return ServerTls(
            mode=self.tls_server_mode,
            certificate=self.tls_server_cert_path,
            key=self.tls_server_key_path,
            key_password=self.tls_server_key_password,
            client_auth=self.tls_server_need_client_auth,
            trust=self.tls_server_trust_cert_path,
        )

    @property
    def client_tls(self) -> ClientTls | None:
        """TLS settings for connections to other servers, or None for plain text.

        Raise ConfigError for settings that contradict each other.
        """
        if not self.connects_with_tls:
            return None
        return self.tls_of_clients()

    @property
    def certificates_required(self) -> bool:
        """True if every client needs a certificate signed by `tls.server.trustCertPath`."""
        required = self.tls_server_need_client_auth is ClientAuth.REQUIRE
        return required and self.tls_server_mode is TlsMode.ENFORCING

    @property
    def connects_with_tls(self) -> bool:
        """True if this server connects to other servers with TLS."""
        return self.tls_enable

    def tls_of_clients(self) -> ClientTls:
        """Return the TLS settings of a client from the `tls.client.` keys, even if TLS is off."""
        return ClientTls(
            trust=self.tls_client_trust_cert_path or None,
            certificate=self.tls_client_cert_path or None,
            key=self.tls_client_key_path or None,
            key_password=self.tls_client_key_password or None,
            verify=self.tls_client_auth_server,
            check_host_name=self.tls_client_check_host_name,
        )


def _keys() -> KeyTable:
    return key_table(TlsConfig, "tls")


def with_tls_file(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a configuration, updated with those of its TLS file.

    `tls.config.file` names the TLS file, whose texts take precedence. Raise ConfigError if that
    file cannot be read. A default file that does not exist is no error.
    """
    path = tls_file(build(TlsConfig, texts, {}))
    if path is None:
        return dict(texts)
    return dict(texts) | read_properties(path, _keys())


def tls_file(config: TlsConfig) -> str | None:
    """Return the path of a configuration's TLS file, or None if it has no such file.

    None is also returned if the default file does not exist.
    """
    path = config.tls_config_file
    if not path or (path == CONFIG_FILE and not Path(path).is_file()):
        return None
    return path


VARIABLES: Final = {
    "tls": "TURBOPUMP_TLS",
    "tls_trust": "TURBOPUMP_TLS_TRUST",
    "tls_config": "TURBOPUMP_TLS_CONFIG",
}
"""Environment variables for arguments that are not passed to ``tls_of``."""


def tls_of(given: Mapping[str, str | None], environment: Mapping[str, str]) -> ClientTls | None:
    """Return the TLS settings of a command or of Spark's options, or None for plain text.

    - ``tls``: true or false.
    - ``tls_trust``: a PEM file.
    - ``tls_config``: a file with `tls.client.` keys.

    Either file switches TLS on, unless ``tls`` is false. Arguments that are absent come from the
    environment. Raise ConfigError if the settings are invalid.
    """
    told = {
        name: environment.get(variable) if given.get(name) is None else given[name]
        for name, variable in VARIABLES.items()
    }
    switch = (told["tls"] or "").strip().lower()
    if switch not in ("", "true", "false", "1", "0"):
        raise ConfigError(f"TLS is {switch[:40]!r}: expected true or false")
    file = told["tls_config"]
    trust = told["tls_trust"]
    if switch in ("false", "0") or not (switch or file or trust):
        return None
    config = TlsConfig()
    if file:
        config = build(TlsConfig, read_properties(file, _keys()), {})
    tls = config.tls_of_clients()
    if trust:
        return dataclasses.replace(tls, trust=trust)
    return tls
